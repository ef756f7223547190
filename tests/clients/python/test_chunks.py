"""Messages in chunks: sent, joined, acknowledged as one."""

import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import daybook
from daybook.clients.python.arguments import Compression
from daybook.clients.python.consumer import MessageSource
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.protocol.acks import NackTracker
from daybook.clients.python.protocol.chunks import Chunks, Joined
from daybook.clients.python.protocol.sends import PendingSend, PendingSends
from daybook.wire.batch import parse_metadata, split_broker_metadata
from daybook.wire.messages.consumer import Ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import (
    LEDGER,
    FakeCluster,
    FakeTopic,
    fake_cluster,
    until,
)

T = "persistent://public/default/t"
QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


def metadata_of(topic: FakeTopic) -> Iterator[pb.MessageMetadata]:
    for entry in topic.entries:
        yield parse_metadata(split_broker_metadata(memoryview(entry.payload))[2])[0]


@asynccontextmanager
async def small_cluster() -> AsyncGenerator[FakeCluster]:
    """Run a cluster whose broker takes messages of 2000 bytes."""
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].max_message_size = 2000
        yield cluster


@pytest.mark.parametrize("compression", ["none", "zlib"])
async def test_a_large_message_goes_there_and_back(compression: Compression) -> None:
    data = random.Random(1).randbytes(10_001)
    async with small_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s")
        producer = await client.create_producer(
            "t",
            chunking=True,
            compression=compression,
            name="p",
        )
        producer.send_nowait(b"before")
        place = await producer.send(data, key="k", properties={"a": "b"}, event_time_ms=5)
        after = await producer.send(b"after")
        found = [await consumer.receive() for _ in range(3)]
        assert [each.data for each in found] == [b"before", data, b"after"]
        large = found[1]
        assert (large.key, large.properties, large.event_time_ms) == ("k", {"a": "b"}, 5)
        assert (large.message_id, found[2].message_id) == (place, after)
        chunks = [each for each in metadata_of(cluster.topics[T]) if each.num_chunks_from_msg > 1]
        assert [each.chunk_id for each in chunks] == list(range(len(chunks)))
        assert {each.num_chunks_from_msg for each in chunks} == {len(chunks)}
        assert {each.uuid for each in chunks} == {"p-1"}
        assert {each.sequence_id for each in chunks} == {1}
        with trio.fail_after(60):
            await consumer.ack(large.message_id)
            await consumer.flush_acks()
        acked = cluster.topics[T].subscriptions["s"].acked
        assert acked == set(range(1, len(chunks) + 1))


async def test_a_message_that_compression_makes_small_is_as_large_as_chunks_may_be() -> None:
    data = bytes(65 << 20)
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s")
        producer = await client.create_producer(
            "t", chunking=True, compression="zstd", pending_bytes_max=66 << 20
        )
        await producer.send(data)
        assert (await consumer.receive()).data == data


async def test_without_chunking_a_large_message_is_refused() -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        with pytest.raises(daybook.MessageTooLargeError, match="with chunking=True"):
            await producer.send(bytes(2001))
        limited = await client.create_producer("t", chunking=True, pending_bytes_max=10_000)
        with pytest.raises(daybook.MessageTooLargeError, match="pending_bytes_max"):
            await limited.send(bytes(10_001))
        with pytest.raises(daybook.MessageTooLargeError, match="the key and the properties"):
            await limited.send(b"", properties={"p": "x" * 2001})
        await limited.send(bytes(9_000))


async def test_chunks_are_sent_again_in_order_after_a_takeover() -> None:
    data = random.Random(2).randbytes(9_000)
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", chunking=True)
        cluster.brokers["b1"].drop_sends = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, data)
            await until(lambda: len(cluster.topics[T].entries) > 3)
            cluster.brokers["b1"].drop_sends = False
            cluster.brokers["b1"].close_producers()
        reader = await client.create_reader("t", start="earliest")
        with trio.fail_after(60):
            found = [(await reader.receive()).data]  # Chunk 0 came twice, so it began anew.
        assert found == [data]


async def test_the_chunks_of_a_message_are_given_up_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receipt for one that was given up before would else count for the one behind it."""
    pushed: list[PendingSend] = []
    push = PendingSends.push

    def slow_push(sends: PendingSends, send: PendingSend) -> None:
        push(sends, send)
        pushed.append(send)
        until_s = trio.current_time() + 0.001
        while trio.current_time() < until_s:  # as if the chunk were large
            pass

    monkeypatch.setattr(PendingSends, "push", slow_push)
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", chunking=True)
        await producer.send(bytes(7_000))
        assert len(pushed) > 3
        assert len({send.deadline for send in pushed}) == 1


async def test_what_is_rejected_comes_again_as_a_whole() -> None:
    data = random.Random(3).randbytes(7_000)
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s", type="shared", nack_delay_s=0.01)
        producer = await client.create_producer("t", chunking=True)
        await producer.send(data)
        with trio.fail_after(60):
            consumer.nack(await consumer.receive())
            again = await consumer.receive()
        assert (again.data, again.redelivery_count) == (data, 1)


async def test_a_cumulative_acknowledgement_leaves_incomplete_messages_alone() -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s")
        one = await client.create_producer("t", chunking=True, name="one")
        cluster.brokers["b1"].hold_receipts = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send, bytes(range(256)) * 30)
            await until(lambda: len(cluster.topics[T].entries) > 3)
            nursery.cancel_scope.cancel()
        cluster.brokers["b1"].release_receipts()
        two = await client.create_producer("t", name="two")
        topic = cluster.topics[T]
        topic.entries.append(topic.entries[0])  # another message, of which chunk 0 is there
        await two.send(b"x")
        found = [await consumer.receive() for _ in range(2)]
        assert found[1].data == b"x"
        await consumer.ack_cumulative(found[1])
        await consumer.flush_acks()
        last = len(topic.entries) - 1
        assert topic.subscriptions["s"].acked == {*range(last - 1), last}


async def test_a_cumulative_acknowledgement_covers_all_messages_behind_a_chunk() -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        large = await client.create_producer("t", chunking=True)
        await large.send(bytes(7_000))
        await consumer.ack(await consumer.receive())
        topic = cluster.topics[T]
        before = len(topic.entries)
        topic.entries.append(topic.entries[0])  # another message, of which chunk 0 is there
        alone = await client.create_producer("t", batching=False)
        await alone.send(b"a")
        await alone.send(b"b")
        batched = await client.create_producer("t")
        for data in (b"c", b"d", b"e"):
            batched.send_nowait(data)
        await batched.flush()
        found = [await consumer.receive() for _ in range(5)]
        assert [each.data for each in found] == [b"a", b"b", b"c", b"d", b"e"]
        await consumer.ack_cumulative(found[3])
        subscription = topic.subscriptions["s"]
        assert subscription.acked == {*range(before), before + 1, before + 2}
        await consumer.ack(found[4])
        assert subscription.acked == {*range(before), *range(before + 1, before + 4)}


async def test_what_is_remembered_behind_a_chunk_is_forgotten() -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s")
        large = await client.create_producer("t", chunking=True)
        await large.send(bytes(7_000))
        topic = cluster.topics[T]
        topic.entries.append(topic.entries[0])  # another message, of which chunk 0 is there
        reader = await client.create_reader("t", start="earliest")
        small = await client.create_producer("t", batching=False)
        for _ in range(6):
            await small.send(b"x")
        found = [await consumer.receive() for _ in range(7)]
        for _ in range(7):
            await reader.receive()
        assert len(behind(consumer)) == 6
        assert not behind(reader)
        await consumer.ack(found[1:3])
        await consumer.ack_cumulative(found[5])
        assert len(behind(consumer)) == 1


@pytest.mark.parametrize("persistent", [True, False])
async def test_what_waits_for_a_reader_stays_when_it_lacks_a_chunk(persistent: bool) -> None:
    """A consumer of a topic that is not persistent acknowledges nothing, like a reader."""
    name = T if persistent else f"non-{T}"
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        source: MessageSource[Any]
        if persistent:
            source = await client.create_reader(name, start="earliest")
        else:
            source = await client.subscribe(name, "s", nack_delay_s=0.001)
        large = await client.create_producer(name, chunking=True)
        await large.send(bytes(5_000))
        topic = cluster.topics[name]
        topic.entries.append(topic.entries[1])  # another message, of which chunk 0 is not there
        small = await client.create_producer(name, batching=False)
        for _ in range(3):
            await small.send(b"x")
        for wanted in (5_000, 1):
            assert len((await source.receive()).data or b"") == wanted
        (consumer,) = source._partition_consumers
        assert consumer._redelivery._nacks.deadline is None
        for _ in range(2):
            assert (await source.receive()).data == b"x"
        asked = cluster.brokers["b1"].commands(pb.CommandRedeliverUnacknowledgedMessages)
        assert not asked


async def test_a_message_that_lacks_chunks_expires_where_nothing_is_acknowledged() -> None:
    name = f"non-{T}"
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe(name, "s", expire_incomplete_chunks_s=0.01)
        large = await client.create_producer(name, chunking=True)
        await large.send(bytes(5_000))
        topic = cluster.topics[name]
        topic.entries.append(topic.entries[0])  # another message, of which chunk 0 is there
        await large.send(b"x")
        with trio.fail_after(60):
            for _ in range(2):
                await consumer.receive()
            (partition,) = consumer._partition_consumers
            await until(lambda: not len(partition._entries.chunks))


async def test_a_cumulative_acknowledgement_reaches_back_from_the_first_entry_of_a_ledger() -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", chunking=True)
        await producer.send(bytes(5_000))
        topic = cluster.topics[T]
        del topic.entries[1:]  # Only chunk 0 is there.
        consumer = await client.subscribe("t", "s", initial_position="earliest")
        await producer.send(b"x")
        await consumer.ack_cumulative(await consumer.receive())
        await consumer.flush_acks()
        acks = cluster.brokers["b1"].commands(Ack)
        (cumulative,) = {
            (each.ids[0].ledger_id, each.ids[0].entry_id) for each in acks if each.cumulative
        }
        assert cumulative == (LEDGER, -1)
        assert topic.subscriptions["s"].acked == {-1, 1}


def behind(source: MessageSource[Any]) -> dict[tuple[int, int], None]:
    (consumer,) = source._partition_consumers
    return consumer._behind_chunks


def key(number: int) -> tuple[int, int]:
    return 1, number


def test_a_chunk_without_its_earlier_comes_again() -> None:
    chunks = Chunks(100, 10)
    assert chunks.add("a", 1, 3, key(1), b"b") is None
    assert chunks.take_again() == [key(1)]
    assert chunks.add("a", 0, 3, key(0), b"a") is None
    assert chunks.add("a", 2, 3, key(2), b"c") is None
    assert chunks.take_again() == [key(2)]
    assert chunks.add("a", 1, 3, key(1), b"b") is None
    assert chunks.add("a", 2, 3, key(2), b"c") == Joined(b"abc", (key(0), key(1)))
    assert (len(chunks), chunks.size, chunks.take_again()) == (0, 0, [])


async def test_a_chunk_whose_earlier_ones_never_come_is_asked_for_less_and_less_often() -> None:
    """Once, an exclusive consumer had everything delivered again each second, for ever."""
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        producer = await client.create_producer("t", chunking=True)
        await producer.send(bytes(5000))
        cluster.topics[T].entries = cluster.topics[T].entries[-1:]  # Its chunk 0 was trimmed.
        consumer = await client.subscribe("t", "s", nack_delay_s=0.01, initial_position="earliest")
        (partition,) = consumer._partition_consumers
        nack, asked = partition._redelivery.nack, list[tuple[int, float | None]]()

        def noted(
            key: tuple[int, int], redeliveries: int = 0, delay_max_s: float | None = None
        ) -> None:
            asked.append((redeliveries, delay_max_s))
            nack(key)

        partition._redelivery.nack = noted  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.receive)
            with trio.fail_after(30):
                await until(lambda: len(asked) >= 4)
            nursery.cancel_scope.cancel()
        assert asked[:4] == [(0, 60.0), (1, 60.0), (2, 60.0), (3, 60.0)]


def test_the_delay_doubles_up_to_the_one_that_is_asked_for() -> None:
    for most_s, delays in ((None, [1, 1, 1]), (60.0, [1, 8, 60])):
        for times, delay in zip((0, 3, 9), delays, strict=True):
            nacks = NackTracker(1.0)
            nacks.nack(key(1), 100.0, times, most_s)
            assert nacks.deadline == 100.0 + delay


def test_the_repeats_of_a_message_are_bounded() -> None:
    for repeated in (0, 1):
        chunks = Chunks(100, 10)
        chunks.add("a", 0, 3, (0, 0), b"a")
        chunks.add("a", 1, 3, (0, 1), b"b")
        number = 0
        while not (dropped := chunks.take_dropped()):
            chunks.add("a", repeated, 3, key(number), b"x")
            number += 1
        assert 1_000 < len(dropped) < 1_010
        assert (len(chunks), chunks.size) == (0, 0)


def test_how_often_an_entry_was_given_back_is_forgotten_when_its_message_is_whole() -> None:
    chunks = Chunks(100, 10)
    assert [chunks.times(key(1)) for _ in range(3)] == [0, 1, 2]
    chunks.add("a", 0, 2, key(0), b"a")
    assert chunks.add("a", 1, 2, key(1), b"b") is not None
    assert chunks.times(key(1)) == 0
    for number in range(5_000):
        chunks.times(key(number))
    assert chunks.times(key(0)) == 0, "few are remembered"


def test_memory_is_bounded_and_the_oldest_message_comes_again() -> None:
    chunks = Chunks(10, 2)
    chunks.add("a", 0, 3, key(0), b"aaaa")
    chunks.add("b", 0, 3, key(1), b"bbbb")
    assert chunks.first == key(0)
    chunks.add("b", 1, 3, key(2), b"bbbb")
    assert (chunks.take_dropped(), chunks.take_again()) == ([key(0)], [])
    chunks.add("c", 0, 2, key(3), b"")
    chunks.add("d", 0, 2, key(4), b"")
    assert chunks.take_dropped() == [key(1), key(2)]
    assert (len(chunks), chunks.size, chunks.first) == (2, 0, key(3))


def test_a_message_that_is_not_whole_in_time_is_dropped() -> None:
    chunks = Chunks(100, 10, expire_s=5)
    assert not chunks.deadline
    chunks.add("a", 0, 2, key(0), b"a", now=1.0)
    chunks.add("b", 0, 2, key(1), b"b", now=3.0)
    assert chunks.deadline == 6.0
    chunks.expire(5.9)
    assert not chunks.take_dropped()
    chunks.expire(6.0)
    assert chunks.take_dropped() == [key(0)]
    assert chunks.deadline == 8.0
    assert chunks.add("b", 1, 2, key(2), b"c", now=7.0) == Joined(b"bc", (key(1),))
    endless = Chunks(100, 10)
    endless.add("a", 0, 2, key(0), b"a", now=1.0)
    endless.expire(1e9)
    assert (endless.deadline, len(endless)) == (None, 1)


async def test_a_cumulative_acknowledgement_leaves_chunks_alone_that_come_again() -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe(
            "t", "s", expire_incomplete_chunks_s=0.01, nack_delay_s=3600
        )
        producer = await client.create_producer("t", chunking=True)
        await producer.send(bytes(5000))
        topic = cluster.topics[T]
        lost = len(topic.entries)
        topic.entries.append(topic.entries[0])  # another message, of which chunk 0 is there
        await producer.send(b"x")
        with trio.fail_after(60):
            found = [await consumer.receive() for _ in range(2)]
            (partition,) = consumer._partition_consumers
            await until(lambda: not len(partition._entries.chunks))  # It has expired.
            await consumer.ack_cumulative(found[1])
            await consumer.flush_acks()
        acked = topic.subscriptions["s"].acked
        assert acked == {*range(len(topic.entries))} - {lost}


@pytest.mark.parametrize("acknowledge", [False, True])
async def test_chunks_of_an_incomplete_message_come_again_or_are_acknowledged(
    acknowledge: bool,
) -> None:
    async with small_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe(
            "t",
            "s",
            type="shared",
            expire_incomplete_chunks_s=0.05,
            ack_incomplete_chunks=acknowledge,
            nack_delay_s=0.01,
        )
        producer = await client.create_producer("t", chunking=True)
        await producer.send(bytes(5000))
        topic = cluster.topics[T]
        last = len(topic.entries)
        topic.entries.append(topic.entries[0])  # another message, of which chunk 0 is there
        await producer.send(b"x")
        with trio.fail_after(60):
            assert [len((await consumer.receive()).data or b"") for _ in range(2)] == [5000, 1]
            subscription = topic.subscriptions["s"]
            if acknowledge:
                await until(lambda: subscription.acked == {last})
            else:
                fakes = cluster.brokers["b1"].connections[0].consumers.values()
                await until(lambda: any(last in each.redelivered for each in fakes))
                assert subscription.acked == set()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 4))
def test_repeats_and_other_messages_in_between_change_nothing(seed: int, messages: int) -> None:
    """A producer sends again from some chunk on, as after a takeover: each message comes whole."""
    rng = random.Random(seed)
    chunks = Chunks(1000, 10)
    counts = {f"m{number}": rng.randrange(2, 6) for number in range(messages)}
    streams = {uuid: list(range(count)) for uuid, count in counts.items()}
    keys: dict[str, set[tuple[int, int]]] = {uuid: set() for uuid in counts}
    entry = 0
    while streams:
        uuid = rng.choice(sorted(streams))
        chunk = streams[uuid].pop(0)
        keys[uuid].add(key(entry))
        joined = chunks.add(uuid, chunk, counts[uuid], key(entry), b"%d" % chunk)
        if chunk == counts[uuid] - 1:
            assert joined is not None
            assert joined.body == b"".join(b"%d" % each for each in range(counts[uuid]))
            assert {*joined.earlier, key(entry)} == keys[uuid]
            del streams[uuid]
        else:
            assert joined is None
            if rng.random() < 0.3:
                again = rng.randrange(chunk + 1)
                streams[uuid] = list(range(again, counts[uuid]))
        entry += 1
        assert not chunks.again
    assert chunks.size == 0
