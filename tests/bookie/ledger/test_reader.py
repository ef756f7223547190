"""Readers on trio: the next copy on any failure, nothing behind the LAC, no false absence."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import groupby

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import NoSuchEntryError, ReadUnknownError, UnauthorizedError
from daybook.bookie.ledger.client import LedgerClient, LedgerReader, Quorums
from daybook.bookie.ledger.metadata import encode_metadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment
from daybook.bookie.ledger.reader import preferred_bookie
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.digest import DigestType
from daybook.wire.messages.bookie import Status
from tests.bookie.ledger.cluster import PATHS, Cluster, FakeBookie, open_cluster

QUORUMS = Quorums(3, 3, 2)


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
async def four() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=4) as cluster:
        yield cluster


async def append(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
        await writer.wait_confirmed(writer.last_add_pushed)
    await trio.sleep(0.1)


async def closed(client: LedgerClient, count: int) -> LedgerReader:
    writer = await client.create(QUORUMS)
    await append(writer, count)
    await writer.close()
    return await client.open(writer.ledger_id, recover=True)


async def read_all(reader: LedgerReader, *, max_bytes: int = 1 << 20) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) <= reader.last_add_confirmed:
        first = len(payloads)
        entries = await reader.read(first, reader.last_add_confirmed, max_bytes=max_bytes)
        assert [e.entry_id for e in entries] == list(range(first, first + len(entries)))
        payloads += [bytes(entry.payload) for entry in entries]
    return payloads


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


@pytest.mark.parametrize("max_bytes", [1, 30, 1 << 20])
async def test_a_closed_ledger_is_read_in_parts(
    three: Cluster, max_bytes: int, autojump_clock: Clock
) -> None:
    reader = await closed(await three.client(), 30)
    assert await read_all(reader, max_bytes=max_bytes) == expected(30)


def test_long_stretches_of_a_ledger_are_shared_out_among_its_bookies() -> None:
    """Each bookie reads ahead far, and caches its own share, whichever client reads."""
    ensemble, later = (BookieId("a"), BookieId("b"), BookieId("c")), (BookieId("a"), BookieId("d"))
    fragments = [Fragment(0, ensemble), Fragment(9000, later)]

    def stretches(entry_bytes: int) -> list[tuple[BookieId, int]]:
        usual = [preferred_bookie(7, fragments, first, entry_bytes) for first in range(12_000)]
        return [(bookie, len(list(run))) for bookie, run in groupby(usual)]

    found = stretches(entry_bytes=60_000)
    assert all(32 << 20 <= 65_536 * count <= 64 << 20 for _, count in found[:8])
    assert {bookie for bookie, _ in found[:3]} == set(ensemble)
    assert {bookie for bookie, _ in found[-2:]} == set(later)
    assert stretches(entry_bytes=35_000) == found  # the average size of a growing ledger changes
    assert stretches(entry_bytes=0)  # the size is not known yet


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest(three: Cluster, digest_type: DigestType, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS, digest_type=digest_type, password=b"pw")
    await append(writer, 3)
    reader = await client.open(writer.ledger_id, recover=True, password=b"pw")
    assert await read_all(reader) == expected(3)
    with pytest.raises(UnauthorizedError):
        await client.open(writer.ledger_id, recover=False)


async def test_dead_and_damaged_copies_are_passed_over(
    three: Cluster, autojump_clock: Clock
) -> None:
    reader = await closed(await three.client(), 9)
    three.bookies[0].kill()
    damaged = three.bookies[1]
    for key, entry in list(damaged.entries.items()):
        damaged.entries[key] = entry[:-1] + b"?"
    assert await read_all(reader) == expected(9)


async def test_a_silent_bookie_delays_a_read_by_a_second_at_most(
    three: Cluster, autojump_clock: Clock
) -> None:
    reader = await closed(await three.client(), 9)
    three.bookies[0].deaf = True
    start = trio.current_time()
    assert await read_all(reader) == expected(9)
    assert trio.current_time() - start < 1.1


async def test_a_bookie_that_is_gone_delays_no_read(three: Cluster, autojump_clock: Clock) -> None:
    """It does not refuse the connection: its host is gone, too."""
    reader = await closed(await three.client(), 9)
    gone = first_asked(three, reader)
    gone.deaf = True
    assert gone.session is not None
    three.store.expire(gone.session.session_id)
    later = await three.client(name="later")  # it has never spoken to the bookie
    await trio.sleep(0.1)
    start = trio.current_time()
    assert await read_all(await later.open(reader.ledger_id, recover=False)) == expected(9)
    assert await read_all(reader) == expected(9)
    assert trio.current_time() - start < 0.1


async def test_a_silent_bookie_delays_one_read_and_is_asked_last_until_it_answers(
    three: Cluster, autojump_clock: Clock
) -> None:
    reader = await closed(await three.client(), 9)
    slow = first_asked(three, reader)
    slow.delay_s = 2.0
    start = trio.current_time()
    assert await read_all(reader) == expected(9)
    assert 1.0 <= trio.current_time() - start < 1.1
    asked = len(slow.requests)
    for _ in range(5):
        assert await read_all(reader) == expected(9)
    assert trio.current_time() - start < 1.1
    assert len(slow.requests) == asked
    await trio.sleep(2.0)
    slow.delay_s = 0.0
    assert await read_all(reader) == expected(9)
    assert len(slow.requests) > asked


def first_asked(cluster: Cluster, reader: LedgerReader) -> FakeBookie:
    metadata = reader.metadata
    size = metadata.length // (metadata.last_entry_id + 1)
    return cluster.bookie(preferred_bookie(reader.ledger_id, metadata.fragments, 0, size))


async def test_absent_is_what_all_say_that_they_do_not_have(
    three: Cluster, autojump_clock: Clock
) -> None:
    reader = await closed(await three.client(), 3)
    for bookie in three.bookies:
        bookie.forgets.add(1)
    assert len(await reader.read(0, 2, max_bytes=1 << 20)) == 1
    with pytest.raises(NoSuchEntryError, match="has no entry 1"):
        await reader.read(1, 2, max_bytes=1 << 20)


@pytest.mark.parametrize("broken", ["status", "dead", "damaged"])
async def test_one_that_cannot_say_makes_it_unknown(
    three: Cluster, broken: str, autojump_clock: Clock
) -> None:
    reader = await closed(await three.client(), 3)
    one, *others = three.bookies
    for bookie in others:
        bookie.forgets.add(1)
    if broken == "status":
        one.read_status = Status.UNKNOWN_LEDGER_STATE
    elif broken == "dead":
        one.kill()
    else:
        one.entries[reader.ledger_id, 1] = b"x" * 40
    with pytest.raises(ReadUnknownError):
        await reader.read(1, 1, max_bytes=100)


async def test_nothing_behind_the_end(three: Cluster, autojump_clock: Clock) -> None:
    reader = await closed(await three.client(), 3)
    with pytest.raises(NoSuchEntryError, match="the last entry is 2"):
        await reader.read(3, 3, max_bytes=100)


async def test_a_tailing_reader_follows_and_fences_nobody(
    four: Cluster, autojump_clock: Clock
) -> None:
    client, other = await four.client(), await four.client(name="other")
    writer = await client.create(QUORUMS)
    reader = await other.open(writer.ledger_id, recover=False)
    assert (reader.closed, reader.last_add_confirmed) == (False, -1)
    with pytest.raises(NoSuchEntryError, match="the last confirmed entry is -1"):
        await reader.read(0, 0, max_bytes=10)
    await append(writer, 5)
    assert await reader.refresh() == 3, "the last entry carries the LAC from before it"
    assert await read_all(reader) == expected(4)
    with pytest.raises(NoSuchEntryError):
        await reader.read(4, 4, max_bytes=10)
    four.of(writer.metadata.last_fragment.ensemble)[0].kill()
    await append(writer, 5)
    assert len(writer.metadata.fragments) == 2
    assert await reader.refresh() == 8
    assert await read_all(reader) == expected(9)
    await writer.close()
    assert await reader.refresh() == 9
    assert reader.closed
    assert await reader.refresh() == 9
    assert await read_all(reader) == expected(10)


async def test_the_lac_of_a_fresh_fragment_is_at_least_what_lies_before_it(
    four: Cluster, autojump_clock: Clock
) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer, 5)
    one, two, three = four.of(writer.metadata.last_fragment.ensemble)
    one.kill()
    two.silent = three.silent = True
    writer.append([b"not confirmed"])
    await trio.sleep(1)
    assert writer.metadata.last_fragment.first_entry_id == 5
    for bookie in four.bookies:
        bookie.entries = {k: v for k, v in bookie.entries.items() if k[1] < 4}
        bookie.silent = False
    reader = await client.open(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == 4


async def test_without_any_answer_the_lac_is_unknown(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    await append(writer, 2)
    for bookie in three.bookies:
        bookie.deaf = True
    with pytest.raises(ReadUnknownError):
        await client.open(writer.ledger_id, recover=False)


async def test_copies_that_have_moved_are_found(four: Cluster, autojump_clock: Clock) -> None:
    client = await four.client()
    reader = await closed(client, 3)
    old = reader.metadata.last_fragment.ensemble
    spare = next(bookie for bookie in four.bookies if bookie.id not in old)
    # The same order as in re-replication: copies first, then the fragment's ensemble.
    spare.entries.update(four.bookie(old[0]).entries)
    stored = await client.stored_metadata(reader.ledger_id)
    moved = Fragment(0, (BookieId(spare.id), *old[1:]))
    await four.sessions[0].set(
        PATHS.ledger(reader.ledger_id),
        encode_metadata(replace(stored.metadata, fragments=(moved,))),
        stored.version,
    )
    for bookie_id in old:
        four.bookie(bookie_id).entries.clear()
    assert await read_all(reader) == expected(3)
