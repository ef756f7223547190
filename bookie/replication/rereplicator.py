"""The rereplicator of one ledger: it finds the missing copies, makes them and removes the mark.

    MENDED      the ledger is whole, and the mark is removed
    GONE        the ledger does not exist (any longer), or has no mark
    TAKEN       another worker holds its lock
    WRITER      only its writer can replace the bookie: the mark stays until the ledger is closed
    NO_SPARE    an alarm; the ledger is not locked meanwhile
    NO_COPY     an alarm: no bookie can give a copy of some entries; all other entries are filled,
                and a bookie that may have a copy keeps its place
    UNREADABLE  an alarm: the metadata do not parse, or are inconsistent
    LATER       a bookie did not answer, or the ledger changed meanwhile

Entry lists are trusted until a listed copy cannot be read.  Then every copy is read, to find out
which bookie's copy is damaged.

A copy moves to a bookie that keeps the write sets in as many racks as possible, as a writer would
choose; but a copy in the same rack as the others is better than none.

A cancelled repair leaves no half-done change: the metadata change only when all entries are durable
on the newcomer.  Copying ends by itself when the bookie that it replaces is back.

An open ledger is never fenced because a bookie is gone, unless the limits say so.  A ledger whose
recovery began and did not end is recovered: it has no writer any longer.
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
from daybook.bookie.registry.underreplication import Mark, Underreplication
from daybook.bookie.replication.bookie_watcher import Members
from daybook.bookie.replication.checker import Checker, TooManyEntriesError
from daybook.bookie.replication.limits import RateLimit, ReplicationLimits
from daybook.bookie.replication.protocol.replica_check import (
    GONE,
    Fill,
    Move,
    Presence,
    Report,
    Stretch,
    names,
    newcomers,
    settled_stretches,
)
from daybook.bookie.replication.replicator import Replaced, Replicator, TargetError
from daybook.bookie.replication.status_records import Alarm, Board, Trouble
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
    """The findings so far of one repair."""

    verified: set[BookieId]  # every copy of theirs is read
    filled: set[BookieId] = field(default_factory=set[BookieId])
    refused: set[BookieId] = field(default_factory=set[BookieId])  # did not accept copies


class Mender:
    """`copied` is called with counts of entries and bytes as they become durable."""

    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        members: Members,
        board: Board,
        limits: ReplicationLimits,
        copied: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._underreplication = underreplication
        self._members = members
        self._board = board
        self._limits = limits
        rate_limit = RateLimit(limits.rate_bytes_per_s, limits.burst_bytes)
        self._checker = Checker(context, rate_limit)
        self._replicator = Replicator(context, rate_limit, copied)
        self._unclosed_since: dict[int, float] = {}
        self._suspects: dict[int, frozenset[BookieId]] = {}  # their lists are not trusted
        self.lock_left = False  # set when a lock could not be released

    async def mend(self, ledger_id: int) -> Outcome:
        """Repair a marked ledger as far as possible."""
        mark = await self._underreplication.read_mark(ledger_id)
        if mark is None:
            await self._board.clear_alarm(ledger_id)
            return Outcome.GONE
        try:
            return await self._mend_marked(mark)
        except NoSuchLedgerError:
            self._forget(ledger_id)
            await self._underreplication.resolve(mark)
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
        if not await self._underreplication.lock(ledger_id):
            return Outcome.TAKEN
        try:
            return await self._mend_locked(mark, stored)
        finally:
            await self._release(ledger_id)

    async def _release(self, ledger_id: int) -> None:
        self.lock_left = True  # until the release has an answer
        # Shielded: a cancelled repair has to release its lock, too.
        with trio.move_on_after(_RELEASE_S, shield=True):
            try:
                await self._underreplication.release(ledger_id)
                self.lock_left = False
            except MetadataError as error:
                _log.warning("the lock of ledger %d stays for now: %s", ledger_id, error)

    def _has_spares(self, mark: Mark, stored: StoredMetadata) -> bool:
        """Return False if every known fault needs a spare bookie and there is none."""
        presence = self._members.of(names(stored.metadata))
        if any(presence.get(BookieId(bookie)) not in (None, *GONE) for bookie in mark.missing):
            return True  # A registered bookie lacks entries.
        stretches = settled_stretches(stored.metadata)
        needy = [s for s in stretches if any(presence[b] in GONE for b in s.ensemble)]
        return not needy or any(newcomers(s, self._members.writable()) for s in needy)

    async def _mend_locked(self, mark: Mark, stored: StoredMetadata) -> Outcome:
        ledger_id = mark.ledger_id
        # The marks may come from a client that has read damaged copies.
        tried = _Tried({*map(BookieId, mark.missing), *self._suspects.get(ledger_id, ())})
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
                # With every copy read the failure has another reason, and no further check helps.
                if tried.verified >= set(presence):
                    raise
                tried.verified |= set(presence)
                self._suspects[ledger_id] = frozenset(presence)  # for later attempts, too
                changed = True
            if not changed:
                return await self._stuck(ledger_id, reports)
            stored = await self._context.metadata_store.read(ledger_id)
        return Outcome.LATER

    async def _copy(
        self, ledger_id: int, stored: StoredMetadata, reports: Sequence[Report], tried: "_Tried"
    ) -> bool:
        """Make the fills and moves of the reports; return True if one changed something."""
        changed = False
        for report in reports:
            for fill in report.fills:
                changed |= await self._fill(ledger_id, stored, report, fill, tried)
            for move in report.moves:
                if await self._move(ledger_id, stored, report, move, tried):
                    changed = True
                    break  # One move at a time: the next check knows the newcomer.
        return changed

    async def _judge(
        self, mark: Mark, stored: StoredMetadata, reports: Sequence[Report]
    ) -> Outcome | None:
        """Return the outcome of a check; None if there are copies to make."""
        if any(report.fills or report.moves for report in reports):
            return None
        if any(_bare(report) for report in reports):
            return await self._stuck(mark.ledger_id, reports)
        if not all(report.whole for report in reports):
            return Outcome.LATER
        if stored.metadata.state is LedgerState.IN_RECOVERY:
            return Outcome.LATER
        if stored.metadata.state is LedgerState.OPEN:
            # The checker does not check the last fragment: its writer replaces a bookie there.
            tail = stored.metadata.last_fragment.ensemble
            presence = self._members.of(tail)
            if any(b in mark.missing or presence[b] in GONE for b in tail):
                return Outcome.WRITER
        if not await self._underreplication.resolve(mark):
            return Outcome.LATER
        await self._board.clear_alarm(mark.ledger_id)
        self._forget(mark.ledger_id)
        return Outcome.MENDED

    def _forget(self, ledger_id: int) -> None:
        self._unclosed_since.pop(ledger_id, None)
        self._suspects.pop(ledger_id, None)

    async def _stuck(self, ledger_id: int, reports: Sequence[Report]) -> Outcome:
        """Return the outcome when nothing can be done now; raise an alarm with the reason."""
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
        """Copy to a bookie the entries that it lacks; return True if a copy was attempted."""
        entries = _without(fill.entries, report)
        if not entries:
            return False
        try:
            await self._replicator.copy(ledger_id, stored.metadata, entries, fill.bookie)
        except TargetError as error:
            _log.warning("ledger %d: %s", ledger_id, error)
        # If the next check still finds entries missing there, another bookie takes its place.
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
        """Copy to a newcomer and name it in the metadata; return True if an attempt was made."""
        if _without(move.entries, report) != move.entries:
            return False  # The bookie may have the last copy: it keeps its place.
        candidates = newcomers(
            report.stretch, [b for b in self._members.writable() if b not in tried.refused]
        )
        usable = [b for b in candidates if self._context.directory.is_usable(b)] or candidates
        if not usable:
            return False
        newcomer = await self._best(usable, report.stretch, move, stored.metadata.quorums)
        with self._unless_back(move.bookie):
            # Before the copies: the update fails if the newcomer loses its disks after this.
            (generation,) = await self._context.metadata_store.generations_of([newcomer])
            try:
                await self._replicator.copy(ledger_id, stored.metadata, move.entries, newcomer)
            except TargetError as error:
                _log.warning("ledger %d: %s", ledger_id, error)
                tried.refused.add(newcomer)
                return True
            replaced = await self._replicator.replace(
                ledger_id, stored, report.stretch, move.position, generation
            )
            if replaced is Replaced.YES:
                _log.info("ledger %d: %s for %s", ledger_id, newcomer, move.bookie)
        return True

    async def _best(
        self, candidates: Sequence[BookieId], stretch: Stretch, move: Move, quorums: Quorums
    ) -> BookieId:
        """Draw a candidate among those that keep the write sets in as many racks as possible.

        Members of an unknown rack, and members whose copies will move, do not count.
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
        """Cancel the block when a lost bookie is back: its copies are back, too."""
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
        """Recover a ledger that is in recovery too long; an open one only if the limits say so."""
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
    """Return the entries without a copy on any bookie that could still answer."""
    return report.no_copy if report.unheard else (*report.no_copy, *report.no_answer)


def _without(entries: Sequence[range], report: Report) -> tuple[range, ...]:
    """Return the entries that have a readable copy."""
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
