"""Batch reads: fewer requests, the same entries; entries missing in a batch are read singly."""

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import NoSuchEntryError, ReadUnknownError
from daybook.wire.messages.bookie import LAST_ENTRY, BatchRead, Read, Status
from tests.bookie.ledger.cluster import Cluster, open_cluster
from tests.bookie.ledger.test_reader import QUORUMS, append, closed, expected, read_all


def requests(cluster: Cluster) -> tuple[int, int]:
    """Return how many batches and single entries were requested since the last call."""
    asked = [request for bookie in cluster.bookies for request in bookie.requests]
    for bookie in cluster.bookies:
        bookie.requests.clear()
    batches = sum(isinstance(request, BatchRead) for request in asked)
    # A read of the last entry is a probe that shows whether the bookie answers.
    return batches, sum(isinstance(r, Read) and r.entry_id != LAST_ENTRY for r in asked)


async def test_many_entries_are_one_request(autojump_clock: Clock) -> None:
    async with open_cluster() as cluster:
        reader = await closed(await cluster.client(), 50)
        requests(cluster)
        assert len(await reader.read(0, 49, max_bytes=1 << 20)) == 50
        assert requests(cluster) == (1, 0)
        assert len(await reader.read(7, 7, max_bytes=1 << 20)) == 1
        assert requests(cluster) == (0, 1), "one entry is no batch"


async def test_large_entries_are_asked_for_one_by_one(autojump_clock: Clock) -> None:
    """The first entry is available before the last has been received."""
    async with open_cluster() as cluster:
        client = await cluster.client()
        writer = await client.create(QUORUMS)
        for _ in range(5):
            writer.append([bytes(20_000)])
        await writer.wait_confirmed(4)
        await writer.close()
        reader = await client.open(writer.ledger_id, recover=False)
        requests(cluster)
        assert len(await reader.read(0, 4, max_bytes=1 << 20)) == 5
        assert requests(cluster) == (0, 5)


async def test_what_a_short_batch_lacks_is_in_the_next(autojump_clock: Clock) -> None:
    async with open_cluster() as cluster:
        reader = await closed(await cluster.client(), 50)
        for bookie in cluster.bookies:
            bookie.batch_entries_max = 20
        requests(cluster)
        assert await read_all(reader) == expected(50)
        assert requests(cluster) == (3, 0)


async def test_a_bookie_that_does_not_know_batches_is_asked_for_one_a_minute(
    autojump_clock: Clock,
) -> None:
    async with open_cluster() as cluster:
        reader = await closed(await cluster.client(), 10)
        for bookie in cluster.bookies:
            bookie.knows_batches = False
        requests(cluster)
        start = trio.current_time()
        for _ in range(3):
            assert await read_all(reader) == expected(10)
        assert requests(cluster) == (1, 30)
        assert trio.current_time() - start < 1, "no time-out was waited for"
        await trio.sleep(60)
        assert await read_all(reader) == expected(10)
        assert requests(cluster) == (1, 10)


async def test_entries_behind_the_lac_are_not_taken_from_a_batch(autojump_clock: Clock) -> None:
    """A bookie does not know what is confirmed, and returns all that it has."""
    async with open_cluster() as cluster:
        client = await cluster.client()
        writer = await client.create(QUORUMS)
        await append(writer, 5)
        reader = await client.open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 3
        for bookie in cluster.bookies:
            bookie.batch_surplus = 1
        assert await read_all(reader) == expected(4)
        with pytest.raises(NoSuchEntryError):
            await reader.read(4, 4, max_bytes=1 << 20)


async def test_a_damaged_entry_of_a_batch_comes_from_another_copy(autojump_clock: Clock) -> None:
    async with open_cluster() as cluster:
        reader = await closed(await cluster.client(), 10)
        for number, bookie in enumerate(cluster.bookies):
            entry = bookie.entries[reader.ledger_id, number]
            bookie.entries[reader.ledger_id, number] = entry[:-1] + b"?"
        assert await read_all(reader) == expected(10)


@pytest.mark.parametrize("gap", [0, 4, 9])
async def test_a_gap_in_one_copy_ends_its_batch_and_not_the_read(
    gap: int, autojump_clock: Clock
) -> None:
    async with open_cluster() as cluster:
        reader = await closed(await cluster.client(), 10)
        for bookie in cluster.bookies[:2]:
            bookie.forgets.add(gap)
        assert await read_all(reader) == expected(10)
        cluster.bookies[2].forgets.add(gap)
        with pytest.raises(NoSuchEntryError):
            await reader.read(gap, 9, max_bytes=1 << 20)
        cluster.bookies[2].read_status = Status.IO_ERROR
        with pytest.raises(ReadUnknownError):
            await reader.read(gap, 9, max_bytes=1 << 20)


async def test_a_bookie_that_leaves_a_batch_unanswered_delays_a_read_by_a_second(
    autojump_clock: Clock,
) -> None:
    async with open_cluster() as cluster:
        reader = await closed(await cluster.client(), 10)
        ensemble = cluster.of(reader.metadata.last_fragment.ensemble)
        ensemble[reader.ledger_id % 3].deaf = True
        start = trio.current_time()
        assert await read_all(reader) == expected(10)
        assert 1.0 <= trio.current_time() - start < 1.1
        await trio.sleep(20)
        start = trio.current_time()
        assert await read_all(reader) == expected(10)
        assert trio.current_time() - start < 0.1, "who did not answer is asked last"
