"""A directory at work: start, checkpoints, room on the disk, stop.

Starting reads the log behind the last checkpoint (`boot`), and appends two things before anybody is
served: the records that the last process left in doubt, and a limbo mark if records were lost.

A checkpoint begins when enough entries or bytes have come since the last one, and at the stop.  If
the index cannot follow, the log pauses: memory is bounded, and the bookie says so by taking less.

After an error of the log or of the index the volume takes no plain adds any more; it goes on
answering what it knows.  With little room left it takes none either, until there is room again, and
with half of that no entries at all: the rest is for what makes room (`reclaim`).
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import inf

import trio

from bookie.storage.boot import Contents, load
from bookie.storage.disk import Disk
from bookie.storage.index import IndexStore, OpenIndex
from bookie.storage.ledgers import LedgerState
from bookie.storage.limits import StoreLimits
from bookie.storage.log import Group, Log
from bookie.storage.places import Moves, Places
from bookie.storage.reclaim import Reclaimer
from bookie.storage.records import EVERY_LEDGER, NO_ENTRY_ID, Kind, Record
from bookie.storage.replay import Replayed
from bookie.storage.scrub import Scrubber
from bookie.storage.status import StoreError, StoreStatus
from bookie.storage.volume import Volume
from wire.clock import WallClock


class Upkeep:
    """Everything about a volume that is a task, or happens behind a commit."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        limits: StoreLimits,
        contents: Contents,
        replayed: Replayed,
        nursery: trio.Nursery,
        *,
        creation_id: int,
        committed: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self.volume = Volume(directory, limits, contents, nursery)
        self.replayed = replayed
        self._log: Log[LedgerState] = Log(
            disk,
            log_directory(directory),
            limits.log,
            segments=replayed.segments,
            mark=replayed.mark,
            end=replayed.end,
            creation_id=creation_id,
            committed=self._committed,
            failed=self._failed,
        )
        self.volume.log = self._log
        self._places: Places = contents.places
        self._contents = contents
        self._disk = disk
        self._limits = limits
        self._nursery = nursery
        self._tell_committed = committed
        self._tell_changed = changed
        self._wanted = trio.Event()
        self._checkpointing = trio.Lock()
        self._index_busy = False
        # The position at which there is less room than the volume knows; when last looked at.
        self._full_at: float = replayed.end
        self.reclaimer = Reclaimer(
            disk,
            log_directory(directory),
            limits.reclaim,
            self.volume,
            contents,
            checkpoint=self.checkpoint,
            look_at_space=self._look_at_space,
        )
        self.scrubber = Scrubber(disk, self.volume, contents, limits.scrub_bytes_per_s)
        # `close` needs the log, also when what is around the store is being cancelled.
        self._log_scope = trio.CancelScope(shield=True)

    # ---- what the log tells

    def _committed(self, group: Group[LedgerState]) -> None:
        for state, lac in group.lacs.items():
            state.raise_lac(lac)
        for done in group.dones:
            done(StoreStatus.OK)
        self._tell_committed()
        if self._log.durable >= self._full_at:
            self._run_out_of_space()
        if group.segment is not None:
            self._places.shares.begin(group.segment.first)
        behind = self._log.durable - self._contents.checkpoint
        recent = self._places.recent_entries
        if recent >= self._limits.checkpoint_entries or behind >= self._limits.checkpoint_bytes:
            self._wanted.set()
        if self._index_busy and recent >= self._limits.recent_entries_max:
            self._log.pause()

    def _failed(self, groups: list[Group[LedgerState]]) -> None:
        self._judge()
        for group in groups:
            for done in group.dones:
                done(StoreStatus.IO_ERROR)
        self._tell_committed()

    def _judge(self) -> None:
        if self.volume.judge():
            self._tell_changed()

    # ---- from start to stop

    async def start(self) -> None:
        """Put what the last process left in doubt, and a new loss, on the disk."""
        self._nursery.start_soon(self._run_log)
        records = self.replayed.doubtful
        if self.replayed.losses:
            limbo = Record(0, Kind.LIMBO, EVERY_LEDGER, NO_ENTRY_ID, memoryview(b""))
            records = [*records, limbo]
        if records:
            positions = self._log.append_together(records)
            await self._log.wait_durable(positions[-1])
            for record, position in zip(records, positions, strict=True):
                self._contents.apply(record, position)
        self.replayed.doubtful = []
        self.volume.limbo = self.volume.doubt = self._contents.limbo
        self.volume.tombstones = sum(state.deleted for state in self._contents.ledgers.values())
        await self._look_at_space()
        self._judge()
        self._nursery.start_soon(self._checkpoint_now_and_then)
        self._nursery.start_soon(self._watch_space)

    async def _run_log(self) -> None:
        with self._log_scope:
            await self._log.run()

    async def _checkpoint_now_and_then(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self.checkpoint()
            except (OSError, StoreError):
                self._judge()
                return

    async def checkpoint(self, moves: Moves | None = None) -> None:
        """Bring the index up to date: a start after this reads only what comes behind it.

        With `moves` the entries that were written again are found there from now on.
        """
        # Shielded: half a checkpoint would be the last one of this process.
        with trio.CancelScope(shield=True):
            async with self._checkpointing:
                if self._log.failure is None and self._places.failure is None:
                    await self._checkpoint(moves)

    async def _checkpoint(self, moves: Moves | None) -> None:
        position = self._log.seal()

        async def when_durable() -> None:
            await self._log.wait_durable(position - 1)
            self._index_busy = True

        try:
            limbo = self.volume.limbo
            await self._places.checkpoint(
                position, limbo=limbo, when_durable=when_durable, moves=moves
            )
            self._contents.checkpoint = position
        finally:
            self._index_busy = False
            self._log.resume()

    async def _watch_space(self) -> None:
        while True:
            await trio.sleep(self._limits.space_check_s)
            await self._look_at_space()
            self._judge()

    async def _look_at_space(self) -> int:
        """How many bytes are free; 0 if that cannot be said."""
        try:
            free = await self._disk.free_bytes(self.volume.directory)
        except OSError:
            return 0  # whoever writes next meets the error
        self._set_room(free - self._limits.free_bytes_min)
        return free

    def _set_room(self, room: int) -> None:
        """So many bytes may be written before there is too little for plain adds."""
        reserve = self._limits.free_bytes_min // 2
        volume = self.volume
        volume.out_of_space = room < 0
        volume.out_of_reserve = room + reserve < 0
        if volume.out_of_reserve:
            self._full_at = inf
        else:
            self._full_at = self._log.durable + (room + reserve if volume.out_of_space else room)

    def _run_out_of_space(self) -> None:
        """Between two looks, as much was written as there was room for."""
        self._set_room(-1 - self._limits.free_bytes_min * self.volume.out_of_space)
        self._judge()

    @property
    def log_bytes(self) -> int:
        """About what the log takes."""
        return self._log.end - sum(gap.end - gap.first for gap in self._contents.gaps)

    async def close(self) -> None:
        """Take nothing more; leave an end mark and an index that covers everything."""
        self.volume.closing = True
        self._judge()
        deadline = trio.current_time() + self._limits.close_s
        try:
            with trio.CancelScope(shield=True, deadline=deadline):
                await self._log.close()
                await self.checkpoint()
        except (OSError, StoreError):
            pass  # the next start finds out what there is
        finally:
            self._log_scope.cancel()
            self._log.close_readers()


def log_directory(directory: str) -> str:
    return f"{directory}/log"


@asynccontextmanager
async def open_volume(
    disk: Disk,
    directory: str,
    open_index: OpenIndex,
    clock: WallClock,
    limits: StoreLimits,
    *,
    committed: Callable[[], None],
    changed: Callable[[], None],
) -> AsyncGenerator[Upkeep]:
    """The ledgers in this directory, which is locked for this process meanwhile."""
    await disk.make_directory(log_directory(directory))
    lock = await disk.lock_directory(directory)
    try:
        async with open_index(f"{directory}/index") as index:
            contents, replayed = await _load(disk, directory, index, limits)
            async with trio.open_nursery() as nursery:
                upkeep = Upkeep(
                    disk,
                    directory,
                    limits,
                    contents,
                    replayed,
                    nursery,
                    creation_id=max(clock.now_ms(), replayed.creation_id + 1),
                    committed=committed,
                    changed=changed,
                )
                try:
                    await upkeep.start()
                    yield upkeep
                finally:
                    await upkeep.close()
                    nursery.cancel_scope.cancel()
    finally:
        lock.release()


async def _load(
    disk: Disk, directory: str, index: IndexStore, limits: StoreLimits
) -> tuple[Contents, Replayed]:
    places = Places(index, blocks_cached=limits.blocks_cached)
    entries = limits.checkpoint_entries
    return await load(disk, log_directory(directory), index, places, checkpoint_entries=entries)
