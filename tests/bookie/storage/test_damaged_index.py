"""A damaged index: the bookie goes into limbo, then rebuilds the index from the log."""

import errno
import random
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import (
    IndexDamagedError,
    IndexStore,
    MonitoredIndex,
    block_key,
    ledger_key,
    open_rocks_index,
)
from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.rebuild import IndexRebuild, IndexRecord
from daybook.bookie.storage.records import UnsupportedVersionError
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.conftest import Answers, Host, has, status_of
from tests.bookie.storage.oracle import EAGER, entry, key, small_limits
from tests.bookie.storage.test_limbo import fill
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Platter
from tests.simulation import scheduler

FENCED, OK = StoreStatus.FENCED, StoreStatus.OK
IO_ERROR, READ_ONLY, UNKNOWN = StoreStatus.IO_ERROR, StoreStatus.READ_ONLY, StoreStatus.UNKNOWN
COUNT = 300
SMALL = {"log": small_limits().log, "reclaim": EAGER, "scrub_bytes_per_s": 1e9}


class SlowWrites:
    """An index whose writing batches wait while `held`; batches that only delete do not."""

    def __init__(self, index: IndexStore) -> None:
        self.index = index
        self.held = False
        self.writing = trio.Event()
        self.go_on = trio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self.index, name)

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        if self.held and puts:
            self.writing.set()
            await self.go_on.wait()
        await self.index.write(puts, deletes)


class Gate:
    """Lets a new index be opened when the test allows it."""

    def __init__(self, host: Host) -> None:
        self.open = trio.Event()
        self.held = False
        self.opened: list[SlowWrites] = []
        self._host = host

    @asynccontextmanager
    async def index(self, directory: str) -> AsyncGenerator[IndexStore]:
        if not directory.endswith("/index"):
            await self.open.wait()
        async with self._host.platter.indexes().open(directory) as index:
            slow = SlowWrites(index)
            slow.held = self.held
            self.opened.append(slow)
            yield slow  # type: ignore[misc]

    @asynccontextmanager
    async def store(
        self, told: Callable[[IndexRebuild], None] = lambda _: None
    ) -> AsyncGenerator[LedgerStore]:
        async with open_store(
            disk=self._host.platter.mount(),
            directories=["d0"],
            index=self.index,
            clock=FixedClock(),
            limits=StoreLimits(free_bytes_min=0, **SMALL),  # type: ignore[arg-type]
            rebuild=told,
        ) as store:
            yield store


async def rebuilt(store: LedgerStore) -> None:
    while store.rebuilding:
        await trio.lowlevel.checkpoint()


def record(host: Host) -> bytes:
    return host.platter.content("d0/INDEX")


def rot(host: Host, *keys: bytes, name: str = "index") -> None:
    host.platter.index(f"d0/{name}").bad.update(keys)


async def filled(host: Host) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2, count=COUNT)
        await store.fence(2, key(2))
        await fill(store, 3, count=5)
        await store.delete(3)


async def check_all(store: LedgerStore) -> None:
    for ledger_id in (1, 2):
        for entry_id in range(COUNT):
            expected = entry(ledger_id, entry_id, lac=entry_id - 1)
            assert await store.read(ledger_id, entry_id) == expected
        assert await store.entry_ids(ledger_id) == list(range(COUNT))
    assert store.is_fenced(2)
    assert store.ledgers() == [1, 2]


async def test_a_block_that_cannot_be_read_puts_the_bookie_in_doubt_and_the_index_is_made_again(
    host: Host,
) -> None:
    """Once, its entries were unreadable forever, absences were believed, and nobody was told."""
    await filled(host)
    told: list[IndexRebuild] = []
    gate = Gate(host)
    async with gate.store(told.append) as store:
        rot(host, block_key(1, 0))
        assert not store.limbo
        assert await status_of(store.read(1, 7)) is IO_ERROR
        assert store.limbo
        assert not store.writable
        assert await status_of(store.read(1, 999)) is UNKNOWN
        assert await status_of(store.read(77, 0)) is UNKNOWN
        await store.read(1, COUNT - 1)
        answers = Answers(store)
        answers.add(1, COUNT)
        answers.add(88, 0)
        assert await answers.all() == [READ_ONLY, READ_ONLY]
        assert store.statistics().index_rebuilds == 1
        assert not store.statistics().failure
        assert store.maintenance.stranded_ledgers() == []
        gate.open.set()
        await rebuilt(store)
        assert store.limbo, "the metadata end the doubt, not the rebuild"
        await check_all(store)
        assert store.statistics().index_rebuilds == 0
        assert [each.state for each in told] == ["damaged", "rebuilding", "rebuilt"]
        assert record(host) == b"1 index-2 whole\n"
        await store.end_doubt(5)
        assert store.writable
        answers.add(1, COUNT)
        assert await answers.all() == [OK]
        assert list(host.platter.indexes_there()) == ["d0/index-2"]
    async with host.store(**SMALL) as store:
        assert not store.limbo
        assert store.statistics().replayed_bytes < 2000
        await store.read(1, COUNT)
        await check_fences(store)


async def test_damage_that_the_new_index_does_not_lead_to_is_forgotten(host: Host) -> None:
    """Once, entries that had come again were called damaged until the next start.

    The next damage of such an entry would not have been reported.
    """
    await filled(host)
    async with host.store(**SMALL) as store:
        host.platter.corrupt(host.logs()[0], 1500, b"\xa5" * 300)
        lost = [
            entry_id
            for entry_id in range(COUNT)
            if await status_of(store.read(1, entry_id)) is IO_ERROR
        ]
        assert lost
        noted = [(1, entry_id) for entry_id in lost]
        assert store.maintenance.damaged_entries() == noted
        rot(host, block_key(2, 0))
        assert await status_of(store.read(2, 7)) is IO_ERROR
        await rebuilt(store)
        assert store.maintenance.damaged_entries() == []
        answers = Answers(store)
        for entry_id in range(COUNT):
            answers.add(1, entry_id, lac=entry_id - 1, recovery=True)
            assert await answers.all() == [OK]
        await check_all(store)
        assert store.maintenance.damaged_entries() == []


async def test_damage_that_the_index_leads_to_stays_known(host: Host) -> None:
    """Otherwise a recovery add would be answered, and the entry would stay as damaged as it is."""
    await filled(host)
    async with host.store(**SMALL) as store:
        host.platter.corrupt(host.logs()[0], 1500, b"\xa5" * 300)
        for entry_id in range(COUNT):
            await status_of(store.read(1, entry_id))
        noted = store.maintenance.damaged_entries()
        assert noted
        for directory in store._directories.ledger_directories:
            await directory.forget_moved_damage()
        assert store.maintenance.damaged_entries() == noted
        answers = Answers(store)
        for _, entry_id in noted:
            answers.add(1, entry_id, lac=entry_id - 1, recovery=True)
        assert set(await answers.all()) == {OK}
        await check_all(store)


async def check_fences(store: LedgerStore) -> None:
    answers = Answers(store)
    answers.add(2, COUNT)
    answers.add(3, 50)
    assert await answers.all() == [FENCED, FENCED]


async def test_an_id_below_the_last_one_is_not_taken_while_the_index_cannot_say_that_it_is_new(
    host: Host,
) -> None:
    await filled(host)
    gate = Gate(host)
    async with gate.store() as store:
        index = host.platter.index("d0/index")
        index.apply({}, [block_key(1, 0)])  # The block is missing, and no error reports it.
        rot(host, block_key(1, 1))
        assert await status_of(store.read(1, 260)) is IO_ERROR
        answers = Answers(store)
        answers.add(1, 7, recovery=True, note="other bytes")
        answers.add(1, COUNT, recovery=True, lac=COUNT - 1)
        answers.add(1, COUNT, recovery=True, note="other bytes")
        answers.add(1, COUNT + 7, recovery=True, lac=COUNT)
        answers.add(1, COUNT + 3, recovery=True, lac=COUNT)  # a late entry that is certainly new
        assert sorted(await answers.all()) == [OK, OK, OK, OK, READ_ONLY]
        assert await status_of(store.read(1, 8)) is UNKNOWN  # This limbo is remembered.
        answers.add(1, 7, recovery=True, note="other bytes")
        assert await answers.all() == [READ_ONLY]
        gate.open.set()
        await rebuilt(store)
        await store.read(1, COUNT)
        assert await store.read(1, 7) == entry(1, 7, lac=6)


async def test_what_comes_while_the_index_is_made_again_is_in_it(host: Host) -> None:
    await filled(host)
    gate = Gate(host)
    async with gate.store() as store:
        rot(host, block_key(1, 0))
        assert await status_of(store.read(1, 7)) is IO_ERROR
        answers = Answers(store)
        for entry_id in range(COUNT, COUNT + 50):
            answers.add(1, entry_id, recovery=True, lac=entry_id - 1)
        assert await answers.all() == [OK] * 50
        await store.fence(1, key(1))
        await store.delete(2)
        gate.open.set()
        await rebuilt(store)
        for entry_id in range(COUNT + 50):
            assert await store.read(1, entry_id) == entry(1, entry_id, lac=entry_id - 1)
        await store.end_doubt(5)
    async with host.store(**SMALL) as store:
        assert store.ledgers() == [1]
        assert store.is_fenced(1)
        assert await store.entry_ids(1) == list(range(COUNT + 50))
        await store.maintenance.scrub()
        assert not store.limbo


async def test_the_doubt_is_durable_before_the_new_index_is_begun(host: Host) -> None:
    await filled(host)
    gate = Gate(host)

    async def meet_damage_and_die() -> None:
        async with gate.store() as store:
            rot(host, block_key(1, 0))
            assert await status_of(store.read(1, 7)) is IO_ERROR
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            host.platter.lose_power()

    with pytest.raises((HostCrashedError, BaseExceptionGroup)) as died:
        await meet_damage_and_die()
    assert not has(died.value, AssertionError)
    assert record(host) == b"1 index damaged\n"
    host.platter.index("d0/index").bad.clear()  # As if the disk could read the blocks again.
    async with host.store(**SMALL) as store:
        assert store.limbo
        assert record(host) == b"1 index-2 whole\n"
        await check_all(store)


async def test_what_a_checkpoint_does_not_have_stays_readable_while_the_index_is_made_again(
    host: Host,
) -> None:
    """The checkpoint under way ends first: it would delete entries that came since it began."""
    await filled(host)
    gate = Gate(host)
    async with gate.store() as store, trio.open_nursery() as nursery:
        old = gate.opened[0]
        old.held = True
        answers = Answers(store)
        answers.add(1, COUNT, lac=COUNT - 1)
        assert await answers.all() == [OK]
        made = trio.Event()

        async def checkpoint() -> None:
            await store.maintenance.checkpoint()
            made.set()

        nursery.start_soon(checkpoint)
        await old.writing.wait()
        answers.add(1, COUNT + 1, lac=COUNT)
        assert await answers.all() == [OK]
        gate.held = True
        gate.open.set()
        rot(host, block_key(2, 0))
        assert await status_of(store.read(2, 7)) is IO_ERROR
        for _ in range(300):
            await trio.lowlevel.checkpoint()
        old.go_on.set()
        await made.wait()
        while len(gate.opened) < 2 or not gate.opened[1].writing.is_set():
            await trio.lowlevel.checkpoint()
        for entry_id in (COUNT, COUNT + 1):
            assert await store.read(1, entry_id) == entry(1, entry_id, lac=entry_id - 1)
        gate.opened[1].go_on.set()
        await rebuilt(store)
        for entry_id in range(COUNT + 2):
            assert await store.read(1, entry_id) == entry(1, entry_id, lac=entry_id - 1)


async def test_the_doubt_does_not_end_before_the_new_index_is_there(host: Host) -> None:
    await filled(host)
    gate = Gate(host)
    async with gate.store() as store:
        await store.limbo_ledgers.mark([LimboMark(1, limbo=True, fence=False)])
        rot(host, block_key(1, 0))
        assert await status_of(store.read(1, 7)) is IO_ERROR
        for ending in (store.end_doubt(5), store.limbo_ledgers.clear(1)):
            with pytest.raises(StoreError, match="being rebuilt"):
                await ending
        assert store.limbo
        gate.open.set()
        await rebuilt(store)
        await store.limbo_ledgers.clear(1)
        await store.end_doubt(5)
        assert not store.limbo


async def test_a_doubt_that_begins_while_another_one_ends_stays(host: Host) -> None:
    await filled(host)
    async with open_store(
        disk=host.platter.mount(),
        directories=["d0"],
        index=host.platter.indexes().open,
        clock=FixedClock(),
        limits=StoreLimits(free_bytes_min=0),
        in_doubt=True,
    ) as store:
        async with trio.open_nursery() as nursery:
            ended: list[StoreStatus] = []

            async def end() -> None:
                ended.append(await status_of(store.end_doubt(5)))

            async def find_damage() -> None:
                while not store.bytes_in_flight:
                    await trio.lowlevel.checkpoint()
                places = store._directories.ledger_directories[0].locations
                places.index.report(IndexDamagedError("block checksum mismatch"))

            nursery.start_soon(end)
            nursery.start_soon(find_damage)
        assert ended == [UNKNOWN]
        assert store.limbo
        await rebuilt(store)
        assert store.limbo
    async with host.store() as store:
        assert store.limbo


async def test_no_segment_goes_while_the_index_cannot_say_what_counts(host: Host) -> None:
    async with host.store(**SMALL) as store:
        await fill(store, 1, 2, count=COUNT)
        await store.maintenance.checkpoint()
    gate = Gate(host)
    async with gate.store() as store:
        rot(host, block_key(1, 0))
        await store.delete(2)
        assert await status_of(store.read(1, 7)) is IO_ERROR
        before = host.logs()
        # As if rows and blocks of the damaged index had been lost without an error.
        index = host.platter.index("d0/index")
        index.apply({}, [each for each in index.stored_keys() if each.startswith(b"b")])
        for _ in range(3):
            await store.maintenance.reclaim()
        assert set(before) <= set(host.logs())
        assert store.statistics().segments_removed == 0
        gate.open.set()
        await rebuilt(store)
        for entry_id in range(COUNT):
            await store.read(1, entry_id)
        for _ in range(3):
            await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 0
        for entry_id in range(COUNT):
            await store.read(1, entry_id)


@pytest.mark.parametrize("what", ["unreadable", "missing block", "missing row", "other bytes"])
async def test_a_scrub_finds_damage_of_the_index_that_nobody_has_met(host: Host, what: str) -> None:
    await filled(host)
    async with host.store(**SMALL) as store:
        await store.maintenance.scrub()
        assert not store.limbo
        index = host.platter.index("d0/index")
        match what:
            case "unreadable":
                rot(host, block_key(2, 1))
            case "missing block":
                index.apply({}, [block_key(2, 1)])
            case "missing row":
                index.apply({}, [ledger_key(2)])
            case _:
                index.apply({block_key(2, 1): b"\0\0\0"}, [])
        await store.maintenance.scrub()
        assert store.limbo
        assert store.statistics().scrub_failures == 1
        await rebuilt(store)
        await check_all(store)
        await store.maintenance.scrub()
        assert store.statistics().scrub_failures == 1
        assert store.maintenance.findings() == []


async def test_a_checkpoint_that_meets_damage_is_no_failed_directory(host: Host) -> None:
    await filled(host)
    async with host.store(**SMALL) as store:
        answers = Answers(store)
        answers.add(1, COUNT, lac=COUNT - 1)
        assert await answers.all() == [OK]
        rot(host, block_key(1, 1))
        with pytest.raises(OSError, match="checksum"):
            await store.maintenance.checkpoint()
        assert store.limbo
        await rebuilt(store)
        assert not store.statistics().failure
        await store.read(1, COUNT)
        await check_all_but_count(store)
        await store.maintenance.checkpoint()


async def check_all_but_count(store: LedgerStore) -> None:
    for entry_id in range(COUNT):
        await store.read(1, entry_id)
        await store.read(2, entry_id)


@pytest.mark.parametrize("what", ["files", "row", "checkpoint", "other row", "no such record"])
async def test_damage_at_a_start_is_doubt_and_the_index_is_made_again(
    host: Host, what: str
) -> None:
    """Once, such a bookie did not start, or started with what was left."""
    await filled(host)
    index = host.platter.index("d0/index")
    match what:
        case "files":
            index.openable = False
        case "row":
            rot(host, ledger_key(2))
        case "checkpoint":
            rot(host, b"c")
        case "other row":
            index.apply({ledger_key(2): b"\2\0\0"}, [])
        case _:
            disk = host.platter.mount()
            await disk.write_file("d0/INDEX", b"what is this")
    async with host.store(**SMALL) as store:
        assert store.limbo
        await check_all(store)
        assert record(host) == b"1 index-2 whole\n"
        assert list(host.platter.indexes_there()) == ["d0/index-2"]
        await store.end_doubt(5)
    async with host.store(**SMALL) as store:
        assert not store.limbo
        await check_all(store)


@pytest.mark.parametrize("how", ["full disk", "damage"])
async def test_a_checkpoint_that_fails_while_the_log_is_read_is_no_loss_of_the_log(
    host: Host, how: str
) -> None:
    """Once, it was taken for an error of the segment, and the next one failed an assertion."""
    async with host.store(**SMALL) as store:
        await fill(store, 1, count=COUNT)
    host.platter.lose_indexes()
    limits = {**SMALL, "checkpoint_entries": 20}
    if how == "full disk":
        host.platter.fail_next("index_write", OSError(errno.ENOSPC, "no room"), after=2)
        with pytest.raises((StoreError, BaseExceptionGroup), match="no room"):
            async with host.store(**limits):
                pass
    else:
        damaged = IndexDamagedError(errno.EIO, "compaction met a damaged block")
        host.platter.fail_next("index_write", damaged, after=2)
    async with host.store(**limits) as store:
        assert store.statistics().losses == []
        assert store.limbo == (how == "damage")
        for entry_id in range(COUNT):
            await store.read(1, entry_id)


async def test_a_record_of_a_later_version_is_left_alone(host: Host) -> None:
    await filled(host)
    await host.platter.mount().write_file("d0/INDEX", b"2 index-9 whole\n")
    with pytest.raises(UnsupportedVersionError, match="known: 1"):
        async with host.store():
            pass
    assert record(host) == b"2 index-9 whole\n"


GOLDEN = Path(__file__).parents[2] / "golden" / "bookie_storage_v4" / "INDEX"


def test_the_record_is_the_golden_file() -> None:
    assert IndexRecord("index-2", damaged=True).encode() == GOLDEN.read_bytes()
    assert IndexRecord.decode(GOLDEN.read_bytes()) == IndexRecord("index-2", damaged=True)


def test_what_the_record_says() -> None:
    for each in (IndexRecord("index", damaged=True), IndexRecord("index-12", damaged=False)):
        assert IndexRecord.decode(each.encode()) == each
    for other in (b"", b"1 index", b"1 ../x whole\n", b"1 index-0 whole\n", b"1 index maybe\n"):
        assert IndexRecord.decode(other) == IndexRecord("index", damaged=True)


async def test_an_error_that_passes_is_no_damage() -> None:
    class Full:
        async def get(self, key: bytes) -> bytes | None:
            raise OSError(24, "Too many open files")

    found: list[OSError] = []
    index = MonitoredIndex(Full())  # type: ignore[arg-type]
    index.watch(found.append)
    with pytest.raises(OSError, match="Too many"):
        await index.get(b"k")
    assert found == []


# ---- a crash anywhere


async def _rot_and_rebuild(host: Host, crash_at: int | None, rng: random.Random) -> int:
    """Let the host die before that operation after the damage; return the number of operations."""
    await filled(host)
    platter = host.platter
    before = 0
    async with host.doomed_store(**SMALL) as store:
        rot(host, block_key(1, 0), block_key(2, 1))
        before = platter.operations
        if crash_at is not None:
            platter.crash_before(crash_at)
        assert await status_of(store.read(1, 7)) is IO_ERROR
        await rebuilt(store)
        before, after = platter.operations, before
        if crash_at is None:
            return before - after
    (platter.lose_power if rng.random() < 0.7 else platter.kill)()
    async with host.doomed_store(**SMALL) as store:  # again, during the start
        platter.crash_before(rng.randrange(30))
        await store.maintenance.scrub()
        await rebuilt(store)
    (platter.lose_power if rng.random() < 0.5 else platter.kill)()
    async with host.store(**SMALL) as store:
        for ledger_id in (1, 2):
            for entry_id in range(0, COUNT, 7):
                assert await status_of(store.read(ledger_id, entry_id)) in (OK, IO_ERROR)
        await store.maintenance.scrub()
        assert store.limbo, "whatever was durable when it died, it is in doubt now"
        await rebuilt(store)
        await check_all(store)
        await store.end_doubt(9)
        await check_fences(store)
    async with host.store(**SMALL) as store:
        assert not store.limbo
        await check_all(store)
    return 0


def test_a_crash_before_any_operation_of_the_rebuild_begins_it_anew() -> None:
    def run(crash_at: int | None) -> int:
        rng = random.Random(f"rebuild {crash_at}")
        host = Host(Platter(rng))
        return scheduler.run(
            lambda _: _rot_and_rebuild(host, crash_at, rng), seed=crash_at or 0, steps_max=1_000_000
        )

    operations = run(None)
    assert operations > 20
    for crash_at in range(operations):
        run(crash_at)


# ---- RocksDB


@asynccontextmanager
async def real_store(directory: Path) -> AsyncGenerator[LedgerStore]:
    limits = StoreLimits(
        free_bytes_min=0, checkpoint_entries=1000, blocks_cached=4, scrub_bytes_per_s=1e9
    )
    async with open_store(
        disk=FileDisk(),
        directories=[str(directory)],
        index=open_rocks_index,
        clock=FixedClock(),
        limits=limits,
    ) as store:
        yield store


REAL_LEDGERS, REAL_ENTRIES = range(1, 6), 2048


async def fill_real(directory: Path) -> None:
    async with real_store(directory) as store:
        for ledger_id in REAL_LEDGERS:
            await fill(store, ledger_id, count=REAL_ENTRIES)
        await store.fence(2, key(2))


def damage(directory: Path, what: str) -> None:
    index = directory / "index"
    largest = max(index.glob("*.sst"), key=lambda path: path.stat().st_size)
    match what:
        case "blocks":
            for path in index.glob("*.sst"):
                data = bytearray(path.read_bytes())
                for at in range(len(data) // 8, len(data) // 2, 4096):
                    data[at] ^= 0xFF
                path.write_bytes(data)
        case "cut":
            largest.write_bytes(largest.read_bytes()[:-100])
        case "gone":
            largest.unlink()
        case "manifest":
            path = index / (index / "CURRENT").read_text().strip()
            data = bytearray(path.read_bytes())
            data[len(data) // 10] ^= 0xFF
            path.write_bytes(data)
        case "current":
            (index / "CURRENT").write_bytes(b"MANIFEST-\0")
        case _:
            raise AssertionError(what)


async def check_real(store: LedgerStore) -> None:
    for ledger_id in REAL_LEDGERS:
        assert await store.entry_ids(ledger_id) == list(range(REAL_ENTRIES))
        for entry_id in range(0, REAL_ENTRIES, 64):
            expected = entry(ledger_id, entry_id, lac=entry_id - 1)
            assert await store.read(ledger_id, entry_id) == expected
    assert store.is_fenced(2)


@pytest.mark.parametrize("what", ["blocks", "cut", "gone", "manifest", "current"])
async def test_files_of_rocksdb_that_are_damaged_are_noticed_and_replaced(
    tmp_path: Path, what: str
) -> None:
    await fill_real(tmp_path)
    damage(tmp_path, what)
    async with real_store(tmp_path) as store:
        with trio.fail_after(60):
            await store.maintenance.scrub()
            assert store.limbo
            while store.rebuilding:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await check_real(store)
        await store.end_doubt(5)
    async with real_store(tmp_path) as store:
        assert not store.limbo
        await check_real(store)
    assert not (tmp_path / "index").exists()


async def test_files_that_are_damaged_while_the_bookie_runs(tmp_path: Path) -> None:
    """Once, 12 blocks of 256 entries stayed unreadable, and health reported nothing."""
    await fill_real(tmp_path)
    async with real_store(tmp_path) as store:
        damage(tmp_path, "blocks")
        statuses = {
            await status_of(store.read(ledger_id, entry_id))
            for ledger_id in REAL_LEDGERS
            for entry_id in range(0, REAL_ENTRIES, 256)
        }
        assert statuses <= {OK, IO_ERROR}
        assert store.limbo
        with trio.fail_after(60):
            while store.rebuilding:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await check_real(store)


@pytest.mark.parametrize("which", ["CURRENT's MANIFEST", "write-ahead log"])
async def test_an_index_that_lost_its_last_writes_is_an_older_one(
    tmp_path: Path, which: str
) -> None:
    """RocksDB cuts off a damaged end silently; the log has the later records."""
    async with real_store(tmp_path / "a") as store:
        for ledger_id in REAL_LEDGERS:
            await fill(store, ledger_id, count=REAL_ENTRIES)
        await store.fence(2, key(2))
        await store.maintenance.checkpoint()
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # as after a kill
    index = tmp_path / "b" / "index"
    if which == "write-ahead log":
        path = max(index.glob("*.log"), key=lambda path: path.stat().st_size)
    else:
        path = index / (index / "CURRENT").read_text().strip()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    async with real_store(tmp_path / "b") as store:
        await check_real(store)
        await store.maintenance.scrub()
        assert store.statistics().scrub_failures == 0
