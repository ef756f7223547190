"""The reserve of a disk is available when needed: for deletions, and for compaction."""

import errno

import pytest
import trio.testing

from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import entry, key
from tests.bookie.storage.test_compaction import SMALL
from tests.harness.disk import Platter, SimulatedDisk, SimulatedFile

OK, READ_ONLY = StoreStatus.OK, StoreStatus.READ_ONLY
RESERVE_BYTES = 100_000
OVERHEAD_BYTES = 5_000  # an entry in progress, headers


class SmallDisk(SimulatedDisk):
    """A disk whose free space shrinks with writes and grows with removals."""

    async def write(self, file: SimulatedFile, offset: int, data: bytes) -> None:
        if len(data) > self.platter.free_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.platter.free_bytes -= len(data)
        await super().write(file, offset, data)

    async def remove(self, path: str) -> None:
        size = await self.size(path)
        await super().remove(path)
        self.platter.free_bytes += size


@pytest.fixture
def small_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    platter: Platter = host.platter
    monkeypatch.setattr(platter, "mount", lambda: SmallDisk(platter, platter.generation))
    return host


async def test_a_flood_of_adds_leaves_the_reserve_alone(
    small_host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    """Entries that were accepted before the check, and are not written yet, take space as well."""
    platter = small_host.platter
    platter.free_bytes = RESERVE_BYTES + 50_000
    limits = {**SMALL, "free_bytes_min": RESERVE_BYTES, "in_flight_bytes_max": 1 << 20}
    limits["space_check_s"] = 10
    async with small_host.store(**limits) as store:
        answers = Answers(store)
        for entry_id in range(400):
            answers.add(1, entry_id, size=1000)
        assert set(await answers.all()) == {OK, READ_ONLY}
        assert platter.free_bytes > RESERVE_BYTES - OVERHEAD_BYTES
        assert not store.writable
        for entry_id in range(400):
            answers.add(2, entry_id, size=1000, recovery=True)
        assert set(await answers.all()) == {OK, READ_ONLY}
        assert platter.free_bytes > RESERVE_BYTES // 2 - OVERHEAD_BYTES
        assert not store.takes_recovery
        kept = await store.entry_ids(2)
        assert kept == list(range(len(kept)))  # those for which there was room
        await store.delete(1)
        await store.maintenance.reclaim()
        await trio.sleep(20)
        assert store.statistics().failure == ""
        assert store.takes_recovery
        for entry_id in kept:
            assert await store.read(2, entry_id) == entry(2, entry_id, size=1000)


async def test_what_is_in_flight_is_bounded_still(host: Host) -> None:
    async with host.store(**SMALL, in_flight_bytes_max=20_000) as store:
        answers = Answers(store)
        for entry_id in range(100):
            answers.add(1, entry_id, size=1000)
        assert set(await answers.all()) == {OK, StoreStatus.TOO_MANY}
        answers.add(1, 500, size=1000)
        assert await answers.all() == [OK]


async def test_explicit_lacs_leave_the_last_of_the_reserve_alone(
    small_host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    """Explicit LACs need not be kept; a fence must, and is accepted as long as possible."""
    platter = small_host.platter
    platter.free_bytes = RESERVE_BYTES
    async with small_host.store(**{**SMALL, "free_bytes_min": RESERVE_BYTES}) as store:
        told = [await status_of(store.write_lac(1, key(1), lac, bytes(36))) for lac in range(1500)]
        assert set(told) == {OK, READ_ONLY}
        assert platter.free_bytes > RESERVE_BYTES // 2 - OVERHEAD_BYTES
        await store.fence(1, key(1))
        assert store.statistics().failure == ""


async def test_explicit_lacs_in_flight_are_bounded(host: Host) -> None:
    statuses: list[StoreStatus] = []

    async def write_lac(store: LedgerStore, ledger_id: int) -> None:
        writing = store.write_lac(ledger_id, key(ledger_id), 0, bytes(36))
        statuses.append(await status_of(writing))

    async with host.store(**SMALL, in_flight_bytes_max=20_000) as store:
        freed = host.platter.stick()
        async with trio.open_nursery() as nursery:
            for ledger_id in range(1000):
                nursery.start_soon(write_lac, store, ledger_id)
            await trio.testing.wait_all_tasks_blocked()
            in_flight = store.bytes_in_flight
            freed.set()
    assert in_flight < 21_000
    assert set(statuses) == {OK, StoreStatus.TOO_MANY}
