"""Complaints of users of such brokers, each under the number of its thread at apache/pulsar.

Others are where they belong: 25047 and its siblings in `tests/managed_ledger/test_holes.py`, 5543
in `test_exact_backlog.py`.  The threads on key_shared are with the tests of key_shared.
"""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.wire.messages.consumer import Delivery, encode_ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker
from tests.harness.clocks import EPOCH_MS

EARLIEST = pb.CommandSubscribe.Earliest
SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared
FEW = TopicLimits(
    dispatch=DispatchLimits(unacked_messages_max=10, subscription_unacked_messages_max=15)
)


def subscription_of(cluster: Cluster) -> Subscription:
    return cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")


async def publish(cluster: Cluster, count: int, **meta: Any) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send(n, **meta)
    await client.receipts(count)
    return client


def nack(client: Client, *entry_ids: int, consumer_id: int = 1) -> None:
    request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id)
    for entry_id in entry_ids:
        request.message_ids.add(ledgerId=5, entryId=entry_id)
    client.tell(request)


async def test_22657_a_consumer_is_fed_again_when_it_has_acknowledged(
    autojump_clock: MockClock,
) -> None:
    """Acknowledged singly, by a cumulative skip, by another consumer, or given back: it is fed."""
    async with open_broker(topic_limits=FEW) as cluster:
        client = await publish(cluster, 100)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=1_000)
        seen = await client.entry_ids(10)
        subscription = subscription_of(cluster)
        assert subscription.dispatch.is_blocked(next(iter(subscription.consumers)))
        client.ack(*seen)
        seen = await client.entry_ids(10)
        assert seen == list(range(10, 20))
        await subscription.skip_all()
        await client.settle()
        assert not subscription.dispatch.is_blocked(next(iter(subscription.consumers)))
        for n in range(100, 130):
            client.send(n)
        more = await client.entry_ids(10)
        assert more == list(range(100, 110))
        two = await cluster.client()
        await two.subscribe(2, kind=SHARED)
        two.ack(*more, consumer_id=2)  # Any consumer may acknowledge for another one.
        assert await client.entry_ids(10) == list(range(110, 120))
        nack(client, *range(110, 120))
        assert sorted(await client.entry_ids(10)) == list(range(110, 120))


async def test_22534_the_limit_of_unacknowledged_messages_holds_under_redelivery(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=FEW) as cluster:
        client = await publish(cluster, 200)
        for consumer_id in (1, 2):
            await client.subscribe(
                consumer_id, initialPosition=EARLIEST, kind=SHARED, permits=10_000
            )
        subscription = subscription_of(cluster)
        rounds = 30
        for turn in range(rounds):
            await client.settle()
            unacked = [subscription.dispatch.unacked_of(key) for key in subscription.consumers]
            assert max(unacked) <= 10
            assert sum(unacked) <= 15
            consumer_id = 1 + turn % 2
            client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id))
        await client.settle()
        delivered = {each.entry_id for each in client.bodies(Delivery)}
        assert len(delivered) <= 2 * 15 + rounds  # The same few come again, and no others.


@pytest.mark.parametrize("closed", [True, False])
async def test_2431_shared_consumers_do_not_stop_while_consumers_come_and_go(
    autojump_clock: MockClock, closed: bool
) -> None:
    """Also 21104 and 24231: with permits and a backlog, something is always on its way."""
    async with open_broker() as cluster:
        sender = await publish(cluster, 300)
        done: set[int] = set()
        for turn in range(12):
            client = await cluster.client()
            await client.subscribe(
                initialPosition=EARLIEST, kind=SHARED, permits=40, consumer_name=f"c{turn}"
            )
            got = await client.entry_ids(20)
            client.ack(*got)
            done.update(got)
            await client.settle()
            if closed:
                await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
            else:
                client.frames.close()
        last = await cluster.client()
        await last.subscribe(kind=SHARED, permits=1_000)
        rest = await last.entry_ids(300 - len(done))
        assert done.union(rest) == set(range(300))
        assert cluster.broker.topics.watch.stalls == 0
        await sender.settle()


async def test_26125_acknowledged_messages_of_a_batch_do_not_come_again(
    autojump_clock: MockClock,
) -> None:
    """So they cannot become dead letters, whatever the client does with the rest of the batch."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        client.send_batch(0, 4)
        await client.receipts(1)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=1_000)
        await client.deliveries(1)
        client.frames.send([encode_ack(1, [(5, 0, 0b1000)])])  # Only the last one is pending.
        for count in (1, 2, 3):
            nack(client, 0)
            (again,) = await client.deliveries(1)
            assert (again.redelivery_count, again.ack_set) == (count, 0b1000)


async def test_redelivery_counts_survive_the_reconnection_of_the_last_consumer(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        for count in range(4):
            consumer = await cluster.client()
            await consumer.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=100)
            got = {each.entry_id: each for each in await consumer.deliveries(3)}
            assert [got[n].redelivery_count for n in range(3)] == [0, count, 0]
            nack(consumer, 1)
            (again,) = await consumer.deliveries(1)
            assert (again.entry_id, again.redelivery_count) == (1, count + 1)
            if count % 2:
                consumer.frames.close()
                await client.settle()
            else:
                await consumer.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        # A seek voids the counts.
        consumer = await cluster.client()
        await consumer.subscribe(kind=SHARED, permits=100)
        await consumer.deliveries(3)
        place = pb.MessageIdData(ledgerId=5, entryId=0)
        await consumer.ask(pb.CommandSeek(consumer_id=1, message_id=place), pb.CommandSuccess)
        await consumer.wait(pb.CommandCloseConsumer)
        await consumer.subscribe(kind=SHARED, permits=100)
        assert [each.redelivery_count for each in await consumer.deliveries(3)] == [0, 0, 0]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("unload", [True, False])
async def test_22716_delayed_messages_wait_also_after_an_unload(
    autojump_clock: MockClock, unload: bool, kind: pb.CommandSubscribe.SubType
) -> None:
    """Also 20099, 23149, 10497, 26240: neither at once, nor twice, after a new begin."""
    async with open_broker() as cluster:
        client = await publish(cluster, 5, deliver_at_time=EPOCH_MS + 20_000)
        await client.subscribe(initialPosition=EARLIEST, kind=kind, permits=100)
        await client.settle(5)
        assert not client.bodies(Delivery)
        if unload:
            await cluster.broker.topics.unload(cluster.broker.log().name)
            await client.wait(pb.CommandCloseConsumer)
        else:
            await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        await client.subscribe(kind=kind, permits=100)
        await client.settle(5)
        assert not client.bodies(Delivery)
        assert sorted(await client.entry_ids(5)) == [0, 1, 2, 3, 4]
        assert trio.current_time() >= 20
        await client.settle(10)
        assert not client.bodies(Delivery)
