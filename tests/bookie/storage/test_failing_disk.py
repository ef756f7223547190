"""A disk that fails, or is full, while a bookie works: what it still accepts, and what survives."""

import errno
import random

import pytest
import trio
import trio.testing

from daybook.bookie.storage.status import StoreStatus
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import entry, key
from tests.harness.disk import Platter

OK, NO_ENTRY, IO_ERROR = StoreStatus.OK, StoreStatus.NO_ENTRY, StoreStatus.IO_ERROR
READ_ONLY = StoreStatus.READ_ONLY


async def test_an_error_of_a_sync_ends_all_writing_at_once(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        told: list[bool] = []
        store.add_writable_listener(lambda: told.append(store.writable))
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        answers.add(1, 1)
        await trio.lowlevel.checkpoint()
        answers.add(1, 2)
        assert await answers.all() == [IO_ERROR, IO_ERROR]
        assert told == [False]
        answers.add(1, 3)
        answers.add(1, 3, recovery=True)
        answers.add(2, 0)
        assert await answers.all() == [IO_ERROR] * 3
        assert await status_of(store.fence(1, key(1))) is IO_ERROR
        assert await status_of(store.write_lac(1, key(1), 0, b"")) is IO_ERROR
        assert await status_of(store.delete(1)) is IO_ERROR
        assert await status_of(store.read(1, 1)) is IO_ERROR  # it may be on the disk
        assert await store.read(1, 0) == entry(1, 0)
        assert "input/output" in store.statistics().failure
    host.platter.lose_power()
    async with host.store() as store:
        assert not store.limbo
        assert await store.read(1, 0) == entry(1, 0)
        assert await status_of(store.read(1, 3)) is NO_ENTRY


@pytest.mark.parametrize("seed", range(25))
async def test_bytes_that_a_failed_sync_dropped_are_not_taken_for_durable(seed: int) -> None:
    """The next process finds the bytes in the page cache, and its sync would succeed."""
    host = Host(Platter(random.Random(seed)))
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        answers.add(1, 1)
        assert await answers.all() == [IO_ERROR]
    host.platter.kill()
    async with host.doomed_store() as store:
        answers = Answers(store)
        answers.add(1, 1)
        assert await answers.all() == [OK]
        host.platter.lose_power()
    async with host.store() as store:
        assert await store.read(1, 1) == entry(1, 1)


async def test_a_full_disk_is_an_error_and_harms_nothing(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        host.platter.fill_up()
        answers.add(1, 1)
        assert await answers.all() == [IO_ERROR]
        assert not store.writable
        assert await store.read(1, 0) == entry(1, 0)
    async with host.store() as store:
        assert await store.read(1, 0) == entry(1, 0)
        answers = Answers(store)
        answers.add(1, 1)
        assert await answers.all() == [OK]


async def test_with_little_room_left_only_what_ends_ledgers_is_taken(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    async with host.store(free_bytes_min=1000, space_check_s=1) as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        told: list[bool] = []
        store.add_writable_listener(lambda: told.append(store.writable))
        host.platter.free_bytes = 999
        await trio.sleep(2)
        answers.add(1, 1)
        answers.add(1, 2, recovery=True)
        assert await answers.all() == [READ_ONLY, OK]
        await store.fence(1, key(1))
        host.platter.free_bytes = 1 << 20
        await trio.sleep(2)
        answers.add(2, 0)
        assert await answers.all() == [OK]
        assert told == [False, True]


async def test_what_is_written_between_two_looks_at_the_disk_takes_room(host: Host) -> None:
    host.platter.free_bytes = 3000
    async with host.store(free_bytes_min=1000, space_check_s=1e6) as store:
        answers = Answers(store)
        statuses: list[StoreStatus] = []
        for entry_id in range(100):
            answers.add(1, entry_id)
            statuses += await answers.all()
        taken = statuses.index(READ_ONLY)
        assert 0 < taken * len(entry(1, 0)) <= 2000
        assert set(statuses[taken:]) == {READ_ONLY}
        assert not store.writable


async def test_an_index_that_fails_ends_plain_adds_and_nothing_is_lost(host: Host) -> None:
    async with host.store(checkpoint_entries=10) as store:
        answers = Answers(store)
        host.platter.fail_next("index_write", OSError(errno.EIO, "index broken"))
        for entry_id in range(20):
            answers.add(1, entry_id)
            await answers.all()
            if not store.writable:
                break
        answers.add(1, 100)
        answers.add(1, 101, recovery=True)
        assert await answers.all() == [READ_ONLY, OK]
        assert await store.read(1, 0) == entry(1, 0)
        await store.maintenance.checkpoint()  # does nothing: a failed sync is not retried
    async with host.store() as store:
        assert await store.read(1, 0) == entry(1, 0)
        assert await store.read(1, 101) == entry(1, 101)
