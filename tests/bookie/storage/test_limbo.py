"""A ledger in limbo: its answers, and that only a durable end takes it out of limbo."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from daybook.bookie.storage.directories import StorageLayoutError
from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.markers import BIRTH_FILE, read_generation
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.bookie.storage.unknown_ledgers import LedgerFacts
from tests.bookie.storage.conftest import Answers, Host, has, status_of
from tests.bookie.storage.oracle import EAGER, entry, key, small_limits
from tests.bookie.storage.test_runs import Runs
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Platter
from tests.simulation import scheduler

FENCED = StoreStatus.FENCED
NO_ENTRY = StoreStatus.NO_ENTRY
NO_LEDGER = StoreStatus.NO_LEDGER
OK = StoreStatus.OK
READ_ONLY = StoreStatus.READ_ONLY
UNKNOWN = StoreStatus.UNKNOWN

BIRTH = 77
GOLDEN = Path(__file__).parents[2] / "golden" / "bookie_storage_v3"


def limbo(ledger_id: int, *, fence: bool = True) -> LimboMark:
    return LimboMark(ledger_id, limbo=True, fence=fence)


async def fill(store: LedgerStore, *ledger_ids: int, count: int = 5) -> None:
    answers = Answers(store)
    for ledger_id in ledger_ids:
        for entry_id in range(count):
            answers.add(ledger_id, entry_id, lac=entry_id - 1)
    assert set(await answers.all()) == {OK}


async def absences(store: LedgerStore, ledger_id: int) -> set[StoreStatus]:
    """Return the answers of all kinds of reads about a missing entry."""
    return {
        await status_of(store.read(ledger_id, 99)),
        await status_of(store.fencing_read(ledger_id, 98, key(ledger_id))),
    }


async def test_a_ledger_in_limbo_gives_what_it_has_and_denies_nothing(host: Host) -> None:
    async with host.store() as store:
        await fill(store, 1, 2)
        await store.limbo_ledgers.mark([limbo(1), limbo(7)])
        assert await store.read(1, 4) == entry(1, 4, lac=3)
        assert await absences(store, 1) == {UNKNOWN}
        for reading in (store.read(7, 0), store.read(7, -1), store.read_lac(7)):
            assert await status_of(reading) is UNKNOWN
        assert await absences(store, 7) == {UNKNOWN}
        assert await absences(store, 2) == {NO_ENTRY}
        assert await status_of(store.read(8, 0)) is NO_LEDGER
        assert store.limbo_ledgers.ledgers() == [1, 7]


@pytest.mark.parametrize("fence", [True, False])
async def test_a_ledger_in_limbo_takes_the_adds_of_recoveries_only(host: Host, fence: bool) -> None:
    async with host.store() as store:
        await fill(store, 1, 2)
        await store.limbo_ledgers.mark([limbo(1, fence=fence), limbo(7, fence=fence)])
        answers = Runs(store)
        answers.add_run(1, 40, 3)
        assert await answers.all() == [FENCED if fence else READ_ONLY]
        for ledger_id in (1, 7):
            answers.add(ledger_id, 50)
            answers.add(ledger_id, 50, recovery=True)
        answers.add(2, 50)
        refused = FENCED if fence else READ_ONLY
        assert sorted(await answers.all()) == sorted([refused, OK, refused, OK, OK])
        for ledger_id in (1, 7):
            await store.limbo_ledgers.clear(ledger_id)
            answers.add(ledger_id, 60)
        assert await answers.all() == [FENCED if fence else OK] * 2


@pytest.mark.parametrize("lose_index", [False, True])
async def test_limbo_and_its_end_outlive_a_restart(host: Host, lose_index: bool) -> None:
    async with host.store() as store:
        await fill(store, 1, 2, 3)
        await store.limbo_ledgers.mark([limbo(each) for each in (1, 2, 7)])
        await store.limbo_ledgers.clear(2)
    if lose_index:
        host.platter.lose_indexes()
    async with host.store() as store:
        assert store.limbo_ledgers.ledgers() == [1, 7]
        for ledger_id, expected in ((1, UNKNOWN), (2, NO_ENTRY), (3, NO_ENTRY), (7, UNKNOWN)):
            assert await absences(store, ledger_id) == {expected}
        for ledger_id in (1, 7):
            await store.limbo_ledgers.clear(ledger_id)
    async with host.store() as store:
        assert store.limbo_ledgers.ledgers() == []
        assert await absences(store, 1) == {NO_ENTRY}
        assert store.is_fenced(7)


async def test_a_mark_outlives_its_segment(host: Host) -> None:
    """Compaction copies the mark: without an index it is the only trace of limbo."""
    limits = small_limits(reclaim=EAGER)
    async with host.store(log=limits.log, reclaim=limits.reclaim) as store:
        await store.limbo_ledgers.mark([limbo(1), limbo(7)])
        for ledger_id in (2, 3, 4):
            await fill(store, ledger_id, count=120)
            await store.maintenance.checkpoint()
            await store.delete(ledger_id)
        for _ in range(3):
            await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 1
    host.platter.lose_indexes()
    async with host.store() as store:
        assert store.limbo_ledgers.ledgers() == [1, 7]
        assert store.is_fenced(7)


async def test_a_deleted_ledger_is_in_no_limbo(host: Host) -> None:
    async with host.store() as store:
        await fill(store, 1)
        await store.limbo_ledgers.mark([limbo(1)])
        await store.delete(1)
        await store.limbo_ledgers.mark([limbo(1)])
        assert store.limbo_ledgers.ledgers() == []
        assert await status_of(store.read(1, 0)) is NO_LEDGER


async def test_doubt_ends_when_the_suspects_are_known(host: Host) -> None:
    host.directories = ["d0", "d1"]
    async with host.store() as store:
        await fill(store, 1, 2, 3, 4)
    for path in host.logs("d1"):
        host.platter.forget(path)
    async with host.store() as store:
        assert store.limbo
        assert not store.writable
        await store.limbo_ledgers.mark([limbo(1), limbo(2)])
        assert await absences(store, 3) == {UNKNOWN}
        told: list[bool] = []
        store.add_writable_listener(lambda: told.append(store.writable))
        await store.end_doubt(BIRTH)
        assert told == [True]
        assert await absences(store, 1) == {UNKNOWN}
        assert await absences(store, 3) <= {NO_ENTRY, NO_LEDGER}
        await fill(store, 9)
    host.platter.lose_indexes()
    async with host.store() as store:
        assert store.limbo_ledgers.ledgers() == [1, 2]


@asynccontextmanager
async def asking_store(host: Host, facts: LedgerFacts) -> AsyncIterator[LedgerStore]:
    """Open a store in limbo; the metadata of all ledgers is as given."""

    async def ask(_: int) -> LedgerFacts:
        await trio.lowlevel.checkpoint()
        return facts

    async with open_store(
        disk=host.platter.mount(),
        directories=host.directories,
        index=host.platter.indexes().open,
        clock=FixedClock(),
        limits=StoreLimits(free_bytes_min=0),
        ask=ask,
        in_doubt=True,
    ) as store:
        yield store


@pytest.mark.parametrize(
    ("facts", "plain", "recovery"),
    [
        (LedgerFacts(there=False), FENCED, FENCED),
        (LedgerFacts(there=True, open=False, created_txid=BIRTH - 1), FENCED, OK),
        (LedgerFacts(there=True, open=True, created_txid=BIRTH - 1), READ_ONLY, OK),
    ],
)
async def test_what_comes_while_it_is_in_doubt_is_not_trusted_afterwards(
    host: Host, facts: LedgerFacts, plain: StoreStatus, recovery: StoreStatus
) -> None:
    """Otherwise the ledger would be here, and not on the list of suspects: its fence was lost, and
    it would accept adds.

    The list of stored ledgers is made before the metadata is read, and a ledger that the metadata
    does not name, or names with other bookies by now, is on neither list.
    """
    async with asking_store(host, facts) as store:
        assert store.ledgers() == []
        assert await status_of(store.write_lac(5, key(5), 3, b"lac")) is plain
        answers = Answers(store)
        answers.add(6, 3, recovery=True)
        assert await answers.all() == [recovery]
        await store.limbo_ledgers.mark([])
        await store.end_doubt(BIRTH)
        answers.add(5, 9)
        assert await answers.all() == [plain]
        if not facts.open:
            answers.add(6, 9)
            assert await answers.all() == [FENCED]


async def test_directories_that_say_different_births_are_in_doubt(host: Host) -> None:
    host.directories = ["d0", "d1"]
    async with host.store():
        disk = host.platter.mount()
        assert await read_generation(disk, host.directories) == 0
        await disk.write_file(f"d1/{BIRTH_FILE}", b"1 77\n")
        assert await read_generation(disk, host.directories) is None
    async with host.store() as store:
        assert store.limbo
        await store.end_doubt(BIRTH + 1)
    async with host.store() as store:
        assert not store.limbo


@pytest.mark.parametrize("text", [b"", b"2 5\n", b"1 \xff\n", b"1 -5\n", b"1 " + b"9" * 30])
async def test_a_birth_that_does_not_parse_is_a_doubt(host: Host, text: bytes) -> None:
    disk = host.platter.mount()
    await disk.make_directory("d0")
    await disk.write_file(f"d0/{BIRTH_FILE}", text)
    async with host.store() as store:
        assert store.limbo


async def write_limbo(host: Host) -> None:
    """Write every record that limbo and the loss of the disks leave behind."""
    async with host.store() as store:
        await store.limbo_ledgers.mark([limbo(1), limbo(2, fence=False)])
        await store.limbo_ledgers.clear(2)
    async with host.doomed_store(ack_early=True) as store:
        host.platter.kill()
    async with host.doomed_store(ack_early=True) as store:
        await store.end_doubt(BIRTH)
        await store.maintenance.checkpoint()
        host.platter.kill()


async def test_the_format_of_limbo_is_the_released_one(host: Host) -> None:
    """If this fails, the format has changed: it needs a new version and a new golden directory."""
    await write_limbo(host)
    names = [*host.logs(), "d0/BIRTH", "d0/DIRTY"]
    written = {path.rsplit("/", 1)[1]: host.platter.content(path) for path in names}
    rows = await host.platter.index("d0/index").scan(b"l", b"m", 100)
    lines = [f"{row_key.hex()} {value.hex()}\n" for row_key, value in rows]
    written["index.txt"] = "".join(lines).encode()
    assert written == {path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())}


async def test_an_older_release_does_not_take_a_ledger_in_limbo_for_a_whole_one(host: Host) -> None:
    await write_limbo(host)
    versions = [row[0] for _, row in await host.platter.index("d0/index").scan(b"l", b"m", 100)]
    assert versions == [3, 2]


# ---- the disk dies before any operation

LOST = (1, 3)  # acknowledged, and gone


async def repair(store: LedgerStore) -> None:
    """Repair like the server: list the suspects, copy, then clear."""
    answers = Answers(store)
    if store.limbo:
        await store.limbo_ledgers.mark([limbo(1), limbo(7)])
        await store.end_doubt(BIRTH)
    for ledger_id in store.limbo_ledgers.ledgers():
        if ledger_id == LOST[0]:
            answers.add(*LOST, recovery=True)
            if await answers.all() != [OK]:
                raise StoreError(StoreStatus.IO_ERROR, "the host is dying")
        await store.limbo_ledgers.clear(ledger_id)
        await store.maintenance.checkpoint()
    await store.maintenance.reclaim()


async def live(platter: Platter, work: Callable[[LedgerStore], Awaitable[None]]) -> bool:
    """Run the host once; return False if it was cut short."""
    try:
        async with open_store(
            disk=platter.mount(),
            directories=["d0"],
            index=platter.indexes().open,
            clock=FixedClock(),
            limits=small_limits(),
        ) as store:
            status = await status_of(store.read(*LOST))
            assert status in (OK, UNKNOWN), f"{status.name} of what was acknowledged"
            await work(store)
            await trio.lowlevel.checkpoint()
            alive = not store.statistics().failure
    except (HostCrashedError, BaseExceptionGroup) as error:
        if not has(error, HostCrashedError) or has(error, AssertionError):
            raise
        return False
    return alive


async def crash_everywhere(seed: int) -> int:
    """Return the number of crashes that were survived."""
    operation = 0
    while True:
        rng = random.Random(f"{seed} {operation}")
        platter = Platter(rng)
        host = Host(platter)
        async with host.store(log=small_limits().log) as store:
            answers = Answers(store)
            for entry_id in (0, 1, 2, 4):
                answers.add(1, entry_id)
            await answers.all()
        await doubt(platter)
        platter.crash_before(operation)
        if await live(platter, repair):
            return operation
        for _ in range(rng.randrange(3)):  # die again, during any of the following
            (platter.lose_power if rng.random() < 0.7 else platter.kill)()
            platter.crash_before(rng.randrange(25))
            await live(platter, repair)
        (platter.lose_power if rng.random() < 0.7 else platter.kill)()
        if rng.random() < 0.3:
            platter.lose_indexes()
        assert await live(platter, repair)
        async with host.store() as store:
            assert not store.limbo
            assert store.limbo_ledgers.ledgers() == []
            assert await status_of(store.read(*LOST)) is OK
            assert await absences(store, 1) == {NO_ENTRY}
        operation += 1


async def doubt(platter: Platter) -> None:
    async with open_store(
        disk=platter.mount(),
        directories=["d0"],
        index=platter.indexes().open,
        clock=FixedClock(),
        limits=StoreLimits(free_bytes_min=0),
        in_doubt=True,
    ) as store:
        assert store.limbo


@pytest.mark.parametrize("seed", range(3))
def test_limbo_ends_once_and_for_all_whatever_operation_the_disk_dies_before(seed: int) -> None:
    survived = scheduler.run(lambda _: crash_everywhere(seed), seed=seed, steps_max=3_000_000)
    assert survived > 10


@asynccontextmanager
async def store_in(host: Host, *directories: str, in_doubt: bool) -> AsyncIterator[LedgerStore]:
    async with open_store(
        disk=host.platter.mount(),
        directories=directories,
        index=host.platter.indexes().open,
        clock=FixedClock(),
        limits=StoreLimits(free_bytes_min=0),
        in_doubt=in_doubt,
    ) as store:
        yield store


async def two_copies(host: Host) -> None:
    """Put ledger 1 into both directories, as after an older image of one was put back; d0 fenced
    it, and d1 has more of it.
    """
    async with store_in(host, "d0", in_doubt=False) as store:
        await fill(store, 1, 2, count=3)
        await store.fence(1, key(1))
    async with store_in(host, "d1", in_doubt=False) as store:
        await fill(store, 1, 3, count=5)


async def test_a_ledger_in_two_directories_of_a_bookie_in_doubt_gets_one_home(host: Host) -> None:
    await two_copies(host)
    async with store_in(host, "d0", "d1", in_doubt=True) as store:
        assert await store.read(1, 4) == entry(1, 4, lac=3)
        assert await absences(store, 1) == {UNKNOWN}
        assert await status_of(store.read(2, 2)) is OK
        await store.limbo_ledgers.end_doubt(BIRTH)
    async with store_in(host, "d0", "d1", in_doubt=False) as store:
        assert await store.read(1, 4) == entry(1, 4, lac=3)
        assert await absences(store, 1) == {UNKNOWN}
        answers = Answers(store)
        answers.add(1, 5, lac=4)
        assert await answers.all() == [FENCED]
        await store.limbo_ledgers.clear(1)
    async with store_in(host, "d0", "d1", in_doubt=False) as store:
        assert await absences(store, 1) == {NO_ENTRY}


async def test_a_ledger_in_two_directories_is_refused_without_a_doubt(host: Host) -> None:
    await two_copies(host)
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        async with store_in(host, "d0", "d1", in_doubt=False):
            pass
    assert has(raised.value, StorageLayoutError)
