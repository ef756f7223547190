"""The chunks of one message, on their way to shared consumers: all go to the same one, in order.

The first chunk chooses the consumer.  The choice stands until the last chunk is delivered and the
consumer has none of the chunks any more, or until the consumer leaves.  So a single chunk that
comes back goes to the consumer that has the others.  While that consumer cannot take more, its
chunks are *held*, and other entries are delivered.  A chunk also waits while an earlier chunk of
its message waits, for whatever reason.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from daybook.broker.protocol.dispatch.interface import Entry
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place

_GROUPS_MAX = 10_000  # With more, the oldest is forgotten: its last chunk may never come.


class _Waiting:
    """The chunks of one message that wait."""

    __slots__ = ("heap", "latest_ms", "places")

    def __init__(self) -> None:
        self.places: set[Place] = set()
        self.heap: list[Place] = []  # the same, the first one first, and some that are gone
        self.latest_ms = 0

    def add(self, place: Place, at_ms: int) -> None:
        self.latest_ms = max(self.latest_ms, at_ms)
        if place not in self.places:
            self.places.add(place)
            heappush(self.heap, place)

    def first(self) -> Place:
        while self.heap[0] not in self.places:
            heappop(self.heap)
        return self.heap[0]


class Chunks:
    """The consumers that messages in chunks belong to, and the chunks that wait."""

    def __init__(self) -> None:
        self._consumer: dict[str, ConsumerKey] = {}
        self._groups: dict[ConsumerKey, set[str]] = {}  # the same, by consumer
        self._held: dict[ConsumerKey, dict[Place, None]] = {}
        # Undelivered chunks by message: held, about to be delivered, or delayed.
        self._waiting: dict[str, _Waiting] = {}
        self._group_of: dict[Place, str] = {}  # the message of each chunk that waits
        self.held = 0
        # Chunks that a consumer has: with their messages, and how many of each message.
        self._out: dict[Place, str] = {}
        self._left: dict[str, int] = {}
        self._ended: set[str] = set()  # messages whose last chunk was delivered

    def consumer_of(self, entry: Entry) -> ConsumerKey | None:
        """Return the consumer that must get the entry, if that is decided."""
        return None if entry.group is None else self._consumer.get(entry.group)

    def waits_until(self, entry: Entry) -> int | None:
        """Return None if no earlier chunk of the same message waits.

        Otherwise return the latest time that a chunk of the message waits for, or 0.  A message is
        complete when its last chunk has come, so nobody misses the others before that.
        """
        waiting = self._waiting.get(entry.group or "")
        if waiting is None or waiting.first() >= entry.place:
            return None
        return waiting.latest_ms

    @property
    def delayed(self) -> int:
        """The number of chunks that wait, those that are not held."""
        return len(self._group_of) - self.held

    def hold(self, entry: Entry, consumer: ConsumerKey) -> None:
        self.wait(entry)
        held = self._held.setdefault(consumer, {})
        if entry.place not in held:
            held[entry.place] = None
            self.held += 1

    def wait(self, entry: Entry, at_ms: int = 0) -> None:
        """Later chunks of the message must wait for this one."""
        assert entry.group is not None
        self._waiting.setdefault(entry.group, _Waiting()).add(entry.place, at_ms)
        self._group_of[entry.place] = entry.group

    def held_for(self) -> list[tuple[ConsumerKey, int, Place]]:
        """Return the consumers for which chunks are held, with their number and the first one."""
        return [(key, len(held), min(held)) for key, held in self._held.items() if held]

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
        self.forget((entry.place,))
        group = entry.group
        self._out[entry.place] = group
        self._left[group] = self._left.get(group, 0) + 1
        if entry.group_ends:
            self._ended.add(group)
        if group not in self._consumer:
            self._consumer[group] = consumer
            self._groups.setdefault(consumer, set()).add(group)
            self._forget_some()

    def came_back(self, places: Iterable[Place]) -> None:
        """Note that no consumer has these entries any more: acknowledged, or given back."""
        if not self._out:
            return
        for place in places:
            group = self._out.pop(place, None)
            if group is None:
                continue
            self._left[group] -= 1
            if not self._left[group]:
                del self._left[group]
                if group in self._ended:
                    self._ended.remove(group)
                    if group in self._consumer:
                        self._forget(group)

    def came_back_up_to(self, last: Place) -> None:
        self.came_back([place for place in self._out if place <= last])

    def _forget_some(self) -> None:
        """One whose chunks wait is not forgotten: they would wait for a consumer without cause."""
        for _ in range(2):  # For each that comes: so it is at most twice as many as wait.
            if len(self._consumer) > _GROUPS_MAX:
                oldest = next(iter(self._consumer))
                if oldest in self._waiting:
                    self._consumer[oldest] = self._consumer.pop(oldest)
                else:
                    self._forget(oldest)

    def _forget(self, group: str) -> None:
        consumer = self._consumer.pop(group)
        groups = self._groups[consumer]
        groups.remove(group)
        if not groups:
            del self._groups[consumer]

    def leave(self, consumer: ConsumerKey) -> list[Place]:
        """Forget the messages of the consumer, and return the chunks that were held for it."""
        for group in self._groups.pop(consumer, ()):
            del self._consumer[group]
        return self.release(consumer)

    def forget(self, places: Iterable[Place]) -> None:
        """Forget entries that are delivered or never will be, so that no chunk waits for them."""
        for place in places:
            group = self._group_of.pop(place, None)
            if group is None:
                continue
            waiting = self._waiting[group]
            waiting.places.remove(place)
            if not waiting.places:
                del self._waiting[group]

    def forget_up_to(self, last: Place) -> None:
        self.forget([place for place in self._group_of if place <= last])

    def clear(self) -> None:
        self._consumer.clear()
        self._groups.clear()
        self._held.clear()
        self._waiting.clear()
        self._group_of.clear()
        self._out.clear()
        self._left.clear()
        self._ended.clear()
        self.held = 0
