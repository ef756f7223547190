"""The end of tombstones: a ledger that was deleted is forgotten when nothing can bring it back.

A tombstone answers a writer that comes too late.  It goes when all of this is true:

1. **No segment holds a record of the ledger.**  It is known between which positions they are
   (`LedgerState`), and no segment that is there reaches into that.  So no index that is made again
   from the log can have it.
2. **It is gone from the metadata still**: the caller has asked, when 1. was true already.
3. It is not the highest one of its directory.  That one stays, and speaks for those that went:
   whoever brings an unknown ledger with a lower id is let in only if the metadata have the ledger
   (`unknown_ledgers`).

The record of a tombstone is in a segment, too, and is written again when that is removed.  Not if
nothing else of the ledger is anywhere, and the metadata have said once that it is gone: then the
segment takes it along, and the row in the index is what is left (`Compactor`).  At last the row
goes with a checkpoint, and then, not before, the ledger is unknown here.  A crash in between leaves
the tombstone, or nothing at all.

While records are known to be lost nothing ends: what is lost may be of any ledger.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from itertools import pairwise
from math import inf

import trio

from daybook.bookie.storage.batches import begins
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.recovery import Contents
from daybook.bookie.storage.segments import Segment

_LEDGERS_A_TURN = 2000


class Tombstones:
    """Those of one directory."""

    def __init__(
        self,
        directory: LedgerDirectory,
        contents: Contents,
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self._directory = directory
        self._contents = contents
        self._checkpoint = checkpoint
        self._middles: list[tuple[Segment, LedgerState, int]] = []  # as they were
        self._confirmed: set[int] = set()  # the metadata have said once more that they are gone

    async def to_confirm(self, count: int) -> list[int]:
        """Up to so many of which the metadata have to say whether they are gone still."""
        found: list[int] = []
        spread = self._spread()
        for number, state in enumerate(list(self._directory.ledgers.values())):
            if number % _LEDGERS_A_TURN == _LEDGERS_A_TURN - 1:
                await trio.lowlevel.checkpoint()
            if self._may_end(state):
                segments = spread(state)
                asked = segments == 1 and state.ledger_id in self._confirmed
                if segments <= 1 and not asked:
                    found.append(state.ledger_id)
            if len(found) == count:
                break
        return found

    async def end(self, gone: list[int]) -> int:
        """The metadata say that these are gone still; returns how many are forgotten now."""
        self._confirmed.update(gone)
        spread = self._spread()
        dropping_row: list[LedgerState] = []
        for ledger_id in gone:
            state = self._directory.ledgers.get(ledger_id)
            if state is not None and self._may_end(state) and spread(state) == 0:
                dropping_row.append(state)
        if not dropping_row:
            return 0
        for state in dropping_row:
            state.dropping_row = True
            self._directory.locations.mark_changed(state)
        await self._checkpoint()
        if self._directory.log.failure or self._directory.locations.failure:
            return 0
        ledgers = self._directory.ledgers
        dropping_row = [state for state in dropping_row if ledgers.get(state.ledger_id) is state]
        for state in dropping_row:  # unless somebody else has ended them meanwhile
            self._directory.forget(state)
            self._confirmed.discard(state.ledger_id)
        return len(dropping_row)

    def tombstones_kept(self, segment: Segment) -> Callable[[LedgerState], bool]:
        """Which tombstones need not be written again before this segment goes."""
        self._middles.clear()
        spread, end = self._spread(), self._end_of(segment)

        def stays(state: LedgerState) -> bool:
            if state.last >= self._directory.log.durable or not spread.holds(state.last):
                return False  # for all that is known
            if not segment.first <= state.last < end:
                return True  # its record is in another one
            confirmed = state.ledger_id in self._confirmed
            return confirmed and self._may_end(state) and spread(state) == 1

        return stays

    def state_rewritten(self, state: LedgerState, segment: Segment, stated: int, last: int) -> None:
        """Its tombstone was written again, because this segment is to go."""
        end = self._end_of(segment)
        if segment.first <= state.stated <= state.last < end:
            self._middles.append((segment, state, state.middle))
        state.middle = max(state.middle, state.last)  # until the segment is gone
        state.stated, state.last = stated, last
        self._directory.locations.mark_changed(state)

    def removed(self, segment: Segment) -> None:
        """It is noted as removed: what was written again is no more where it was."""
        for written_for, state, middle in self._middles:
            if written_for == segment:
                state.middle = middle
                self._directory.locations.mark_changed(state)
        self._middles.clear()

    def _may_end(self, state: LedgerState) -> bool:
        directory = self._directory
        highest = state.ledger_id == directory.highest_tombstone
        return state.deleted and not (
            highest or directory.bookie_in_doubt or state.recent or state.frozen
        )

    def _ends(self) -> list[float]:
        """Where the segments end, in their order."""
        firsts = begins(self._directory.log.segments, self._contents.gaps)
        following = dict(pairwise([*firsts, inf]))
        return [following[segment.first] for segment in self._directory.log.segments]

    def _end_of(self, segment: Segment) -> float:
        return self._ends()[self._directory.log.segments.index(segment)]

    def _spread(self) -> "_Spread":
        return _Spread([each.first for each in self._directory.log.segments], self._ends())


class _Spread:
    """How many segments may hold records of a ledger."""

    def __init__(self, firsts: list[int], ends: list[float]) -> None:
        self._firsts = firsts
        self._ends = ends

    def __call__(self, state: LedgerState) -> int:
        some, others = self._of(state.first, state.middle), self._of(state.stated, state.last)
        both = range(max(some.start, others.start), min(some.stop, others.stop))
        return len(some) + len(others) - len(both)

    def _of(self, first: int, last: int) -> range:
        return range(bisect_right(self._ends, first), bisect_right(self._firsts, last))

    def holds(self, position: int) -> bool:
        return len(self._of(position, position)) > 0
