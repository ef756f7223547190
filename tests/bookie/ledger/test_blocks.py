"""Entries that are sent together: in blocks to bookies that accept them, one by one to others."""

from collections.abc import AsyncGenerator, Sequence

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import InDoubtError, LedgerFencedError
from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.client import LedgerClient, LedgerLimits, Quorums
from daybook.bookie.ledger.codecs import AddBatch, V2Codec, V3Codec
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.digest import Digester, master_key
from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32
from daybook.wire.messages import bookie_v3
from daybook.wire.messages.blocks import decode_block, encode_block_answer
from daybook.wire.messages.bookie import Add, AddRun, Status, encode_adds
from daybook.wire.transport import Buffer
from tests.bookie.ledger.cluster import Cluster, FakeBookie, open_cluster
from tests.bookie.ledger.writing import QUORUMS, contents, expected

KEY = master_key(b"")


@pytest.fixture
async def three() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
async def four() -> AsyncGenerator[Cluster]:
    async with open_cluster(bookies=4) as cluster:
        yield cluster


async def all_take_blocks(cluster: Cluster, takes_blocks: bool = True) -> None:
    for bookie in cluster.bookies:
        await announce(bookie, takes_blocks)


async def announce(bookie: FakeBookie, takes_blocks: bool) -> None:
    bookie.kill()
    bookie.takes_blocks = takes_blocks
    await bookie.start()


def push(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        writer.append([b"entry %d" % (writer.last_add_pushed + 1)])


async def confirm(writer: LedgerWriter) -> None:
    await writer.wait_confirmed(writer.last_add_pushed)


def singles(bookie: FakeBookie) -> list[int]:
    return [request.entry_id for request in bookie.requests if isinstance(request, Add)]


def ranges(bookie: FakeBookie) -> list[tuple[int, int]]:
    return [(block.first, block.last) for block in bookie.blocks]


def adds(first: int, payloads: Sequence[bytes]) -> AddBatch:
    lengths = [sum(map(len, payloads[: index + 1])) for index in range(len(payloads))]
    bodies: list[list[Buffer]] = [[payload] for payload in payloads]
    return AddBatch(first, encode_adds(KEY, 5, first, -1, lengths, Digester(), bodies))


async def test_what_is_appended_in_a_turn_leaves_together(
    three: Cluster, autojump_clock: Clock
) -> None:
    await all_take_blocks(three)
    writer = await (await three.client()).create(QUORUMS)
    push(writer, 50)
    await confirm(writer)
    push(writer, 1)
    await confirm(writer)
    push(writer, 7)
    await confirm(writer)
    await trio.sleep(1)
    for bookie in three.bookies:
        assert ranges(bookie) == [(0, 49), (51, 57)]
        assert singles(bookie) == [50]
    assert await contents(writer) == expected(58)


async def test_nobody_is_sent_a_block_who_did_not_say_that_it_takes_them(
    three: Cluster, autojump_clock: Clock
) -> None:
    await all_take_blocks(three, takes_blocks=False)
    writer = await (await three.client()).create(QUORUMS)
    push(writer, 50)
    await confirm(writer)
    for bookie in three.bookies:
        assert singles(bookie) == list(range(50))
        assert not bookie.blocks


async def test_a_client_may_do_without_blocks(three: Cluster, autojump_clock: Clock) -> None:
    await all_take_blocks(three)
    client = await three.client(LedgerLimits(bookies=BookieLimits(blocks=False)))
    writer = await client.create(QUORUMS)
    push(writer, 50)
    await confirm(writer)
    assert not any(bookie.blocks for bookie in three.bookies)


async def test_in_a_mixed_ensemble_each_gets_what_it_takes_and_holds_the_same_bytes(
    three: Cluster, autojump_clock: Clock
) -> None:
    writer = await (await three.client()).create(QUORUMS)
    push(writer, 50)
    await confirm(writer)
    await trio.sleep(1)
    by_kind = {bookie.takes_blocks for bookie in three.bookies if bookie.blocks}
    assert by_kind == {True}
    first, second, third = (bookie.entries for bookie in three.bookies)
    assert first == second == third
    assert len(first) == 50


async def test_striped_entries_go_one_by_one(four: Cluster, autojump_clock: Clock) -> None:
    await all_take_blocks(four)
    writer = await (await four.client()).create(Quorums(4, 2, 2))
    push(writer, 50)
    await confirm(writer)
    assert not any(bookie.blocks for bookie in four.bookies)
    assert await contents(writer) == expected(50)


async def test_a_bookie_that_refuses_a_block_is_replaced_and_nothing_is_lost(
    four: Cluster, autojump_clock: Clock
) -> None:
    await all_take_blocks(four)
    client = await four.client()
    writer = await client.create(QUORUMS)
    failing = four.of(writer.ensemble)[0]
    failing.add_status = Status.READ_ONLY
    push(writer, 50)
    await confirm(writer)
    await trio.sleep(3)
    assert failing.id not in writer.ensemble
    push(writer, 50)
    await confirm(writer)
    assert await contents(writer) == expected(100)


async def test_a_bookie_that_answers_for_more_than_it_was_sent_is_not_believed(
    four: Cluster, autojump_clock: Clock
) -> None:
    """Such an answer costs no time either: the client does not walk over 2**62 entries."""
    await all_take_blocks(four)
    writer = await (await four.client()).create(QUORUMS)
    lying = four.of(writer.ensemble)[0]
    lying.claims = 1 << 62
    push(writer, 20)
    await confirm(writer)
    await trio.sleep(3)
    assert lying.id not in writer.ensemble
    push(writer, 20)
    await confirm(writer)
    assert await contents(writer) == expected(40)


async def test_a_newcomer_is_sent_what_is_not_confirmed_in_a_block(
    four: Cluster, autojump_clock: Clock
) -> None:
    await all_take_blocks(four)
    writer = await (await four.client()).create(QUORUMS)
    for bookie in four.of(writer.ensemble)[:2]:
        bookie.silent = True
    spare = next(b for b in four.bookies if b.id not in writer.ensemble)
    push(writer, 30)
    await trio.sleep(0.1)
    push(writer, 30)
    await trio.sleep(0.1)
    four.of(writer.ensemble)[0].kill()
    await trio.sleep(2)
    assert spare.id in writer.ensemble
    assert ranges(spare) == [(0, 59)]
    await confirm(writer)
    assert await contents(writer) == expected(60)


async def test_a_fenced_bookie_ends_the_writer(three: Cluster, autojump_clock: Clock) -> None:
    await all_take_blocks(three)
    client, other = await three.client(), await three.client(name="other")
    writer = await client.create(QUORUMS)
    push(writer, 20)
    await confirm(writer)
    reader = await other.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 19
    push(writer, 20)
    with pytest.raises(InDoubtError):
        await confirm(writer)
    assert isinstance(writer.error, LedgerFencedError)


async def test_a_bookie_that_comes_back_without_blocks_is_spoken_to_one_by_one(
    three: Cluster, autojump_clock: Clock
) -> None:
    """Pending adds were encoded for a connection with blocks: they fail, once."""
    await all_take_blocks(three)
    client = await three.client()
    writer = await client.create(QUORUMS)
    push(writer, 20)
    await confirm(writer)
    for bookie in three.bookies:
        await announce(bookie, takes_blocks=False)
        bookie.blocks.clear()
    await trio.sleep(5)
    await again(client)
    assert not any(bookie.blocks for bookie in three.bookies)


async def again(client: LedgerClient) -> None:
    writer = await client.create(QUORUMS)
    push(writer, 20)
    await confirm(writer)
    assert await contents(writer) == expected(20)


async def test_a_closed_writer_sends_nothing_that_had_only_gathered(
    three: Cluster, autojump_clock: Clock
) -> None:
    client = await three.client()
    writer = await client.create(QUORUMS)
    push(writer, 5)
    await writer.close()
    await trio.sleep(1)
    assert (await client.metadata(writer.ledger_id)).last_entry_id == -1
    assert not any(bookie.entries for bookie in three.bookies)
    assert writer.pending_bytes == writer.pending_entries == 0


async def test_long_runs_leave_in_pieces(three: Cluster, autojump_clock: Clock) -> None:
    await all_take_blocks(three)
    writer = await (await three.client()).create(QUORUMS)
    for _ in range(40):
        writer.append([bytes(30_000)])
    await confirm(writer)
    await trio.sleep(1)
    assert writer.pending_bytes == 0
    found = ranges(three.bookies[0])
    assert len(found) > 3
    assert [first for first, _ in found[1:]] == [last + 1 for _, last in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, 39)


# -- codecs


def test_a_block_is_what_would_have_been_sent_one_by_one() -> None:
    together = adds(3, [b"a", b"bb", b"ccc"])
    plain, block = (
        b"".join(V2Codec().adds(5, together)),
        b"".join(V2Codec(blocks=True).adds(5, together)),
    )
    assert U32.unpack_from(block)[0] == len(block) - 4
    decoded = decode_block(memoryview(bytearray(block))[4:])
    assert decoded.adds == plain
    assert (decoded.first, decoded.last) == (3, 5)


def test_one_entry_needs_no_block() -> None:
    one = adds(3, [b"a"])
    assert b"".join(V2Codec(blocks=True).adds(5, one)) == b"".join(V2Codec().adds(5, one))


def test_in_v3_they_are_adds_of_their_own() -> None:
    parts = b"".join(V3Codec().adds(5, adds(3, [b"a", b"bb"])))
    found: list[tuple[int, bytes]] = []
    while parts:
        size = U32.unpack_from(parts)[0] + 4
        request = bookie_v3.decode_request(parts[4:size])
        found.append((request.addRequest.entryId, request.addRequest.body[36:]))
        parts = parts[size:]
    assert found == [(3, b"a"), (4, b"bb")]


def test_small_entries_are_copied_once_large_ones_never() -> None:
    small, large = adds(0, [b"x"] * 10), adds(0, [bytes(9000)] * 10)
    assert len(small.buffers) == 1
    assert len(large.buffers) == 20
    assert small.buffers is small.buffers
    assert large.size == sum(map(len, large.buffers))


def test_answers_to_blocks_and_to_single_adds_are_told_as_runs() -> None:
    answer = memoryview(encode_block_answer(Status.OK, 5, 3, 9))[4:]
    dialect = V2Codec(blocks=True)
    dialect.adds(5, adds(3, [b"x"] * 7))
    assert dialect.decode([answer]).adds == [AddRun(Status.OK, 5, 3, 9)]
    with pytest.raises(MalformedError):
        dialect.decode([answer[:-1]])


def test_an_answer_to_a_block_that_was_not_sent_proves_nothing() -> None:
    dialect = V2Codec(blocks=True)
    dialect.adds(5, adds(3, [b"x"] * 7))
    for ledger_id, first, last in ((5, 3, 8), (5, 3, 10), (5, 4, 9), (6, 3, 9)):
        answer = memoryview(encode_block_answer(Status.OK, ledger_id, first, last))[4:]
        with pytest.raises(MalformedError):
            dialect.decode([answer])
    answer = memoryview(encode_block_answer(Status.OK, 5, 3, 9))[4:]
    with pytest.raises(MalformedError):
        V2Codec().decode([answer])
    assert dialect.decode([answer]).adds
    with pytest.raises(MalformedError):
        dialect.decode([answer])


def test_each_of_two_equal_blocks_is_answered() -> None:
    """The first block was given up, and its answer came late."""
    dialect = V2Codec(blocks=True)
    answer = memoryview(encode_block_answer(Status.OK, 5, 3, 9))[4:]
    for _ in range(2):
        dialect.adds(5, adds(3, [b"x"] * 7))
    for _ in range(2):
        assert dialect.decode([answer]).adds == [AddRun(Status.OK, 5, 3, 9)]
