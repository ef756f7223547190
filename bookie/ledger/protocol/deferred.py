"""Writes with a deferred sync: which entries bookies have acknowledged, and which they have on
disk.

A bookie acknowledges such an entry when it has it in memory.  There are thus two marks:

    acknowledged    an ack quorum of bookies has the entry, and all entries before it, perhaps in
                    memory only; a crash of these bookies loses it
    the LAC         an ack quorum has *forced* the entry, and all before it: it is confirmed

A force moves the LAC.  Every bookie that acknowledged an entry up to there is asked to force.  Its
answer covers the entries that it had acknowledged when it was asked: they are `Held`, and count for
the LAC like plain acknowledgements (`bookie.ledger.protocol.write`).  Entries that it acknowledged
later need another request.  When its connection ends, all its acknowledgements without a force are
forgotten: the bookie may have restarted without these entries, and a later force proves nothing.

    protocol.acknowledged(b1, 0, 3)    -> Taken(0, 3), when it is the last of an ack quorum
    protocol.force_up_to(2)            -> AskToForce(b1), AskToForce(b2)
    protocol.forced(b1)                -> Held(b1, 0, 3)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId

# -- Effects


@dataclass(frozen=True, slots=True)
class AskToForce:
    """Ask the bookie to force, on the connection on which it acknowledged."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class Taken:
    """An ack quorum acknowledged these entries, and all entries before them."""

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
    """The marks of one writer."""

    def __init__(self, ack_quorum: int) -> None:
        self.last_acknowledged = NO_ENTRY
        self._ack_quorum = ack_quorum
        self._target = NO_ENTRY
        self._taken_by: dict[int, set[BookieId]] = {}  # above `last_acknowledged`
        self._unforced: dict[BookieId, set[int]] = {}
        self._least: dict[BookieId, int] = {}  # the smallest unforced entry of each bookie
        self._forcing: dict[BookieId, set[int]] = {}  # entries that a force under way covers
        self._effects: list[Effect] = []

    def acknowledged(self, bookie: BookieId, first: int, count: int = 1) -> list[Effect]:
        """The bookie has these entries, perhaps in memory only."""
        entries = range(first, first + count)
        self._unforced.setdefault(bookie, set()).update(entries)
        self._least[bookie] = min(entries.start, self._least.get(bookie, entries.start))
        head = self.last_acknowledged + 1
        for entry_id in range(max(head, entries.start), entries.stop):
            self._taken_by.setdefault(entry_id, set()).add(bookie)
        while len(self._taken_by.get(self.last_acknowledged + 1, ())) >= self._ack_quorum:
            self.last_acknowledged += 1
            del self._taken_by[self.last_acknowledged]
        if self.last_acknowledged >= head:
            self._effects.append(Taken(head, self.last_acknowledged + 1 - head))
        self._ask(bookie)
        return self._pop_effects()

    def force_up_to(self, entry_id: int) -> list[Effect]:
        """All entries up to this one have to be on disk."""
        self._target = max(self._target, entry_id)
        for bookie in list(self._unforced):
            self._ask(bookie)
        return self._pop_effects()

    def forced(self, bookie: BookieId) -> list[Effect]:
        """The bookie has on disk all entries that it had acknowledged when it was asked."""
        forced = self._forcing.pop(bookie, set())
        self._effects += [Held(bookie, *run) for run in _runs(forced)]
        self._ask(bookie)
        return self._pop_effects()

    def lost(self, bookie: BookieId) -> list[Effect]:
        """The connection has ended, or a request was not answered."""
        self._unforced.pop(bookie, None)
        self._least.pop(bookie, None)
        self._forcing.pop(bookie, None)
        # `last_acknowledged` does not go back: it was reported already, and is no promise.
        for takers in self._taken_by.values():
            takers.discard(bookie)
        return self._pop_effects()

    def _ask(self, bookie: BookieId) -> None:
        """Ask the bookie to force, one request at a time.

        Acknowledgements that arrive meanwhile wait for the next request.
        """
        if bookie not in self._forcing and self._least.get(bookie, inf) <= self._target:
            # The set is moved: the answer covers what was acknowledged before the request only.
            self._forcing[bookie] = self._unforced.pop(bookie)
            del self._least[bookie]
            self._effects.append(AskToForce(bookie))

    def _pop_effects(self) -> list[Effect]:
        """Return the effects of an input."""
        effects, self._effects = self._effects, []
        return effects


def _runs(entries: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return runs of consecutive entries: the first one, and their number."""
    first = end = NO_ENTRY
    for entry_id in sorted(entries):
        if entry_id != end:
            if end > first:
                yield first, end - first
            first = entry_id
        end = entry_id + 1
    if end > first:
        yield first, end - first
