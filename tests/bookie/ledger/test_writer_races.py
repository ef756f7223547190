"""Ensemble changes that race: with a recovery, with the close, with another change.

Every step of a writer and of a recovery is also tried with a metadata store that does not answer:
the request is carried out, or not, and the client is not told.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
import trio.lowlevel
from trio.abc import Clock

from daybook.bookie.errors import InDoubtError, LedgerError, LedgerFencedError
from daybook.bookie.ledger.client import LedgerClient, LedgerReader, LedgerWriter
from daybook.bookie.ledger.metadata import LedgerState
from daybook.wire.metadata.memory import Link, NoAnswerError, Request
from daybook.wire.metadata.store import MetadataError
from tests.bookie.ledger.cluster import Cluster, open_cluster
from tests.bookie.ledger.writing import QUORUMS, append, contents, expected

T = TypeVar("T")

STORE_DELAY_S = 1.0


async def read_all(reader: LedgerReader) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) <= reader.last_add_confirmed:
        last = reader.last_add_confirmed
        entries = await reader.read(len(payloads), last, max_bytes=1 << 20)
        payloads += [bytes(entry.payload) for entry in entries]
    return payloads


async def with_a_change_in_flight(cluster: Cluster, client: LedgerClient) -> LedgerWriter:
    """Return a writer with three confirmed entries and a fourth waiting for a change of 1 s."""
    writer = await client.create(QUORUMS)
    await append(writer, 3)
    cluster.link.delay_s = STORE_DELAY_S
    cluster.of(writer.ensemble)[0].kill()
    writer.append([b"entry 3"])
    writer.flush()  # before the failure is noticed
    await trio.sleep(STORE_DELAY_S / 2)
    assert writer.last_add_confirmed == 2, "the LAC stands still"
    return writer


async def test_a_recovery_that_comes_first_stops_the_writer_and_its_change(
    four: Cluster, autojump_clock: Clock
) -> None:
    writer = await with_a_change_in_flight(four, await four.client())
    other = await four.client(name="other")
    reader = await other.open(writer.ledger_id, recover=True)
    assert (await read_all(reader))[:3] == expected(3)
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(3)
    assert isinstance(writer.error, LedgerFencedError)
    await trio.sleep(10)
    assert (await other.stored_metadata(writer.ledger_id)).metadata == reader.metadata


async def test_a_recovery_that_comes_second_reads_where_the_change_leads(
    four: Cluster, autojump_clock: Clock
) -> None:
    """Its first read of the metadata is old when it marks the ledger; it uses what it marked."""
    writer = await with_a_change_in_flight(four, await four.client())
    other = await four.client(name="other")
    stored = await other.stored_metadata(writer.ledger_id)
    assert len(stored.metadata.fragments) == 1
    four.sessions[1].link.delay_s = 2 * STORE_DELAY_S  # type: ignore[attr-defined]
    readers: list[LedgerReader] = []

    async def recover() -> None:
        readers.append(await other.open(writer.ledger_id, recover=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover)
        await writer.wait_confirmed(3)
    assert await read_all(readers[0]) == expected(4)
    assert len(readers[0].metadata.fragments) == 2


async def test_closing_waits_for_the_change_and_ends_behind_what_is_confirmed(
    four: Cluster, autojump_clock: Clock
) -> None:
    client = await four.client()
    writer = await with_a_change_in_flight(four, client)
    await writer.close()
    four.link.delay_s = 0
    metadata = await client.metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 2)
    assert metadata.fragments == writer.metadata.fragments
    assert len(metadata.fragments) == 2
    assert await read_all(await client.open(writer.ledger_id, recover=True)) == expected(3)


@pytest.mark.parametrize("applied", [True, False])
async def test_closing_after_a_change_of_which_nobody_knows(
    four: Cluster, autojump_clock: Clock, applied: bool
) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer, 3)
    four.link.lose_next(operation="set", applied=applied)
    four.of(writer.ensemble)[0].kill()
    writer.append([b"entry 3"])
    await trio.lowlevel.checkpoint()
    await writer.close()
    metadata = await client.metadata(writer.ledger_id)
    assert metadata.closed
    assert metadata.last_entry_id in (2, 3)
    assert metadata.last_entry_id == writer.last_add_confirmed
    kept = await read_all(await client.open(writer.ledger_id, recover=True))
    assert kept == expected(metadata.last_entry_id + 1)


async def test_abandoning_during_a_change_leaves_a_ledger_that_can_be_recovered(
    four: Cluster, autojump_clock: Clock
) -> None:
    client = await four.client()
    writer = await with_a_change_in_flight(four, client)
    writer.abandon()
    four.link.delay_s = 0
    reader = await client.open(writer.ledger_id, recover=True)
    assert (await read_all(reader))[:3] == expected(3)


async def test_a_bookie_that_dies_during_a_change_is_replaced_by_the_next(
    four: Cluster, autojump_clock: Clock
) -> None:
    client = await four.client()
    writer = await with_a_change_in_flight(four, client)
    newcomer = next(b for b in four.bookies if b.id not in writer.ensemble)
    newcomer.kill()
    four.bookies.append(type(newcomer)("b9", four))
    await four.bookies[-1].start()
    await trio.sleep(10)
    await writer.wait_confirmed(3)
    four.link.delay_s = 0
    assert newcomer.id not in writer.ensemble
    assert (await client.metadata(writer.ledger_id)).fragments == writer.metadata.fragments
    assert await contents(writer) == expected(4)


# -- no answer to any step


async def life_of_a_writer(cluster: Cluster, client: LedgerClient) -> int:
    """Create, append, lose a bookie, append, close; a refused operation is repeated."""
    writer = await again(lambda: client.create(QUORUMS))
    await append(writer, 2)
    cluster.of(writer.ensemble)[0].kill()
    await append(writer, 2)
    await again(writer.close)
    return writer.ledger_id


async def life_of_a_recovery(cluster: Cluster, client: LedgerClient) -> int:
    """Recover a ledger whose last entry is on an ack quorum, and has to be written back."""
    writer = await again(lambda: client.create(QUORUMS))
    await append(writer, 4)
    await trio.sleep(1)
    writer.abandon()
    cluster.of(writer.ensemble)[0].entries.pop((writer.ledger_id, 3))
    await again(lambda: client.open(writer.ledger_id, recover=True))
    return writer.ledger_id


async def again(work: Callable[[], Awaitable[T]]) -> T:
    for _ in range(10):
        try:
            return await work()
        except (LedgerError, MetadataError):
            await trio.sleep(2)
    raise AssertionError("it never succeeds")


class LosingLink:
    """A link that loses the answer to the request with that number."""

    def __init__(self, link: Link, number: int, *, applied: bool) -> None:
        self.requests = 0
        self._link = link
        self._number = number
        self._applied = applied

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        self.requests += 1
        if self.requests == self._number:
            if self._applied:
                execute()
            raise NoAnswerError
        await self._link.request(request, execute)

    def notify(self, call: Callable[[], None]) -> None:
        self._link.notify(call)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("life", [life_of_a_writer, life_of_a_recovery])
async def test_no_answer_to_any_one_request(
    life: Callable[[Cluster, LedgerClient], Awaitable[int]], applied: bool, autojump_clock: Clock
) -> None:
    """Whichever request it is, confirmed entries exist, and the ledger is closed."""
    number, requests = 0, 0  # the first round loses nothing, and counts the requests
    while number <= requests:
        async with open_cluster(bookies=4) as cluster:
            client = await cluster.client()
            session = cluster.sessions[0]
            link = session.link = LosingLink(session.link, number, applied=applied)
            with trio.fail_after(300):
                ledger_id = await life(cluster, client)
            requests = requests or link.requests
            other = await cluster.client(name="other")
            reader = await other.open(ledger_id, recover=True)
            assert await read_all(reader) == expected(4), f"request {number}"
            found = [ledger_id async for ledger_id in other.list_ledgers()]
            assert found == [ledger_id], f"request {number}"
        number += 1
    assert requests > 10
