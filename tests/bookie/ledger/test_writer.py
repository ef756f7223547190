"""Writers on trio, against bookies that break: what is confirmed, what waits, what is in doubt."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import trio
from trio.abc import Clock

from bookie.errors import (
    EntryTooLargeError,
    InDoubtError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    WriterWithdrawnError,
)
from bookie.ledger.bookies import BookieLimits
from bookie.ledger.client import LedgerLimits, Quorums
from bookie.ledger.marks import mark_path
from bookie.ledger.metadata import LedgerMetadata, LedgerState, encode_metadata
from bookie.ledger.protocol.placement import BookieId, Fragment
from bookie.ledger.writer import LedgerWriter
from tests.bookie.ledger.cluster import PATHS, Cluster, open_cluster
from wire.messages.bookie import Add, Flag, Status
from wire.metadata.store import StoreUnavailableError

QUORUMS = Quorums(3, 3, 2)
SOMEBODY_ELSES = LedgerMetadata(
    quorums=Quorums(1, 1, 1), fragments=(Fragment(0, (BookieId("x:1"),)),), creator_token=3
)


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
async def four() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=4) as cluster:
        yield cluster


async def append(writer: LedgerWriter, count: int = 1) -> None:
    """Append entries that say their number, and wait until they are confirmed."""
    for _ in range(count):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
    await writer.wait_confirmed(writer.last_add_pushed)


async def contents(writer: LedgerWriter) -> list[bytes]:
    entries = await writer.read(0, writer.last_add_confirmed, max_bytes=1 << 20)
    assert [entry.entry_id for entry in entries] == list(range(len(entries)))
    return [bytes(entry.payload) for entry in entries]


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


async def test_entries_are_confirmed_read_and_kept(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS, custom={"application": b"test"})
    await append(writer, 10)
    assert writer.last_add_confirmed == writer.last_add_pushed == 9
    assert writer.length == sum(map(len, expected(10)))
    assert (writer.pending_bytes, writer.pending_entries) == (0, 0)
    assert await contents(writer) == expected(10)
    await writer.close()
    metadata = await client.metadata(writer.ledger_id)
    assert replace(metadata, created_ms=None) == writer.metadata
    assert (metadata.last_entry_id, metadata.length) == (9, writer.length)
    assert metadata.custom == {"application": b"test"}
    for bookie in three.bookies:
        assert bookie.holds(writer.ledger_id) == list(range(10))


async def test_the_listener_hears_of_runs_in_order(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    runs: list[tuple[int, int]] = []
    writer.set_listener(lambda first, last: runs.append((first, last)), lambda error: None)
    for _ in range(50):
        writer.append([b"x", memoryview(b"yz")])
    assert writer.pending_bytes == 150
    await writer.wait_confirmed(49)
    assert [e for first, last in runs for e in range(first, last + 1)] == list(range(50))


async def test_entries_appended_by_the_listener_come_behind(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)

    def confirmed(first: int, last: int) -> None:
        if last < 5:
            writer.append([b"more"])

    writer.set_listener(confirmed, lambda error: None)
    writer.append([b"first"])
    await writer.wait_confirmed(5)


async def test_a_large_entry_is_sent_to_all(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    payload = bytes(range(256)) * 12_000
    await writer.wait_confirmed(writer.append([payload]))
    assert await contents(writer) == [payload]


async def test_an_entry_that_no_bookie_takes_is_refused(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    with pytest.raises(EntryTooLargeError):
        writer.append([bytes(5 << 20)])
    assert writer.append([bytes((5 << 20) - 600)]) == 0
    await writer.wait_confirmed(0)


async def test_striping_sends_each_entry_to_its_write_set(
    four: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await four.client()).create(Quorums(4, 2, 2))
    await append(writer, 8)
    for position, bookie in enumerate(four.of(writer.metadata.last_fragment.ensemble)):
        held = [e for e in range(8) if (position - e) % 4 < 2]
        assert bookie.holds(writer.ledger_id) == held
    assert await contents(writer) == expected(8)


async def test_every_add_carries_the_key_and_the_lac(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS, password=b"secret")
    await append(writer)
    await append(writer)
    adds = [r for r in three.bookies[0].requests if isinstance(r, Add)]
    assert {add.master_key.hex() for add in adds} == {"e793cbc379107648537183605cd361d3bb789a39"}
    assert [int.from_bytes(add.entry[16:24], "big", signed=True) for add in adds] == [-1, 0]
    assert not any(add.flags & Flag.RECOVERY_ADD for add in adds)


# -- bookies that fail


async def test_a_bookie_that_dies_is_replaced(four: Cluster, autojump_clock: Clock) -> None:
    client = await four.client()
    writer = await client.create(QUORUMS)
    await append(writer, 5)
    dead, *rest = four.of(writer.metadata.last_fragment.ensemble)
    dead.kill()
    for _ in range(5):
        await append(writer, 2)
    stored = await client.metadata(writer.ledger_id)
    assert stored.fragments[0].ensemble[0] == dead.id
    assert stored.last_fragment.ensemble[1:] == tuple(b.id for b in rest)
    assert stored.last_fragment.first_entry_id == 5
    newcomer = four.bookie(stored.last_fragment.ensemble[0])
    await trio.sleep(1)
    assert newcomer.holds(writer.ledger_id) == list(range(5, 15))
    assert not writer.under_replicated
    assert await contents(writer) == expected(15)


async def test_a_bookie_that_does_not_answer_is_replaced_in_time(
    four: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await four.client()).create(QUORUMS)
    silent = four.of(writer.metadata.last_fragment.ensemble)[1]
    silent.silent = True
    start = trio.current_time()
    await append(writer, 3)
    assert trio.current_time() - start < 0.1
    await trio.sleep(6)
    assert silent.id not in writer.metadata.last_fragment.ensemble
    await append(writer)
    assert await contents(writer) == expected(4)


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.READ_ONLY, Status.TOO_MANY_REQUESTS])
async def test_a_bookie_that_cannot_store_is_replaced(
    four: Cluster, autojump_clock: Clock, status: Status
) -> None:
    writer = await (await four.client()).create(QUORUMS)
    ill = four.of(writer.metadata.last_fragment.ensemble)[2]
    ill.add_status = status
    await append(writer)
    await append(writer)
    assert ill.id not in writer.metadata.last_fragment.ensemble


async def test_without_a_spare_the_others_go_on_and_it_is_marked(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    await append(writer, 3)
    dead = three.of(writer.metadata.last_fragment.ensemble)[0]
    dead.kill()
    start = trio.current_time()
    await append(writer, 3)
    assert trio.current_time() - start < 0.1
    assert writer.under_replicated
    assert not writer.replaceable
    assert writer.waiting_for == ""
    assert len(writer.metadata.fragments) == 1
    await trio.sleep(0.1)
    mark = await three.sessions[0].get(mark_path(PATHS, writer.ledger_id))
    assert mark is not None
    assert mark.value.decode().startswith(f'replica: "{dead.id}"\nctime: ')
    await dead.restart()
    await trio.sleep(2)
    assert writer.replaceable
    await append(writer)
    assert dead.holds(writer.ledger_id) == [0, 1, 2], "a gap would be filled by a new ledger only"


async def test_a_new_ledger_does_not_wait_for_a_bookie_that_is_away(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    three.bookies[1].kill(forget=False)
    first = await client.create(QUORUMS)
    await append(first)
    start = trio.current_time()
    writer = await client.create(QUORUMS)
    assert writer.under_replicated
    await append(writer, 3)
    assert trio.current_time() - start < 0.1
    assert three.bookies[1].id in writer.metadata.last_fragment.ensemble
    assert await contents(writer) == expected(3)


async def test_a_spare_that_comes_later_takes_the_place(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    await append(writer)
    three.of(writer.metadata.last_fragment.ensemble)[0].kill()
    await append(writer)
    assert writer.under_replicated
    three.bookies.append(type(three.bookies[0])("b9", three))
    await three.bookies[-1].start()
    await trio.sleep(1)
    assert not writer.under_replicated
    assert three.bookies[-1].id in writer.metadata.last_fragment.ensemble
    await append(writer)
    assert await contents(writer) == expected(3)


async def test_with_two_dead_appends_wait_and_go_on_by_themselves(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    await append(writer, 2)
    one, two, three_ = three.of(writer.metadata.last_fragment.ensemble)
    one.kill()
    await append(writer, 2)
    two.kill()
    for _ in range(3):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
    await trio.sleep(60)
    assert writer.last_add_confirmed == 3
    assert one.id in writer.waiting_for
    assert two.id in writer.waiting_for
    with pytest.raises(NotEnoughBookiesError, match="1 bookies can be written to"):
        await client.create(QUORUMS)
    await one.restart()
    await trio.sleep(3)
    assert writer.last_add_confirmed == 6
    assert writer.waiting_for == ""
    assert one.holds(writer.ledger_id) == [0, 1, 4, 5, 6]
    assert three_.holds(writer.ledger_id) == list(range(7))
    assert await contents(writer) == expected(7)


async def test_all_bookies_restart_and_nothing_is_lost(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    await append(writer, 2)
    for bookie in three.bookies:
        bookie.kill(forget=False)
    writer.append([b"entry 2"])
    await trio.sleep(3)
    for bookie in three.bookies:
        await bookie.restart()
    await writer.wait_confirmed(2)
    assert await contents(writer) == expected(3)


async def test_bookies_that_restart_one_after_the_other(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    for round_ in range(6):
        bookie = three.bookies[round_ % 3]
        bookie.kill(forget=round_ % 2 == 0)
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
        await trio.sleep(0.5)
        await bookie.restart()
        await trio.sleep(2)
    await append(writer)
    assert await contents(writer) == expected(7)


async def test_a_bookie_that_lags_too_far_behind_is_given_up(
    four: Cluster, autojump_clock: Clock
) -> None:
    limits = LedgerLimits(bookies=BookieLimits(queue_bytes_max=4 << 20, add_timeout_s=1000))
    writer = await (await four.client(limits)).create(QUORUMS)
    await append(writer)
    slow = four.of(writer.metadata.last_fragment.ensemble)[0]
    # It receives nothing, and the buffers of the connection fill up.
    four.network.block(slow.host, "client")
    slow.deaf = True
    four.network.cut(slow.host)
    for _ in range(12):
        writer.append([bytes(1 << 20)])
        await writer.wait_confirmed(writer.last_add_pushed)
    assert slow.id not in writer.metadata.last_fragment.ensemble


# -- the metadata store


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


# -- the end


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
        bookie.fenced.clear()  # as if this had been forgotten: metadata must be enough
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


async def test_only_what_is_confirmed_can_be_read(three: Cluster, autojump_clock: Clock) -> None:
    writer = await (await three.client()).create(QUORUMS)
    with pytest.raises(NoSuchEntryError):
        await writer.read(0, 0, max_bytes=100)
    await append(writer, 20)
    assert len(await writer.read(5, 100, max_bytes=1 << 20)) == 15
    assert len(await writer.read(5, 100, max_bytes=1)) == 1
    assert 2 <= len(await writer.read(5, 100, max_bytes=40)) <= 6
