"""A long tail: recovery has many entries under way at once, and few at the end of the ledger."""

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.client import LedgerClient, Quorums
from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId, Fragment
from daybook.bookie.ledger.protocol.read import Verdict
from daybook.bookie.ledger.protocol.recover import (
    Effect,
    FencingRead,
    LastEntry,
    RecoverProtocol,
)
from daybook.wire.messages.bookie import Read
from tests.bookie.ledger.cluster import Cluster, open_cluster

QUORUMS = Quorums(3, 3, 2)
ROUND_TRIP_S = 0.01


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


async def left_open(client: LedgerClient, count: int, size: int) -> int:
    """Write a ledger whose entries all have the LAC -1; its writer is gone."""
    writer = await client.create(QUORUMS)
    for number in range(count):
        writer.append([number.to_bytes(size, "big")])
    await writer.wait_confirmed(count - 1)
    writer.abandon()
    return writer.ledger_id


async def recover(cluster: Cluster, count: int, size: int = 8) -> float:
    """Return how many round trips to bookies recovery takes; all entries must exist afterwards."""
    ledger_id = await left_open(await cluster.client(), count, size)
    for bookie in cluster.bookies:
        bookie.delay_s = ROUND_TRIP_S
        bookie.requests.clear()
    started = trio.current_time()
    reader = await (await cluster.client(name="other")).open(ledger_id, recover=True)
    took_s = trio.current_time() - started
    assert (reader.last_add_confirmed, reader.length) == (count - 1, count * size)
    for bookie in cluster.bookies:
        assert bookie.holds(ledger_id) == list(range(count))
    return took_s / ROUND_TRIP_S


async def test_two_thousand_unconfirmed_entries_take_thirty_round_trips(
    three: Cluster, autojump_clock: Clock
) -> None:
    assert await recover(three, 2_000) < 30  # reading 16 at a time took 125 and more


async def test_where_nothing_is_unconfirmed_few_entries_are_asked_for(
    three: Cluster, autojump_clock: Clock
) -> None:
    await recover(three, 1)
    reads = [r for bookie in three.bookies for r in bookie.requests if isinstance(r, Read)]
    # Three fence, which shows the entry, and each is asked for the one behind it.
    assert len(reads) <= 3 + 3


@pytest.mark.parametrize(
    ("size", "windows"),
    [(100, [16, 32, 64, 128, 256, 256]), (256 << 10, [16, 32, 64, 64]), (5 << 20, [16, 16, 16])],
)
def test_the_window_grows_as_long_as_the_bytes_fit(size: int, windows: list[int]) -> None:
    names = (BookieId("b1"), BookieId("b2"), BookieId("b3"))
    protocol = RecoverProtocol(QUORUMS, [Fragment(0, names)])
    protocol.start()
    effects: list[Effect] = []
    for name in names[:2]:
        effects += protocol.fence_answered(name, fenced=True, last=LastEntry(9_999, NO_ENTRY, 0))
    asked: list[int] = []
    while len(asked) < len(windows):
        reads = [effect for effect in effects if isinstance(effect, FencingRead)]
        asked.append(len(reads))
        effects = []
        for read in reads:
            length = size * (read.first + 1)
            protocol.read_answered(read.bookie, read.first, Verdict.FOUND, length)
        for name in names[:2]:
            effects += protocol.added(name, reads[0].first, len(reads))
    assert asked == windows
