"""The removal of tombstones: a deleted ledger is forgotten when nothing can bring it back.

A tombstone refuses the adds of a late writer.  It is removed when all of this is true:

1. **No segment holds a record of the ledger.**  `LedgerState` has the positions between which its
   records lie, and no segment reaches into these ranges.  So no index that is rebuilt from the log
   can have the ledger.
2. **The ledger is still gone from the metadata**: the caller asked when 1. was already true.
3. It is not the highest tombstone of its directory.  The highest one stays for all that were
   removed: an unknown ledger with a lower id is accepted only if the metadata have it
   (`unknown_ledgers`).

The record of a tombstone lies in a segment, too, and compaction writes it again before it deletes
the segment.  The exception is a ledger that has no other record and is confirmed to be gone: its
record is deleted with the segment, and only its row in the index is left.  A checkpoint then drops
the row, and only after that the ledger is unknown.  A crash in between leaves the tombstone, or
no trace of the ledger.

While the bookie is in doubt no tombstone is removed: the lost records may belong to any ledger.
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
    """The tombstones of one directory."""

    def __init__(
        self,
        directory: LedgerDirectory,
        contents: Contents,
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self._directory = directory
        self._contents = contents
        self._checkpoint = checkpoint
        self._middles: list[tuple[Segment, LedgerState, int]] = []  # the values before
        self._confirmed: set[int] = set()  # the metadata said again that these are gone

    async def to_confirm(self, count: int) -> list[int]:
        """Return up to `count` tombstones; the metadata must confirm that each is still gone."""
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
        """Forget confirmed ledgers without records, of those in `gone`; return their number."""
        self._confirmed.update(gone)
        spread = self._spread()
        ending: list[LedgerState] = []
        for ledger_id in gone:
            state = self._directory.ledgers.get(ledger_id)
            if state is not None and self._may_end(state) and spread(state) == 0:
                ending.append(state)
        if not ending:
            return 0
        for state in ending:
            state.dropping_row = True
            self._directory.locations.mark_changed(state)
        await self._checkpoint()
        if self._directory.log.failure or self._directory.locations.failure:
            return 0
        ledgers = self._directory.ledgers
        # Another call may have ended some of them during the checkpoint.
        ending = [state for state in ending if ledgers.get(state.ledger_id) is state]
        for state in ending:
            # The row is gone, and no segment holds a record: nothing can bring the ledger back.
            assert state.deleted
            assert not state.recent
            assert not state.frozen
            self._directory.forget(state)
            self._confirmed.discard(state.ledger_id)
        return len(ending)

    def tombstones_kept(self, segment: Segment) -> Callable[[LedgerState], bool]:
        """Return a test for tombstones that need no new copy before this segment is deleted."""
        self._middles.clear()
        spread, end = self._spread(), self._end_of(segment)

        def stays(state: LedgerState) -> bool:
            if state.last >= self._directory.log.durable or not spread.holds(state.last):
                return False  # its position is not certain
            if not segment.first <= state.last < end:
                return True  # its record is in another segment
            confirmed = state.ledger_id in self._confirmed
            return confirmed and self._may_end(state) and spread(state) == 1

        return stays

    def state_rewritten(self, state: LedgerState, segment: Segment, stated: int, last: int) -> None:
        """Note that a tombstone was written again, since this segment will be deleted."""
        end = self._end_of(segment)
        if segment.first <= state.stated <= state.last < end:
            self._middles.append((segment, state, state.middle))
        state.middle = max(state.middle, state.last)  # until the segment is gone
        state.stated, state.last = stated, last
        self._directory.locations.mark_changed(state)

    def removed(self, segment: Segment) -> None:
        """Note that the segment is deleted: the old copies of its tombstones are gone."""
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
        """Return where the segments end, in their order."""
        firsts = begins(self._directory.log.segments, self._contents.gaps)
        following = dict(pairwise([*firsts, inf]))
        return [following[segment.first] for segment in self._directory.log.segments]

    def _end_of(self, segment: Segment) -> float:
        return self._ends()[self._directory.log.segments.index(segment)]

    def _spread(self) -> "_Spread":
        return _Spread([each.first for each in self._directory.log.segments], self._ends())


class _Spread:
    """Counts the segments that may hold records of a ledger."""

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
