"""Mends one ledger: looks what it lacks, copies it, and takes the mark away.

    MENDED      it is whole, and the mark is gone
    GONE        there is no such ledger (any more), or no mark
    TAKEN       somebody else works on it
    WRITER      what it lacks is its writer's: the mark stays until the ledger is closed
    NO_SPARE    an alarm; nothing is locked meanwhile
    NO_COPY     an alarm: of some entries nobody can give a copy; what can be filled is filled, and
                who may have one keeps its place
    UNREADABLE  an alarm: its metadata do not parse, or make no sense
    LATER       somebody did not answer, or it changed underneath

Lists of entries are believed until a copy that should be there cannot be read: then every copy is
read, so that it comes out whose it is that is damaged.

A copy that moves goes to a bookie that leaves its write sets in as many racks as can be, as a
writer would choose; but a copy in the same rack as the others is better than none.

Cancelling it leaves nothing half done: metadata change only when all entries are durable at the
newcomer.  Copying ends by itself when the bookie that it was for is back.

An open ledger is never fenced because a bookie is gone, unless that is set.  A ledger that somebody
began to recover, and did not end, is recovered: nobody writes to it any more.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

import trio

from daybook.bookie.errors import (
    MalformedMetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadUnknownError,
    RecoveryAbortedError,
)
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerState
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.ledger.protocol.racks import RackRule, Racks
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.replication.board import Alarm, Board, Trouble
from daybook.bookie.replication.checker import Checker, TooManyEntriesError
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.marks import Mark, Marks
from daybook.bookie.replication.members import Members
from daybook.bookie.replication.protocol.copies import (
    GONE,
    Fill,
    Move,
    Presence,
    Report,
    Stretch,
    names,
    settled_stretches,
)
from daybook.bookie.replication.protocol.pace import Pace
from daybook.bookie.replication.protocol.replace import newcomers
from daybook.bookie.replication.replicator import Replaced, Replicator, TargetError
from daybook.wire.metadata.store import MetadataError

_log = logging.getLogger(__name__)
_RELEASE_S = 5.0
_NO_SPARE = "no bookie that can be written to could take the place: start another one"


class Outcome(Enum):
    MENDED = auto()
    GONE = auto()
    TAKEN = auto()
    WRITER = auto()
    NO_SPARE = auto()
    NO_COPY = auto()
    UNREADABLE = auto()
    LATER = auto()


@dataclass(slots=True)
class _Tried:
    """What came out while one ledger was mended."""

    verified: set[BookieId]  # of these every copy is read
    filled: set[BookieId] = field(default_factory=set[BookieId])
    refused: set[BookieId] = field(default_factory=set[BookieId])  # did not take copies


class Mender:
    """`copied` hears of entries and bytes as they become durable."""

    def __init__(
        self,
        context: LedgerContext,
        marks: Marks,
        members: Members,
        board: Board,
        limits: ReplicationLimits,
        copied: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._marks = marks
        self._members = members
        self._board = board
        self._limits = limits
        pace = Pace(limits.rate_bytes_per_s, limits.burst_bytes)
        self._checker = Checker(context, pace)
        self._replicator = Replicator(context, pace, copied)
        self._unclosed_since: dict[int, float] = {}
        self._suspects: dict[int, frozenset[BookieId]] = {}  # whose lists are not believed
        self.lock_left = False  # set when a lock could not be given back

    async def mend(self, ledger_id: int) -> Outcome:
        """Do what can be done for a marked ledger."""
        mark = await self._marks.read(ledger_id)
        if mark is None:
            await self._board.clear_alarm(ledger_id)
            return Outcome.GONE
        try:
            return await self._mend_marked(mark)
        except NoSuchLedgerError:
            self._forget(ledger_id)
            await self._marks.resolve(mark)
            await self._board.clear_alarm(ledger_id)
            return Outcome.GONE
        except (MalformedMetadataError, TooManyEntriesError) as error:
            await self._alarm(ledger_id, Trouble.UNREADABLE, str(error), ())
            return Outcome.UNREADABLE

    async def _mend_marked(self, mark: Mark) -> Outcome:
        ledger_id = mark.ledger_id
        stored = await self._context.metadata_store.read(ledger_id)
        if not self._has_spares(mark, stored):
            await self._alarm(ledger_id, Trouble.NO_SPARE, _NO_SPARE, ())
            return Outcome.NO_SPARE
        if not await self._marks.lock(ledger_id):
            return Outcome.TAKEN
        try:
            return await self._mend_locked(mark, stored)
        finally:
            await self._release(ledger_id)

    async def _release(self, ledger_id: int) -> None:
        self.lock_left = True
        with trio.move_on_after(_RELEASE_S, shield=True):
            try:
                await self._marks.release(ledger_id)
                self.lock_left = False
            except MetadataError as error:
                _log.warning("the lock of ledger %d stays for now: %s", ledger_id, error)

    def _has_spares(self, mark: Mark, stored: StoredMetadata) -> bool:
        """False if all that is wrong, as far as is known, needs a bookie that there is not."""
        presence = self._members.of(names(stored.metadata))
        if any(presence.get(bookie) not in (None, *GONE) for bookie in mark.missing):
            return True  # One that is here lacks entries.
        stretches = settled_stretches(stored.metadata)
        needy = [s for s in stretches if any(presence[b] in GONE for b in s.ensemble)]
        return not needy or any(newcomers(s, self._members.writable()) for s in needy)

    async def _mend_locked(self, mark: Mark, stored: StoredMetadata) -> Outcome:
        ledger_id = mark.ledger_id
        # Whoever marked them may have read what is damaged.
        tried = _Tried({*mark.missing, *self._suspects.get(ledger_id, ())})
        for _ in range(self._limits.rounds_max):
            if not stored.metadata.closed:
                stored = await self._close_if_due(ledger_id, stored)
            presence = self._members.of(names(stored.metadata))
            reports = await self._checker.check(
                ledger_id,
                stored.metadata,
                presence,
                verify=tried.verified,
                unfillable=tried.filled,
                spares=self._members.writable(),
            )
            outcome = await self._judge(mark, stored, reports)
            if outcome is not None:
                return outcome
            try:
                changed = await self._copy(ledger_id, stored, reports, tried)
            except (NoSuchEntryError, ReadUnknownError):
                if tried.verified >= set(presence):
                    raise
                tried.verified |= set(presence)
                self._suspects[ledger_id] = frozenset(presence)  # also when it is tried again
                changed = True
            if not changed:
                return await self._stuck(ledger_id, reports)
            stored = await self._context.metadata_store.read(ledger_id)
        return Outcome.LATER

    async def _copy(
        self, ledger_id: int, stored: StoredMetadata, reports: Sequence[Report], tried: "_Tried"
    ) -> bool:
        """Do what the reports ask for, as far as it can be done.  True if something was."""
        changed = False
        for report in reports:
            for fill in report.fills:
                changed |= await self._fill(ledger_id, stored, report, fill, tried)
            for move in report.moves:
                if await self._move(ledger_id, stored, report, move, tried):
                    changed = True
                    break  # One at a time: the next check knows of the newcomer.
        return changed

    async def _judge(
        self, mark: Mark, stored: StoredMetadata, reports: Sequence[Report]
    ) -> Outcome | None:
        """What comes of a check; None if there is something to do."""
        if any(report.fills or report.moves for report in reports):
            return None
        if any(_bare(report) for report in reports):
            return await self._stuck(mark.ledger_id, reports)
        if not all(report.whole for report in reports):
            return Outcome.LATER
        if stored.metadata.state is LedgerState.IN_RECOVERY:
            return Outcome.LATER
        if stored.metadata.state is LedgerState.OPEN:
            tail = stored.metadata.last_fragment.ensemble
            presence = self._members.of(tail)
            if any(b in mark.missing or presence[b] in GONE for b in tail):
                return Outcome.WRITER
        if not await self._marks.resolve(mark):
            return Outcome.LATER
        await self._board.clear_alarm(mark.ledger_id)
        self._forget(mark.ledger_id)
        return Outcome.MENDED

    def _forget(self, ledger_id: int) -> None:
        self._unclosed_since.pop(ledger_id, None)
        self._suspects.pop(ledger_id, None)

    async def _stuck(self, ledger_id: int, reports: Sequence[Report]) -> Outcome:
        """Nothing can be done now: say why."""
        bare = [(report, run) for report in reports for run in _bare(report)]
        if bare:
            runs = tuple((run.start, run.stop - 1) for _, run in bare)
            gone = sorted(
                {
                    bookie
                    for report, _ in bare
                    for bookie, presence in self._members.of(report.stretch.ensemble).items()
                    if presence is Presence.LOST
                }
            )
            why = "no bookie that is here can give a copy"
            if any(report.no_answer for report, _ in bare):
                why += "; some cannot say whether they had one"
            if gone:
                why += f"; {', '.join(gone)}: gone, and may have one"
            await self._alarm(ledger_id, Trouble.NO_COPY, why, runs)
            return Outcome.NO_COPY
        if any(
            report.moves and not newcomers(report.stretch, self._members.writable())
            for report in reports
        ):
            await self._alarm(ledger_id, Trouble.NO_SPARE, _NO_SPARE, ())
            return Outcome.NO_SPARE
        return Outcome.LATER

    async def _alarm(
        self, ledger_id: int, trouble: Trouble, why: str, entries: tuple[tuple[int, int], ...]
    ) -> None:
        now_ms = self._context.clock.now_ms()
        if await self._board.raise_alarm(Alarm(ledger_id, trouble, why, now_ms, entries)):
            _log.error("ledger %d: %s: %s", ledger_id, trouble.value, why)

    # -- copying

    async def _fill(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        report: Report,
        fill: Fill,
        tried: "_Tried",
    ) -> bool:
        """Give a bookie what it lacks.  True if that has changed something."""
        entries = _without(fill.entries, report)
        if not entries:
            return False
        try:
            await self._replicator.copy(ledger_id, stored.metadata, entries, fill.bookie)
        except TargetError as error:
            _log.warning("ledger %d: %s", ledger_id, error)
        # If the next check finds it lacking still, another bookie takes its place.
        tried.filled.add(fill.bookie)
        return True

    async def _move(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        report: Report,
        move: Move,
        tried: "_Tried",
    ) -> bool:
        """Have another bookie in its place.  True if that has changed something."""
        if _without(move.entries, report) != move.entries:
            return False  # It may have the last copy: it keeps its place.
        candidates = newcomers(
            report.stretch, [b for b in self._members.writable() if b not in tried.refused]
        )
        usable = [b for b in candidates if self._context.directory.is_usable(b)] or candidates
        if not usable:
            return False
        newcomer = await self._best(usable, report.stretch, move, stored.metadata.quorums)
        with self._unless_back(move.bookie):
            (life,) = await self._context.metadata_store.lives_of([newcomer])
            try:
                await self._replicator.copy(ledger_id, stored.metadata, move.entries, newcomer)
            except TargetError as error:
                _log.warning("ledger %d: %s", ledger_id, error)
                tried.refused.add(newcomer)
                return True
            replaced = await self._replicator.replace(
                ledger_id, stored, report.stretch, move.position, life
            )
            if replaced is Replaced.YES:
                _log.info("ledger %d: %s for %s", ledger_id, newcomer, move.bookie)
        return True

    async def _best(
        self, candidates: Sequence[BookieId], stretch: Stretch, move: Move, quorums: Quorums
    ) -> BookieId:
        """By lot, among those that leave the write sets in as many racks as can be.

        Of members whose rack nobody knows, or whose copies will be somewhere else, nothing counts.
        """
        members = [b for b in stretch.ensemble if b != move.bookie]
        racks = await self._context.directory.racks_of([*members, *candidates])
        presence = self._members.of(members)
        missing = [b for b in members if b not in racks or presence[b] in GONE]
        drawn = self._context.rng.sample(candidates, len(candidates))
        drawn.sort(key=lambda bookie: bookie not in racks)
        least = self._context.directory.rack_rule.least
        best = Racks(racks).replacement(
            stretch.ensemble, move.position, drawn, quorums, RackRule(least), missing
        )
        assert best is not None, "nothing is enforced, and there are candidates"
        return best

    @contextmanager
    def _unless_back(self, bookie: BookieId) -> Generator[None]:
        """Cancelled when a bookie that was lost is here again: its copies are, too."""
        was_here = self._members.is_here(bookie)
        with trio.CancelScope() as scope:

            def look() -> None:
                if not was_here and self._members.is_here(bookie):
                    scope.cancel()

            self._members.add_listener(look)
            try:
                yield
            finally:
                self._members.remove_listener(look)

    # -- ledgers that are not closed

    async def _close_if_due(self, ledger_id: int, stored: StoredMetadata) -> StoredMetadata:
        """Recover a ledger that is in recovery for long; an open one only if that is set."""
        metadata = stored.metadata
        now = trio.current_time()
        if metadata.state is LedgerState.IN_RECOVERY:
            grace_s: float | None = self._limits.recovery_grace_s
        else:
            presence = self._members.of(metadata.last_fragment.ensemble)
            lost = any(state is Presence.LOST for state in presence.values())
            grace_s = self._limits.fence_open_after_s if lost else None
        if grace_s is None:
            self._unclosed_since.pop(ledger_id, None)
            return stored
        if now < self._unclosed_since.setdefault(ledger_id, now) + grace_s:
            return stored
        try:
            closed = await recover_ledger(self._context, ledger_id, stored)
        except RecoveryAbortedError as error:
            _log.warning("ledger %d: %s", ledger_id, error)
            return stored
        del self._unclosed_since[ledger_id]
        return closed


def _bare(report: Report) -> tuple[range, ...]:
    """The entries of which nobody who could still answer may have a copy."""
    return report.no_copy if report.unheard else (*report.no_copy, *report.no_answer)


def _without(entries: Sequence[range], report: Report) -> tuple[range, ...]:
    """The entries of which there is a copy to read."""
    bare = sorted((*report.no_copy, *report.no_answer), key=lambda run: run.start)
    kept: list[range] = []
    for run in entries:
        start = run.start
        for hole in bare:
            if hole.stop <= start or hole.start >= run.stop:
                continue
            if hole.start > start:
                kept.append(range(start, hole.start))
            start = hole.stop
        if start < run.stop:
            kept.append(range(start, run.stop))
    return tuple(kept)
