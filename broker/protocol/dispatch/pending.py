"""The parts of dispatch machines: unacknowledged entries, and entries to be delivered again.

read --> delivered, unacknowledged --ack--> done
 |            |  ^
 | not yet    v  | replay: lowest place first
 +-> delayed, given back (by the consumer, or because it left)
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush, nsmallest

from daybook.broker.protocol.dispatch.places import ConsumerKey, Place

_MEAN_WEIGHT = 0.05
_COUNTS_MAX = 100_000  # counts of redeliveries that outlive the last consumer
_BATCHES_MAX = 1_000  # A client sees at once that it cannot read a batch: few are on their way.


class MeanEntry:
    """The mean number of messages of an entry, with more weight on recent ones."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages = 1.0

    def add(self, messages: int) -> None:
        self._messages += (messages - self._messages) * _MEAN_WEIGHT

    @property
    def messages(self) -> float:
        return self._messages

    def entries_for(self, permits: int, at_most: int) -> int:
        """Return how many entries the permits probably suffice for; at least one."""
        return max(1, min(int(permits / max(self._messages, 1.0)), at_most))


class Unacked:
    """The unacknowledged entries of each consumer, and how often each entry was given back."""

    def __init__(self) -> None:
        self.messages = 0  # for all consumers together
        self._entries: dict[ConsumerKey, dict[Place, int]] = {}
        self._messages: dict[ConsumerKey, int] = {}
        self._holder: dict[Place, ConsumerKey] = {}
        self._redeliveries: dict[Place, int] = {}

    def join(self, consumer: ConsumerKey) -> None:
        self._entries[consumer] = {}
        self._messages[consumer] = 0

    def leave(self, consumer: ConsumerKey) -> list[Place]:
        """Forget the consumer, and return the entries that it had."""
        places = list(self._entries[consumer])
        self._release(consumer, places)
        del self._entries[consumer], self._messages[consumer]
        return places

    def count_of(self, consumer: ConsumerKey) -> int:
        """Return the number of messages that the consumer has."""
        return self._messages[consumer]

    def oldest_of(self, consumer: ConsumerKey) -> Place | None:
        """Return the lowest entry that the consumer has."""
        return min(self._entries[consumer], default=None)

    def messages_of(self, consumer: ConsumerKey, place: Place) -> int:
        """Return how many messages of the entry the consumer has, or 0 if it does not have it."""
        return self._entries[consumer].get(place, 0)

    def deliver(self, consumer: ConsumerKey, place: Place, messages: int) -> int:
        """Note that the consumer gets the entry, and return how often it was given back before."""
        holder = self._holder.get(place)
        if holder is not None:
            self._release(holder, (place,))
        self._entries[consumer][place] = messages
        self._holder[place] = consumer
        self._messages[consumer] += messages
        self.messages += messages
        return self._redeliveries.get(place, 0)

    def is_held(self, place: Place) -> bool:
        return place in self._holder

    def ack(self, places: Iterable[Place]) -> None:
        """Take the entries from the consumers that have them, because they are acknowledged."""
        for place in places:
            holder = self._holder.get(place)
            if holder is not None:
                self._release(holder, (place,))
            self._redeliveries.pop(place, None)

    def ack_part(self, place: Place, left: int) -> None:
        """Note that at most `left` messages of the entry are not acknowledged."""
        holder = self._holder.get(place)
        if holder is None:
            return
        acked = self._entries[holder][place] - left
        if acked > 0:
            self._entries[holder][place] = left
            self._messages[holder] -= acked
            self.messages -= acked

    def ack_up_to(self, last: Place) -> None:
        self.ack([place for place in self._holder if place <= last])
        # Entries that no consumer has may have been given back, too.
        self._redeliveries = {p: n for p, n in self._redeliveries.items() if p > last}

    def give_back(self, consumer: ConsumerKey, places: Sequence[Place]) -> list[Place]:
        """Take entries back from the consumer, and return those that it had.

        If `places` is empty, take everything that it has.
        """
        held = self._entries[consumer]
        given = [place for place in places if place in held] if places else list(held)
        given = list(dict.fromkeys(given))  # A client may name an entry twice.
        self._release(consumer, given)
        for place in given:
            self._redeliveries[place] = self._redeliveries.get(place, 0) + 1
        return given

    def redeliveries(self) -> dict[Place, int]:
        """Return how often entries were given back; those that never were are left out.

        With very many, only the lowest entries are returned: they are delivered again first.
        """
        counts = self._redeliveries
        if len(counts) <= _COUNTS_MAX:
            return dict(counts)
        return {place: counts[place] for place in nsmallest(_COUNTS_MAX, counts)}

    def remember(self, redeliveries: Mapping[Place, int]) -> None:
        """Take over counts from before."""
        self._redeliveries.update(redeliveries)

    def forget(self) -> None:
        """Take everything from all consumers."""
        for consumer in self._entries:
            self._release(consumer, list(self._entries[consumer]))
        self._redeliveries.clear()

    def _release(self, consumer: ConsumerKey, places: Iterable[Place]) -> None:
        held = self._entries[consumer]
        for place in places:
            messages = held.pop(place)
            del self._holder[place]
            self._messages[consumer] -= messages
            self.messages -= messages
        assert self.messages >= 0


class Batches:
    """The permits that the latest batches took from the one consumer that gets everything."""

    def __init__(self) -> None:
        self._messages: OrderedDict[Place, int] = OrderedDict()

    def add(self, place: Place, messages: int) -> None:
        if messages > 1:
            self._messages[place] = messages
            if len(self._messages) > _BATCHES_MAX:
                self._messages.popitem(last=False)

    def take(self, place: Place) -> int:
        """Forget the batch, and return how many permits it took, or 0 if it is not known."""
        return self._messages.pop(place, 0)

    def take_up_to(self, last: Place) -> None:
        while self._messages:
            place = next(iter(self._messages))
            if place > last:
                return
            del self._messages[place]

    def clear(self) -> None:
        self._messages.clear()


class ReplayQueue:
    """Entries to be delivered again, lowest place first."""

    def __init__(self) -> None:
        self._heap: list[Place] = []  # all of them, and some that were removed
        self._in_heap: set[Place] = set()
        self._known: set[Place] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, place: Place) -> bool:
        return place in self._known

    def add(self, places: Sequence[Place]) -> None:
        for place in places:
            self._known.add(place)
            if place not in self._in_heap:
                self._in_heap.add(place)
                heappush(self._heap, place)

    def first(self, count: int) -> tuple[Place, ...]:
        found: list[Place] = []
        while self._heap and len(found) < count:
            place = heappop(self._heap)
            if place in self._known:
                found.append(place)
            else:
                self._in_heap.remove(place)
        for place in found:
            heappush(self._heap, place)
        return tuple(found)

    def remove(self, place: Place) -> None:
        self._known.discard(place)

    def remove_up_to(self, last: Place) -> None:
        while self._heap and self._heap[0] <= last:
            place = heappop(self._heap)
            self._in_heap.remove(place)
            self._known.discard(place)

    def clear(self) -> None:
        self._heap.clear()
        self._in_heap.clear()
        self._known.clear()
