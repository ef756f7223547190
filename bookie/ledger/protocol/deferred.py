"""Writes whose sync may wait: which entries bookies have taken, and which they have on disk.

A bookie acknowledges such an entry when it has it in memory.  So there are two marks:

    acknowledged    an ack quorum of bookies has said that it has the entry, and all before it; a
                    crash of these bookies loses it
    the LAC         an ack quorum has *forced* the entry, and all before it: it is confirmed

`force` moves the LAC: every bookie that has acknowledged something up to there is asked to force.
What it had acknowledged when it was asked is `Held` when it answers, and counts for the LAC as a
usual acknowledgement does (`bookie.ledger.protocol.write`); what it acknowledged afterwards needs
another request.  When its connection ends, everything that it acknowledged and did not force is
forgotten: the bookie may have started anew, without it, and whatever it forces then proves nothing.

    protocol.step(Acknowledged(b1, 0, 3))    -> Taken(0, 3), when it is the last of an ack quorum
    protocol.step(ForceUpTo(2))              -> AskToForce(b1), AskToForce(b2)
    protocol.step(Forced(b1))                -> Held(b1, 0, 3)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeAlias, assert_never

from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId

# -- Events


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The bookie has these entries, perhaps in memory only."""

    bookie: BookieId
    first: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class ForceUpTo:
    """Everything up to this entry is to be on disk."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Forced:
    """What the bookie had acknowledged when it was asked is on its disk."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection has ended, or a request was not answered."""

    bookie: BookieId


Event: TypeAlias = Acknowledged | ForceUpTo | Forced | Lost


# -- Effects


@dataclass(frozen=True, slots=True)
class AskToForce:
    """By the connection on which it has acknowledged."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class Taken:
    """These entries are acknowledged, and all before them."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Held:
    """The bookie has these entries on disk."""

    bookie: BookieId
    first: int
    count: int


Effect: TypeAlias = AskToForce | Taken | Held


class DeferredProtocol:
    def __init__(self, ack_quorum: int) -> None:
        self.acknowledged = NO_ENTRY
        self._ack_quorum = ack_quorum
        self._target = NO_ENTRY
        self._taken_by: dict[int, set[BookieId]] = {}  # of those behind `acknowledged`
        self._unforced: dict[BookieId, set[int]] = {}
        self._least: dict[BookieId, int] = {}  # of what is unforced there
        self._forcing: dict[BookieId, set[int]] = {}  # who was asked, about what
        self._effects: list[Effect] = []

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Acknowledged(bookie, first, count):
                self._acknowledged(bookie, range(first, first + count))
            case ForceUpTo(entry_id):
                self._target = max(self._target, entry_id)
                for bookie in list(self._unforced):
                    self._ask(bookie)
            case Forced(bookie):
                forced = self._forcing.pop(bookie, set())
                self._effects += [Held(bookie, *run) for run in _runs(forced)]
                self._ask(bookie)
            case Lost(bookie):
                self._lost(bookie)
            case _:
                assert_never(event)
        effects, self._effects = self._effects, []
        return effects

    def _acknowledged(self, bookie: BookieId, entries: range) -> None:
        self._unforced.setdefault(bookie, set()).update(entries)
        self._least[bookie] = min(entries.start, self._least.get(bookie, entries.start))
        first = self.acknowledged + 1
        for entry_id in range(max(first, entries.start), entries.stop):
            self._taken_by.setdefault(entry_id, set()).add(bookie)
        while len(self._taken_by.get(self.acknowledged + 1, ())) >= self._ack_quorum:
            self.acknowledged += 1
            del self._taken_by[self.acknowledged]
        if self.acknowledged >= first:
            self._effects.append(Taken(first, self.acknowledged + 1 - first))
        self._ask(bookie)

    def _ask(self, bookie: BookieId) -> None:
        """One request at a time to each; what comes meanwhile has to wait for the next one."""
        if bookie not in self._forcing and self._least.get(bookie, inf) <= self._target:
            self._forcing[bookie] = self._unforced.pop(bookie)
            del self._least[bookie]
            self._effects.append(AskToForce(bookie))

    def _lost(self, bookie: BookieId) -> None:
        self._unforced.pop(bookie, None)
        self._least.pop(bookie, None)
        self._forcing.pop(bookie, None)
        for takers in self._taken_by.values():
            takers.discard(bookie)


def _runs(entries: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Consecutive ones together: first, and how many."""
    first = end = NO_ENTRY
    for entry_id in sorted(entries):
        if entry_id != end:
            if end > first:
                yield first, end - first
            first = entry_id
        end = entry_id + 1
    if end > first:
        yield first, end - first
