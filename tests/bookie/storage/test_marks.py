"""A log that is idle for a while records that its last batch was durable.

It does so in a mark behind the batch, and by a checkpoint: the index knows it even if the segment
is gone with its mark.
"""

from collections.abc import Callable

import pytest
import trio

from daybook.bookie.storage.ledger_directory import LAST_ENTRY
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.status import StoreStatus
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import entry

OK, NO_ENTRY, UNKNOWN = StoreStatus.OK, StoreStatus.NO_ENTRY, StoreStatus.UNKNOWN
IO_ERROR = StoreStatus.IO_ERROR


async def die_after(host: Host, seconds: float, **limits: object) -> str:
    """Add one entry, wait so long, die; return the path of the segment with the entry."""
    async with host.doomed_store(**limits) as store:
        answers = Answers(store)
        answers.add(1, 0)
        assert await answers.all() == [OK]
        path = host.logs()[-1]
        await trio.sleep(seconds)
        host.platter.kill()
    return path


def spoil_the_entry(host: Host, path: str) -> None:
    at = host.platter.content(path).index(entry(1, 0))
    host.platter.corrupt(path, at, b"\xff")


async def test_damage_to_the_last_entry_of_an_idle_log_is_a_loss_and_no_torn_write(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    spoil_the_entry(host, await die_after(host, 1.5))
    host.platter.lose_indexes()
    async with host.store() as store:
        assert store.statistics().losses
        assert await status_of(store.read(1, 0)) is UNKNOWN


async def test_until_then_it_may_be_a_torn_write(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    spoil_the_entry(host, await die_after(host, 0.5))
    async with host.store() as store:
        assert not store.limbo
        assert await status_of(store.read(1, 0)) in (NO_ENTRY, StoreStatus.NO_LEDGER)


def spoil_the_segment(host: Host, path: str) -> None:
    host.platter.corrupt(path, 0, bytes(len(host.platter.content(path))))


def remove_the_segment(host: Host, path: str) -> None:
    host.platter.forget(path)


@pytest.mark.parametrize("spoil", [spoil_the_entry, spoil_the_segment, remove_the_segment])
async def test_what_an_idle_log_has_lost_is_not_denied(
    host: Host, spoil: Callable[[Host, str], None], autojump_clock: trio.testing.MockClock
) -> None:
    spoil(host, await die_after(host, 1.5))
    async with host.store() as store:
        assert await status_of(store.read(1, 0)) is IO_ERROR
        if spoil is not spoil_the_entry:  # There may have been others, and fences.
            assert store.limbo
            assert await status_of(store.read(2, 0)) is UNKNOWN


async def test_one_mark_is_enough_and_a_segment_that_is_full_gets_it_too(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    full_at_once = LogLimits(segment_bytes=1)
    path = await die_after(host, 1.5, log=full_at_once)
    sizes = [len(host.platter.content(path)) for path in host.logs()]
    assert len(sizes) == 2
    spoil_the_entry(host, path)
    host.platter.lose_indexes()
    async with host.store(log=full_at_once) as store:
        assert await status_of(store.read(1, 0)) is UNKNOWN


async def test_an_idle_store_writes_its_mark_once(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        await trio.sleep(1.5)
        size = len(host.platter.content(host.logs()[-1]))
        await trio.sleep(60)
        assert len(host.platter.content(host.logs()[-1])) == size
        answers.add(1, 1)
        await answers.all()
        assert await store.read(1, LAST_ENTRY) == entry(1, 1)


async def test_what_comes_just_when_a_mark_is_due_is_written_as_it_came(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    async with host.store() as store:
        answers = Answers(store)
        for entry_id in range(30):  # the order of two tasks that are due together is random
            answers.add(1, entry_id)
            assert await answers.all() == [OK]
            await trio.sleep(1.0)
    async with host.store() as store:
        for entry_id in range(30):
            assert await store.read(1, entry_id) == entry(1, entry_id)


async def test_a_mark_waits_for_room(host: Host, autojump_clock: trio.testing.MockClock) -> None:
    async with host.store(free_bytes_min=1 << 20, space_check_s=0.1) as store:
        answers = Answers(store)
        answers.add(1, 0)
        assert await answers.all() == [OK]
        size = len(host.platter.content(host.logs()[-1]))
        room, host.platter.free_bytes = host.platter.free_bytes, 1000
        await trio.sleep(10)
        assert len(host.platter.content(host.logs()[-1])) == size
        host.platter.free_bytes = room
        await trio.sleep(2)
        assert len(host.platter.content(host.logs()[-1])) > size


async def test_the_mark_comes_a_while_after_the_last_record_and_not_after_an_earlier_one(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        await trio.sleep(0.7)
        answers.add(1, 1)
        await answers.all()
        size = len(host.platter.content(host.logs()[-1]))
        await trio.sleep(0.99)
        assert len(host.platter.content(host.logs()[-1])) == size
        await trio.sleep(0.02)
        assert len(host.platter.content(host.logs()[-1])) > size


async def test_a_log_that_writes_for_long_is_not_idle(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        free = host.platter.stick()
        answers.add(1, 1)
        await trio.sleep(5)
        free.set()
        await answers.all()
        size = len(host.platter.content(host.logs()[-1]))
        await trio.sleep(0.99)
        assert len(host.platter.content(host.logs()[-1])) == size
        await trio.sleep(0.02)
        assert len(host.platter.content(host.logs()[-1])) > size
        assert await store.read(1, 1) == entry(1, 1)


async def test_a_disk_error_ends_the_watch_for_an_idle_log(
    host: Host, autojump_clock: trio.testing.MockClock
) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        host.platter.fail_next("write", OSError(5, "broken"))
        answers.add(1, 1)
        assert await answers.all() == [IO_ERROR]
        size = len(host.platter.content(host.logs()[-1]))
        await trio.sleep(10)
        assert len(host.platter.content(host.logs()[-1])) == size
