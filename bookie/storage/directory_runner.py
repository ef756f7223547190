"""The background tasks of one directory: start, checkpoints, disk space, stop.

A start reads the log behind the last checkpoint (`recovery`), and appends two things before it
serves requests: the doubtful records of the last process, and a limbo mark if records were or may
have been lost (`markers`).  Both are in one batch, so the log of a directory that is behind never
grows without its limbo mark.  The DIRTY marker is removed only when the limbo mark is durable,
unless `ack_early` needs it; a stop removes it as its last step.

A checkpoint begins when enough entries or bytes have arrived since the last one, behind the mark of
an idle log, and at the stop.  If the index is too slow, the log pauses: memory is bounded, and the
bookie slows its clients down.

After an error of the log or of the index the directory accepts no further plain adds; it still
answers reads.  Below `free_bytes_min` of disk space it refuses plain adds until there is space
again, and below half of that it refuses all adds: the remaining space is reserved for fences,
deletions and compaction.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

import trio

from daybook.bookie.storage.compaction import Compactor
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.entry_locations import EntryLocations, Moves
from daybook.bookie.storage.entry_repair import EntryRepairer
from daybook.bookie.storage.index import IndexDamagedError, MonitoredIndex, OpenIndex
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Group, Log
from daybook.bookie.storage.markers import is_dirty, mark_clean, mark_dirty
from daybook.bookie.storage.rebuild import (
    INDEX_FILE,
    IndexRebuild,
    IndexRecord,
    OpenedIndex,
    Rebuilder,
    RebuildListener,
    next_name,
    read_index_record,
    remove_others,
    write_index_record,
)
from daybook.bookie.storage.records import EVERY_LEDGER, NO_ENTRY_ID, Kind, Record
from daybook.bookie.storage.recovery import Contents, ReplayResult, load
from daybook.bookie.storage.scrub import Scrubber
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.tombstones import Tombstones
from daybook.wire.clock import WallClock

Answering: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context manager within which all answers to a commit are given, to leave together."""


@dataclass(frozen=True, slots=True)
class DirectoryListeners:
    """The calls with which a directory informs its store."""

    answering: Answering
    changed: Callable[[], None]
    doubted: Callable[[], None] = lambda: None  # records may be lost from now on
    # A new index is in use; it may have more ledgers.
    adopted: Callable[["DirectoryRunner"], None] = lambda _: None
    rebuild: RebuildListener = lambda _: None


class DirectoryRunner:
    """Runs one directory: its background tasks, and the work after each commit."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        limits: StoreLimits,
        contents: Contents,
        replayed: ReplayResult,
        nursery: trio.Nursery,
        *,
        creation_id: int,
        dirty: bool,
        opened: OpenedIndex,
        listeners: DirectoryListeners,
    ) -> None:
        self.replayed = replayed
        self._dirty = dirty
        self._started = False
        self.segment_began: Callable[[], None] = lambda: None
        self.finish_index: Callable[[], Awaitable[None]]  # called when the limbo mark is durable
        self._path = path
        self._disk = disk
        self._limits = limits
        self._contents = contents
        self._locations: EntryLocations = contents.locations
        self._log = self._make_log(creation_id)
        self.directory = LedgerDirectory(path, limits, contents, self._log, nursery)
        self.nursery = nursery
        self._answering = listeners.answering
        self._on_changed = listeners.changed
        self._on_doubted = listeners.doubted
        self._on_adopted = listeners.adopted
        self._wanted = trio.Event()
        self._checkpointing = trio.Lock()
        self._index_busy = False
        self._full_at: float = inf  # the log position at which the next space limit is reached
        self.tombstones = Tombstones(self.directory, contents, self.checkpoint)
        self.compactor = self._make_compactor()
        repairer = EntryRepairer(self.directory, self.checkpoint, nursery)
        self.directory.repair = repairer.repair
        self.scrubber = self._make_scrubber(repairer)
        self.rebuilder = self._make_rebuilder(opened, listeners.rebuild)
        # `close` needs the log even while the scope around the store is being cancelled.
        self._log_scope = trio.CancelScope(shield=True)

    # ---- its parts

    def _make_log(self, creation_id: int) -> Log[LedgerState]:
        replayed = self.replayed
        return Log(
            self._disk,
            log_directory(self._path),
            self._limits.log,
            segments=replayed.segments,
            mark=replayed.mark,
            end=replayed.end,
            reached=replayed.reached,
            creation_id=creation_id,
            has_space=lambda: not self.directory.out_of_space,
            committed=self._committed,
            failed=self._failed,
        )

    def _make_compactor(self) -> Compactor:
        return Compactor(
            self._disk,
            log_directory(self._path),
            self._limits.reclaim,
            self.directory,
            self._contents,
            self.tombstones,
            checkpoint=self.checkpoint,
            check_space=self._check_space,
        )

    def _make_scrubber(self, repairer: EntryRepairer) -> Scrubber:
        return Scrubber(
            self._disk,
            log_directory(self._path),
            self.directory,
            self._contents,
            self._limits.scrub_bytes_per_s,
            checkpoint=self.checkpoint,
            rewrite=repairer.rewrite,
        )

    def _make_rebuilder(
        self, opened: OpenedIndex, tell: Callable[[IndexRebuild], None]
    ) -> Rebuilder:
        return Rebuilder(
            self._disk,
            self._path,
            self._limits,
            self.directory,
            self._contents,
            opened,
            checkpoints=self._checkpointing,
            checkpoint=lambda: self._checkpoint(None),
            reclaiming=self.compactor.running,
            rebuilt=self._rebuilt,
            tell=tell,
        )

    # ---- callbacks of the log

    def _committed(self, group: Group[LedgerState]) -> None:
        with self._answering():
            # LACs are raised before the answers: a client that has its answer may ask for the LAC.
            for state, lac in group.lacs.items():
                state.raise_lac(lac)
            for done in group.dones:
                done(StoreStatus.OK)
        # The answers are sent: all that follows can wait for that.
        self.directory.update_add_limit()
        if self._log.end >= self._full_at:
            self._update_space_flags()
            self._update_writable()
        if group.segment is not None:
            self._locations.usage.begin(group.segment.first)
            self.segment_began()
        if not group.count and not group.flags:
            self._wanted.set()  # the mark is lost with its segment; a checkpoint keeps it
        behind = self._log.durable - self._contents.checkpoint
        recent = self._locations.recent_entries
        if recent >= self._limits.checkpoint_entries or behind >= self._limits.checkpoint_bytes:
            self._wanted.set()
        if self._index_busy and recent >= self._limits.recent_entries_max:
            self._log.pause()

    def _failed(self, groups: list[Group[LedgerState]]) -> None:
        self._update_writable()
        with self._answering():
            for group in groups:
                for done in group.dones:
                    done(StoreStatus.IO_ERROR)

    def _update_writable(self) -> None:
        if self.directory.update_writable():
            self._on_changed()

    # ---- from start to stop

    async def start(self, *, in_doubt: bool) -> None:
        """Append the doubtful records of the last process and the mark of a new loss.

        With `in_doubt` the directory may have lost any record.
        """
        assert not self._started
        # The doubtful records have to be in the first batch of this process: a later replay ignores
        # their old batch as soon as it finds a whole batch behind it.
        assert self._log.end == self.replayed.end
        self.nursery.start_soon(self._run_log)
        records = self.replayed.doubtful
        if self.replayed.losses or self._dirty or in_doubt:
            limbo = Record(0, Kind.LIMBO, EVERY_LEDGER, NO_ENTRY_ID, memoryview(b""))
            records = [*records, limbo]
        if records:
            positions = self._log.append_batch(records)
            await self._log.wait_durable(positions[-1])
            for record, position in zip(records, positions, strict=True):
                self._contents.apply(record, position)
        self.replayed.doubtful = []
        self.directory.in_doubt = self.directory.bookie_in_doubt = self._contents.limbo
        self._started = True
        # DIRTY may go only now that the log says the same durably.
        await self._set_dirty(self._limits.ack_early)
        self._count_tombstones()
        await self._check_space()
        self._update_writable()
        self._locations.index.watch(self._index_damaged)
        self.nursery.start_soon(self._checkpoint_when_wanted)
        self.nursery.start_soon(self._watch_space)
        await self.finish_index()

    async def _set_dirty(self, dirty: bool) -> None:
        there = await is_dirty(self._disk, self._path)
        if dirty and not there:
            await mark_dirty(self._disk, self._path)
        elif there and not dirty:
            await mark_clean(self._disk, self._path)

    async def _run_log(self) -> None:
        with self._log_scope:
            await self._log.run()

    async def _checkpoint_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self.checkpoint()
            except (OSError, StoreError):
                # No further checkpoint is made unless the index is rebuilt.
                self._update_writable()

    # ---- a damaged index

    def _index_damaged(self, error: OSError) -> None:
        """Put the bookie in doubt at once; a task makes the doubt durable and ends it."""
        directory = self.directory
        if directory.rebuilding or directory.closing:
            return  # The rebuild under way, or the next start, finds this damage itself.
        directory.rebuilding = str(error)
        directory.locations.failure = directory.locations.failure or error
        directory.begin_doubt()
        self._on_doubted()
        self.rebuilder.begin(error)
        self._update_writable()
        self.nursery.start_soon(self.rebuilder.run)

    def _rebuilt(self, replayed: ReplayResult) -> None:
        """Finish a rebuild: the new index is in use, and INDEX names it."""
        self.replayed.losses += replayed.losses
        self._count_tombstones()
        self._on_adopted(self)
        self.directory.update_writable()
        self._on_changed()

    def _count_tombstones(self) -> None:
        deleted = [each.ledger_id for each in self.directory.ledgers.values() if each.deleted]
        self.directory.tombstones = len(deleted)
        self.directory.highest_tombstone = max(deleted, default=-1)

    # ---- checkpoints

    async def checkpoint(self, moves: Moves | None = None) -> None:
        """Bring the index up to date: a start after this reads only the log behind it.

        With `moves` the entries that were written again are found at their new positions.
        """
        # A checkpoint that is cancelled halfway would be the last one of this process.
        with trio.CancelScope(shield=True):
            async with self._checkpointing:
                # Before `start` is through, the limbo mark is in the log and not applied: a
                # checkpoint would lie behind it and record that there is no limbo.
                failed = self._log.failure or self._locations.failure or self.directory.rebuilding
                if not failed and self._started:
                    await self._checkpoint(moves)

    async def _checkpoint(self, moves: Moves | None) -> None:
        position = self._log.seal()
        assert position >= self._contents.checkpoint, "a checkpoint never moves back"

        async def when_durable() -> None:
            # The index must never be ahead of the log: after a power loss it would point to records
            # that do not exist.
            await self._log.wait_durable(position - 1)
            self._index_busy = True

        try:
            limbo = self.directory.in_doubt
            await self._locations.checkpoint(
                position, limbo=limbo, when_durable=when_durable, moves=moves
            )
            self._contents.checkpoint = position
        finally:
            self._index_busy = False
            self._log.resume()

    async def _watch_space(self) -> None:
        while True:
            await trio.sleep(self._limits.space_check_s)
            await self._check_space()
            self._update_writable()

    async def _check_space(self) -> int:
        """Return the number of free bytes; 0 if the disk cannot tell."""
        # Read before `free_bytes`: bytes written in between count twice, which errs to the full.
        position = self._log.durable
        try:
            free = await self._disk.free_bytes(self.directory.path)
        except OSError:
            return 0  # the next write meets the error
        directory, bytes_min = self.directory, self._limits.free_bytes_min
        directory.plain_end = position + free - bytes_min
        directory.recovery_end = directory.plain_end + bytes_min // 2
        directory.update_add_limit()
        self._update_space_flags()
        return free

    def _update_space_flags(self) -> None:
        """Compare the log's end, with the bytes that are not written yet, with the limits."""
        directory, end = self.directory, self._log.end
        directory.out_of_space = end >= directory.plain_end
        directory.out_of_reserve = end >= directory.recovery_end
        ends = (directory.plain_end, directory.recovery_end)
        self._full_at = min((each for each in ends if each > end), default=inf)

    @property
    def in_doubt(self) -> bool:
        """True if the log says that records of any ledger may be lost."""
        begun = any(
            record.kind is Kind.LIMBO and record.ledger_id == EVERY_LEDGER
            for record in self.replayed.doubtful
        )
        return self._contents.limbo or begun

    @property
    def log_reached(self) -> int:
        """The end of the last batch that is there; it may be in the page cache only."""
        return self._log.reached

    @property
    def log_mark(self) -> int:
        """The end of the last batch that is known to be durable: a loss of power leaves it."""
        return self._log.mark

    @property
    def log_bytes(self) -> int:
        """The approximate size of the log on the disk."""
        return self._log.end - sum(gap.end - gap.first for gap in self._contents.gaps)

    async def close(self) -> None:
        """Refuse all requests; leave an end mark and an index that covers the whole log."""
        self.directory.closing = True
        self._update_writable()
        deadline = trio.current_time() + self._limits.close_s
        try:
            with trio.CancelScope(shield=True, deadline=deadline):
                await self._log.close()
                await self.checkpoint()
                # This is the last step: DIRTY may go only when every add is durable.
                if self._log.failure is None and self._started:
                    await self._set_dirty(False)
        except (OSError, StoreError):
            pass  # the next start recovers from the log
        finally:
            self._log_scope.cancel()
            self._log.close_readers()


def log_directory(path: str) -> str:
    return f"{path}/log"


@asynccontextmanager
async def open_directory(
    disk: Disk,
    path: str,
    open_index: OpenIndex,
    clock: WallClock,
    limits: StoreLimits,
    *,
    listeners: DirectoryListeners,
) -> AsyncGenerator[DirectoryRunner]:
    """Open the ledgers in this directory, which is locked for this process until the exit.

    The log is read here, and nothing is appended before `start`.  A damaged index is rebuilt from
    the log first, and then `start` puts the directory in doubt.
    """
    await disk.make_directory(log_directory(path))
    lock = await disk.lock_directory(path)
    opened = OpenedIndex(open_index, path)
    try:
        record = await read_index_record(disk, path)
        contents, replayed, damaged = await _load(disk, path, opened, record, limits, listeners)
        dirty = damaged or await is_dirty(disk, path)

        async def finish_index() -> None:
            if damaged:  # The log records the doubt by now, so INDEX no longer needs to.
                await write_index_record(disk, path, IndexRecord(opened.name, False))
            if opened.name != record.name:
                await remove_others(disk, path, opened.name)

        async with trio.open_nursery() as nursery:
            runner = DirectoryRunner(
                disk,
                path,
                limits,
                contents,
                replayed,
                nursery,
                creation_id=max(clock.now_ms(), replayed.creation_id + 1),
                dirty=dirty,
                opened=opened,
                listeners=listeners,
            )
            runner.finish_index = finish_index
            try:
                yield runner
            finally:
                await runner.close()
                nursery.cancel_scope.cancel()
    finally:
        try:
            await opened.aclose()
        finally:
            lock.release()


async def _load(
    disk: Disk,
    path: str,
    opened: OpenedIndex,
    record: IndexRecord,
    limits: StoreLimits,
    listeners: DirectoryListeners,
) -> tuple[Contents, ReplayResult, bool]:
    """Return the contents of a directory, and True if its index was damaged."""
    why = f"{path}/{INDEX_FILE} says so"
    if not record.damaged:
        try:
            return *await _load_from(disk, path, opened, record.name, limits), False
        except _DamagedError as error:
            why = str(error)
        await write_index_record(disk, path, replace(record, damaged=True))
    begun = IndexRebuild(path, why, "damaged")
    listeners.rebuild(begun)
    # An index that an earlier start had begun is removed; the damaged one stays until INDEX names
    # the new one.
    await remove_others(disk, path, record.name)
    name = await next_name(disk, path, record)
    try:
        loaded = await _load_from(disk, path, opened, name, limits)
    except _DamagedError as error:
        raise StoreError(StoreStatus.IO_ERROR, f"the new index {name}: {error}") from error
    listeners.rebuild(replace(begun, state="rebuilt"))
    return *loaded, True


class _DamagedError(Exception):
    """The index cannot be read as it was written."""


async def _load_from(
    disk: Disk, path: str, opened: OpenedIndex, name: str, limits: StoreLimits
) -> tuple[Contents, ReplayResult]:
    index: MonitoredIndex | None = None
    try:
        index = MonitoredIndex(await opened.open(name))
        locations = EntryLocations(index, blocks_cached=limits.blocks_cached)
        entries = limits.checkpoint_entries
        log = log_directory(path)
        return await load(disk, log, index, locations, checkpoint_entries=entries)
    except (OSError, StoreError) as error:
        damage = error if isinstance(error, IndexDamagedError) else index and index.damage
        await opened.aclose()
        if damage is None:
            raise
        raise _DamagedError(str(damage)) from error
