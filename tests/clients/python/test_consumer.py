"""The consumer and the reader against a fake broker."""

import gc
from datetime import UTC, datetime

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import daybook
from daybook.clients.python.arguments import SubscriptionTypeName
from daybook.clients.python.limits import ClientLimits
from daybook.wire.messages.consumer import Ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster, fake_cluster, until

TOPIC = "persistent://public/default/t"
QUICK = ClientLimits(
    connect_timeout_s=60, request_timeout_s=60, backoff_initial_s=0.01, backoff_max_s=0.05
)


async def fill(client: daybook.Client, batches: list[list[bytes]], topic: str = "t") -> None:
    async with await client.create_producer(topic, batch_delay_s=10) as producer:
        for batch in batches:
            for data in batch:
                producer.send_nowait(data)
            await producer.flush()


def acked(cluster: FakeCluster) -> set[int]:
    return cluster.topics[TOPIC].subscriptions["s"].acked


async def test_an_entry_is_acknowledged_when_all_its_messages_are() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0", b"1", b"2"], [b"3"]])
        messages = await consumer.receive_batch(3)
        await consumer.ack(messages[0])
        await consumer.ack(messages[2])
        await consumer.ack(await consumer.receive())
        await until(lambda: acked(cluster) == {1})
        assert cluster.topics[TOPIC].subscriptions["s"].pending == {0: 0b010}
        await consumer.ack(messages[1].message_id)
        await until(lambda: acked(cluster) == {0, 1})


async def test_acknowledgements_travel_together() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=3600)
        await fill(client, [[b"%d" % n] for n in range(100)])
        for _ in range(100):
            await consumer.ack(await consumer.receive())
        await consumer.flush_acks()
        await until(lambda: len(acked(cluster)) == 100)
        assert len(cluster.brokers["b1"].commands(Ack)) < 10


async def test_with_receipts_ack_returns_when_the_broker_has_it() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        await fill(client, [[b"0"], [b"1", b"2"]])
        for n in range(3):
            message = await consumer.receive()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.ack, message)
                nursery.start_soon(consumer.ack, message)
            assert acked(cluster) == [{0}, {0}, {0, 1}][n]
        assert cluster.topics[TOPIC].subscriptions["s"].pending == {}


async def test_a_cumulative_ack_covers_what_was_before() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        await fill(client, [[b"0"], [b"1", b"2", b"3"], [b"4"]])
        messages = [await consumer.receive() for _ in range(5)]
        await consumer.ack_cumulative(messages[2])
        assert acked(cluster) == {0}
        assert cluster.topics[TOPIC].subscriptions["s"].pending == {1: 0b100}
        await consumer.ack_cumulative(messages[4])
        assert acked(cluster) == {0, 1, 2}


async def test_after_a_takeover_only_the_unacknowledged_comes_again() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            consumer = await client.subscribe("t", "s", ack_receipts=True)
            await fill(client, [[b"0", b"1"], [b"2"], [b"3", b"4"]])
            messages = [await consumer.receive() for _ in range(4)]
            await consumer.ack([messages[0], messages[1], messages[3]])
            cluster.owner[TOPIC] = "b2"
            cluster.brokers["b1"].kill()
            await until(lambda: cluster.brokers["b2"].commands(pb.CommandSubscribe))
            with trio.fail_after(PATIENCE_S):
                again = [await consumer.receive() for _ in range(2)]
            assert [m.data for m in again] == [b"2", b"4"]
            await consumer.ack(again)
            assert acked(cluster) == {0, 1, 2}


async def test_an_ack_with_receipt_survives_the_loss_of_its_broker() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            consumer = await client.subscribe("t", "s", ack_receipts=True)
            await fill(client, [[b"0"]])
            message = await consumer.receive()
            cluster.brokers["b1"].silent = True
            cluster.owner[TOPIC] = "b2"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.ack, message)
                await until(lambda: cluster.brokers["b1"].commands(Ack))
                cluster.brokers["b1"].kill()
            assert acked(cluster) == {0}


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared"])
async def test_what_is_not_wanted_comes_again(kind: SubscriptionTypeName) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", type=kind, nack_delay_s=0.01, ack_group_s=0.001)
        await fill(client, [[b"0"], [b"1", b"2"], [b"3"]])
        messages = [await consumer.receive() for _ in range(4)]
        await consumer.ack([messages[0], messages[1], messages[3]])
        consumer.nack(messages[2])
        with trio.fail_after(PATIENCE_S):
            again = await consumer.receive()
        assert again.data == b"2"
        assert again.redelivery_count == (1 if kind == "shared" else 0)
        await consumer.ack(again)
        await until(lambda: acked(cluster) == {0, 1, 2})


async def test_seek_goes_to_ids_offsets_and_times() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s")
        await fill(client, [[b"0", b"1", b"2"], [b"3", b"4"]])
        first = [await consumer.receive() for _ in range(5)]
        with trio.fail_after(PATIENCE_S):
            await consumer.seek(first[1].message_id)
            assert (await consumer.receive()).data == b"1"
            await consumer.seek(4)
            assert (await consumer.receive()).data == b"4"
            await consumer.seek("earliest")
            assert (await consumer.receive()).data == b"0"
            await consumer.seek(datetime.fromtimestamp(first[3].publish_time_ms / 1000, tz=UTC))
            assert (await consumer.receive()).publish_time_ms >= first[3].publish_time_ms
            await consumer.seek("latest")
            await fill(client, [[b"5"]])
            assert (await consumer.receive()).data == b"5"
        await consumer.ack(first)  # From before the seek: ignored.
        await consumer.flush_acks()


async def test_after_a_seek_that_fails_everything_comes_again() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s")
        await fill(client, [[b"0", b"1"], [b"2"]])
        await consumer.ack(await consumer.receive())
        cluster.brokers["b1"].refusals[28] = [(pb.NotAllowedError, "no")]
        with pytest.raises(daybook.NotAllowedError):
            await consumer.seek("latest")
        with trio.fail_after(PATIENCE_S):
            got = [(await consumer.receive()).data for _ in range(3)]
        assert got == [b"0", b"1", b"2"]


async def test_what_a_seek_skips_of_a_batch_is_done() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        await fill(client, [[b"0", b"1", b"2"]])
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.seek(messages[2].message_id)
        last = await consumer.receive()
        assert last.data == b"2"
        await consumer.ack(last)
        assert acked(cluster) == {0}


async def test_a_last_message_that_cannot_be_read_is_not_available_once_it_was_told() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        await fill(client, [[b"good"]])
        await fill(client, [[b"bad"]])
        entries = cluster.topics[TOPIC].entries
        entries[1].payload = entries[1].payload[:-1] + b"\x00"
        reader = await client.create_reader("t", start="earliest")
        assert (await reader.receive()).data == b"good"
        assert await reader.has_message_available()
        with pytest.raises(daybook.CorruptMessageError):
            await reader.receive_batch()
        assert not await reader.has_message_available()


async def test_a_message_that_cannot_be_read_is_an_error_and_not_acknowledged() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        reader = await client.create_reader("t")
        cluster.brokers["b1"].hold_receipts = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, client, [[b"good"], [b"bad"], [b"fine"]])
            entries = cluster.topics[TOPIC].entries
            await until(lambda: len(entries) == 1)
            cluster.brokers["b1"].release_receipts()
        # The second entry is damaged on its way: a new consumer sees it.
        entries[1].payload = entries[1].payload[:-1] + b"\x00"
        await consumer.seek("earliest")
        assert (await consumer.receive()).data == b"good"
        with pytest.raises(daybook.CorruptMessageError) as caught:
            await consumer.receive()
        assert caught.value.message_id.entry_id == 1
        assert (await consumer.receive()).data == b"fine"
        assert 1 not in acked(cluster)
        await consumer.seek("earliest")
        assert [m.data for m in await consumer.receive_batch()] == [b"good"]
        with pytest.raises(daybook.CorruptMessageError):
            await consumer.receive_batch()
        assert [m.data for m in await consumer.receive_batch()] == [b"fine"]
        await consumer.ack(caught.value.message_id)
        assert acked(cluster) == {1}
        await reader.aclose()


async def test_permits_bound_what_comes_ahead() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=10)
        await fill(client, [[b"%d" % n] for n in range(100)])
        await trio.testing.wait_all_tasks_blocked(0.01)
        (fake,) = cluster.topics[TOPIC].subscriptions["s"].consumers
        assert fake.next == 10
        for n in range(100):
            assert (await consumer.receive()).data == b"%d" % n
        assert len(cluster.brokers["b1"].commands(pb.CommandFlow)) < 30


async def test_a_terminated_topic_ends_the_iteration() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        await fill(client, [[b"0", b"1"]])
        cluster.topics[TOPIC].terminated = True
        consumer = await client.subscribe("t", "s", initial_position="earliest")
        with trio.fail_after(PATIENCE_S):
            assert [m.data async for m in consumer] == [b"0", b"1"]
            with pytest.raises(daybook.EndOfTopicError):
                await consumer.receive()
            assert await consumer.receive_batch() == []


async def test_unsubscribe_and_close() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s")
        await consumer.unsubscribe()
        assert cluster.topics[TOPIC].subscriptions == {}
        with pytest.raises(daybook.ClosedError):
            await consumer.receive()
        other = await client.subscribe("t", "s")
        async with trio.open_nursery() as nursery:

            async def receives() -> None:
                with pytest.raises(daybook.ClosedError):
                    await other.receive()

            nursery.start_soon(receives)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await other.aclose()
        assert not cluster.topics[TOPIC].subscriptions["s"].consumers


# -- readers


async def test_messages_do_not_keep_their_consumer() -> None:
    """They do not keep the client either: the garbage collector cannot look into a message."""
    async with fake_cluster() as cluster:
        async with daybook.connect(cluster.url) as client:
            consumer = await client.subscribe("t", "s")
            await fill(client, [[b"0"]])
            message = await consumer.receive()
            end = message.entry.source
            assert end() is not None
        del client, consumer
        gc.collect()
        assert end() is None
        assert message.data == b"0"
        async with daybook.connect(cluster.url) as client:
            another = await client.subscribe("t", "s")
            with pytest.raises(daybook.ClosedError, match="was closed"):
                await another.ack(message)


async def test_readers_start_anywhere() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        await fill(client, [[b"0", b"1", b"2"], [b"3", b"4"]])
        reader = await client.create_reader("t", start="earliest")
        all_of_it = [await reader.receive() for _ in range(5)]
        assert not await reader.has_message_available()
        for start, expected in (
            (0, b"0"),
            (2, b"2"),
            (daybook.Offset(3), b"3"),
            (all_of_it[1].message_id, b"1"),
            (all_of_it[4].message_id, b"4"),
            (datetime.fromtimestamp(0, tz=UTC), b"0"),
        ):
            async with await client.create_reader("t", start=start) as other:
                assert await other.has_message_available()
                with trio.fail_after(PATIENCE_S):
                    assert (await other.receive()).data == expected, start
        late = await client.create_reader("t")
        assert not await late.has_message_available()
        await fill(client, [[b"5"]])
        assert await late.has_message_available()
        assert (await late.receive()).data == b"5"
        assert await client.offsets("t") == daybook.OffsetRange(0, 6)
        assert await client.last_message_id("t") == daybook.MessageId(7, 2, 0)
        assert (await client.offsets("empty")).next == 0


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_reader_goes_on_where_it_was_after_a_takeover(start: str) -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            await fill(client, [[b"0", b"1"], [b"2"]])
            reader = await client.create_reader("t", start=start)
            if start == "earliest":
                assert [(await reader.receive()).data for _ in range(2)] == [b"0", b"1"]
            cluster.owner[TOPIC] = "b2"
            cluster.brokers["b1"].kill()
            await fill(client, [[b"3"], [b"4", b"5"]])
            expected = [b"2", b"3", b"4", b"5"] if start == "earliest" else [b"3", b"4", b"5"]
            with trio.fail_after(PATIENCE_S):
                assert [(await reader.receive()).data for _ in expected] == expected
            assert not await reader.has_message_available()


async def test_a_broker_that_does_not_number_messages_is_not_asked_for_offsets() -> None:
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].server_version = "Pulsar Server"
        async with daybook.connect(cluster.url) as client:
            with pytest.raises(daybook.NotAllowedError, match="number"):
                await client.create_reader("t", start=5)


async def test_producers_and_consumers_grow_with_their_topic() -> None:
    limits = ClientLimits(partitions_refresh_s=0.01)
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=limits) as client:
        cluster.partitions[TOPIC] = 1
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        cluster.partitions[TOPIC] = 3
        await until(lambda: producer.partitions == consumer.partitions == 3)
        ids = [await producer.send(b"%d" % n) for n in range(6)]
        assert {each.partition for each in ids} == {0, 1, 2}
        got = [await consumer.receive() for _ in range(6)]
        assert sorted((m.data or b"") for m in got) == [b"%d" % n for n in range(6)]


async def test_a_partitioned_topic_is_one_for_its_consumer() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.partitions[TOPIC] = 3
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        reader = await client.create_reader("t", start="earliest")
        await fill(client, [[b"%d" % n] for n in range(9)])
        got = [await consumer.receive() for _ in range(9)]
        assert sorted(int(m.data or b"") for m in got) == list(range(9))
        assert {m.partition for m in got} == {0, 1, 2}
        await consumer.ack([m.message_id for m in got])
        read = [await reader.receive() for _ in range(9)]
        assert sorted(m.message_id for m in read) == sorted(m.message_id for m in got)
        assert not await reader.has_message_available()
        with pytest.raises(ValueError, match="partition"):
            await client.create_reader("t", start=5)
        one = await client.create_reader("t-partition-1", start=1)
        assert (await one.receive()).offset == 1
        assert await client.partitions("t") == 3


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("kind", ["consumer", "reader"])
async def test_several_tasks_receive_from_one(kind: str, partitions: int) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.partitions[TOPIC] = partitions
        if kind == "consumer":
            source: daybook.Consumer | daybook.Reader = await client.subscribe("t", "s")
        else:
            source = await client.create_reader("t")
        found: list[bytes | None] = []
        closed: list[str] = []

        async def receive() -> None:
            found.append((await source.receive()).data)

        async def wait_for_the_end() -> None:
            with pytest.raises(daybook.ClosedError):
                await source.receive()
            closed.append("closed")

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(receive)
                await wait_all_tasks_blocked()
                await fill(client, [[b"0", b"1"], [b"2"]])
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait_for_the_end)
                await wait_all_tasks_blocked()
                await source.aclose()
        assert len(found) == 3
        assert set(found) == {b"0", b"1", b"2"}
        assert len(closed) == 3
