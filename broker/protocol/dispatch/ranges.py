"""Which key_shared consumer serves which keys.

A key is a 31-bit hash (`murmur`) of the text by which a producer orders its messages.  Each key
belongs to a *slot* from 1 to 65,535, and each slot to one consumer.  There are three ways to share
the slots, with Pulsar's rules and numbers:

    consistent hashing   each consumer has points on a ring of slots, and serves the slots up to its
                         points; the set of consumers alone decides
    auto-split           a newcomer takes the lower half of the largest range; the range of a
                         consumer that leaves goes to its upper neighbour
    sticky               each consumer names its ranges; a slot may be without a consumer

When a consumer joins, only slots that it gets change hands.  When one leaves, only its own do.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol, TypeAlias

from daybook.broker.protocol.dispatch.murmur import murmur3_each
from daybook.broker.protocol.dispatch.places import ConsumerKey, SlotRange

SLOTS = 1 << 16
RANGES_MAX = 1_000  # a sticky consumer names no more; each costs a look at those of the others
_OUTDATED_MAX = 32  # lengths of ranges that have changed, before they are sorted out
_TOP = SLOTS  # Pulsar's ranges end here, one above the highest slot in use, and begin behind 0.

Owner: TypeAlias = ConsumerKey | None
"""None: the slot has no consumer."""


class KeyRanges(Protocol):
    """How the slots are shared.  The methods change it, and look into it."""

    def slot_of(self, key: int) -> int: ...

    def owner_of(self, key: int) -> Owner:
        """Return the consumer that serves the key."""
        ...

    def refusal(self, ranges: Sequence[SlotRange]) -> str | None:
        """Return why no consumer with these ranges can join; None if it can."""
        ...

    def add(self, consumer: ConsumerKey, name: str, ranges: Sequence[SlotRange]) -> set[Owner]:
        """Give slots to a newcomer, and return the owners that have lost some.

        The caller has asked `refusal`.
        """
        ...

    def remove(self, consumer: ConsumerKey) -> None:
        """Give the slots of the consumer to others."""
        ...

    def of_consumer(self, consumer: ConsumerKey) -> list[SlotRange]:
        """Return the ranges of the consumer, first and last slot included."""
        ...


class AutoSplitRanges:
    """Ranges that are halved when consumers join."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the last slots of all ranges, sorted
        self._owner: dict[int, ConsumerKey] = {}  # by the last slot
        self._end: dict[ConsumerKey, int] = {}
        # The lengths of ranges, negated, with their last slots: the largest and lowest comes first.
        # An entry counts only if the range still has this length.
        self._largest: list[tuple[int, int]] = []

    def slot_of(self, key: int) -> int:
        return key % SLOTS or 1  # 0 means "no slot" to Pulsar's tools.

    def owner_of(self, key: int) -> Owner:
        if not self._ends:
            return None
        return self._owner[self._ends[bisect_left(self._ends, self.slot_of(key))]]

    def refusal(self, ranges: Sequence[SlotRange]) -> str | None:
        del ranges
        if not self._ends or self._peek_largest()[0] > 1:
            return None
        return f"each of the {len(self._ends)} consumers has one slot only, so none can be split"

    def add(self, consumer: ConsumerKey, name: str, ranges: Sequence[SlotRange]) -> set[Owner]:
        del name, ranges
        if not self._ends:
            self._put(_TOP, consumer)
            return set()
        length, end = self._peek_largest()
        middle = end - (length >> 1)
        loser = self._owner[end]
        self._put(middle, consumer)
        self._note_length(end)
        return {loser}

    def remove(self, consumer: ConsumerKey) -> None:
        end = self._end.pop(consumer)
        if end == _TOP and len(self._ends) > 1:
            # The top range has no upper neighbour, so it goes to the lower one.
            lower = self._ends[-2]
            heir = self._owner.pop(lower)
            self._ends.remove(lower)
            self._owner[end], self._end[heir] = heir, end
        else:
            del self._ends[bisect_left(self._ends, end)], self._owner[end]
        at = bisect_left(self._ends, end)
        if at < len(self._ends):
            self._note_length(self._ends[at])

    def of_consumer(self, consumer: ConsumerKey) -> list[SlotRange]:
        end = self._end[consumer]
        return [(end - self._length(end) + 1, min(end, SLOTS - 1))]

    def _put(self, end: int, consumer: ConsumerKey) -> None:
        insort(self._ends, end)
        self._owner[end], self._end[consumer] = consumer, end
        self._note_length(end)

    def _length(self, end: int) -> int:
        at = bisect_left(self._ends, end)
        return end - (self._ends[at - 1] if at else 0)

    def _note_length(self, end: int) -> None:
        heappush(self._largest, (-self._length(end), end))
        if len(self._largest) > 2 * len(self._ends) + _OUTDATED_MAX:
            self._largest = [(-self._length(each), each) for each in self._ends]
            heapify(self._largest)

    def _peek_largest(self) -> tuple[int, int]:
        """Return length and last slot of the largest range."""
        while True:
            length, end = -self._largest[0][0], self._largest[0][1]
            if end in self._owner and self._length(end) == length:
                return length, end
            heappop(self._largest)


# The hash of the point first, so that of two consumers at one slot the same one always wins.
_Point: TypeAlias = tuple[int, str, int, ConsumerKey]


@dataclass(slots=True)
class _Numbers:
    """The numbers of the consumers of one name."""

    next: int = 0
    free: list[int] = field(default_factory=list[int])  # a heap of those below `next`


class RingRanges:
    """Consistent hashing.  The points of a consumer follow from its name.

    Consumers of the same name are numbered.  If several consumers have a point at one slot, the
    point with the lowest hash counts, and the others return when it is gone.
    """

    def __init__(self, points: int) -> None:
        self._endings = [b"\0%d" % point for point in range(points)]
        self._slots: list[int] = []  # all slots that have points, sorted
        self._points: dict[int, list[_Point]] = {}  # by slot; the one that counts is the first
        self._of: dict[ConsumerKey, list[tuple[int, _Point]]] = {}
        self._known: dict[int, Owner] = {}  # the owners of slots that were asked for
        self._numbers: dict[str, _Numbers] = {}  # by name
        self._named: dict[ConsumerKey, tuple[str, int]] = {}

    def slot_of(self, key: int) -> int:
        return key % (SLOTS - 1) + 1

    def owner_of(self, key: int) -> Owner:
        slot = key % (SLOTS - 1) + 1
        owner = self._known.get(slot)
        if owner is None:
            owner = self._known[slot] = self._owner_at(slot)
        return owner

    def _owner_at(self, slot: int) -> Owner:
        slots = self._slots
        if not slots:
            return None
        at = bisect_left(slots, slot)
        return self._points[slots[at if at < len(slots) else 0]][0][-1]

    def refusal(self, ranges: Sequence[SlotRange]) -> str | None:
        del ranges
        return None

    def add(self, consumer: ConsumerKey, name: str, ranges: Sequence[SlotRange]) -> set[Owner]:
        del ranges
        number = self._number(name)
        self._named[consumer] = name, number
        losers: set[Owner] = set()
        self._known.clear()
        mine = self._of[consumer] = []
        for value in murmur3_each(b"%b\0%d" % (name.encode(), number), self._endings):
            slot = self.slot_of(value)
            point = value, name, number, consumer
            losers.add(self._owner_at(slot))
            there = self._points.get(slot)
            if there is None:
                self._points[slot] = [point]
                insort(self._slots, slot)
            else:
                insort(there, point)
            mine.append((slot, point))
        return losers - {consumer, None}

    def _number(self, name: str) -> int:
        """Return the lowest number that no consumer of this name has."""
        numbers = self._numbers.setdefault(name, _Numbers())
        if numbers.free:
            return heappop(numbers.free)
        numbers.next += 1
        return numbers.next - 1

    def remove(self, consumer: ConsumerKey) -> None:
        self._known.clear()
        name, number = self._named.pop(consumer)
        numbers = self._numbers[name]
        heappush(numbers.free, number)
        if len(numbers.free) == numbers.next:
            del self._numbers[name]
        for slot, point in self._of.pop(consumer):
            there = self._points[slot]
            del there[bisect_left(there, point)]
            if not there:
                del self._points[slot], self._slots[bisect_left(self._slots, slot)]

    def of_consumer(self, consumer: ConsumerKey) -> list[SlotRange]:
        slots = self._slots
        found: list[SlotRange] = []
        for slot, point in self._of[consumer]:
            if self._points[slot][0] is not point:
                continue
            at = bisect_left(slots, slot)
            if at:
                found.append((slots[at - 1] + 1, slot))
                continue
            found.append((1, slot))
            if slots[-1] < SLOTS - 1:  # The ring goes on behind its end.
                found.append((slots[-1] + 1, SLOTS - 1))
        return _joined(found)


class StickyRanges:
    """Ranges that the consumers name."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, ConsumerKey]] = []  # sorted, without overlaps
        self._of: dict[ConsumerKey, list[SlotRange]] = {}

    def slot_of(self, key: int) -> int:
        return key % SLOTS or 1

    def owner_of(self, key: int) -> Owner:
        slot = self.slot_of(key)
        at = bisect_right(self._taken, slot, key=_first) - 1
        if at < 0 or self._taken[at][1] < slot:
            return None
        return self._taken[at][2]

    def refusal(self, ranges: Sequence[SlotRange]) -> str | None:
        return ranges_problem(ranges) or self._overlap(ranges)

    def _overlap(self, ranges: Sequence[SlotRange]) -> str | None:
        for first, last in ranges:
            for start, end, _ in self._overlapping(first, last):
                return f"the slots {first} to {last} overlap {start} to {end} of another consumer"
        return None

    def overlapping(self, ranges: Sequence[SlotRange]) -> set[ConsumerKey]:
        """Return the consumers that have one of these slots."""
        return {each[2] for one in ranges for each in self._overlapping(*one)}

    def _overlapping(self, first: int, last: int) -> list[tuple[int, int, ConsumerKey]]:
        begin = bisect_right(self._taken, first, key=_first)
        if begin and self._taken[begin - 1][1] >= first:
            begin -= 1
        return self._taken[begin : bisect_right(self._taken, last, key=_first)]

    def add(self, consumer: ConsumerKey, name: str, ranges: Sequence[SlotRange]) -> set[Owner]:
        del name
        assert self.refusal(ranges) is None
        self._of[consumer] = sorted(ranges)
        for first, last in ranges:
            insort(self._taken, (first, last, consumer))
        return {None}

    def remove(self, consumer: ConsumerKey) -> None:
        for first, last in self._of.pop(consumer):
            del self._taken[bisect_left(self._taken, (first, last, consumer))]

    def of_consumer(self, consumer: ConsumerKey) -> list[SlotRange]:
        return self._of[consumer]


def _first(taken: tuple[int, int, ConsumerKey]) -> int:
    return taken[0]


def ranges_problem(ranges: Sequence[SlotRange]) -> str | None:
    """Return what is wrong with the ranges of one sticky consumer; None if nothing is."""
    if not ranges:
        return "a sticky consumer has to name its hash ranges, and this one names none"
    if len(ranges) > RANGES_MAX:
        return f"a consumer may name {RANGES_MAX} hash ranges, and this one names {len(ranges)}"
    for first, last in ranges:
        if not 0 <= first <= last < SLOTS:
            return f"the range {first} to {last} is not one of slots from 0 to {SLOTS - 1}"
    ordered = sorted(ranges)
    for (_, last), (first, _) in pairwise(ordered):
        if first <= last:
            return f"the consumer names slot {first} twice"
    return None


def _joined(ranges: Iterable[SlotRange]) -> list[SlotRange]:
    """Return the ranges, sorted, and neighbours made one."""
    found: list[SlotRange] = []
    for first, last in sorted(ranges):
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found
