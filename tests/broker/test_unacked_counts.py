"""Counts of unacknowledged messages: batches acknowledged in part, and the limit of the broker."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.config import parse
from daybook.broker.dispatch.dispatcher import Dispatcher
from daybook.broker.dispatch.explain import explain
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.limits import BrokerLimits, TopicLimits, UnackedLimits
from daybook.broker.part_settings import topic_limits
from daybook.broker.protocol.dispatch.blockers import Cause
from daybook.broker.protocol.dispatch.broker_limit import BrokerLimit
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.broker.topics.stats import statistics
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.messages.consumer import Delivery, encode_ack
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


# -- the limit of the broker

BROKER = TopicLimits(unacked=UnackedLimits(messages_max=20, share=0.25))  # a share of 5


def limit_of(cluster: Cluster) -> BrokerLimit[Dispatcher]:
    return cluster.broker.topics.unacked.rules


async def singles(cluster: Cluster, count: int) -> Client:
    client = await cluster.client()
    await client.producer()
    for number in range(count):
        client.send(number)
    await client.receipts(count)
    return client


async def consumer(cluster: Cluster, name: str, permits: int, kind: Any = SHARED) -> Client:
    client = await cluster.client()
    await client.subscribe(name=name, initialPosition=EARLIEST, kind=kind, permits=permits)
    return client


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_full_broker_stops_the_subscriptions_with_the_most(
    autojump_clock: MockClock, kind: Any
) -> None:
    async with open_broker(topic_limits=BROKER) as cluster:
        await singles(cluster, 60)
        large = await consumer(cluster, "large", 18, kind)
        seen = await large.entry_ids(18)
        small = await consumer(cluster, "small", 2, kind)
        await small.deliveries(2)
        limit = limit_of(cluster)
        assert (limit.messages, limit.full, limit.blocked) == (20, True, 1)
        # The large one waits, although it has permits; the small one goes on.
        large.tell(pb.CommandFlow(consumer_id=1, messagePermits=5))
        small.tell(pb.CommandFlow(consumer_id=1, messagePermits=2))
        assert len(await small.deliveries(2)) == 2
        await large.settle()
        assert not large.bodies(Delivery)
        assert subscription_of(cluster, "large").dispatch.unacked == 18
        stats = statistics(cluster.broker.topics.loaded[TOPIC]).subscriptions["large"]
        assert (stats.unacked_messages, stats.blocked_subscription_on_unacked_msgs) == (18, True)
        # At half of the limit it gets more.
        large.ack(*seen[:11])  # 11 are left
        await large.settle()
        assert not large.bodies(Delivery)
        large.ack(seen[11])
        with trio.fail_after(1):
            await large.deliveries(5)
        assert (limit.messages, limit.full) == (4 + 6 + 5, False)


async def test_a_subscription_below_its_share_goes_on_while_the_broker_is_full(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=BROKER) as cluster:
        await singles(cluster, 60)
        await consumer(cluster, "keeps", 30)
        works = await consumer(cluster, "works", 1_000)
        seen: list[int] = []
        with trio.fail_after(5):
            while len(seen) < 60:  # It acknowledges what it gets, and gets everything.
                got = await works.entry_ids(1)
                works.ack(*got)
                seen += got
        assert sorted(seen) == list(range(60))
        assert limit_of(cluster).full


async def test_a_subscription_goes_on_when_another_one_acknowledges(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=BROKER) as cluster:
        await singles(cluster, 60)
        waits = await consumer(cluster, "waits", 8)
        await waits.deliveries(8)
        acks = await consumer(cluster, "acks", 12)
        seen = await acks.entry_ids(12)
        waits.flow(3)
        await waits.settle()
        assert not waits.bodies(Delivery)
        assert limit_of(cluster).blocked == 2
        acks.ack(*seen[:10])
        with trio.fail_after(1):  # At once: a look at the policies would wake it some day.
            await waits.deliveries(3)


async def test_entries_that_were_being_read_wait_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(topic_limits=BROKER) as cluster:
        await singles(cluster, 60)
        large = await consumer(cluster, "large", 12)
        await large.deliveries(12)
        log, go_on = cluster.broker.log(), trio.Event()
        read = log.read

        async def slow_read(*args: Any, **options: Any) -> list[LogEntry]:
            await go_on.wait()
            return await read(*args, **options)

        monkeypatch.setattr(log, "read", slow_read)
        large.tell(pb.CommandFlow(consumer_id=1, messagePermits=6))
        await large.settle()
        assert subscription_of(cluster, "large").dispatcher.reading is not None
        limit, dispatcher = limit_of(cluster), subscription_of(cluster, "large").dispatcher
        other = Dispatcher.__new__(Dispatcher)  # the key of another subscription
        limit.count(other, 8)
        assert limit.blocks(dispatcher)
        go_on.set()
        await large.settle()
        assert not large.bodies(Delivery)
        assert limit.messages == 20
        limit.count(other, 0)
        large.ack(0, 1)
        assert await large.entry_ids(6) == [12, 13, 14, 15, 16, 17]


@pytest.mark.parametrize(
    "how", ["close", "lost", "delete", "unload", "seek", "skip", "nack", "type", "expire"]
)
async def test_the_count_of_the_broker_is_exact_whatever_ends_a_delivery(
    autojump_clock: MockClock, how: str
) -> None:
    async with open_broker(topic_limits=BROKER) as cluster:
        await singles(cluster, 30)
        client = await consumer(cluster, "sub", 20)
        await client.deliveries(20)
        limit = limit_of(cluster)
        subscription = subscription_of(cluster)
        assert (limit.messages, limit.blocked) == (20, 1)
        match how:
            case "close":
                await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
            case "lost":
                client.frames.close()
            case "delete":
                await client.ask(pb.CommandUnsubscribe(consumer_id=1), pb.CommandSuccess)
            case "unload":
                await cluster.broker.topics.unload(cluster.broker.log().name)
            case "seek":
                place = pb.MessageIdData(ledgerId=5, entryId=0)
                await client.ask(pb.CommandSeek(consumer_id=1, message_id=place), pb.CommandSuccess)
            case "skip":
                await subscription.skip_all()
            case "nack":  # It has no permits left for them.
                client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
            case "type":
                await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
                again = await consumer(cluster, "sub", 100, pb.CommandSubscribe.Exclusive)
                await again.deliveries(30)  # They are not counted.
            case _:
                subscription.skip_to(Position(5, 19))
        await client.settle()
        assert (limit.messages, limit.blocked, limit.full) == (0, 0, False)


async def test_the_limit_of_the_broker_is_explained(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=BROKER) as cluster:
        await singles(cluster, 60)
        client = await consumer(cluster, "sub", 20)
        await client.deliveries(20)
        client.tell(pb.CommandFlow(consumer_id=1, messagePermits=5))
        await trio.sleep(7)
        found = explain(
            subscription_of(cluster), cluster.broker.clock.now_ms(), trio.current_time()
        )
        (blocker,) = found.blockers
        assert (blocker.cause, blocker.count, blocker.limit) == ("brokerUnacked", 20, 20)
        assert found.summary.startswith("The subscriptions of this broker have 20 messages")
        assert "This one has 20, and its share is 5, for 7.0 s" in found.summary
        assert cluster.broker.topics.watch.stalled == {Cause.BROKER_UNACKED: 1}


def test_the_settings_become_the_limit() -> None:
    config = parse(
        {
            "max_unacked_messages_per_broker": 1_000,
            "max_unacked_messages_per_subscription_on_broker_blocked": 0.3,
        }
    )
    assert topic_limits(BrokerLimits(), config).unacked == UnackedLimits(1_000, 0.3)
    assert topic_limits(BrokerLimits(), parse({})).unacked == UnackedLimits(0, 0.16)
