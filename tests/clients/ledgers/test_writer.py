"""Appending: the ids, the number of entries under way, and the end of a writer."""

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock
from trio.testing import wait_all_tasks_blocked

from daybook.clients import ledgers
from daybook.clients.ledgers import Client, Limits, Writer
from tests.clients.ledgers.world import World, open_world


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with open_world() as world:
        yield world


@pytest.fixture
async def client(world: World) -> AsyncGenerator[Client]:
    async with world.client() as client:
        yield client


async def recovered(client: Client, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id, recover=True)
    return [entry.data async for entry in reader.read()]


async def test_thousands_are_under_way_and_come_out_in_order(
    client: Client, autojump_clock: Clock
) -> None:
    async with await client.create() as writer:
        ids = [await writer.append_soon(b"%d" % number) for number in range(3000)]
        assert writer.last_add_confirmed < 2999
        await writer.wait_confirmed(ids[-1])
        assert (writer.last_add_confirmed, writer.pending_bytes) == (2999, 0)
    assert ids == list(range(3000))
    assert await recovered(client, writer.ledger_id) == [b"%d" % n for n in range(3000)]


async def test_many_tasks_append_and_each_learns_its_id(
    client: Client, autojump_clock: Clock
) -> None:
    ids: dict[int, int] = {}

    async def append(number: int) -> None:
        ids[await writer.append(b"%d" % number)] = number

    async with await client.create() as writer, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(append, number)
    entries = await recovered(client, writer.ledger_id)
    assert entries == [b"%d" % ids[entry_id] for entry_id in range(100)]


@pytest.mark.parametrize(
    ("limits", "room"),
    [
        (Limits(pending_bytes_max=1000), 10),
        (Limits(pending_entries_max=7), 7),
        (Limits(pending_bytes_max=1), 1),  # a single one always fits
    ],
)
async def test_what_is_under_way_is_bounded(
    world: World, limits: Limits, room: int, autojump_clock: Clock
) -> None:
    async with world.client(limits) as client:
        writer = await client.create()
        for name in ("b1", "b2"):
            world.stop(name)
        appended: list[int] = []

        async def append(writer: Writer) -> None:
            for number in range(20):
                appended.append(await writer.append_soon(b"%100d" % number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, writer)
            await trio.sleep(20)
            assert appended == list(range(room))
            assert "2 bookies have to confirm an entry" in writer.waiting_for
            for name in ("b1", "b2"):
                await world.start(name)
        assert appended == list(range(20))
        await writer.flush()
        assert writer.waiting_for == ""


async def test_those_who_wait_for_room_are_served_in_order(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client(Limits(pending_entries_max=1)) as client:
        async with await client.create() as writer, trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(writer.append, b"%d" % number)
                await wait_all_tasks_blocked()
        assert await recovered(client, writer.ledger_id) == [b"%d" % n for n in range(10)]


async def test_leaving_the_block_ends_the_ledger_behind_what_was_appended(
    client: Client, autojump_clock: Clock
) -> None:
    async with await client.create() as writer:
        for number in range(10):
            await writer.append_soon(b"%d" % number)
    assert writer.metadata.closed
    assert (writer.metadata.last_entry_id, writer.metadata.length) == (9, 10)
    await writer.close()
    with pytest.raises(ledgers.LedgerClosedError):
        await writer.append(b"more")


async def test_an_error_in_the_block_leaves_the_ledger_for_recovery(
    client: Client, autojump_clock: Clock
) -> None:
    writer = await client.create()
    await writer.append(b"kept")
    with pytest.raises(ZeroDivisionError):
        async with writer:
            raise ZeroDivisionError
    assert (await client.metadata(writer.ledger_id)).state is ledgers.LedgerState.OPEN
    assert await recovered(client, writer.ledger_id) == [b"kept"]


async def test_a_cancelled_block_does_not_wait_for_bookies(
    world: World, client: Client, autojump_clock: Clock
) -> None:
    start = trio.current_time()
    with trio.move_on_after(5) as scope:
        async with await client.create() as writer:
            await writer.append(b"kept")
            for name in world.platters:
                world.stop(name)
            await writer.append(b"nobody takes it")
    assert scope.cancelled_caught
    assert trio.current_time() - start < 5.1
    for name in world.platters:
        await world.start(name)
    assert (await recovered(client, writer.ledger_id))[:1] == [b"kept"]


@pytest.mark.parametrize("end", ["client", "abandon"])
async def test_a_close_without_an_answer_ends_with_its_writer(
    world: World, end: str, autojump_clock: Clock
) -> None:
    """Otherwise it would read the outcome of the write forever."""
    doubts: list[ledgers.LedgerError] = []

    async def close(writer: Writer) -> None:
        try:
            await writer.close()
        except ledgers.LedgerError as error:
            doubts.append(error)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, world.client() as client:
            writer = await client.create()
            await writer.append(b"kept")
            world.link().lose_next(applied=True, operation="set")
            world.link().delay_s = 1
            nursery.start_soon(close, writer)
            await wait_all_tasks_blocked()
            world.sessions["client"].suspend()
            await trio.sleep(20)
            if end == "abandon":
                writer.abandon()
    assert [type(error) for error in doubts] == [ledgers.MetadataInDoubtError]
    assert doubts[0].outcome is ledgers.Outcome.UNKNOWN


async def test_a_cancelled_append_keeps_its_id(client: Client, autojump_clock: Clock) -> None:
    async with await client.create() as writer:
        with trio.move_on_after(0.0001):
            await writer.append(b"sent")
        assert (writer.last_add_pushed, writer.last_add_confirmed) == (0, -1)
        assert await writer.append(b"next") == 1
    assert await recovered(client, writer.ledger_id) == [b"sent", b"next"]


async def test_who_waits_for_room_hears_that_the_writer_was_fenced(
    world: World, autojump_clock: Clock
) -> None:
    failures: list[ledgers.LedgerError] = []

    async def append(writer: Writer) -> None:
        try:
            await writer.append(b"x")
        except ledgers.LedgerError as error:
            failures.append(error)

    async with world.client(Limits(pending_entries_max=1)) as client:
        writer = await client.create()
        await writer.append(b"first")
        async with world.client(name="other") as other:
            await other.open(writer.ledger_id, recover=True)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(append, writer)
    kinds = sorted(type(error).__name__ for error in failures)
    assert kinds == ["InDoubtError", "LedgerFencedError", "LedgerFencedError"]


async def test_an_entry_that_no_bookie_would_take_is_refused_and_costs_no_id(
    client: Client, autojump_clock: Clock
) -> None:
    async with await client.create() as writer:
        with pytest.raises(ledgers.EntryTooLargeError):
            await writer.append(bytes(6 << 20))
        assert await writer.append(b"fits") == 0
        with pytest.raises(ValueError, match="has not appended entry 1"):
            await writer.wait_confirmed(1)


async def test_a_bookie_that_dies_is_written_around(
    world: World, client: Client, autojump_clock: Clock
) -> None:
    await world.start("b4")
    async with await client.create() as writer:
        for number in range(200):
            if number == 100:
                world.stop(writer.metadata.last_fragment.ensemble[0].partition(":")[0])
            await writer.append_soon(b"%d" % number)
            await trio.sleep(0.001)
    assert len(writer.metadata.fragments) == 2
    assert await recovered(client, writer.ledger_id) == [b"%d" % n for n in range(200)]


# -- ids given by the caller


async def test_entries_may_come_in_any_order(client: Client, autojump_clock: Clock) -> None:
    order = [3, 0, 2, 1, 5, 4]
    async with await client.create_advanced() as writer, trio.open_nursery() as nursery:
        for entry_id in order:
            nursery.start_soon(writer.append, entry_id, b"%d" % entry_id)
            await wait_all_tasks_blocked()
    assert await recovered(client, writer.ledger_id) == [b"%d" % n for n in range(6)]


async def test_an_id_is_taken_once(client: Client, autojump_clock: Clock) -> None:
    async with await client.create_advanced() as writer:
        await writer.append(0, b"0")
        await writer.append_soon(2, b"2")
        for taken in (0, 2):
            with pytest.raises(ledgers.DuplicateEntryError, match=f"entry {taken} before"):
                await writer.append_soon(taken, b"again")
        with pytest.raises(ValueError, match="an entry id must be at least 0, not -1"):
            await writer.append_soon(-1, b"")
        await writer.append(1, b"1")
        await writer.wait_confirmed(2)
    assert await recovered(client, writer.ledger_id) == [b"0", b"1", b"2"]


async def test_what_came_early_is_bounded_and_the_next_one_is_always_taken(
    world: World, autojump_clock: Clock
) -> None:
    async with world.client(Limits(held_entries_max=3)) as client:
        writer = await client.create_advanced()
        async with trio.open_nursery() as nursery:
            for entry_id in range(9, 0, -1):
                nursery.start_soon(writer.append_soon, entry_id, b"%d" % entry_id)
            await trio.sleep(1)
            assert writer.held_entries == 3
            await writer.append_soon(0, b"0")
        await writer.close()
        assert await recovered(client, writer.ledger_id) == [b"%d" % n for n in range(10)]


async def test_closing_with_a_gap_ends_before_it_and_says_so(
    client: Client, autojump_clock: Clock
) -> None:
    writer = await client.create_advanced()
    await writer.append(0, b"0")
    await writer.append_soon(2, b"2")
    with pytest.raises(ledgers.EntryNotSentError, match="entry 1 was never given") as caught:
        await writer.close()
    assert caught.value.outcome is ledgers.Outcome.NOT_APPLIED
    with pytest.raises(ledgers.EntryNotSentError):
        await writer.wait_confirmed(2)
    assert await recovered(client, writer.ledger_id) == [b"0"]
