"""Writers whose metadata store does not answer: an unknown outcome is read again."""

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.client import LedgerLimits, Quorums
from daybook.bookie.ledger.metadata import LedgerMetadata, encode_metadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment
from tests.bookie.ledger.cluster import PATHS, Cluster
from tests.bookie.ledger.writing import QUORUMS, append, contents, expected

SOMEBODY_ELSES = LedgerMetadata(
    quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (BookieId("x:1"),)),), creator_token=3
)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_change_whose_answer_was_lost(
    four: Cluster, autojump_clock: Clock, applied: bool
) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer, 2)
    four.link.lose_next(operation="set", applied=applied)
    four.of(writer.metadata.last_fragment.ensemble)[0].kill()
    await append(writer, 2)
    await append(writer, 2)
    assert (await client.metadata(writer.ledger_id)).fragments == writer.metadata.fragments
    assert len(writer.metadata.fragments) == 2
    assert await contents(writer) == expected(6)


async def test_a_change_that_the_store_does_not_take_is_made_later(
    four: Cluster, autojump_clock: Clock
) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer, 2)
    four.sessions[0].suspend()
    dead = four.of(writer.metadata.last_fragment.ensemble)[0]
    dead.kill()
    start = trio.current_time()
    await append(writer, 1)
    assert trio.current_time() - start < 0.1
    assert writer.under_replicated
    await append(writer, 2)
    four.sessions[0].resume()
    await trio.sleep(3)
    assert not writer.under_replicated
    assert dead.id not in writer.metadata.last_fragment.ensemble
    await append(writer)
    assert await contents(writer) == expected(6)


async def test_a_store_that_falls_silent_during_a_change_holds_the_lac_back(
    four: Cluster, autojump_clock: Clock
) -> None:
    """The change may have been carried out: nothing is confirmed until that is known."""
    writer = await (await four.client()).create(QUORUMS)
    await append(writer, 2)
    four.link.lose_next(operation="set", applied=True)
    four.link.lose_next(operation="get", applied=False)
    four.link.lose_next(operation="get", applied=False)
    four.link.delay_s = 1.0
    four.of(writer.metadata.last_fragment.ensemble)[0].kill(forget=False)
    writer.append([b"entry 2"])
    writer.flush()  # before the lost answer is noticed
    await trio.sleep(2.5)
    assert writer.last_add_confirmed == 1
    four.link.delay_s = 0.0
    await writer.wait_confirmed(2)
    assert len(writer.metadata.fragments) == 2
    assert await contents(writer) == expected(3)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_creation_whose_answer_was_lost(
    three: Cluster, autojump_clock: Clock, applied: bool
) -> None:
    client = await three.client()
    first = await client.create(QUORUMS)
    three.link.lose_next(operation="create", path=PATHS.ledger(0)[:-5], applied=applied)
    second = await client.create(QUORUMS)
    assert (first.ledger_id, second.ledger_id) == (0, 1)
    assert [ledger_id async for ledger_id in client.list_ledgers()] == [0, 1]
    await append(second)


async def test_an_id_that_somebody_else_uses_is_passed_over(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    for ledger_id, value in enumerate([b"what is this", encode_metadata(SOMEBODY_ELSES)]):
        await three.sessions[0].create(PATHS.ledger(ledger_id), value, make_parents=True)
    assert (await client.create(QUORUMS)).ledger_id == 2
    assert [ledger_id async for ledger_id in client.list_ledgers()] == [0, 1, 2]


async def test_a_writer_withdraws_before_its_metadata_are_full(
    four: Cluster, autojump_clock: Clock
) -> None:
    """Each ensemble change adds to the metadata; recovery must find room to close the ledger.

    Once, the change that did not fit ended the whole client.
    """
    limits = LedgerLimits(metadata_bytes_max=800)
    client = await four.client(limits)
    writer = await client.create(QUORUMS)
    ended: list[LedgerError] = []
    writer.set_listener(lambda first, last: None, ended.append)
    stored = crowded = 0
    for _ in range(40):
        dead = four.of(writer.metadata.last_fragment.ensemble)[0]
        dead.kill()
        try:
            await append(writer, 1)
        except (LedgerError, AssertionError):
            break
        stored += 1
        crowded += writer.crowded
        await dead.restart()
        await trio.sleep(60)
    assert stored > 3
    assert crowded
    assert len(ended) == 1
    assert "continue in a new ledger" in str(ended[0])
    assert len(encode_metadata(writer.metadata)) <= 800
    reader = await client.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed >= stored - 1
    assert len(encode_metadata(await client.metadata(writer.ledger_id))) <= 800


async def test_a_change_that_the_store_refuses_does_not_end_the_client(
    four: Cluster, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer, 1)
    monkeypatch.setattr("daybook.wire.metadata.store.REQUEST_BYTES_MAX", 200)
    four.of(writer.metadata.last_fragment.ensemble)[0].kill()
    await append(writer, 2)
    await trio.sleep(5)
    assert writer.under_replicated
    monkeypatch.undo()
    await trio.sleep(5)
    assert not writer.under_replicated
    assert await contents(writer) == expected(3)
