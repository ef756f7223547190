"""Writes with deferred sync: confirmed entries were forced, by bookies that still have them."""

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import InDoubtError, LedgerFencedError
from daybook.bookie.ledger.client import LedgerClient, LedgerReader, Quorums
from daybook.bookie.ledger.deferred_writer import DeferredLedgerWriter
from daybook.wire.messages.bookie import Add, Status
from tests.bookie.ledger.cluster import Cluster, open_cluster

QUORUMS = Quorums(3, 3, 2)


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
async def four() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=4) as cluster:
        yield cluster


async def append(writer: DeferredLedgerWriter, count: int) -> None:
    """Append numbered entries, and wait until they are accepted."""
    for _ in range(count):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
    await writer.wait_acknowledged(writer.last_add_pushed)


async def contents(reader: LedgerReader) -> list[bytes]:
    entries = await reader.read(0, reader.last_add_confirmed, max_bytes=1 << 20)
    return [bytes(entry.payload) for entry in entries]


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


async def recovered(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id, recover=True)
    return await contents(reader) if reader.last_add_confirmed >= 0 else []


async def test_the_lac_moves_by_what_was_forced(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create_deferred(QUORUMS)
    await append(writer, 10)
    assert (writer.last_acknowledged, writer.last_add_confirmed) == (9, -1)
    assert (writer.length, writer.pending_entries) == (0, 10)
    assert await writer.force() == 9
    assert (writer.length, writer.pending_entries) == (sum(map(len, expected(10))), 0)
    await append(writer, 1)
    await trio.sleep(10)
    assert (writer.last_acknowledged, writer.last_add_confirmed) == (10, 9)
    adds = [r for r in three.bookies[0].requests if isinstance(r, Add)]
    lacs = [int.from_bytes(add.entry[16:24], "big", signed=True) for add in adds]
    assert lacs == [-1] * 10 + [9]
    assert await writer.force() == 10
    await writer.close()
    assert await recovered(await three.client(name="other"), writer.ledger_id) == expected(11)


async def test_forcing_nothing_asks_nobody(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create_deferred(QUORUMS)
    assert await writer.force() == -1
    await append(writer, 1)
    assert await writer.force() == await writer.force() == 0
    await trio.sleep(1)
    assert [bookie.forces for bookie in three.bookies] == [1, 1, 1]


async def test_a_force_waits_for_what_is_on_its_way(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create_deferred(QUORUMS)
    for number in range(100):
        writer.append([b"entry %d" % number])
    assert await writer.force() == 99
    await trio.sleep(1)
    assert not any(bookie.unsynced for bookie in three.bookies)


async def test_one_slow_bookie_delays_no_force(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create_deferred(QUORUMS)
    await append(writer, 1)
    three.bookies[1].silent = True
    started = trio.current_time()
    assert await writer.force() == 0
    assert trio.current_time() - started < 0.1


async def test_bookies_that_start_anew_have_what_was_confirmed(
    three: Cluster, autojump_clock: Clock
) -> None:
    """They accepted entries and lost them; a force after the restart proves nothing about these."""
    client = await three.client()
    writer = await client.create_deferred(QUORUMS)
    await append(writer, 5)
    for bookie in three.bookies[:2]:
        bookie.kill()
        await bookie.restart()
    await writer.force()
    for bookie in three.bookies:
        bookie.kill()
        await bookie.restart()
    await trio.sleep(2)
    copies = [writer.ledger_id in {ledger for ledger, _ in b.entries} for b in three.bookies]
    assert sum(copies) >= 2
    writer.abandon()
    assert await recovered(await three.client(name="other"), writer.ledger_id) == expected(5)


async def test_a_bookie_that_dies_is_replaced_and_all_that_is_not_forced_sent_again(
    four: Cluster, autojump_clock: Clock
) -> None:
    client = await four.client()
    writer = await client.create_deferred(QUORUMS)
    await append(writer, 3)
    await writer.force()
    await append(writer, 4)
    dead = four.of(writer.metadata.last_fragment.ensemble)[0]
    dead.kill()
    await trio.sleep(1)
    assert dead.id not in writer.ensemble, "also while nothing is under way there"
    assert writer.metadata.last_fragment.first_entry_id == 3
    newcomer = four.bookie(writer.metadata.last_fragment.ensemble[0])
    assert newcomer.holds(writer.ledger_id) == [3, 4, 5, 6]
    assert await writer.force() == 6
    await writer.close()
    assert await recovered(client, writer.ledger_id) == expected(7)


async def test_a_bookie_that_dies_with_nothing_to_lose_is_no_reason_to_change(
    four: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await four.client()).create_deferred(QUORUMS)
    await append(writer, 3)
    await writer.force()
    await trio.sleep(1)
    bookie = four.of(writer.ensemble)[0]
    bookie.kill()
    await bookie.restart()
    await trio.sleep(3)
    await append(writer, 1)
    await writer.force()
    assert len(writer.metadata.fragments) == 1


async def test_with_two_dead_a_force_waits_and_goes_on_by_itself(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create_deferred(QUORUMS)
    await append(writer, 2)
    one, two, _ = three.of(writer.ensemble)
    one.kill()
    two.kill()
    forced: list[int] = []

    async def force() -> None:
        forced.append(await writer.force())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(force)
        await trio.sleep(30)
        assert (forced, writer.last_add_confirmed) == ([], -1)
        assert one.id in writer.waiting_for
        await two.restart()
    assert forced == [1]
    assert two.holds(writer.ledger_id) == [0, 1]


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_bookie_that_does_not_force_is_replaced(
    four: Cluster, how: str, autojump_clock: Clock
) -> None:
    writer = await (await four.client()).create_deferred(Quorums(3, 3, 3))
    await append(writer, 2)
    ill = four.of(writer.ensemble)[1]
    if how == "refused":
        ill.force_status = Status.IO_ERROR
    else:
        ill.silent = True
    assert await writer.force() == 1
    assert ill.id not in writer.ensemble


async def test_what_a_fenced_writer_had_taken_is_in_doubt(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create_deferred(QUORUMS)
    await append(writer, 2)
    await writer.force()
    other = await three.client(name="other")
    assert await recovered(other, writer.ledger_id) == expected(2)
    writer.append([b"x"])
    with pytest.raises(InDoubtError):
        await writer.wait_acknowledged(2)
    with pytest.raises(InDoubtError):
        await writer.force()
    assert isinstance(writer.error, LedgerFencedError)


async def test_closing_ends_behind_what_was_forced(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await client.create_deferred(QUORUMS)
    await append(writer, 2)
    await writer.force()
    await append(writer, 1)
    await writer.close()
    assert (await client.metadata(writer.ledger_id)).last_entry_id == 1
