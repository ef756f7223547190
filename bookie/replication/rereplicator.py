"""The rereplicator of one ledger: it finds the missing copies, makes them and removes the mark.

    REPAIRED      the ledger is whole, and the mark is removed
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
from daybook.bookie.replication.bookie_watcher import BookieWatcher
from daybook.bookie.replication.checker import Checker, TooManyEntriesError
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.protocol.replica_check import (
    GONE,
    BookieStatus,
    Fill,
    FragmentReport,
    Move,
    SealedFragment,
    bookies_of,
    newcomers,
    sealed_fragments,
)
from daybook.bookie.replication.replicator import Replaced, Replicator, TargetError
from daybook.bookie.replication.status_records import Alarm, AlarmKind, StatusRecords
from daybook.wire.metadata.store import MetadataError
from daybook.wire.rate_limit import RateLimit

_log = logging.getLogger(__name__)
_RELEASE_S = 5.0
_NO_SPARE = "no writable bookie outside the ensemble can take the place: start another bookie"


class RepairOutcome(Enum):
    REPAIRED = auto()
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


class Rereplicator:
    """`copied` is called with counts of entries and bytes as they become durable."""

    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        watcher: BookieWatcher,
        status_records: StatusRecords,
        limits: ReplicationLimits,
        copied: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._underreplication = underreplication
        self._watcher = watcher
        self._status_records = status_records
        self._limits = limits
        rate_limit = RateLimit(limits.rate_bytes_per_s, limits.burst_bytes)
        self._checker = Checker(context, rate_limit)
        self._replicator = Replicator(context, rate_limit, copied)
        self._unclosed_since: dict[int, float] = {}
        self._suspects: dict[int, frozenset[BookieId]] = {}  # their lists are not trusted
        self.lock_left = False  # set when a lock could not be released

    async def rereplicate(self, ledger_id: int) -> RepairOutcome:
        """Repair a marked ledger as far as possible."""
        mark = await self._underreplication.read_mark(ledger_id)
        if mark is None:
            await self._status_records.clear_alarm(ledger_id)
            return RepairOutcome.GONE
        try:
            return await self._repair_marked(mark)
        except NoSuchLedgerError:
            self._forget(ledger_id)
            await self._underreplication.resolve(mark)
            await self._status_records.clear_alarm(ledger_id)
            return RepairOutcome.GONE
        except (MalformedMetadataError, TooManyEntriesError) as error:
            await self._alarm(ledger_id, AlarmKind.UNREADABLE, str(error), ())
            return RepairOutcome.UNREADABLE

    async def _repair_marked(self, mark: Mark) -> RepairOutcome:
        ledger_id = mark.ledger_id
        stored = await self._context.metadata_store.read(ledger_id)
        if not self._has_spares(mark, stored):
            await self._alarm(ledger_id, AlarmKind.NO_SPARE, _NO_SPARE, ())
            return RepairOutcome.NO_SPARE
        # Only now: without a spare, another worker that sees one must not be kept out.
        if not await self._underreplication.lock(ledger_id):
            return RepairOutcome.TAKEN
        try:
            return await self._repair_locked(mark, stored)
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
        statuses = self._watcher.statuses_of(bookies_of(stored.metadata))
        if any(statuses.get(BookieId(bookie)) not in (None, *GONE) for bookie in mark.missing):
            return True  # A registered bookie lacks entries.
        fragments = sealed_fragments(stored.metadata)
        needy = [s for s in fragments if any(statuses[b] in GONE for b in s.ensemble)]
        return not needy or any(newcomers(s, self._watcher.writable()) for s in needy)

    async def _repair_locked(self, mark: Mark, stored: StoredMetadata) -> RepairOutcome:
        ledger_id = mark.ledger_id
        # The marks may come from a client that has read damaged copies.
        tried = _Tried({*map(BookieId, mark.missing), *self._suspects.get(ledger_id, ())})
        for _ in range(self._limits.rounds_max):
            if not stored.metadata.closed:
                stored = await self._close_if_due(ledger_id, stored)
            statuses = self._watcher.statuses_of(bookies_of(stored.metadata))
            reports = await self._checker.check(
                ledger_id,
                stored.metadata,
                statuses,
                verify=tried.verified,
                unfillable=tried.filled,
                spares=self._watcher.writable(),
            )
            outcome = await self._outcome_of(mark, stored, reports)
            if outcome is not None:
                return outcome
            try:
                changed = await self._copy(ledger_id, stored, reports, tried)
            except (NoSuchEntryError, ReadUnknownError):
                # With every copy read the failure has another reason, and no further check helps.
                if tried.verified >= set(statuses):
                    raise
                tried.verified |= set(statuses)
                self._suspects[ledger_id] = frozenset(statuses)  # for later attempts, too
                changed = True
            if not changed:
                return await self._stuck(ledger_id, reports)
            stored = await self._context.metadata_store.read(ledger_id)
        return RepairOutcome.LATER

    async def _copy(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        reports: Sequence[FragmentReport],
        tried: "_Tried",
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

    async def _outcome_of(
        self, mark: Mark, stored: StoredMetadata, reports: Sequence[FragmentReport]
    ) -> RepairOutcome | None:
        """Return the outcome of a check; None if there are copies to make."""
        if any(report.fills or report.moves for report in reports):
            return None
        if any(_without_copy(report) for report in reports):
            return await self._stuck(mark.ledger_id, reports)
        if not all(report.whole for report in reports):
            return RepairOutcome.LATER
        if stored.metadata.state is LedgerState.IN_RECOVERY:
            return RepairOutcome.LATER
        if stored.metadata.state is LedgerState.OPEN:
            # The checker does not check the last fragment: its writer replaces a bookie there.
            tail = stored.metadata.last_fragment.ensemble
            statuses = self._watcher.statuses_of(tail)
            if any(b in mark.missing or statuses[b] in GONE for b in tail):
                return RepairOutcome.WRITER
        if not await self._underreplication.resolve(mark):
            return RepairOutcome.LATER
        await self._status_records.clear_alarm(mark.ledger_id)
        self._forget(mark.ledger_id)
        return RepairOutcome.REPAIRED

    def _forget(self, ledger_id: int) -> None:
        self._unclosed_since.pop(ledger_id, None)
        self._suspects.pop(ledger_id, None)

    async def _stuck(self, ledger_id: int, reports: Sequence[FragmentReport]) -> RepairOutcome:
        """Return the outcome when nothing can be done now; raise an alarm with the reason."""
        without_copy = [(report, run) for report in reports for run in _without_copy(report)]
        if without_copy:
            runs = tuple((run.start, run.stop - 1) for _, run in without_copy)
            gone = sorted(
                {
                    bookie
                    for report, _ in without_copy
                    for bookie, status in self._watcher.statuses_of(
                        report.fragment.ensemble
                    ).items()
                    if status is BookieStatus.LOST
                }
            )
            why = "no registered bookie can give a copy"
            if any(report.unknown for report, _ in without_copy):
                why += "; some cannot say whether they had one"
            if gone:
                why += f"; {', '.join(gone)}: gone, and may have one"
            await self._alarm(ledger_id, AlarmKind.NO_COPY, why, runs)
            return RepairOutcome.NO_COPY
        if any(
            report.moves and not newcomers(report.fragment, self._watcher.writable())
            for report in reports
        ):
            await self._alarm(ledger_id, AlarmKind.NO_SPARE, _NO_SPARE, ())
            return RepairOutcome.NO_SPARE
        return RepairOutcome.LATER

    async def _alarm(
        self, ledger_id: int, trouble: AlarmKind, why: str, entries: tuple[tuple[int, int], ...]
    ) -> None:
        now_ms = self._context.clock.now_ms()
        if await self._status_records.raise_alarm(Alarm(ledger_id, trouble, why, now_ms, entries)):
            _log.error("ledger %d: %s: %s", ledger_id, trouble.value, why)

    # -- copying

    async def _fill(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        report: FragmentReport,
        fill: Fill,
        tried: "_Tried",
    ) -> bool:
        """Copy to a bookie the entries that it lacks; return True if a copy was attempted."""
        entries = _readable(fill.entries, report)
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
        report: FragmentReport,
        move: Move,
        tried: "_Tried",
    ) -> bool:
        """Copy to a newcomer and name it in the metadata; return True if an attempt was made.

        The order is: read the newcomer's cookie generation, copy, change the metadata.  A newcomer
        that loses its disks before the metadata name it never learns what it has lost, so the
        change is made only in the generation that was read first.
        """
        if _readable(move.entries, report) != move.entries:
            return False  # The bookie may have the last copy: it keeps its place.
        candidates = newcomers(
            report.fragment, [b for b in self._watcher.writable() if b not in tried.refused]
        )
        usable = [b for b in candidates if self._context.directory.is_usable(b)] or candidates
        if not usable:
            return False
        newcomer = await self._best(usable, report.fragment, move, stored.metadata.quorums)
        with self._cancelled_if_back(move.bookie):
            (generation,) = await self._context.metadata_store.generations_of([newcomer])
            try:
                await self._replicator.copy(ledger_id, stored.metadata, move.entries, newcomer)
            except TargetError as error:
                _log.warning("ledger %d: %s", ledger_id, error)
                tried.refused.add(newcomer)
                return True
            replaced = await self._replicator.replace(
                ledger_id, stored, report.fragment, move.position, generation
            )
            if replaced is Replaced.YES:
                _log.info("ledger %d: %s for %s", ledger_id, newcomer, move.bookie)
        return True

    async def _best(
        self, candidates: Sequence[BookieId], fragment: SealedFragment, move: Move, quorums: Quorums
    ) -> BookieId:
        """Draw a candidate among those that keep the write sets in as many racks as possible.

        BookieWatcher of an unknown rack, and members whose copies will move, do not count.
        """
        members = [b for b in fragment.ensemble if b != move.bookie]
        racks = await self._context.directory.racks_of([*members, *candidates])
        statuses = self._watcher.statuses_of(members)
        missing = [b for b in members if b not in racks or statuses[b] in GONE]
        drawn = self._context.rng.sample(candidates, len(candidates))
        drawn.sort(key=lambda bookie: bookie not in racks)
        least = self._context.directory.rack_rule.least
        best = Racks(racks).replacement(
            fragment.ensemble, move.position, drawn, quorums, RackRule(least), missing
        )
        assert best is not None, "nothing is enforced, and there are candidates"
        return best

    @contextmanager
    def _cancelled_if_back(self, bookie: BookieId) -> Generator[None]:
        """Cancel the block when a lost bookie is back: its copies are back, too."""
        was_staying = self._watcher.is_staying(bookie)
        with trio.CancelScope() as scope:

            def look() -> None:
                if not was_staying and self._watcher.is_staying(bookie):
                    scope.cancel()

            self._watcher.add_listener(look)
            try:
                yield
            finally:
                self._watcher.remove_listener(look)

    # -- ledgers that are not closed

    async def _close_if_due(self, ledger_id: int, stored: StoredMetadata) -> StoredMetadata:
        """Recover a ledger that is in recovery too long; an open one only if the limits say so."""
        metadata = stored.metadata
        now = trio.current_time()
        if metadata.state is LedgerState.IN_RECOVERY:
            grace_s: float | None = self._limits.recovery_grace_s
        else:
            statuses = self._watcher.statuses_of(metadata.last_fragment.ensemble)
            lost = any(status is BookieStatus.LOST for status in statuses.values())
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


def _without_copy(report: FragmentReport) -> tuple[range, ...]:
    """Return the entries without a copy on any bookie that could still answer."""
    return report.no_copy if report.silent else (*report.no_copy, *report.unknown)


def _readable(entries: Sequence[range], report: FragmentReport) -> tuple[range, ...]:
    """Return the entries that have a readable copy."""
    without_copy = sorted((*report.no_copy, *report.unknown), key=lambda run: run.start)
    kept: list[range] = []
    for run in entries:
        start = run.start
        for hole in without_copy:
            if hole.stop <= start or hole.start >= run.stop:
                continue
            if hole.start > start:
                kept.append(range(start, hole.start))
            start = hole.stop
        if start < run.stop:
            kept.append(range(start, run.stop))
    return tuple(kept)
