"""Entries with ids from the caller: held until their turn, confirmed in order, accepted once."""

from collections.abc import AsyncGenerator

import pytest
from trio.abc import Clock

from daybook.bookie.errors import (
    DuplicateEntryError,
    EntryNotSentError,
    EntryTooLargeError,
    InDoubtError,
    LedgerClosedError,
    LedgerExistsError,
)
from daybook.bookie.ledger.client import Quorums
from daybook.bookie.ledger.deferred_writer import AdvancedLedgerWriter
from tests.bookie.ledger.cluster import Cluster, open_cluster

QUORUMS = Quorums(3, 3, 2)


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


async def advanced(cluster: Cluster) -> AdvancedLedgerWriter:
    return AdvancedLedgerWriter(await (await cluster.client()).create(QUORUMS))


@pytest.mark.parametrize(
    ("given", "sent", "held"),
    [
        ([0, 1, 2], 2, 0),
        ([2, 1], -1, 2),
        ([2, 1, 0], 2, 0),
        ([0, 2, 3, 5], 0, 3),
        ([0, 2, 3, 5, 1], 3, 1),
        ([5, 0, 2, 3, 1, 4], 5, 0),
    ],
    ids=str,
)
async def test_sent_is_what_has_no_gap_before_it(
    three: Cluster, given: list[int], sent: int, held: int, autojump_clock: Clock
) -> None:
    writer = await advanced(three)
    for entry_id in given:
        writer.append(entry_id, [b"%d" % entry_id, b"!"])
    assert (writer.writer.last_add_pushed, writer.held_entries) == (sent, held)
    assert writer.held_bytes == 2 * held
    assert writer.first_held == (min(e for e in given if e > sent) if held else None)
    for entry_id in range(sent + 1):
        await writer.wait_confirmed(entry_id)
    await writer.writer.close()
    ledger_id = writer.writer.ledger_id
    reader = await (await three.client(name="other")).open(ledger_id, recover=False)
    assert reader.last_add_confirmed == sent
    if sent >= 0:
        entries = await reader.read(0, sent, max_bytes=1 << 20)
        assert [bytes(entry.payload) for entry in entries] == [b"%d!" % n for n in range(sent + 1)]
    for bookie in three.bookies:
        assert bookie.holds(ledger_id) == list(range(sent + 1))


async def test_an_id_is_taken_once_pending_held_or_confirmed(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await advanced(three)
    writer.append(0, [b"0"])
    writer.append(2, [b"2"])
    for entry_id in (0, 2):
        with pytest.raises(DuplicateEntryError):
            writer.append(entry_id, [b"other"])
    await writer.wait_confirmed(0)
    with pytest.raises(DuplicateEntryError):
        writer.append(0, [b"other"])
    writer.append(1, [b"1"])
    await writer.wait_confirmed(2)
    assert {e: d[-1:] for (_, e), d in three.bookies[0].entries.items()} == {
        0: b"0",
        1: b"1",
        2: b"2",
    }


async def test_one_that_is_too_large_is_refused_before_it_is_held(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await advanced(three)
    for entry_id in (0, 1):
        with pytest.raises(EntryTooLargeError):
            writer.append(entry_id, [bytes(6 << 20)])
    assert (writer.writer.last_add_pushed, writer.held_bytes) == (-1, 0)


async def test_when_the_writer_stops_what_was_held_was_certainly_not_sent(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await advanced(three)
    for bookie in three.bookies:
        bookie.silent = True
    writer.append(0, [b"0"])
    writer.append(2, [b"2"])
    writer.writer.abandon()
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(0)
    with pytest.raises(EntryNotSentError, match="entry 1 was never given"):
        await writer.wait_confirmed(2)
    for entry_id in (1, 2, 3):
        with pytest.raises(LedgerClosedError):
            writer.append(entry_id, [b"late"])


async def test_a_ledger_id_that_is_given_is_taken_once(
    three: Cluster, autojump_clock: Clock
) -> None:
    client, other = await three.client(), await three.client(name="other")
    writer = await client.create(QUORUMS, ledger_id=5_000_000_000)
    assert writer.ledger_id == 5_000_000_000
    with pytest.raises(LedgerExistsError):
        await other.create(QUORUMS, ledger_id=5_000_000_000)
    assert [ledger_id async for ledger_id in client.list_ledgers()] == [5_000_000_000]


@pytest.mark.parametrize("applied", [True, False])
async def test_a_creation_without_an_answer_is_looked_up(
    three: Cluster, applied: bool, autojump_clock: Clock
) -> None:
    client = await three.client()
    three.link.lose_next(applied=applied, operation="create", path="/ledgers/00/0000/L0009")
    assert (await client.create(QUORUMS, ledger_id=9)).ledger_id == 9
