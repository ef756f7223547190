"""The read-only state by command: kept, and taken back, whatever becomes of the directories."""

import errno
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from daybook.bookie.server.read_only_state import READ_ONLY_FILE, ReadOnlyState
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.conftest import Answers
from tests.harness.clocks import FixedClock
from tests.harness.disk import Platter

OK = StoreStatus.OK


@pytest.fixture
def platter() -> Platter:
    return Platter(random.Random(1))


@asynccontextmanager
async def opened(platter: Platter, *directories: str) -> AsyncGenerator[LedgerStore]:
    async with open_store(
        disk=platter.mount(),
        directories=directories or ("d0",),
        index=platter.indexes().open,
        clock=FixedClock(),
    ) as store:
        yield store


async def test_read_only_by_command_is_kept_and_taken_back(platter: Platter) -> None:
    async with opened(platter) as store:
        command = ReadOnlyState(platter.mount(), ["d0"], store)
        await command.load()
        assert store.writable
        told: list[bool] = []
        store.add_writable_listener(lambda: told.append(store.writable))
        await command.change(True)
        answers = Answers(store)
        answers.add(1, 1)
        answers.add(1, 2, recovery=True)
        assert await answers.all() == [StoreStatus.READ_ONLY, OK]
        assert told == [False]
    async with open_store(
        disk=platter.mount(),
        directories=["d0"],
        index=platter.indexes().open,
        clock=FixedClock(),
    ) as store:
        command = ReadOnlyState(platter.mount(), ["d0"], store)
        await command.load()
        assert not store.writable
        store.set_read_only(True)  # another cause
        await command.change(False)
        assert not store.writable
        store.set_read_only(False)
        assert store.writable
        await command.change(False)  # the command is repeated
        again = ReadOnlyState(platter.mount(), ["d0"], store)
        await again.load()
        assert store.writable


@pytest.mark.parametrize("directories", [("d1", "d0"), ("d2", "d0", "d1"), ("d1",)])
async def test_it_holds_whatever_the_order_and_number_of_directories(
    platter: Platter, directories: tuple[str, ...]
) -> None:
    async with opened(platter, "d0", "d1") as store:
        await ReadOnlyState(platter.mount(), ["d0", "d1"], store).change(True)
    async with opened(platter, *directories) as store:
        command = ReadOnlyState(platter.mount(), directories, store)
        await command.load()
        assert not store.writable
        await command.change(False)
        assert store.writable
    kept = [path for path in platter.paths() if path.endswith(READ_ONLY_FILE)]
    assert kept == (["d0/READONLY"] if directories == ("d1",) else [])


async def test_taking_it_back_counts_when_the_disk_has_done_it(platter: Platter) -> None:
    """Otherwise the bookie would take entries now, and none after the next start."""
    async with opened(platter) as store:
        command = ReadOnlyState(platter.mount(), ["d0"], store)
        await command.change(True)
        platter.fail_next("remove", OSError(errno.EIO, "input/output error"))
        with pytest.raises(OSError, match="input/output"):
            await command.change(False)
        assert not store.writable
        await command.change(False)
        assert store.writable


async def test_two_commands_at_once_leave_what_the_last_one_said(platter: Platter) -> None:
    for last in (True, False):
        async with opened(platter) as store:
            command = ReadOnlyState(platter.mount(), ["d0"], store)
            async with trio.open_nursery() as nursery:
                for wanted in (not last, last, not last, last):
                    nursery.start_soon(command.change, wanted)
                    await trio.lowlevel.checkpoint()
            assert store.writable is not last
            assert ("d0/READONLY" in platter.paths()) is last
            await command.change(False)
