"""The chunks of one message, on their way to shared consumers: all go to the same one, in order.

The first chunk chooses the consumer.  The choice stands until the last chunk is delivered or the
consumer leaves.  While that consumer cannot take more, its chunks are *held*, and other entries are
delivered.  A chunk also waits while an earlier chunk of its message waits, for whatever reason.
"""

from daybook.broker.protocol.dispatch.events import ConsumerKey, Entry, Place

_GROUPS_MAX = 10_000  # With more, the oldest is forgotten: its last chunk may never come.


class Chunks:
    """The consumers that messages in chunks belong to, and the chunks that wait."""

    def __init__(self) -> None:
        self._consumer: dict[str, ConsumerKey] = {}
        self._held: dict[ConsumerKey, dict[Place, None]] = {}
        # Undelivered chunks by message.  The number is the time that a delayed chunk waits for, or
        # 0 if the chunk is held or about to be delivered.
        self._waiting: dict[str, dict[Place, int]] = {}
        self.held = 0

    def consumer_of(self, entry: Entry) -> ConsumerKey | None:
        """Return the consumer that must get the entry, if that is decided."""
        return None if entry.group is None else self._consumer.get(entry.group)

    def waits_until(self, entry: Entry) -> int | None:
        """Return None if no earlier chunk of the same message waits.

        Otherwise return the latest time that one of them waits for, or 0.
        """
        waiting = self._waiting.get(entry.group or "", {})
        earlier = [at_ms for place, at_ms in waiting.items() if place < entry.place]
        return max(earlier, default=None)

    def hold(self, entry: Entry, consumer: ConsumerKey) -> None:
        self.wait(entry)
        held = self._held.setdefault(consumer, {})
        if entry.place not in held:
            held[entry.place] = None
            self.held += 1

    def wait(self, entry: Entry, at_ms: int = 0) -> None:
        """Later chunks of the message must wait for this one."""
        assert entry.group is not None
        self._waiting.setdefault(entry.group, {})[entry.place] = at_ms

    def release(self, consumer: ConsumerKey) -> list[Place]:
        """Return the chunks that were held for the consumer, because it can take more now.

        They must be delivered before anything else.
        """
        places = list(self._held.pop(consumer, ()))
        self.held -= len(places)
        return places

    def delivered(self, entry: Entry, consumer: ConsumerKey) -> None:
        if entry.group is None:
            return
        waiting = self._waiting.get(entry.group)
        if waiting is not None:
            waiting.pop(entry.place, None)
            if not waiting:
                del self._waiting[entry.group]
        if entry.group_ends:
            self._consumer.pop(entry.group, None)
        elif entry.group not in self._consumer:
            self._consumer[entry.group] = consumer
            if len(self._consumer) > _GROUPS_MAX:
                del self._consumer[next(iter(self._consumer))]

    def leave(self, consumer: ConsumerKey) -> list[Place]:
        """Forget the messages of the consumer, and return the chunks that were held for it."""
        self._consumer = {g: c for g, c in self._consumer.items() if c != consumer}
        return self.release(consumer)

    def gone(self, places: set[Place]) -> None:
        """Forget entries that will never be delivered, so that no chunk waits for them."""
        for group in list(self._waiting):
            waiting = self._waiting[group]
            for place in places.intersection(waiting):
                del waiting[place]
            if not waiting:
                del self._waiting[group]

    def gone_up_to(self, last: Place) -> None:
        self.gone({p for waiting in self._waiting.values() for p in waiting if p <= last})

    def clear(self) -> None:
        self._consumer.clear()
        self._held.clear()
        self._waiting.clear()
        self.held = 0
