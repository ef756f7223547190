"""Reads of entries: from one bookie of the write set, then from the next.

An entry is asked of one bookie.  After any failure (no answer in time, an error, a digest that does
not match, or a negative answer) the next bookie of the write set is asked.  The entry is *absent*
only if every bookie of its write set gave a negative answer.  If all were asked, none had it, and
one could not say, the entry is unknown: it cannot be read now, and may exist.

    protocol = ReadProtocol(quorums, fragments, first=7, count=3, prefer=(b2,))
    effects = protocol.start()       # Ask(b2, 7, 3)

Bookies in `prefer` are asked first where they hold the entry, and those in `avoid` last.  The
caller decides which entries may be read (up to the LAC of an open ledger, or the end of a closed
one). `found` reports a found entry without making an effect for each.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums, fragment_at


class Verdict(Enum):
    """The meaning of one bookie's answer about one entry."""

    FOUND = auto()  # the entry came, and its digest matches
    ABSENT = auto()  # the bookie has no such entry or no such ledger
    UNKNOWN = auto()  # any other answer, or none


@dataclass(frozen=True, slots=True)
class Ask:
    bookie: BookieId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Found:
    """The newest answer has the entry."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """No bookie of the write set has given the entry."""

    entry_id: int
    absent: bool  # False if it is unknown whether the entry exists


Effect: TypeAlias = Ask | Found | Failed


_NOBODY: frozenset[BookieId] = frozenset()


class Inquiry:
    """One entry, and the answers of its write set."""

    __slots__ = ("_absent", "_order", "_unknown", "asked")

    def __init__(self, order: Sequence[BookieId]) -> None:
        self._order = order
        self._absent = self._unknown = _NOBODY  # The first bookie usually has the entry.
        self.asked = 0

    def next(self) -> BookieId | None:
        """Return the bookie to ask next, or None if all were asked."""
        if self.asked == len(self._order):
            return None
        self.asked += 1
        return self._order[self.asked - 1]

    def rest(self) -> Iterator[BookieId]:
        """Yield the bookies that were not asked yet, and count them as asked."""
        while (bookie := self.next()) is not None:
            yield bookie

    def answered(self, bookie: BookieId, verdict: Verdict) -> None:
        """Record an answer that is not FOUND."""
        if bookie not in self._order:
            return  # Only the write set can prove an absence.
        if verdict is Verdict.ABSENT:
            self._absent |= {bookie}
        else:
            self._unknown |= {bookie}

    @property
    def absences(self) -> int:
        return len(self._absent)

    @property
    def unknown(self) -> frozenset[BookieId]:
        """The bookies that failed to answer, or whose answer proves nothing."""
        return self._unknown

    @property
    def exhausted(self) -> bool:
        """True if every bookie of the write set has answered."""
        return len(self._absent | self._unknown) == len(self._order)

    @property
    def waiting(self) -> bool:
        """True if a bookie that was asked has not answered."""
        return len(self._absent | self._unknown) < self.asked

    def snapshot(self) -> "InquirySnapshot":
        absent, unknown = tuple(sorted(self._absent)), tuple(sorted(self._unknown))
        return tuple(self._order), absent, unknown, self.asked

    @classmethod
    def restored(cls, snapshot: "InquirySnapshot") -> "Inquiry":
        order, absent, unknown, asked = snapshot
        inquiry = cls(order)
        inquiry._absent, inquiry._unknown = frozenset(absent), frozenset(unknown)
        inquiry.asked = asked
        return inquiry


InquirySnapshot: TypeAlias = tuple[
    tuple[BookieId, ...], tuple[BookieId, ...], tuple[BookieId, ...], int
]

Snapshot: TypeAlias = tuple[tuple[int, InquirySnapshot], ...]


def asking_order(
    quorums: Quorums,
    fragments: Sequence[Fragment],
    entry_id: int,
    prefer: Collection[BookieId] = (),
    avoid: Collection[BookieId] = (),
) -> list[BookieId]:
    """Return the write set of an entry, those in `prefer` first, those in `avoid` last."""
    ensemble = fragment_at(fragments, entry_id).ensemble
    write_set = [ensemble[position] for position in quorums.write_set(entry_id)]
    write_set.sort(key=lambda bookie: (bookie in avoid, bookie not in prefer))
    return write_set


class ReadProtocol:
    """Reads `count` entries from `first` on."""

    def __init__(
        self,
        quorums: Quorums,
        fragments: Sequence[Fragment],
        first: int,
        count: int,
        *,
        prefer: Collection[BookieId] = (),
        avoid: Collection[BookieId] = (),
    ) -> None:
        self._quorums = quorums
        self._fragments = fragments
        self._first = first
        self._count = count
        self._prefer = prefer
        self._avoid = avoid
        self._open: dict[int, Inquiry] = {}  # undecided entries
        self._effects: list[Effect] = []

    @property
    def done(self) -> bool:
        return not self._open

    def start(self) -> list[Effect]:
        """Ask the first bookies."""
        asked: BookieId | None = None
        first = count = 0
        for entry_id, order in self._orders():
            inquiry = self._open[entry_id] = Inquiry(order)
            bookie = inquiry.next()
            assert bookie is not None
            if bookie == asked:
                count += 1
                continue
            if asked is not None:
                self._effects.append(Ask(asked, first, count))
            asked, first, count = bookie, entry_id, 1
        if asked is not None:
            self._effects.append(Ask(asked, first, count))
        return self._pop_effects()

    def slow(self) -> list[Effect]:
        """Answers take long: ask the next bookies as well."""
        for entry_id, inquiry in self._open.items():
            self._ask_next(entry_id, inquiry)
        return self._pop_effects()

    def _orders(self) -> Iterator[tuple[int, Sequence[BookieId]]]:
        """Yield each entry with its order of bookies.

        Within a fragment there are only as many orders as bookies, so they are computed once.
        """
        starts = {fragment.first_entry_id for fragment in self._fragments}
        size = self._quorums.ensemble
        orders: dict[int, list[BookieId]] = {}  # entry id modulo `size` -> order
        for entry_id in range(self._first, self._first + self._count):
            if entry_id in starts:
                orders.clear()
            order = orders.get(entry_id % size)
            if order is None:
                order = orders[entry_id % size] = asking_order(
                    self._quorums, self._fragments, entry_id, self._prefer, self._avoid
                )
            yield entry_id, order

    def answered(self, bookie: BookieId, entry_id: int, verdict: Verdict) -> list[Effect]:
        """The bookie has answered about the entry, or it has not in time."""
        if verdict is Verdict.FOUND:
            return [Found(entry_id)] if self.found(entry_id) else []
        inquiry = self._open.get(entry_id)
        if inquiry is None:
            return []  # An earlier answer decided this entry.
        inquiry.answered(bookie, verdict)
        if inquiry.exhausted:
            del self._open[entry_id]
            absent = inquiry.absences == self._quorums.write
            self._effects.append(Failed(entry_id, absent))
        elif not inquiry.waiting:
            self._ask_next(entry_id, inquiry)
        return self._pop_effects()

    def found(self, entry_id: int) -> bool:
        """Do the same as `answered(..., FOUND)`.

        Return False if the entry was decided before.
        """
        return self._open.pop(entry_id, None) is not None

    def _ask_next(self, entry_id: int, inquiry: Inquiry) -> None:
        bookie = inquiry.next()
        if bookie is not None:
            self._effects.append(Ask(bookie, entry_id, 1))

    def _pop_effects(self) -> list[Effect]:
        """Return the effects of an input."""
        effects, self._effects = self._effects, []
        return effects

    # -- for the model checker

    def snapshot(self) -> Snapshot:
        """Return the whole state between two inputs."""
        return tuple((e, inquiry.snapshot()) for e, inquiry in sorted(self._open.items()))

    def restore(self, snapshot: Snapshot) -> None:
        self._open = {entry_id: Inquiry.restored(inquiry) for entry_id, inquiry in snapshot}
        self._effects.clear()

    def canonical(self) -> Snapshot:
        """Return the same value for states that behave the same."""
        return self.snapshot()
