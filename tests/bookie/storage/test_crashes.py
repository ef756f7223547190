"""The store on a disk that dies before any operation, and its promises after the restart.

A workload runs once to count its disk operations; then once for each of them, with a crash just
before it.  The disk keeps any of the unsynced writes, the store starts again, is checked, works on,
and loses power again.  Now and then the index is gone as well.
"""

import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from daybook.bookie.storage import records
from daybook.bookie.storage.directory_runner import DirectoryRunner
from daybook.bookie.storage.entry_locations import EntryLocations
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.log import Log
from daybook.bookie.storage.records import Kind, UnsupportedVersionError
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.conftest import has
from tests.bookie.storage.oracle import Oracle, random_workload, small_limits, workload
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Platter, SimulatedDisk, SimulatedFile
from tests.simulation import scheduler

_IDS = struct.Struct(">qq")
Mount = Callable[[Platter], SimulatedDisk]


def mount(platter: Platter) -> SimulatedDisk:
    return platter.mount()


Work = Callable[[LedgerStore, Oracle], Awaitable[None]]


async def live(
    platter: Platter,
    oracle: Oracle,
    mount: Mount,
    *,
    work: Work | None,
    directories: Sequence[str] = ("d0",),
) -> bool:
    """Run the host once; return False if it was cut short."""
    try:
        async with open_store(
            disk=mount(platter),
            directories=directories,
            index=platter.indexes().open,
            clock=FixedClock(),
            limits=small_limits(),
        ) as store:
            await oracle.check(store)
            await oracle.check_fences(store)
            if work is not None:
                await work(store, oracle)
                await oracle.check(store)
                await oracle.check_fences(store)
            await trio.lowlevel.checkpoint()
            assert not store.statistics().failure
    except (HostCrashedError, BaseExceptionGroup) as error:
        # Other errors of a dead host that unwinds do not matter, broken promises do.
        if not has(error, HostCrashedError) or has(error, AssertionError):
            raise
        oracle.pending = 0
        return False
    return True


async def crash_everywhere(seed: int, mount: Mount, *, stride: int = 1) -> int:
    """Return the number of crashes that were survived; an AssertionError is a broken promise."""
    operation = 0
    while True:
        rng = random.Random(f"{seed} {operation}")
        platter, oracle = Platter(rng), Oracle()
        platter.crash_before(operation)
        if await live(platter, oracle, mount, work=workload):
            return operation
        for _ in range(rng.randrange(3)):  # die again during the start
            (platter.lose_power if rng.random() < 0.7 else platter.kill)()
            platter.crash_before(rng.randrange(12))
            await live(platter, oracle, mount, work=None)
        platter.kill()
        if rng.random() < 0.3:
            platter.lose_indexes()  # the log alone suffices to rebuild it
        assert await live(platter, oracle, mount, work=rng.choice((workload, None)))
        platter.lose_power()
        assert await live(platter, oracle, mount, work=workload)
        operation += stride


def run(seed: int, mount: Mount = mount, stride: int = 1) -> int:
    return scheduler.run(
        lambda _: crash_everywhere(seed, mount, stride=stride), seed=seed, steps_max=3_000_000
    )


@pytest.mark.parametrize("seed", range(3))
def test_nothing_promised_is_lost_whatever_operation_the_disk_dies_before(seed: int) -> None:
    assert run(seed) > 80


def run_seeds(mount: Mount = mount) -> None:
    for seed in range(20):
        run(seed, mount)


async def random_lives(seed: int) -> None:
    """Run random operations over two directories, in three starts that end at any moment."""
    rng = random.Random(seed)
    platter, oracle = Platter(rng), Oracle()

    async def work(store: LedgerStore, oracle: Oracle) -> None:
        await random_workload(store, oracle, rng)

    for _ in range(3):
        platter.crash_before(rng.randrange(150))
        await live(platter, oracle, mount, work=work, directories=rng.choice(ORDERS))
        (platter.lose_power if rng.random() < 0.7 else platter.kill)()
    assert await live(platter, oracle, mount, work=work, directories=ORDERS[0])


ORDERS = (("d0", "d1"), ("d1", "d0"))


@pytest.mark.parametrize("block", range(4))
def test_nothing_promised_is_lost_in_any_other_run(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        scheduler.run(lambda _, seed=seed: random_lives(seed), seed=seed)  # type: ignore[misc]


# ---- the same test, with storage that is broken on purpose


class NoSync(SimulatedDisk):
    async def sync(self, file: SimulatedFile) -> None:
        await self.operate("sync")


class NoSyncOfNames(SimulatedDisk):
    async def sync_names(self) -> None:
        await self.operate("sync_names")


class SyncAfterwards(SimulatedDisk):
    """A disk that reports a sync as done, and does it before the next operation."""

    late: SimulatedFile | None = None

    async def operate(self, name: str) -> None:
        await super().operate(name)
        if self.late is not None:
            self.platter.sync_file(self.late)
            self.late = None

    async def sync(self, file: SimulatedFile) -> None:
        self.late = file


@pytest.mark.parametrize("disk", [NoSync, NoSyncOfNames, SyncAfterwards])
def test_the_test_notices_a_disk_that_lies(disk: type[SimulatedDisk]) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run_seeds(lambda platter: disk(platter, platter.generation))
    assert caught.group_contains(AssertionError)


def forget_the_fence(patch: pytest.MonkeyPatch) -> None:
    def fence(self: LedgerDirectory, ledger_id: int, master_key: bytes) -> int:
        self._authorized(ledger_id, master_key).fenced = True
        return -1

    patch.setattr(LedgerDirectory, "fence", fence)


def forget_the_explicit_lac(patch: pytest.MonkeyPatch) -> None:
    def write_lac(
        self: LedgerDirectory, ledger_id: int, master_key: bytes, lac: int, body: bytes
    ) -> int:
        state = self._authorized(ledger_id, master_key)
        state.explicit_lac, state.explicit_body = lac, body
        return -1

    patch.setattr(LedgerDirectory, "write_lac", write_lac)


def forget_the_tombstone(patch: pytest.MonkeyPatch) -> None:
    def delete(self: LedgerDirectory, ledger_id: int) -> int:
        self.ledgers[ledger_id].deleted = True
        return -1

    patch.setattr(LedgerDirectory, "delete", delete)


def forget_the_key(patch: pytest.MonkeyPatch) -> None:
    def keep_master_key(self: LedgerDirectory, state: LedgerState, master_key: bytes) -> None:
        state.master_key = state.master_key or bytes(master_key)

    patch.setattr(LedgerDirectory, "keep_master_key", keep_master_key)


def answer_before_the_write(patch: pytest.MonkeyPatch) -> None:
    write = Log._write

    async def write_later(self: Any, appender: Any, group: Any) -> None:
        for done in group.dones:
            done(StoreStatus.OK)
        group.dones.clear()
        await write(self, appender, group)

    patch.setattr(Log, "_write", write_later)


def read_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    async def read(self: LedgerDirectory, ledger_id: int, entry_id: int) -> memoryview:
        state = self.known_ledger(ledger_id)
        place = await self.locations.find(state, entry_id)
        if place is None:
            raise self.absence(StoreStatus.NO_ENTRY)
        if place[0] >= self.log.durable:
            group = self.log._groups[-1] if self.log._groups else self.log._writing
            assert group is not None
            payloads = [bytes(buffer) for buffer in group.buffers]
            return next(memoryview(p) for p in payloads if p[:16] == _IDS.pack(ledger_id, entry_id))
        return (await self.log.read(*place)).payload

    patch.setattr(LedgerDirectory, "read", read)


def trust_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """Serve data that may only be in the page cache, and do not write it again."""

    async def start(self: DirectoryRunner, *, in_doubt: bool) -> None:
        for record in self.replayed.doubtful:
            self._contents.apply(record, record.position)
        self.replayed.doubtful = []
        await start_of(self, in_doubt=in_doubt)

    start_of = DirectoryRunner.start
    patch.setattr(DirectoryRunner, "start", start)


def drop_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    async def start(self: DirectoryRunner, *, in_doubt: bool) -> None:
        self.replayed.doubtful = []
        await start_of(self, in_doubt=in_doubt)

    start_of = DirectoryRunner.start
    patch.setattr(DirectoryRunner, "start", start)


def checkpoint_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    async def checkpoint(self: EntryLocations, position: int, **how: Any) -> None:
        await checkpoint_of(self, position, limbo=how["limbo"])

    checkpoint_of = EntryLocations.checkpoint
    patch.setattr(EntryLocations, "checkpoint", checkpoint)


def believe_every_byte(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records, "crc32c", lambda *_: 0)


def replace_what_is_there(patch: pytest.MonkeyPatch) -> None:
    def add_again(
        self: LedgerDirectory, state: Any, entry_id: int, entry: Any, recovery: bool, done: Any
    ) -> None:
        for recent in (state.recent, state.frozen):
            if recent and recent.find(entry_id):
                at = recent.ids.index(entry_id)
                recent.positions[at] = self.log.append(
                    Kind.ENTRY, state.ledger_id, entry_id, entry, done
                )
                recent.sizes[at] = len(entry)
                return
        self._accept(state, entry_id, entry, recovery, done)

    patch.setattr(LedgerDirectory, "_add_again", add_again)


MUTANTS = [
    forget_the_fence,
    forget_the_explicit_lac,
    forget_the_tombstone,
    forget_the_key,
    answer_before_the_write,
    read_what_is_not_durable,
    trust_the_last_batch,
    drop_the_last_batch,
    checkpoint_what_is_not_durable,
    believe_every_byte,
    replace_what_is_there,
]


@pytest.mark.parametrize("break_it", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_test_notices_storage_that_is(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises((BaseExceptionGroup, AssertionError, KeyError, UnsupportedVersionError)):
        run_seeds()
