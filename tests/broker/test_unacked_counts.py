"""Counts of unacknowledged messages: batches acknowledged in part, and the limit of the broker."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import encode_ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

EARLIEST = pb.CommandSubscribe.Earliest
SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared
FEW = TopicLimits(
    dispatch=DispatchLimits(unacked_messages_max=10, subscription_unacked_messages_max=15)
)


def subscription_of(cluster: Cluster, name: str = "sub") -> Subscription:
    return cluster.broker.topics.loaded[TOPIC].subscriptions.get(name)


def counts(cluster: Cluster) -> list[int]:
    """Return what consumers and the subscription have."""
    subscription = subscription_of(cluster)
    dispatch = subscription.dispatch
    each = [dispatch.unacked_of(key) for key in subscription.consumers]
    assert dispatch.unacked == sum(each)
    return each


async def batches(cluster: Cluster, *sizes: int) -> Client:
    client = await cluster.client()
    await client.producer()
    for number, size in enumerate(sizes):
        client.send_batch(number, size)
    await client.receipts(len(sizes))
    return client


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_batch_that_is_acknowledged_in_part_counts_with_what_is_left(
    autojump_clock: MockClock, kind: Any
) -> None:
    async with open_broker(topic_limits=FEW) as cluster:
        client = await batches(cluster, 10, 4, 4)
        await client.subscribe(initialPosition=EARLIEST, kind=kind, permits=1_000)
        await client.deliveries(1)
        assert counts(cluster) == [10]
        # A bit that the batch does not have makes the count too high, never too low.
        client.frames.send([encode_ack(1, [(5, 0, 1 << 200 | 0b11_1111)])])
        await client.settle()
        assert counts(cluster) == [7]
        client.frames.send([encode_ack(1, [(5, 0, 0b11_1111)])])
        client.frames.send([encode_ack(1, [(5, 0, 0b11_1111)])])  # Nothing new.
        await client.settle()
        assert counts(cluster) == [6]
        # At most half of the limit is left: the consumer gets more.
        client.frames.send([encode_ack(1, [(5, 0, 0b10_1111)])])
        with trio.fail_after(1):  # At once: a look at the policies would wake it some day.
            await client.deliveries(2)
        assert counts(cluster) == [5 + 4 + 4]
        client.frames.send([encode_ack(1, [(5, 0, 0)])])
        await client.settle()
        assert counts(cluster) == [8]


async def test_an_administrator_acknowledges_a_part_and_the_counts_follow(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=FEW) as cluster:
        client = await batches(cluster, 10, 4)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=1_000)
        await client.deliveries(1)
        await subscription_of(cluster).acknowledge(None, (Position(5, 0), 0b11_1100_0000))
        await client.deliveries(1)
        assert counts(cluster) == [4 + 4]
        # The rest, message by message: the batch is done, and counts for nobody.
        await subscription_of(cluster).acknowledge(None, (Position(5, 0), 0))
        assert counts(cluster) == [4]


async def test_another_consumer_acknowledges_a_part(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await batches(cluster, 10)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=1_000)
        await client.deliveries(1)
        two = await cluster.client()
        await two.subscribe(2, kind=SHARED, permits=1_000)
        two.frames.send([encode_ack(2, [(5, 0, 0b111)])])
        await two.settle()
        assert counts(cluster) == [3, 0]
        # The batch comes again to the other one, with what is left, and counts there.
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        (again,) = await two.deliveries(1)
        assert again.ack_set == 0b111
        assert counts(cluster) == [3]
        two.frames.send([encode_ack(2, [(5, 0, 0b110)])])
        await two.settle()
        assert counts(cluster) == [2]
