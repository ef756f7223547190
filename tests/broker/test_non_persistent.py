"""Non-persistent topics: clients, brokers, and everything that is dropped."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import ConnectionLimits
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.wire.batch import parse_metadata
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness import stream
from tests.harness.broker import Client, Cluster, open_broker

TOPIC = "non-persistent://public/default/n"
SHARED, FAILOVER = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover


def topic_of(cluster: Cluster, name: str = TOPIC) -> NonPersistentTopic:
    return cluster.broker.topics.non_persistent.loaded[name]


async def consumer(client: Client, consumer_id: int = 1, **options: Any) -> None:
    """Subscribe; the broker has the permits, too, because a message before them is dropped."""
    answer = await client.subscribe(consumer_id, topic=TOPIC, **options)
    assert isinstance(answer, pb.CommandSuccess), answer
    await client.settle()


async def producer(client: Client, producer_id: int = 1, **options: Any) -> Any:
    answer = await client.producer(producer_id, topic=TOPIC, **options)
    assert isinstance(answer, pb.CommandProducerSuccess), answer
    return answer


async def test_messages_go_to_the_consumers_that_are_there(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        sender, receiver = await cluster.client(), await cluster.client()
        await producer(sender)
        sender.send(0, b"nobody")
        assert await sender.receipts(1) == [(0, 0, 0)]
        await consumer(receiver, permits=10)
        for number in range(1, 4):
            sender.send(number, b"%d" % number)
        assert await sender.receipts(3) == [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
        deliveries = await receiver.deliveries(3)
        assert [(d.ledger_id, d.entry_id) for d in deliveries] == [(0, 0)] * 3
        assert [bytes(d.payload)[-1:] for d in deliveries] == [b"1", b"2", b"3"]
        assert not cluster.broker.logs.by_name  # nothing was stored


async def test_what_no_consumer_has_permits_for_is_dropped_and_counted(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        await consumer(client, permits=2)
        await consumer(client, 2, name="other", permits=9)
        for number in range(5):
            client.send(number)
        await client.receipts(5)
        await client.settle()
        deliveries = client.bodies(Delivery)
        assert [d.consumer_id for d in deliveries].count(1) == 2
        assert [d.consumer_id for d in deliveries].count(2) == 5
        subscriptions = topic_of(cluster).subscriptions.by_name
        assert (subscriptions["sub"].dropped, subscriptions["other"].dropped) == (3, 0)
        client.got.clear()
        client.flow(1, 1)
        client.send(5)
        await client.settle()
        assert len(client.bodies(Delivery)) == 2  # Dropped messages never come.


async def test_a_client_that_does_not_read_costs_a_bounded_amount_and_nobody_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BUFFER_BYTES_MAX", 10_000)
    limits = ConnectionLimits(dispatch_bytes_max=100_000)
    async with open_broker(connection_limits=limits) as cluster:
        sender, deaf, reader = [await cluster.client() for _ in range(3)]
        await producer(sender)
        await consumer(deaf, name="deaf", permits=1_000_000)
        await consumer(reader, name="reader", permits=1_000_000)
        deaf.reading = False
        for number in range(300):
            sender.send(number, b"x" * 5_000)
            await sender.receipts(1)
        await reader.deliveries(300)
        subscription = topic_of(cluster).subscriptions.by_name["deaf"]
        assert subscription.dropped > 200
        (held,) = subscription.consumers.values()
        assert held.bytes <= 150_000
        assert topic_of(cluster).subscriptions.by_name["reader"].dropped == 0


async def test_a_subscription_lives_as_long_as_its_consumers(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await consumer(client)
        assert set(topic_of(cluster).subscriptions.by_name) == {"sub"}
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        assert not topic_of(cluster).subscriptions.by_name
        await consumer(client, kind=SHARED)
        await client.ask(pb.CommandUnsubscribe(consumer_id=1), pb.CommandSuccess)
        assert not topic_of(cluster).subscriptions.by_name


async def test_an_exclusive_subscription_has_one_consumer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await consumer(client)
        for kind in (pb.CommandSubscribe.Exclusive, SHARED):
            refused = await client.subscribe(2, topic=TOPIC, kind=kind)
            assert refused.error == pb.ConsumerBusy
        other = await cluster.client()
        client.reading = False
        client.frames.close("dead")
        await consumer(other)


async def test_shared_consumers_take_turns(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        for consumer_id in (1, 2, 3):
            await consumer(client, consumer_id, kind=SHARED, permits=4 * consumer_id)
        for number in range(20):
            client.send(number)
        await client.receipts(20)
        await client.settle()
        taken = [d.consumer_id for d in client.bodies(Delivery)]
        assert [taken.count(consumer_id) for consumer_id in (1, 2, 3)] == [4, 8, 8]
        assert topic_of(cluster).subscriptions.by_name["sub"].dropped == 0


async def test_failover_consumers_hear_who_is_active(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        for consumer_id, name in ((1, "a"), (2, "b")):
            await consumer(client, consumer_id, kind=FAILOVER, consumer_name=name, permits=9)
        await client.settle(1)
        told = {c.consumer_id: c.is_active for c in client.bodies(pb.CommandActiveConsumerChange)}
        (active,) = [each for each, is_active in told.items() if is_active]
        client.send(0)
        (delivery,) = await client.deliveries(1)
        assert delivery.consumer_id == active
        client.got.clear()
        await client.ask(pb.CommandCloseConsumer(consumer_id=active), pb.CommandSuccess)
        (change,) = await client.wait(pb.CommandActiveConsumerChange)
        assert (change.consumer_id, change.is_active) == (3 - active, True)


async def test_acknowledgements_mean_nothing_and_are_answered(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        await consumer(client, permits=5)
        client.send(0)
        await client.deliveries(1)
        client.ack(0)
        client.ack(0, request_id=77)
        (answer,) = await client.wait(pb.CommandAckResponse)
        assert (answer.request_id, answer.HasField("error")) == (77, False)
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        await client.settle()
        assert not client.bodies(Delivery)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: pb.CommandSeek(consumer_id=1, message_publish_time=1),
        lambda: pb.CommandGetLastMessageId(consumer_id=1),
    ],
)
async def test_what_needs_stored_messages_is_refused(
    autojump_clock: MockClock, request_of: Any
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await consumer(client)
        refused = await client.ask(request_of(), pb.CommandSuccess)
        assert refused.error == pb.NotAllowedError
        assert "stores no messages" in refused.message
        assert not client.frames.closed


async def test_consumer_stats_are_answered(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await consumer(client, permits=7)
        answer = await client.ask(
            pb.CommandConsumerStats(consumer_id=1), pb.CommandConsumerStatsResponse
        )
        assert (answer.availablePermits, answer.msgBacklog, answer.type) == (7, 0, "Exclusive")


async def test_a_batch_takes_as_many_permits_as_it_has_messages(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        await consumer(client, permits=3)
        for number in range(2):
            client.send_batch(number, 5)
        await client.receipts(2)
        await client.settle()
        assert len(client.bodies(Delivery)) == 1
        assert topic_of(cluster).subscriptions.by_name["sub"].dropped == 5


async def test_an_exclusive_producer_shuts_others_out(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        success = await producer(client, producer_access_mode=pb.Exclusive)
        assert success.topic_epoch == 0
        refused = await client.producer(2, topic=TOPIC, producer_access_mode=pb.Exclusive)
        assert refused.error == pb.ProducerFenced
        refused = await client.producer(2, topic=TOPIC)
        assert refused.error == pb.ProducerBusy


async def test_a_damaged_message_is_refused(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        client.send_payload(0, b"\x0e\x01" + bytes(20))
        (error,) = await client.wait(pb.CommandSendError)
        assert error.error == pb.ChecksumError


async def test_a_topic_is_closed_with_its_bundle(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        await consumer(client)
        cluster.broker.ownership.ours = False
        cluster.broker.topics.drop_bundle(BundleName("public/default/0x00000000_0xffffffff"))
        await client.wait(pb.CommandCloseProducer)
        await client.wait(pb.CommandCloseConsumer)
        assert not cluster.broker.topics.non_persistent.loaded
        assert (await client.producer(2, topic=TOPIC)).error == pb.ServiceNotReady
        client.send(0)  # The client may not have heard of it yet.
        await client.settle()
        assert not client.frames.closed


async def test_a_topic_that_nobody_uses_is_forgotten(autojump_clock: MockClock) -> None:
    async with open_broker(settings={"keep_alive_s": 10_000.0}) as cluster:
        client = await cluster.client()
        await producer(client)
        await trio.sleep(600)
        assert topic_of(cluster).in_use
        await client.ask(pb.CommandCloseProducer(producer_id=1), pb.CommandSuccess)
        await trio.sleep(600)
        assert not cluster.broker.topics.non_persistent.loaded


async def test_only_topics_that_may_be_created_are(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        cluster.broker.policies.partition_counts["non-persistent://public/default/p"] = 2
        client = await cluster.client()
        refused = await client.producer(1, topic="non-persistent://public/default/p")
        assert refused.error == pb.NotAllowedError
        refused = await client.producer(1, topic="non-persistent://public/default/p-partition-2")
        assert refused.error == pb.NotAllowedError
        refused = await client.subscribe(topic=TOPIC, force_topic_creation=False)
        assert refused.error == pb.TopicNotFound
        there = "non-persistent://public/default/p-partition-1"
        assert isinstance(
            await client.subscribe(topic=there, force_topic_creation=False), pb.CommandSuccess
        )
        refused = await client.producer(1, topic="non-persistent://no/where/t")
        assert refused.error == pb.TopicNotFound


async def test_topics_of_both_kinds_are_listed_as_asked(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        cluster.broker.policies.partition_counts["non-persistent://public/default/p"] = 1
        client = await cluster.client()
        await producer(client)
        await client.producer(2, topic="persistent://public/default/stored")
        mode = pb.CommandGetTopicsOfNamespace.Mode
        stored = ["persistent://public/default/stored"]
        volatile = [TOPIC, "non-persistent://public/default/p-partition-0"]
        for asked, names in (
            (mode.PERSISTENT, stored),
            (mode.NON_PERSISTENT, volatile),
            (mode.ALL, stored + volatile),
        ):
            request = pb.CommandGetTopicsOfNamespace(namespace="public/default")
            request.mode = asked
            answer = await client.ask(request, pb.CommandGetTopicsOfNamespaceResponse)
            assert sorted(answer.topics) == sorted(names)


class Passes(trio.abc.Instrument):
    """The most deliveries of a topic in one pass of the event loop."""

    def __init__(self, topic: NonPersistentTopic) -> None:
        self.most = 0
        self._topic = topic
        self._before = 0

    def before_io_wait(self, timeout: float) -> None:
        now = sum(s.messages for s in self._topic.subscriptions.by_name.values())
        self.most, self._before = max(self.most, now - self._before), now


async def test_a_flood_leaves_others_their_turn(autojump_clock: MockClock) -> None:
    """One connection causes a bounded number of deliveries before other tasks run."""
    async with open_broker() as cluster:
        sender, receiver = await cluster.client(), await cluster.client()
        await producer(sender)
        for consumer_id in range(100):
            await consumer(receiver, consumer_id, name=f"s{consumer_id}", permits=1_000_000)
        topic = topic_of(cluster)
        passes = Passes(topic)
        trio.lowlevel.add_instrument(passes)
        for number in range(200):
            sender.send(number)
        await sender.wait(SendReceipt, 200)
        trio.lowlevel.remove_instrument(passes)
        assert 0 < passes.most <= 2_200


KEY_SHARED = pb.CommandSubscribe.Key_Shared


async def test_the_messages_of_a_key_go_to_one_consumer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await producer(client)
        for consumer_id in (1, 2):
            await consumer(
                client, consumer_id, kind=KEY_SHARED, consumer_name=f"c{consumer_id}", permits=90
            )
        for number in range(60):
            client.send(number, partition_key=f"key-{number % 12}")
        deliveries = await client.deliveries(60)
        consumers: dict[int, set[int]] = {}
        for index, delivery in enumerate(sorted(deliveries, key=_sequence_id)):
            consumers.setdefault(index % 12, set()).add(delivery.consumer_id)
        assert all(len(each) == 1 for each in consumers.values())
        assert len(set.union(*consumers.values())) == 2
        # The other consumer does not get the messages of a key whose consumer has no permits.
        client.tell(pb.CommandCloseConsumer(consumer_id=2, request_id=900))
        await consumer(client, 3, kind=KEY_SHARED, consumer_name="c3")
        for number in range(60, 72):
            client.send(number, partition_key=f"key-{number % 12}")
        await client.settle()
        subscription = topic_of(cluster).subscriptions.by_name["sub"]
        assert 0 < subscription.dropped < 12


def _sequence_id(delivery: Delivery) -> int:
    return parse_metadata(delivery.payload)[0].sequence_id


async def test_sticky_ranges_may_not_overlap(autojump_clock: MockClock) -> None:
    def sticky(first: int, last: int) -> pb.KeySharedMeta:
        meta = pb.KeySharedMeta(hashRanges=[pb.IntRange(start=first, end=last)])
        meta.keySharedMode = pb.STICKY
        return meta

    async with open_broker() as cluster:
        client = await cluster.client()
        await consumer(client, 1, kind=KEY_SHARED, keySharedMeta=sticky(0, 30_000))
        for meta in (sticky(30_000, 40_000), None):
            refused = await client.subscribe(2, topic=TOPIC, kind=KEY_SHARED, keySharedMeta=meta)
            assert refused.error == pb.ConsumerAssignError
        await consumer(client, 2, kind=KEY_SHARED, keySharedMeta=sticky(30_001, 65_535))
