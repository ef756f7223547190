"""The watch over subscriptions, and what `explain` says about each thing that can block one."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch import watch as watch_module
from daybook.broker.dispatch.explain import Explanation, blockers, explain
from daybook.broker.dispatch.subscription import Subscription, Target
from daybook.broker.limits import ConnectionLimits, TopicLimits
from daybook.broker.protocol.dispatch.blockers import Blocker, Cause
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.managed_ledger.position import Position
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness import stream
from tests.harness.broker import TOPIC, Client, Cluster, open_broker
from tests.harness.clocks import EPOCH_MS

EARLIEST = pb.CommandSubscribe.Earliest
SHARED, FAILOVER = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover
FEW = TopicLimits(
    dispatch=DispatchLimits(unacked_messages_max=4, subscription_unacked_messages_max=6)
)


def subscription_of(cluster: Cluster) -> Subscription:
    return cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")


def explained(cluster: Cluster) -> Explanation:
    return explain(subscription_of(cluster), cluster.broker.clock.now_ms(), trio.current_time())


def causes(found: Explanation) -> list[str]:
    return [each.cause for each in found.blockers]


async def publish(cluster: Cluster, count: int, **meta: Any) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send(n, **meta)
    await client.receipts(count)
    return client


async def test_without_consumers_it_says_since_when(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        await client.subscribe(initialPosition=EARLIEST)
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        await trio.sleep(30)
        found = explained(cluster)
        assert causes(found) == ["noConsumers"]
        assert found.waiting_to_send
        assert found.summary.startswith("No consumer is connected, for 30.0 s")


async def test_without_permits_it_names_the_consumer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 5)
        await client.subscribe(initialPosition=EARLIEST, permits=2, consumer_name="slow")
        await client.deliveries(2)
        await trio.sleep(12)
        found = explained(cluster)
        assert causes(found) == ["noPermits"]
        (blocker,) = found.blockers
        assert (blocker.consumer, blocker.count) == ("slow", 0)
        assert "the consumer slow" in found.summary.lower()
        assert "for 12.0 s" in found.summary
        # The client does not want more: that is no stall.
        assert (found.stalled_s, cluster.broker.topics.watch.stalls) == (None, 0)


async def test_too_many_unacknowledged_messages_name_the_limit_and_the_oldest(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(topic_limits=FEW) as cluster:
        client = await publish(cluster, 20)
        await client.subscribe(
            initialPosition=EARLIEST, kind=SHARED, permits=100, consumer_name="keeps"
        )
        await client.deliveries(4)
        client.ack(0)
        await trio.sleep(7)
        found = explained(cluster)
        (blocker,) = found.blockers
        assert (blocker.cause, blocker.consumer) == ("consumerUnacked", "keeps")
        assert (blocker.count, blocker.limit, blocker.position) == (3, 4, "5:1")
        (holder,) = found.holders
        assert (holder.unacked_messages, holder.oldest) == (3, "5:1")
        # It has permits, there are messages, and nothing is sent: the operator hears of it.
        watch = cluster.broker.topics.watch
        assert (watch.stalls, watch.stalled) == (1, {Cause.CONSUMER_UNACKED: 1})
        client.ack(1)
        await client.deliveries(4 - 2)
        await trio.sleep(2)
        assert not watch.stalled[Cause.UNKNOWN]


async def test_the_watch_asks_rarely_why_a_stall_lasts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Subscription] = []

    def counted(subscription: Subscription) -> list[Blocker]:
        asked.append(subscription)
        return blockers(subscription)

    monkeypatch.setattr(watch_module, "blockers", counted)
    async with open_broker(topic_limits=FEW) as cluster:
        client = await publish(cluster, 20)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=100)
        await client.deliveries(4)
        await trio.sleep(45)  # some thirty samples of the stall
        assert cluster.broker.topics.watch.stalled == {Cause.CONSUMER_UNACKED: 1}
        assert 2 <= len(asked) <= 5


@pytest.mark.parametrize("at_ms", [1 << 62, (1 << 63) - 1])
async def test_a_message_for_a_time_that_no_calendar_has_is_no_harm(
    autojump_clock: MockClock, at_ms: int
) -> None:
    """The watch explained the stall of a subscription with such a message, and ended the broker."""
    async with open_broker(topic_limits=FEW) as cluster:
        client = await publish(cluster, 1, deliver_at_time=at_ms)
        for n in range(1, 20):
            client.send(n)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=100)
        await client.deliveries(4)
        await trio.sleep(7)
        assert cluster.broker.topics.watch.stalls == 1
        delayed = explained(cluster).blockers[-1]
        assert (delayed.cause, delayed.position) == ("delayed", "5:0")
        assert str(at_ms) in (delayed.until or "")


async def test_all_consumers_together_may_have_too_many(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=FEW) as cluster:
        client = await publish(cluster, 20)
        for consumer_id in (1, 2):
            await client.subscribe(consumer_id, initialPosition=EARLIEST, kind=SHARED, permits=100)
        await client.deliveries(6)
        found = explained(cluster)
        assert found.blockers[0].cause == "subscriptionUnacked"
        assert (found.blockers[0].count, found.blockers[0].limit) == (6, 6)
        assert found.summary == found.blockers[0].text


async def test_a_full_connection_names_its_client(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BUFFER_BYTES_MAX", 10_000)
    limits = ConnectionLimits(dispatch_bytes_max=20_000)
    async with open_broker(connection_limits=limits) as cluster:
        sender = await publish(cluster, 20, data=b"x" * 5_000)
        deaf = await cluster.client()
        await deaf.subscribe(initialPosition=EARLIEST, consumer_name="deaf")
        deaf.reading = False
        deaf.flow(1_000)
        await sender.settle(8)
        found = explained(cluster)
        assert causes(found) == ["connectionFull"]
        assert found.blockers[0].consumer == "deaf"
        assert cluster.broker.topics.watch.stalled == {Cause.CONNECTION_FULL: 1}


async def test_delayed_messages_say_when_the_next_is_due(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        at_ms = EPOCH_MS + 3_600_000
        client = await publish(cluster, 3, deliver_at_time=at_ms)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=100)
        await trio.sleep(20)
        found = explained(cluster)
        (blocker,) = found.blockers
        assert (blocker.cause, blocker.count, blocker.position) == ("delayed", 3, "5:0")
        assert found.summary.startswith("Everything that is due is delivered. 3 entries wait")
        assert cluster.broker.topics.watch.stalls == 0


async def test_a_read_that_hangs_names_ledger_and_bookies(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        log = cluster.broker.log()

        async def hang(*_: object, **__: object) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(log, "read", hang)
        await client.subscribe(initialPosition=EARLIEST, permits=100)
        await trio.sleep(9)
        found = explained(cluster)
        assert causes(found) == ["reading"]
        assert found.blockers[0].position == "5:0"
        assert "ledger 5 on the bookies b1, b2, b3" in found.summary
        assert "for 9." in found.summary
        assert cluster.broker.topics.watch.stalled == {Cause.READING: 1}


async def test_a_read_that_fails_gives_its_error(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        cluster.broker.log().reads_to_fail = 1_000_000
        await client.subscribe(initialPosition=EARLIEST, permits=100)
        await trio.sleep(9)
        found = explained(cluster)
        assert causes(found) == ["readFails"]
        assert "its bookies are away" in found.summary
        cluster.broker.log().reads_to_fail = 0
        await client.deliveries(3)
        await trio.sleep(2)
        assert cluster.broker.topics.watch.stalled == {}
        assert cluster.broker.topics.watch.stalls == 1
        assert not explained(cluster).blockers


async def test_a_subscription_that_is_moved_says_so(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        await client.subscribe(initialPosition=EARLIEST)
        gate = trio.Event()

        async def find() -> Target:
            await gate.wait()
            return Position(5, 1), None

        move = subscription_of(cluster).begin_move(find)
        found = explained(cluster)
        assert causes(found)[0] == "moving"
        gate.set()
        await move()


async def test_what_is_delivered_and_not_acknowledged_is_no_stall(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=100)
        await client.deliveries(3)
        await trio.sleep(60)
        found = explained(cluster)
        assert (found.waiting_to_send, found.msg_backlog) == (False, 3)
        assert found.summary.startswith("Everything is delivered.")
        assert cluster.broker.topics.watch.stalls == 0
        client.ack(0, 1, 2)
        await trio.sleep(1)
        assert "acknowledged everything" in explained(cluster).summary


async def test_a_stall_without_a_cause_is_called_a_bug(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 1)
        await client.subscribe(initialPosition=EARLIEST, permits=100)
        await client.deliveries(1)
        cluster.broker.topics.loaded[TOPIC]._call_when_appended.clear()  # a wake-up is lost
        client.send(1)
        await trio.sleep(8)
        assert cluster.broker.topics.watch.stalled == {Cause.UNKNOWN: 1}
        assert "this is a bug" in explained(cluster).summary


async def test_a_standby_consumer_with_permits_does_not_make_a_stall(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await publish(cluster, 3)
        await client.subscribe(
            initialPosition=EARLIEST, kind=FAILOVER, permits=1, consumer_name="a"
        )
        await client.subscribe(2, kind=FAILOVER, permits=100, consumer_name="b")
        await trio.sleep(20)
        found = explained(cluster)
        active = subscription_of(cluster).dispatch.active
        assert active is not None
        if found.blockers:  # The consumer without permits is the active one.
            assert causes(found) == ["noPermits"]
            assert cluster.broker.topics.watch.stalls == 0


@pytest.mark.parametrize("stalled_s", [5.0, 50.0])
async def test_the_time_of_a_stall_is_a_limit(autojump_clock: MockClock, stalled_s: float) -> None:
    async with open_broker(topic_limits=replace(FEW, stalled_s=stalled_s)) as cluster:
        client = await publish(cluster, 20)
        await client.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=100)
        await trio.sleep(stalled_s * 0.9)  # The watch has looked several times by now.
        assert cluster.broker.topics.watch.stalls == 0
        await trio.sleep(stalled_s)
        assert cluster.broker.topics.watch.stalls == 1
