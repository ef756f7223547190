"""The ends of writers: fenced, closed, abandoned; which entries are in doubt or left alone then."""

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import (
    InDoubtError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NoSuchLedgerError,
    WriterWithdrawnError,
)
from daybook.bookie.ledger.metadata import LedgerState, encode_metadata
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.store import StoreUnavailableError
from tests.bookie.ledger.cluster import PATHS, Cluster
from tests.bookie.ledger.writing import QUORUMS, append, contents, expected


async def test_a_fenced_writer_withdraws(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    await append(writer, 3)
    errors: list[LedgerError] = []
    writer.set_listener(lambda first, last: None, errors.append)
    other = await three.client(name="other")
    reader = await other.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 2
    entry_id = writer.append([b"too late"])
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(entry_id)
    assert [type(error) for error in errors] == [LedgerFencedError]
    with pytest.raises(LedgerFencedError):
        writer.append([b"x"])
    with pytest.raises(LedgerFencedError):
        await writer.close()
    assert await contents(writer) == expected(3), "what is confirmed can still be read"


async def test_a_writer_whose_ledger_is_closed_behind_it_does_not_change_fragments(
    four: Cluster,
    autojump_clock: Clock,
) -> None:
    writer = await (await four.client()).create(QUORUMS)
    await append(writer, 3)
    other = await four.client(name="other")
    await other.open(writer.ledger_id, recover=True)
    before = await other.stored_metadata(writer.ledger_id)
    for bookie in four.bookies:
        bookie.fenced.clear()  # as if the bookie had lost its fence: the metadata must suffice
    four.of(writer.metadata.last_fragment.ensemble)[0].kill()
    entry_id = writer.append([b"x"])
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(entry_id)
    assert isinstance(writer.error, LedgerFencedError)
    assert await other.stored_metadata(writer.ledger_id) == before


async def test_a_writer_does_not_close_a_ledger_in_recovery(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    await append(writer, 3)
    path = PATHS.ledger(writer.ledger_id)
    record = await three.sessions[0].get(path)
    assert record is not None
    marked = writer.metadata.in_recovery()
    await three.sessions[0].set(path, encode_metadata(marked), record.stat.version)
    with pytest.raises(LedgerFencedError):
        await writer.close()
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


async def test_a_wrong_key_makes_the_writer_withdraw(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    for bookie in three.bookies:
        bookie.add_status = Status.UNAUTHORIZED
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(writer.append([b"x"]))
    assert isinstance(writer.error, WriterWithdrawnError)


async def test_a_deleted_ledger_cannot_be_changed(four: Cluster, autojump_clock: Clock) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer)
    await client.delete(writer.ledger_id)
    await client.delete(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await client.metadata(writer.ledger_id)
    four.of(writer.metadata.last_fragment.ensemble)[0].kill()
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(writer.append([b"x"]))
    assert isinstance(writer.error, NoSuchLedgerError)


async def test_closing_leaves_out_what_is_not_confirmed(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    await append(writer, 2)
    for bookie in three.bookies[:2]:
        bookie.silent = True
    writer.append([b"x"])
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(InDoubtError):
                await writer.wait_confirmed(2)

        nursery.start_soon(wait)
        await trio.sleep(0.1)
        await writer.close()
    assert (await client.metadata(writer.ledger_id)).last_entry_id == 1
    with pytest.raises(LedgerClosedError):
        writer.append([b"x"])
    await writer.close()


async def test_closing_can_be_tried_again(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    await append(writer)
    three.sessions[0].suspend()
    with pytest.raises(StoreUnavailableError):
        await writer.close()
    three.sessions[0].resume()
    await writer.close()
    assert (await client.metadata(writer.ledger_id)).closed


async def test_an_abandoned_writer_stops_and_leaves_the_metadata_alone(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    errors: list[LedgerError] = []
    writer.set_listener(lambda first, last: None, errors.append)
    await append(writer)
    writer.append([b"x"])
    writer.abandon()
    writer.abandon()
    with pytest.raises(LedgerClosedError):
        writer.append([b"x"])
    with pytest.raises(InDoubtError):
        await writer.wait_confirmed(1)
    assert errors == []
    assert not (await client.metadata(writer.ledger_id)).closed
