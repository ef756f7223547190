"""Recovery on trio: a dead bookie delays nothing, too few are an error, the end is unique."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import (
    LedgerFencedError,
    NoSuchLedgerError,
    RecoveryAbortedError,
    UnauthorizedError,
)
from daybook.bookie.ledger.client import LedgerClient, LedgerReader, Quorums
from daybook.bookie.ledger.metadata import LedgerState, encode_metadata
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.messages.bookie import Add, Flag, Read, Status
from daybook.wire.metadata.store import StoreUnavailableError
from tests.bookie.ledger.cluster import PATHS, Cluster, open_cluster

QUORUMS = Quorums(3, 3, 2)


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
async def five() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=5) as cluster:
        yield cluster


async def written(client: LedgerClient, count: int, **options: bytes) -> LedgerWriter:
    """Write a ledger with numbered entries, and abandon the writer."""
    writer = await client.create(QUORUMS, **options)  # type: ignore[arg-type]
    for number in range(count):
        await writer.wait_confirmed(writer.append([b"entry %d" % number]))
    await trio.sleep(0.1)
    writer.abandon()
    return writer


async def contents(reader: LedgerReader) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) <= reader.last_add_confirmed:
        last = reader.last_add_confirmed
        entries = await reader.read(len(payloads), last, max_bytes=1 << 20)
        payloads += [bytes(entry.payload) for entry in entries]
    return payloads


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def partly_stored(cluster: Cluster, writer: LedgerWriter, entry_id: int, keep: int) -> None:
    """Remove the entry from all but `keep` bookies of its ensemble."""
    for bookie in cluster.of(writer.metadata.last_fragment.ensemble)[keep:]:
        bookie.entries.pop((writer.ledger_id, entry_id), None)


async def test_a_ledger_is_closed_where_its_writer_left_it(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 20)
    reader = await client.open(writer.ledger_id, recover=True)
    assert reader.closed
    assert (reader.last_add_confirmed, reader.length) == (19, writer.length)
    assert await contents(reader) == expected(20)
    again = await client.open(writer.ledger_id, recover=True)
    assert again.metadata == reader.metadata


async def test_an_empty_ledger_ends_empty(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await written(client, 0)
    reader = await client.open(writer.ledger_id, recover=True)
    assert (reader.closed, reader.last_add_confirmed, reader.length) == (True, -1, 0)


async def test_what_some_bookies_have_is_kept_and_copied(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 5, password=b"pw")
    partly_stored(three, writer, 4, keep=2)
    reader = await client.open(writer.ledger_id, recover=True, password=b"pw")
    assert await contents(reader) == expected(5)
    await trio.sleep(0.1)
    for bookie in three.bookies:
        entry = bookie.entries[writer.ledger_id, 4]
        assert entry[-7:] == b"entry 4"
        assert int.from_bytes(entry[24:32], "big") == writer.length
        added = [r for r in bookie.requests if isinstance(r, Add) and r.flags & Flag.RECOVERY_ADD]
        assert [add.entry_id for add in added] == [4]
        assert int.from_bytes(added[0].entry[16:24], "big") == 3, "the LAC found at the start"


async def test_every_read_of_a_recovery_fences(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await written(client, 3)
    for bookie in three.bookies:
        bookie.requests.clear()
    await client.open(writer.ledger_id, recover=True)
    reads = [r for b in three.bookies for r in b.requests if isinstance(r, Read)]
    assert {read.flags for read in reads} == {Flag.DO_FENCING | Flag.HIGH_PRIORITY}
    assert {len(read.master_key or b"") for read in reads} == {20}
    assert all(writer.ledger_id in bookie.fenced for bookie in three.bookies)


@pytest.mark.parametrize("how", ["dead", "frozen", "away"])
async def test_one_bookie_that_does_not_answer_delays_nothing(
    three: Cluster, how: str, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 20)
    broken = three.bookies[0]
    if how == "frozen":
        broken.deaf = True
    else:
        broken.kill(forget=how == "away")
    partly_stored(three, writer, 19, keep=3)
    start = trio.current_time()
    reader = await client.open(writer.ledger_id, recover=True)
    assert trio.current_time() - start < 0.1
    assert reader.last_add_confirmed == 19


async def test_what_only_a_silent_bookie_may_have_is_not_decided(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3)
    one, two, _ = three.of(writer.metadata.last_fragment.ensemble)
    one.deaf = two.deaf = True
    start = trio.current_time()
    with pytest.raises(RecoveryAbortedError, match=one.id):
        await client.open(writer.ledger_id, recover=True)
    assert trio.current_time() - start < 6
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    one.deaf = False
    reader = await client.open(writer.ledger_id, recover=True)
    assert await contents(reader) == expected(3)


@pytest.mark.parametrize(
    "status", [Status.IO_ERROR, Status.TOO_MANY_REQUESTS, Status.UNKNOWN_LEDGER_STATE]
)
async def test_an_error_is_no_denial(three: Cluster, status: Status, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await written(client, 3)
    one, two, _ = three.of(writer.metadata.last_fragment.ensemble)
    one.read_status = two.read_status = status
    with pytest.raises(RecoveryAbortedError):
        await client.open(writer.ledger_id, recover=True)


async def test_a_damaged_copy_is_no_denial_and_no_entry(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3)
    damaged = three.of(writer.metadata.last_fragment.ensemble)
    key = (writer.ledger_id, 2)
    for bookie in damaged[:2]:
        bookie.entries[key] = bookie.entries[key][:-1] + b"!"
    reader = await client.open(writer.ledger_id, recover=True)
    assert await contents(reader) == expected(3)
    assert all(bookie.entries[key].endswith(b"entry 2") for bookie in damaged)


async def test_recovery_replaces_a_bookie_that_takes_nothing(
    five: Cluster, autojump_clock: Clock
) -> None:
    client = await five.client()
    writer = await written(client, 4)
    ill = five.of(writer.metadata.last_fragment.ensemble)[1]
    ill.add_status = Status.IO_ERROR
    reader = await client.open(writer.ledger_id, recover=True)
    await trio.sleep(0.1)
    assert await contents(reader) == expected(4)
    fragments = reader.metadata.fragments
    assert fragments[0].ensemble == writer.metadata.fragments[0].ensemble
    if len(fragments) > 1:
        assert ill.id not in fragments[1].ensemble


async def test_a_recovery_asks_nobody_twice_who_takes_nothing(
    five: Cluster, autojump_clock: Clock
) -> None:
    client = await five.client()
    writer = await written(client, 4)
    ensemble = writer.metadata.last_fragment.ensemble
    for each in five.bookies:
        each.requests.clear()
        if each.id != ensemble[0]:
            each.add_status = Status.READ_ONLY
    with trio.fail_after(60), pytest.raises(RecoveryAbortedError, match="take recovered entries"):
        await client.open(writer.ledger_id, recover=True)
    for each in five.bookies:
        added = [request for request in each.requests if isinstance(request, Add)]
        assert len(added) <= 4, "each entry once"


async def test_recovery_of_a_ledger_with_a_bookie_that_is_gone_for_good(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    three.bookies[2].kill()
    writer = await written(client, 4)
    assert three.bookies[2].id in writer.metadata.last_fragment.ensemble
    reader = await client.open(writer.ledger_id, recover=True)
    assert await contents(reader) == expected(4)


async def test_two_recoveries_at_once_find_the_same_end(
    three: Cluster, autojump_clock: Clock
) -> None:
    client, other = await three.client(), await three.client(name="other")
    writer = await written(client, 10)
    partly_stored(three, writer, 9, keep=1)
    partly_stored(three, writer, 8, keep=2)
    readers: list[LedgerReader] = []

    async def recover(who: LedgerClient) -> None:
        readers.append(await who.open(writer.ledger_id, recover=True))

    async with trio.open_nursery() as nursery:
        for who in (client, client, other, other):
            nursery.start_soon(recover, who)
    # The last entry is on one bookie: it may stay or go, but all four readers must agree.
    assert len({(reader.last_add_confirmed, reader.length) for reader in readers}) == 1
    assert readers[0].last_add_confirmed in (8, 9)
    assert await contents(readers[0]) == expected(readers[0].last_add_confirmed + 1)


async def test_a_writer_that_goes_on_is_fenced_and_keeps_what_it_was_told(
    three: Cluster, autojump_clock: Clock
) -> None:
    client, other = await three.client(), await three.client(name="other")
    writer = await client.create(QUORUMS)
    confirmed: list[int] = []
    writer.set_listener(
        lambda first, last: confirmed.extend(range(first, last + 1)), lambda error: None
    )

    async def write() -> None:
        while writer.error is None:
            writer.append([b"entry %d" % (writer.last_add_pushed + 1)])
            await trio.sleep(0.0001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(0.05)
        reader = await other.open(writer.ledger_id, recover=True)
    assert isinstance(writer.error, LedgerFencedError)
    assert len(confirmed) > 10
    assert reader.last_add_confirmed >= confirmed[-1]
    assert await contents(reader) == expected(reader.last_add_confirmed + 1)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("which", [1, 2])
async def test_a_lost_answer_of_the_metadata_store(
    three: Cluster, applied: bool, which: int, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3)
    if which == 2:  # the closing write; the first one is made by hand
        await three.sessions[0].set(
            PATHS.ledger(writer.ledger_id), encode_metadata(writer.metadata.in_recovery()), 0
        )
    three.link.lose_next(operation="set", applied=applied)
    reader = await client.open(writer.ledger_id, recover=True)
    assert (reader.closed, reader.last_add_confirmed) == (True, 2)


async def test_metadata_that_change_underneath_start_it_anew(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3)
    store = three.sessions[0]
    for bookie in three.bookies:
        bookie.deaf = True

    async def meddle() -> None:
        await trio.sleep(1)
        stored = await client.stored_metadata(writer.ledger_id)
        changed = replace(stored.metadata, custom={"by": b"somebody"})
        await store.set(PATHS.ledger(writer.ledger_id), encode_metadata(changed), stored.version)
        for bookie in three.bookies:
            bookie.deaf = False
            three.network.cut(bookie.host)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meddle)
        with pytest.raises(RecoveryAbortedError):
            await client.open(writer.ledger_id, recover=True)
    reader = await client.open(writer.ledger_id, recover=True)
    assert reader.metadata.custom == {"by": b"somebody"}
    assert await contents(reader) == expected(3)


async def test_recovery_looks_where_the_metadata_say_that_it_has_marked(
    five: Cluster, autojump_clock: Clock
) -> None:
    """An earlier read of the metadata is old: the writer has replaced its bookies, one by one."""
    client = await five.client()
    writer = await client.create(Quorums(2, 2, 2))
    await writer.wait_confirmed(writer.append([b"entry 0"]))
    old = await client.stored_metadata(writer.ledger_id)
    for number, bookie in enumerate(five.of(old.metadata.last_fragment.ensemble), 1):
        bookie.kill()
        await writer.wait_confirmed(writer.append([b"entry %d" % number]))
    writer.abandon()
    assert not set(writer.metadata.last_fragment.ensemble) & set(
        old.metadata.last_fragment.ensemble
    )
    closed = await recover_ledger(client._context, writer.ledger_id, old)
    assert closed.metadata.last_entry_id == 2


async def test_without_the_metadata_store_there_is_no_recovery(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3)
    three.sessions[0].suspend()
    with pytest.raises(StoreUnavailableError):
        await client.open(writer.ledger_id, recover=True)


async def test_another_password_is_refused_and_fences_nothing(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3, password=b"pw")
    with pytest.raises(UnauthorizedError):
        await client.open(writer.ledger_id, recover=True, password=b"guess")
    assert not any(bookie.fenced for bookie in three.bookies)


async def test_bookies_that_know_another_key_refuse(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await written(client, 3)
    three.bookies[0].read_status = Status.UNAUTHORIZED
    with pytest.raises(UnauthorizedError):
        await client.open(writer.ledger_id, recover=True)


async def test_a_ledger_that_does_not_exist(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    with pytest.raises(NoSuchLedgerError):
        await client.open(77, recover=True)


async def test_a_cancelled_recovery_can_be_repeated(three: Cluster, autojump_clock: Clock) -> None:
    client = await three.client()
    writer = await written(client, 3)

    def all_deaf(deaf: bool) -> None:
        for bookie in three.bookies:
            bookie.deaf = deaf

    all_deaf(True)
    with trio.move_on_after(1):
        await client.open(writer.ledger_id, recover=True)
    all_deaf(False)
    reader = await client.open(writer.ledger_id, recover=True)
    assert await contents(reader) == expected(3)


async def test_the_writer_and_a_recovery_in_one_process_do_not_share_connections(
    three: Cluster, autojump_clock: Clock
) -> None:
    """On a shared connection, an append's answer could be taken for a recovered entry's."""
    client = await three.client()
    writer = await client.create(QUORUMS)
    await writer.wait_confirmed(writer.append([b"entry 0"]))
    streams_before = len(three.network._streams)
    await client.open(writer.ledger_id, recover=True)
    assert len(three.network._streams) == streams_before + 6


async def test_the_last_entry_that_was_seen_comes_with_the_reader(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await written(client, 3)
    reader = await client.open(writer.ledger_id, recover=True)
    assert reader.last_entry is not None
    assert bytes(reader.last_entry.payload) == b"entry 2"
    # It is known only to the one who has recovered the ledger.
    again = await client.open(writer.ledger_id, recover=True)
    assert again.last_entry is None


async def test_a_last_entry_that_was_seen_and_not_kept_is_not_the_last_one(
    three: Cluster, autojump_clock: Clock
) -> None:
    """A bookie shows it when it is fenced, and nobody has the entry before it."""
    client = await three.client()
    writer = await client.create(QUORUMS)
    await writer.wait_confirmed(writer.append([b"entry 0"]))
    writer.append([b"entry 1"])
    await writer.wait_confirmed(writer.append([b"entry 2"]))
    await trio.sleep(0.1)
    writer.abandon()
    partly_stored(three, writer, 1, 0)
    partly_stored(three, writer, 2, 2)  # One of the first two to answer shows it.
    reader = await client.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 0
    assert reader.last_entry is None or bytes(reader.last_entry.payload) == b"entry 0"
