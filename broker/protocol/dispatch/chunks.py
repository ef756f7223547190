"""The chunks of one message, on their way to shared consumers: all to the same one, in order.

The first chunk chooses the consumer; the choice stands until the last chunk is delivered, or the
consumer leaves.  While that consumer cannot take more, its chunks are *held*, and others go on.  A
chunk also waits while an earlier one of its message does, for whatever reason.
"""

from daybook.broker.protocol.dispatch.events import ConsumerKey, Entry, Place

_GROUPS_MAX = 10_000  # Messages whose last chunk never came are forgotten, the oldest first.


class Chunks:
    """Which message is whose, and which chunks wait."""

    def __init__(self) -> None:
        self._consumer: dict[str, ConsumerKey] = {}
        self._held: dict[ConsumerKey, dict[Place, None]] = {}
        # Not delivered yet: held, or let go (0), or for a time that has not come.
        self._waiting: dict[str, dict[Place, int]] = {}
        self.held = 0

    def consumer_of(self, entry: Entry) -> ConsumerKey | None:
        """Who has to get it, if that is decided."""
        return None if entry.group is None else self._consumer.get(entry.group)

    def waits_until(self, entry: Entry) -> int | None:
        """None if no earlier chunk of the same message waits; else the time for which one does."""
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
        """The consumer can take more: what was held for it, to be given out first."""
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
        """Forget who it was for; returns what was held for it."""
        self._consumer = {g: c for g, c in self._consumer.items() if c != consumer}
        return self.release(consumer)

    def gone(self, places: set[Place]) -> None:
        """These will never be delivered: nothing waits for them."""
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
