"""Writers whose bookies fail: which bookie is replaced, which writes go on, which wait."""

from collections.abc import Sequence

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import InDoubtError, NotEnoughBookiesError, RecoveryAbortedError
from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.client import LedgerClient, LedgerLimits, Quorums
from daybook.bookie.ledger.reader import LedgerReader
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.bookie.registry.underreplication import mark_path
from daybook.wire.messages.bookie import Add, Status
from tests.bookie.ledger.cluster import PATHS, Cluster, FakeBookie
from tests.bookie.ledger.writing import QUORUMS, append, contents, expected


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


@pytest.mark.parametrize(
    "quorums", [Quorums(2, 2, 2), Quorums(3, 3, 3), Quorums(3, 2, 2), Quorums(2, 2, 1)], ids=str
)
async def test_where_all_have_to_confirm_a_spare_keeps_the_writer_going(
    four: Cluster, autojump_clock: Clock, quorums: Quorums
) -> None:
    client = await four.client()
    writer = await client.create(quorums)
    await append(writer, 6)
    four.of(writer.ensemble)[0].kill()
    started = trio.current_time()
    await append(writer, 6)
    assert trio.current_time() - started < 0.2
    await trio.sleep(1)
    assert not writer.under_replicated
    writer.abandon()
    reader = await client.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 11
    assert await contents(writer) == expected(12)


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
    with pytest.raises(NotEnoughBookiesError, match="1 bookies are writable"):
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
    # The bookie receives nothing, and the buffers of the connection fill up.
    slow.frozen = True
    for _ in range(4):
        writer.append([bytes(1 << 20)])
        await writer.wait_confirmed(writer.last_add_pushed)
    assert slow.id in writer.ensemble, "the buffers and the limit hold so much"
    for _ in range(4):
        writer.append([bytes(1 << 20)])
        await writer.wait_confirmed(writer.last_add_pushed)
    await trio.sleep(1)
    assert slow.id not in writer.metadata.last_fragment.ensemble


# Not even one of the large entries may wait, unless it is held anyway.
_SMALL_QUEUE = LedgerLimits(bookies=BookieLimits(queue_bytes_max=1 << 19))


async def _append_large(client: LedgerClient, ledgers: int) -> list[LedgerWriter]:
    """Append an entry of 1 MB to each of so many new ledgers, all in one turn of the loop."""
    writers = [await client.create(QUORUMS) for _ in range(ledgers)]
    for writer in writers:
        writer.append([bytes(1 << 20)])
    return writers


async def _all_confirmed(writers: Sequence[LedgerWriter]) -> None:
    for writer in writers:
        await writer.wait_confirmed(writer.last_add_pushed)


async def test_a_burst_is_no_sign_that_bookies_lag_behind(
    three: Cluster, autojump_clock: Clock
) -> None:
    """No bookie can have taken an entry that was appended in this turn."""
    writers = await _append_large(await three.client(_SMALL_QUEUE), 4)
    with trio.fail_after(1):
        await _all_confirmed(writers)
    await trio.sleep(1)
    for writer in writers:
        assert not writer.under_replicated
        for bookie in three.bookies:
            assert bookie.holds(writer.ledger_id) == [0]


async def test_bookies_that_return_are_sent_everything_that_waits(
    three: Cluster, autojump_clock: Clock
) -> None:
    """All writers send at the moment when the bookies return, before a connection is made."""
    client = await three.client(_SMALL_QUEUE)
    for bookie in three.bookies:
        bookie.deaf = True
    writers = await _append_large(client, 4)
    await trio.sleep(8)
    assert all(writer.waiting_for for writer in writers)
    for bookie in three.bookies:
        bookie.deaf = False
    three.network.cut("client")
    with trio.fail_after(5):
        await _all_confirmed(writers)


async def test_many_recoveries_of_large_entries_at_once(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client(_SMALL_QUEUE)
    writers = await _append_large(client, 4)
    await trio.sleep(1)
    for writer in writers:
        writer.abandon()
    readers: list[LedgerReader] = []

    async def recover(ledger_id: int) -> None:
        readers.append(await client.open(ledger_id, recover=True))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(recover, writer.ledger_id)
    assert [reader.last_add_confirmed for reader in readers] == [0] * 4


async def test_a_recovery_holds_only_the_entries_under_way(
    three: Cluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    client = await three.client(LedgerLimits(recovery_reads_max=2))
    writer = await client.create(QUORUMS)
    for _ in range(8):
        writer.append([bytes(1 << 20)])
    await trio.sleep(1)
    writer.abandon()
    held: list[int] = []
    store = FakeBookie.add

    def add(bookie: FakeBookie, add: Add) -> Status:
        held.append(client.context.bookies.held_bytes)
        return store(bookie, add)

    monkeypatch.setattr(FakeBookie, "add", add)
    await client.open(writer.ledger_id, recover=True)
    assert 1 << 20 <= max(held) <= 4 << 20
    assert client.context.bookies.held_bytes == 0


async def test_a_recovery_that_fails_holds_nothing(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    (writer,) = await _append_large(client, 1)
    await trio.sleep(1)
    writer.abandon()
    for bookie in three.bookies:
        bookie.add_status = Status.IO_ERROR
    with pytest.raises(RecoveryAbortedError):
        await client.open(writer.ledger_id, recover=True)
    assert client.context.bookies.held_bytes == 0


async def test_entries_that_are_no_longer_held_count_no_more(
    three: Cluster, autojump_clock: Clock
) -> None:
    """A bookie may lag behind by what writers hold anyway; an ended writer holds nothing."""
    client = await three.client(_SMALL_QUEUE)
    await _all_confirmed(await _append_large(client, 2))
    for bookie in three.bookies:
        bookie.deaf = True
    closed, abandoned, recovered = await _append_large(client, 3)
    await trio.sleep(0.1)
    assert client.context.bookies.held_bytes == 3 << 20
    await closed.close()
    abandoned.abandon()
    assert client.context.bookies.held_bytes == 1 << 20
    for bookie in three.bookies:
        bookie.deaf = False
    await client.open(recovered.ledger_id, recover=True)
    with pytest.raises(InDoubtError):
        await recovered.wait_confirmed(0)
    assert client.context.bookies.held_bytes == 0
