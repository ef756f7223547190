"""Policies at work: what a topic refuses, delays and limits; and that changes need no reload."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.config import parse
from daybook.broker.errors import PreconditionError
from daybook.broker.limits import BrokerLimits, PublishLimit, TopicLimits
from daybook.broker.namespaces.policy_table import defaults
from daybook.broker.namespaces.policy_types import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    DelayedDelivery,
    PublishRate,
)
from daybook.broker.part_settings import topic_limits
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.broker import TOPIC, Client, Cluster, open_broker, payload_of
from tests.harness.clocks import EPOCH_MS

SHARED = pb.CommandSubscribe.Shared
EARLIEST = pb.CommandSubscribe.Earliest


async def change(cluster: Cluster, **policies: Any) -> None:
    """Change policies of the namespace, and return when loaded topics follow them."""
    cluster.broker.policies.of_namespace.update(policies)
    cluster.broker.policies.note_changed("public/default")
    await trio.sleep(0.5)


@asynccontextmanager
async def broker_with(**policies: Any) -> AsyncGenerator[tuple[Cluster, Client]]:
    async with open_broker(settings={"keep_alive_s": 1e6}) as cluster:
        cluster.broker.policies.of_namespace.update(policies)
        yield cluster, await cluster.client()


async def test_a_topic_has_no_more_producers_than_it_may_have(autojump_clock: MockClock) -> None:
    async with broker_with(max_producers=2) as (cluster, client):
        for number in (1, 2):
            assert isinstance(await client.producer(number), pb.CommandProducerSuccess)
        refused = await client.producer(3)
        assert refused.error == pb.ProducerBusy
        assert "maxProducers" in refused.message
        await change(cluster, max_producers=3)
        assert isinstance(await client.producer(3), pb.CommandProducerSuccess)
        await change(cluster, max_producers=1)  # Those that are there stay.
        client.send(0, producer_id=3)
        assert len(await client.receipts(1)) == 1
        assert (await client.producer(4)).error == pb.ProducerBusy
        await change(cluster, max_producers=0)
        assert isinstance(await client.producer(4), pb.CommandProducerSuccess)


async def test_producers_that_come_at_once_are_not_too_many(autojump_clock: MockClock) -> None:
    """One that waits to become the exclusive producer has a place, too."""
    async with broker_with(max_producers=2) as (_, client):
        await client.producer(1, producer_access_mode=pb.Exclusive)
        client.tell(
            pb.CommandProducer(
                topic=TOPIC,
                producer_id=2,
                request_id=900,
                producer_access_mode=pb.WaitForExclusive,
            )
        )
        await client.settle()
        refused = await client.producer(3, producer_access_mode=pb.WaitForExclusive)
        assert refused.error == pb.ProducerBusy


async def test_a_topic_has_no_more_consumers_than_it_may_have(autojump_clock: MockClock) -> None:
    async with broker_with(max_consumers=3, max_consumers_per_subscription=2) as (cluster, client):
        for number in (1, 2):
            answer = await client.subscribe(number, kind=SHARED)
            assert isinstance(answer, pb.CommandSuccess)
        refused = await client.subscribe(3, kind=SHARED)
        assert refused.error == pb.ConsumerBusy
        assert "maxConsumersPerSubscription" in refused.message
        assert isinstance(await client.subscribe(3, name="b", kind=SHARED), pb.CommandSuccess)
        refused = await client.subscribe(4, name="b", kind=SHARED)
        assert refused.error == pb.ConsumerBusy
        assert "maxConsumers)" in refused.message or "maxConsumers" in refused.message
        await change(cluster, max_consumers=0, max_consumers_per_subscription=0)
        assert isinstance(await client.subscribe(4, kind=SHARED), pb.CommandSuccess)


async def test_a_topic_has_no_more_subscriptions_than_it_may_have(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(max_subscriptions=1) as (cluster, client):
        assert isinstance(await client.subscribe(1), pb.CommandSuccess)
        for durable in (True, False):
            refused = await client.subscribe(2, name="b", durable=durable)
            assert refused.error == pb.NotAllowedError
            assert "maxSubscriptionsPerTopic" in refused.message
        await change(cluster, max_subscriptions=2)
        assert isinstance(await client.subscribe(2, name="b"), pb.CommandSuccess)


async def test_only_enabled_types_of_subscriptions_are_served(autojump_clock: MockClock) -> None:
    async with broker_with(subscription_types=frozenset({"Shared"})) as (cluster, client):
        refused = await client.subscribe(1)
        assert refused.error == pb.NotAllowedError
        assert "subscriptionTypesEnabled" in refused.message
        assert not cluster.broker.topics.loaded[TOPIC].subscriptions.by_name
        assert isinstance(await client.subscribe(1, kind=SHARED), pb.CommandSuccess)


async def test_clients_create_subscriptions_only_where_they_may(autojump_clock: MockClock) -> None:
    forbidden = AutoSubscriptionCreation(allow_auto_subscription_creation=False)
    async with broker_with(auto_subscription_creation=forbidden) as (cluster, client):
        refused = await client.subscribe(1)
        assert refused.error == pb.SubscriptionNotFound
        # A reader's subscription is not stored.
        assert isinstance(await client.subscribe(1, durable=False, name="r"), pb.CommandSuccess)
        topic = cluster.broker.topics.loaded[TOPIC]
        await topic.subscriptions.create("sub", topic.log.before_first)
        assert isinstance(await client.subscribe(2), pb.CommandSuccess)


async def test_limits_of_unacknowledged_messages_follow_the_policy(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(max_unacked_per_consumer=3) as (cluster, client):
        await client.producer()
        for number in range(20):
            client.send(number)
        await client.receipts(20)
        await client.subscribe(kind=SHARED, permits=100, initialPosition=EARLIEST)
        assert await client.entry_ids(3) == [0, 1, 2]
        await client.settle()
        assert len(client.got) == 0
        await change(cluster, max_unacked_per_consumer=5)
        assert await client.entry_ids(2) == [3, 4]
        await change(cluster, max_unacked_per_consumer=2)
        client.ack(0, 1, 2)
        await client.settle()
        assert len(client.got) == 0, "two are unacknowledged, which is the limit now"
        await change(cluster, max_unacked_per_consumer=0, max_unacked_per_subscription=4)
        assert await client.entry_ids(2) == [5, 6]
        await client.settle()
        assert len(client.got) == 0
        await change(cluster, max_unacked_per_subscription=0)
        assert len(await client.entry_ids(13)) == 13


async def test_a_message_may_be_too_large_for_a_topic(autojump_clock: MockClock) -> None:
    async with broker_with(max_message_bytes=200) as (cluster, client):
        await client.producer()
        client.send(0, b"x" * 100)
        client.send(1, b"x" * 300)
        client.send(2, b"x" * 100)
        (error,) = await client.wait(pb.CommandSendError)
        assert error.error == pb.NotAllowedError
        assert "maxMessageSize" in error.message
        assert [s for s, _, _ in await client.receipts(2)] == [0, 2]
        await change(cluster, max_message_bytes=0)
        client.send(3, b"x" * 300)
        assert len(await client.receipts(1)) == 1


async def test_chunks_may_be_larger_than_messages(autojump_clock: MockClock) -> None:
    """Clients cut messages at the broker's limit, which they are told, and not at the topic's."""
    async with broker_with(max_message_bytes=200) as (_, client):
        await client.producer()
        chunked = {"uuid": "p-0", "num_chunks_from_msg": 2, "total_chunk_msg_size": 310}
        client.send_payload(0, payload_of(0, b"x" * 300, chunk_id=0, **chunked))
        client.send_payload(0, payload_of(0, b"x" * 10, chunk_id=1, **chunked))
        assert len(await client.receipts(2)) == 2


async def test_delayed_delivery_may_be_off(autojump_clock: MockClock) -> None:
    async with broker_with(delayed_delivery=DelayedDelivery(active=False)) as (cluster, client):
        await client.producer()
        await client.subscribe(kind=SHARED, permits=100, initialPosition=EARLIEST)
        later = cluster.broker.clock.now_ms() + 3_600_000
        client.send(0, deliver_at_time=later)
        assert await client.entry_ids(1) == [0]
        await change(cluster, delayed_delivery=DelayedDelivery())
        client.send(1, deliver_at_time=later)
        await client.settle()
        assert not client.bodies(Delivery)


async def test_a_message_may_be_delayed_for_too_long(autojump_clock: MockClock) -> None:
    limit = DelayedDelivery(max_delivery_delay_in_millis=5_000)
    async with broker_with(delayed_delivery=limit) as (cluster, client):
        await client.producer()
        now_ms = cluster.broker.clock.now_ms()
        client.send(0, deliver_at_time=now_ms + 4_000)
        client.send(1, deliver_at_time=now_ms + 9_000)
        (error,) = await client.wait(pb.CommandSendError)
        assert (error.sequence_id, error.error) == (1, pb.NotAllowedError)
        assert len(await client.receipts(1)) == 1


async def test_clients_create_topics_only_where_they_may(autojump_clock: MockClock) -> None:
    async with broker_with(auto_topic_creation=AutoTopicCreation()) as (cluster, client):
        for refused in (await client.producer(), await client.subscribe()):
            assert refused.error == pb.TopicNotFound
        ask = pb.CommandPartitionedTopicMetadata(topic=TOPIC, metadata_auto_creation_enabled=True)
        answer = await client.ask(ask, pb.CommandPartitionedTopicMetadataResponse)
        assert answer.error == pb.TopicNotFound
        assert not cluster.broker.logs.by_name


async def test_clients_may_create_partitioned_topics(autojump_clock: MockClock) -> None:
    three = AutoTopicCreation(
        allow_auto_topic_creation=True, topic_type="partitioned", default_num_partitions=3
    )
    created: list[tuple[str, int]] = []
    async with broker_with(auto_topic_creation=three) as (cluster, client):
        policies = cluster.broker.policies

        async def create(topic: TopicName, partitions: int, properties: Any = None) -> bool:
            await trio.lowlevel.checkpoint()
            created.append((topic.full, partitions))
            policies.partition_counts[topic.full] = partitions
            return True

        policies.create_partitioned = create  # type: ignore[method-assign]
        for wanted, count in ((False, None), (True, 3), (True, 3)):
            ask = pb.CommandPartitionedTopicMetadata(
                topic=TOPIC, metadata_auto_creation_enabled=wanted
            )
            answer = await client.ask(ask, pb.CommandPartitionedTopicMetadataResponse)
            if count is None:
                assert answer.error == pb.TopicNotFound
            else:
                assert answer.partitions == count
        assert created == [(TOPIC, 3)]
        # A topic that exists without partitions stays so.
        await cluster.broker.logs.create(TopicName.parse("single"), {})
        ask = pb.CommandPartitionedTopicMetadata(
            topic="single", metadata_auto_creation_enabled=True
        )
        answer = await client.ask(ask, pb.CommandPartitionedTopicMetadataResponse)
        assert answer.partitions == 0


async def test_a_client_creates_no_topic_beyond_the_limit(autojump_clock: MockClock) -> None:
    async with broker_with(max_topics=1) as (cluster, client):
        assert isinstance(await client.producer(1), pb.CommandProducerSuccess)
        refused = await client.producer(2, topic="other")
        assert "maxTopicsPerNamespace" in refused.message
        with pytest.raises(PreconditionError):
            await cluster.broker.topics.create(TopicName.parse("other"), {})
        assert isinstance(await client.producer(2), pb.CommandProducerSuccess)


async def test_a_fast_producer_waits_and_nobody_else_does(autojump_clock: MockClock) -> None:
    rate = PublishRate(publish_throttling_rate_in_msg=10)
    async with broker_with(publish_rate=rate) as (cluster, client):
        other = await cluster.client()
        await client.producer()
        await other.producer(topic="other")
        began = trio.current_time()
        for number in range(60):
            client.send(number)
            await client.settle(0.01)
        assert len(client.bodies(SendReceipt)) < 30
        other.send(0)
        assert len(await other.receipts(1)) == 1
        await client.receipts(60)
        assert 4 < trio.current_time() - began < 8
        for number in range(60, 100):
            client.send(number)
            await client.settle(0.01)
        await change(cluster, publish_rate=PublishRate())
        began = trio.current_time()
        await client.receipts(40)
        assert trio.current_time() - began < 2, "the limit is gone"


async def test_a_publish_rate_counts_bytes(autojump_clock: MockClock) -> None:
    rate = PublishRate(publish_throttling_rate_in_byte=1_000)
    async with broker_with(publish_rate=rate) as (_, client):
        await client.producer()
        began = trio.current_time()
        for number in range(10):
            client.send(number, b"x" * 1_000)
            await client.settle(0.01)
        await client.receipts(10)
        assert 7 < trio.current_time() - began < 12


async def test_all_producers_of_a_broker_share_its_rate(autojump_clock: MockClock) -> None:
    limits = TopicLimits(published=PublishLimit(messages_per_s=20))
    names = [TOPIC, "persistent://public/default/b", "non-persistent://public/default/c"]
    async with open_broker(settings={"keep_alive_s": 1e6}, topic_limits=limits) as cluster:
        clients = [await cluster.client() for _ in names]
        for client, name in zip(clients, names, strict=True):
            await client.producer(topic=name)
        began = trio.current_time()
        for number in range(40):
            for client in clients:
                client.send(number)
            await clients[0].settle(0.01)
        for client in clients:
            await client.receipts(40)
        assert 4 < trio.current_time() - began < 8, "120 messages at 20 a second, 20 at once"


def test_settings_for_the_rates_of_publishing() -> None:
    config = parse({"publish_messages_per_s": 5, "broker_publish_bytes_per_s": 7})
    assert defaults(config).publish_rate == PublishRate(5, -1)
    assert topic_limits(BrokerLimits(), config).published == PublishLimit(0, 7)


async def test_a_client_that_waits_gets_signs_of_life(autojump_clock: MockClock) -> None:
    rate = PublishRate(publish_throttling_rate_in_msg=1)
    async with broker_with(publish_rate=rate) as (_, client):
        await client.producer()
        for number in range(200):
            client.send(number)
        with trio.fail_after(5):
            await client.wait(pb.CommandPing)


async def test_a_change_disconnects_nobody_except_for_deduplication(
    autojump_clock: MockClock,
) -> None:
    async with broker_with() as (cluster, client):
        await client.producer(producer_name="p")
        await client.subscribe()
        topic = cluster.broker.topics.loaded[TOPIC]
        await change(cluster, max_producers=9)
        assert topic.policies.max_producers == 9
        assert cluster.broker.logs.applied == [(topic.policies, topic.log)]
        assert cluster.broker.topics.loaded[TOPIC] is topic
        assert not client.bodies(pb.CommandCloseProducer)
        cluster.broker.policies.deduplication = True
        await change(cluster)
        await client.wait(pb.CommandCloseProducer)
        assert TOPIC not in cluster.broker.topics.loaded
        await client.producer(producer_name="p")
        assert cluster.broker.topics.loaded[TOPIC].deduplication is not None


async def test_policies_that_cannot_be_read_stay_as_they_were(autojump_clock: MockClock) -> None:
    async with broker_with(max_producers=4) as (cluster, client):
        await client.producer()
        topic = cluster.broker.topics.loaded[TOPIC]

        async def fails(name: TopicName) -> Any:
            await trio.lowlevel.checkpoint()
            raise PreconditionError(f"{name} has a policy that is not valid")

        cluster.broker.policies.effective = fails  # type: ignore[method-assign,assignment]
        await change(cluster, max_producers=1)
        assert topic.policies.max_producers == 4
        assert topic.serving
        client.send(0, publish_time=EPOCH_MS)
        assert len(await client.receipts(1)) == 1
