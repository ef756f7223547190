"""Deferred writers as applications use them: entries accepted, forced, bounded, and ended."""

from collections.abc import AsyncGenerator

import pytest
import trio
import trio.lowlevel
from trio.abc import Clock

from daybook.clients import ledgers
from daybook.clients.ledgers import Client, Limits, blocking
from tests.clients.ledgers.world import World, client_of_its_own, open_world


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with open_world() as world:
        yield world


async def data_of(client: Client, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id, recover=True)
    return [entry.data async for entry in reader.read()]


async def test_entries_are_taken_then_forced_and_the_block_ends_behind_all(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client:
        async with await client.create_deferred(password=b"pw") as writer:
            assert [await writer.append(b"%d" % n) for n in range(5)] == list(range(5))
            assert (writer.last_acknowledged, writer.last_add_confirmed) == (4, -1)
            assert await writer.force() == 4
            assert (writer.last_add_confirmed, writer.length) == (4, 5)
            entry_id = await writer.append_soon(b"5")
            await writer.wait_confirmed(entry_id)
            await writer.append(b"6")
        assert writer.metadata.last_entry_id == 6
        reader = await client.open(writer.ledger_id, recover=False, password=b"pw")
        assert [entry.data async for entry in reader.read()] == [b"%d" % n for n in range(7)]


async def test_followers_see_what_was_forced_and_nothing_else(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client, world.client(name="other") as other:
        writer = await client.create_deferred()
        await writer.append(b"forced")
        await writer.force()
        await writer.append(b"not forced")
        await trio.sleep(5)
        reader = await other.open(writer.ledger_id, recover=False)
        assert await reader.read_last_add_confirmed() == 0
        await writer.force()
        await trio.sleep(5)
        assert await reader.read_last_add_confirmed() == 1


async def test_an_entry_that_was_not_appended_cannot_be_waited_for(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client:
        writer = await client.create_deferred()
        with pytest.raises(ValueError, match="not appended"):
            await writer.wait_acknowledged(0)
        with pytest.raises(ValueError, match="not appended"):
            await writer.wait_confirmed(0)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(pending_bytes_max=1000),
        Limits(pending_entries_max=7),
        Limits(pending_bytes_max=150),  # one fits, and half of it is not yet accepted
    ],
)
async def test_who_never_forces_is_not_stuck(
    world: World, limits: Limits, autojump_clock: Clock
) -> None:
    async with world.client(limits) as client:
        writer = await client.create_deferred()
        for number in range(30):
            await writer.append_soon(b"%70d" % number)
            assert writer.pending_bytes <= limits.pending_bytes_max
        await writer.close()
        assert len(await data_of(client, writer.ledger_id)) == 30


async def test_who_waits_behind_another_for_room_is_not_stuck(
    world: World, autojump_clock: Clock
) -> None:
    """The force that made room for the first one was begun before its entry was appended."""
    async with world.client(Limits(pending_bytes_max=100)) as client:
        writer = await client.create_deferred()
        await writer.append_soon(b"x" * 60)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append_soon, b"y" * 45)
                await trio.lowlevel.checkpoint()
                nursery.start_soon(writer.append_soon, b"z" * 70)
            assert await writer.force() == 2


async def test_a_writer_that_is_fenced_says_what_is_in_doubt(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client() as client, world.client(name="other") as other:
        writer = await client.create_deferred()
        await writer.append(b"0")
        await writer.force()
        await writer.append(b"1")
        kept = await data_of(other, writer.ledger_id)
        assert kept in ([b"0"], [b"0", b"1"])
        with pytest.raises(ledgers.LedgerError):
            await writer.append(b"2")
        with pytest.raises(ledgers.LedgerError):
            await writer.force()
        with pytest.raises(ledgers.LedgerFencedError):
            await writer.close()


def test_without_trio_futures_are_done_when_taken() -> None:
    limits = Limits()
    with blocking.serve(lambda: client_of_its_own(limits), limits) as client:
        with client.create_deferred() as writer:
            futures = [writer.append_soon(b"%d" % n) for n in range(100)]
            assert [future.result(60) for future in futures] == list(range(100))
            assert writer.last_acknowledged == 99
            assert writer.force(timeout_s=60) == 99
            assert writer.append(b"100") == 100
            writer.flush()
            assert writer.last_add_confirmed == 100
        reader = client.open(writer.ledger_id, recover=False)
        assert [entry.data for entry in reader.read()] == [b"%d" % n for n in range(101)]
