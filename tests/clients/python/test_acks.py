"""`flush_acks` returns when the broker has confirmed every acknowledgement made before it."""

import gc
import time
from dataclasses import replace

import pytest
import trio

import daybook
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import Outcome
from daybook.wire.messages.consumer import Ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster, fake_cluster, until
from tests.clients.python.test_consumer import QUICK, TOPIC, acked, fill

BRIEF = replace(QUICK, request_timeout_s=0.05, operation_timeout_s=0.2)


def told(cluster: FakeCluster, broker: str = "b1") -> list[Ack]:
    return cluster.brokers[broker].commands(Ack)


async def acknowledge(consumer: Consumer, cluster: FakeCluster, count: int) -> None:
    """Receive so many messages, acknowledge them, and wait until the broker was told."""
    last = -1
    for _ in range(count):
        message = await consumer.receive()
        await consumer.ack(message)
        last = message.entry.entry_id
    broker = cluster.broker_of(TOPIC)
    await until(
        lambda: any(
            each.entry_id == last and each.ack_set is None
            for ack in broker.commands(Ack)
            for each in ack.ids
        )
    )


async def test_flush_acks_without_receipts_returns_when_the_broker_has_confirmed() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.brokers["b1"].lose_acks = True
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"], [b"1", b"2"], [b"3"]])
        await acknowledge(consumer, cluster, 4)
        assert acked(cluster) == set()
        with trio.fail_after(PATIENCE_S):
            await consumer.flush_acks()
        assert acked(cluster) == {0, 1, 2}


async def test_flush_acks_tells_parts_of_batches_again() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.brokers["b1"].lose_acks = True
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0", b"1", b"2"]])
        messages = await consumer.receive_batch(3)
        await consumer.ack(messages[0])
        await until(lambda: told(cluster))
        await consumer.flush_acks()
        assert cluster.topics[TOPIC].subscriptions["s"].pending == {0: 0b110}
        assert acked(cluster) == set()


async def test_flush_acks_tells_a_cumulative_acknowledgement_again() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        cluster.brokers["b1"].lose_acks = True
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"], [b"1"], [b"2"]])
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.ack_cumulative(messages[1])
        await until(lambda: told(cluster))
        await consumer.flush_acks()
        assert acked(cluster) == {0, 1}


async def test_flush_acks_covers_what_was_told_to_a_broker_that_is_gone() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            cluster.brokers["b1"].lose_acks = True
            consumer = await client.subscribe("t", "s", ack_group_s=0.001)
            await fill(client, [[b"0"], [b"1", b"2"]])
            await acknowledge(consumer, cluster, 3)
            cluster.owner[TOPIC] = "b2"
            cluster.brokers["b1"].kill()
            with trio.fail_after(PATIENCE_S):
                await consumer.flush_acks()
            assert acked(cluster) == {0, 1}


async def test_flush_acks_covers_what_was_told_while_the_broker_closed_the_consumer() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"]])
        cluster.brokers["b1"].lose_acks = True
        await acknowledge(consumer, cluster, 1)
        cluster.brokers["b1"].close_consumers()
        await until(lambda: len(cluster.brokers["b1"].commands(pb.CommandSubscribe)) == 2)
        with trio.fail_after(PATIENCE_S):
            await consumer.flush_acks()
        assert acked(cluster) == {0}


async def test_what_a_broker_ignored_while_it_closed_the_consumer_is_told_again() -> None:
    """Nobody asks for it: once, a thousand acknowledgements in one frame were lost so."""
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"], [b"1", b"2"], [b"3"]])
        cluster.brokers["b1"].lose_acks = True
        await acknowledge(consumer, cluster, 3)
        cluster.brokers["b1"].lose_acks = False
        cluster.brokers["b1"].close_consumers()
        await until(lambda: acked(cluster) == {0, 1})
        message = await consumer.receive()
        assert message.data == b"3"


async def test_acks_of_an_earlier_attachment_are_not_told_to_a_broker_that_hides_moves() -> None:
    """Pulsar's broker does not say that somebody moved the subscription in between."""
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=QUICK) as client:
        cluster.brokers["b1"].server_version = "Pulsar Server 4.2.4"
        for connection in cluster.brokers["b1"].connections:
            connection.frames.close("the next one greets as Pulsar's broker")
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"]])
        cluster.brokers["b1"].lose_acks = True
        await acknowledge(consumer, cluster, 1)
        cluster.brokers["b1"].lose_acks = False
        before = len(cluster.brokers["b1"].commands(pb.CommandFlow))
        cluster.brokers["b1"].close_consumers()
        # Acknowledgements come before permits.
        await until(lambda: len(cluster.brokers["b1"].commands(pb.CommandFlow)) > before)
        assert acked(cluster) == set()


async def test_a_consumer_that_is_closed_while_its_topic_moves_tells_its_acks_first() -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            cluster.brokers["b1"].lose_acks = True
            consumer = await client.subscribe("t", "s", ack_group_s=0.001)
            await fill(client, [[b"0"], [b"1", b"2"]])
            await acknowledge(consumer, cluster, 3)
            cluster.owner[TOPIC] = "b2"
            cluster.brokers["b1"].kill()
            with trio.fail_after(PATIENCE_S):
                await consumer.aclose()
            assert acked(cluster) == {0, 1}


async def test_flush_acks_raises_when_nobody_confirms() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=BRIEF) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"], [b"1"]])
        await acknowledge(consumer, cluster, 2)
        cluster.brokers["b1"].silent = True
        with trio.fail_after(PATIENCE_S), pytest.raises(daybook.RequestTimedOutError) as caught:
            await consumer.flush_acks()
        assert "of 2 entries" in str(caught.value)
        assert caught.value.outcome is Outcome.UNKNOWN
        cluster.brokers["b1"].silent = False
        await consumer.flush_acks()
        assert acked(cluster) == {0, 1}
        consumer.abandon()


async def test_flush_acks_raises_when_no_broker_is_left() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=BRIEF) as client:
        cluster.brokers["b1"].lose_acks = True
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"0"]])
        await acknowledge(consumer, cluster, 1)
        cluster.brokers["b1"].kill()
        with trio.fail_after(PATIENCE_S), pytest.raises(daybook.RequestTimedOutError):
            await consumer.flush_acks()
        consumer.abandon()


async def test_flush_acks_returns_while_others_go_on_acknowledging() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"%d" % n] for n in range(200)])
        messages = [await consumer.receive() for _ in range(200)]

        async def go_on(scope: trio.CancelScope) -> None:
            with scope:
                while True:
                    for message in messages:
                        await consumer.ack(message)
                        await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(go_on, scope)
            with trio.fail_after(PATIENCE_S):
                await consumer.flush_acks()
            scope.cancel()


@pytest.mark.parametrize("cumulative", [True, False])
async def test_what_was_acknowledged_before_a_seek_is_not_told_again_after_it(
    cumulative: bool,
) -> None:
    """Once, the answer was lost, and the next attempt reverted the seek."""
    async with fake_cluster() as cluster, daybook.connect(cluster.url, limits=BRIEF) as client:
        consumer = await client.subscribe("t", "s", ack_receipts=True)
        await fill(client, [[b"%d" % n] for n in range(3)])
        messages = [await consumer.receive() for _ in range(3)]
        cluster.brokers["b1"].answer_acks = False
        async with trio.open_nursery() as nursery:
            ack = consumer.ack_cumulative if cumulative else consumer.ack
            nursery.start_soon(ack, messages[2])
            await until(lambda: told(cluster))
            with trio.fail_after(PATIENCE_S):
                await consumer.seek("earliest")
                again = [await consumer.receive() for _ in range(3)]
        assert [message.data for message in again] == [b"0", b"1", b"2"]
        assert acked(cluster) == set()
        consumer.abandon()


async def test_what_is_told_without_a_receipt_is_in_doubt_for_a_moment_only() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", ack_group_s=0.001)
        await fill(client, [[b"%d" % n] for n in range(20)])
        await acknowledge(consumer, cluster, 20)
        await until(lambda: told(cluster)[-1].request_id is not None)
        assert len(told(cluster)[-1].ids) == 1  # One receipt covers them all.
        (end,) = consumer._partition_consumers
        await until(lambda: not end._acks.tracker.in_doubt)
        before = len(told(cluster))
        await consumer.flush_acks()
        assert len(told(cluster)) == before


async def test_the_blocking_flush_acks_returns_when_the_broker_has_confirmed() -> None:
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].lose_acks = True

        def work() -> None:
            with daybook.blocking.connect(cluster.url) as client:
                with client.create_producer("t") as producer:
                    producer.send(b"0")
                with client.subscribe("t", "s", initial_position="earliest") as consumer:
                    consumer.ack(consumer.receive(PATIENCE_S))
                    consumer.flush_acks()
                    assert acked(cluster) == {0}

        await trio.to_thread.run_sync(work)


async def test_a_blocking_ack_for_a_consumer_that_is_gone_is_told_by_flush_acks() -> None:
    """Once, it ended the thread, and with it the whole client."""
    async with fake_cluster() as cluster:

        def work() -> None:
            with daybook.blocking.connect(cluster.url) as client:
                with client.create_producer("t") as producer:
                    producer.send(b"0")
                with client.subscribe("t", "s", initial_position="earliest") as consumer:
                    message = consumer.receive(PATIENCE_S)
                del consumer
                other = client.subscribe("t", "s")
                deadline = time.monotonic() + PATIENCE_S
                while message.entry.source() is not None and time.monotonic() < deadline:
                    gc.collect()
                    other.last_message_ids()  # The thread of the client has a turn.
                other.ack(message)
                with pytest.raises(daybook.ClosedError, match="was closed"):
                    other.flush_acks()
                other.flush_acks()
                other.ack(other.receive(PATIENCE_S))
                other.flush_acks()
                assert acked(cluster) == {0}

        await trio.to_thread.run_sync(work)


async def test_batches_that_others_finish_are_forgotten() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("t", "s", type="shared", nack_delay_s=0.001)
        (end,) = consumer._partition_consumers
        tracker = end._acks.tracker
        tracker._given_back_max = 3
        await fill(client, [[b"0", b"1"] for _ in range(10)])
        cluster.brokers["b1"].silent = True  # The broker gives them to another consumer.
        for message in [await consumer.receive() for _ in range(20)]:
            consumer.nack(message)
        await until(lambda: tracker.pending_batches <= 3)
        consumer.abandon()


@pytest.mark.parametrize("name", ["last_message_ids", "unsubscribe"])
async def test_a_question_while_the_topic_moves_is_asked_again(name: str) -> None:
    async with fake_cluster("b1", "b2") as cluster:
        cluster.owner[TOPIC] = "b1"
        async with daybook.connect(cluster.url, limits=QUICK) as client:
            consumer = await client.subscribe("t", "s")
            await fill(client, [[b"0"]])
            cluster.brokers["b1"].silent = True
            cluster.owner[TOPIC] = "b2"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(getattr(consumer, name))
                kinds = (pb.CommandGetLastMessageId, pb.CommandUnsubscribe)
                await until(lambda: any(cluster.brokers["b1"].commands(each) for each in kinds))
                cluster.brokers["b1"].kill()
            assert any(cluster.brokers["b2"].commands(each) for each in kinds)
            assert (TOPIC in cluster.topics and "s" in cluster.topics[TOPIC].subscriptions) == (
                name == "last_message_ids"
            )
            if name == "unsubscribe":
                with pytest.raises(daybook.ClosedError):
                    await consumer.receive()
