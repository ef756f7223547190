"""An index older than its log: restored from a copy, or from a disk that went back in time."""

import random

import pytest

from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from tests.bookie.storage.conftest import Answers, Host, has, status_of
from tests.bookie.storage.oracle import EAGER, entry, key, small_limits
from tests.bookie.storage.test_limbo import fill
from tests.harness.disk import HostCrashedError, Platter
from tests.simulation import scheduler

FENCED, NO_LEDGER, OK = StoreStatus.FENCED, StoreStatus.NO_LEDGER, StoreStatus.OK
LIMITS = {"log": small_limits().log, "reclaim": EAGER}
COUNT = 5


async def let_it_grow_old(host: Host, *, fence: bool) -> None:
    """Keep ledger 1 and delete the others, and with them the segments that had all of them."""
    async with host.store(**LIMITS) as store:
        await fill(store, 1, count=COUNT)
        for ledger_id in (2, 3, 4):
            await fill(store, ledger_id, count=120)
        await store.maintenance.checkpoint()
        old = dict(await host.platter.index("d0/index").scan(b"", b"\xff", 10_000))
        if fence:
            await store.fence(1, key(1))
        for ledger_id in (2, 3, 4):
            await store.delete(ledger_id)
        for _ in range(3):
            await store.maintenance.reclaim()
        assert store.statistics().segments_removed > 1
        await fill(store, 9, count=COUNT)
    host.platter.lose_indexes()
    await host.platter.index("d0/index").write(old, [])


async def check(store: LedgerStore, *, fenced: bool) -> None:
    assert not store.limbo
    for _ in range(2):
        for entry_id in range(COUNT):
            for ledger_id in (1, 9):
                expected = entry(ledger_id, entry_id, lac=entry_id - 1)
                assert await store.read(ledger_id, entry_id) == expected
        await store.maintenance.checkpoint()
    assert store.ledgers() == [1, 9]
    assert await status_of(store.read(2, 0)) is NO_LEDGER
    answers = Answers(store)
    answers.add(2, 50)
    assert await answers.all() == [FENCED]
    answers.add(1, 50)
    assert await answers.all() == [FENCED if fenced else OK]


@pytest.mark.parametrize("fence", [True, False])
async def test_what_was_moved_since_is_found_where_it_is(host: Host, fence: bool) -> None:
    """Once, a checkpoint kept the locations of the old index, in segments that were gone."""
    await let_it_grow_old(host, fence=fence)
    async with host.store(**LIMITS) as store:
        await check(store, fenced=fence)


async def test_an_index_of_before_what_was_removed(host: Host) -> None:
    """Ledger 1 never had entries, and its tombstone has ended: no segment says that it is gone."""
    async with host.store(**LIMITS) as store:
        await store.write_lac(1, key(1), 3, b"lac")
        await store.maintenance.checkpoint()
        old = dict(await host.platter.index("d0/index").scan(b"", b"\xff", 10_000))
        await fill(store, 2, 3, count=120)
        for ledger_id in (1, 2, 3):
            await store.delete(ledger_id)
        ended = 0
        for ledger_id in range(10, 20):  # it moves with the segments, and is not copied in the end
            await fill(store, ledger_id, count=120)
            await store.delete(ledger_id - 1)
            await store.maintenance.reclaim()
            ended += await store.maintenance.end_tombstones([1])
        assert ended == 1
    host.platter.lose_indexes()
    await host.platter.index("d0/index").write(old, [])
    async with host.store(**LIMITS) as store:
        assert not store.limbo
        assert store.ledgers() == [19]


async def outlives(host: Host) -> bool:
    """Return True if the host's run is not cut short."""
    try:
        async with host.store(**LIMITS) as store:
            await store.maintenance.checkpoint()
            alive = not store.statistics().failure
    except (HostCrashedError, BaseExceptionGroup) as error:
        if not has(error, HostCrashedError):
            raise
        return False
    return alive


async def crash_everywhere() -> int:
    operation = 0
    while True:
        host = Host(Platter(random.Random(operation)))
        await let_it_grow_old(host, fence=True)
        host.platter.crash_before(operation)
        whole = await outlives(host)
        host.platter.lose_power()
        async with host.store(**LIMITS) as store:
            await check(store, fenced=True)
        if whole:
            return operation
        operation += 1


def test_it_is_made_again_whatever_operation_the_disk_dies_before() -> None:
    assert scheduler.run(lambda _: crash_everywhere(), seed=1, steps_max=3_000_000) > 10
