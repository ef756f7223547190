"""Messages and subscriptions expire, quotas hold, and unused topics are deleted."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook.bookie.errors import ReadUnknownError
from daybook.broker.config import parse
from daybook.broker.dispatch.subscription import Target
from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces.policy_table import defaults
from daybook.broker.namespaces.policy_types import BacklogQuota, InactiveTopics
from daybook.broker.protocol.upkeep import Use, exceeded, is_inactive
from daybook.managed_ledger.position import Position
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.broker.test_policies import EARLIEST, SHARED, broker_with, change
from tests.harness.broker import TOPIC, Client, Cluster

HOLD, THROW, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
NAME = TopicName.parse(TOPIC)


async def publish(client: Client, numbers: range, size: int = 1) -> None:
    for number in numbers:
        client.send(number, b"x" * size)
    await client.receipts(len(numbers))


async def passes(cluster: Cluster, count: int = 1) -> None:
    """Let the time of so many passes go by."""
    del cluster
    await trio.sleep(70 * count)


def mark_delete(cluster: Cluster, name: str = "sub") -> Position:
    return cluster.broker.topics.loaded[TOPIC].subscriptions.by_name[name].cursor.mark_delete


# -- message TTL


async def test_messages_expire_and_younger_ones_do_not(autojump_clock: MockClock) -> None:
    async with broker_with(message_ttl_s=300) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await publish(client, range(3))
        await trio.sleep(200)
        await publish(client, range(3, 5))
        await trio.sleep(90)
        assert mark_delete(cluster).entry_id == -1, "nothing is 300 s old yet"
        await trio.sleep(80)
        assert mark_delete(cluster).entry_id == 2
        client.flow(10)
        assert await client.entry_ids(2) == [3, 4]
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
        assert subscription.expired == 3
        assert subscription.expired_ms > 0
        await passes(cluster, 4)
        assert mark_delete(cluster).entry_id == 4
        assert subscription.expired == 5


async def test_the_time_of_the_broker_counts_and_not_that_of_the_producer(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(message_ttl_s=300) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        client.send(0, publish_time=5)  # The clock of this client is in 1970.
        await client.receipts(1)
        await trio.sleep(200)
        assert mark_delete(cluster).entry_id == -1


async def test_system_cursors_do_not_expire(autojump_clock: MockClock) -> None:
    async with broker_with(message_ttl_s=10, deduplication=True) as (cluster, client):
        await client.producer(producer_name="p")
        await client.subscribe(initialPosition=EARLIEST)
        await publish(client, range(3))
        log = cluster.broker.log()
        compaction = await log.open_cursor("__compaction", initial=log.before_first)
        await passes(cluster)
        assert mark_delete(cluster).entry_id == 2
        assert compaction.mark_delete == log.before_first


async def test_expiry_frees_consumers_that_have_too_much_unacknowledged(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(message_ttl_s=100, max_unacked_per_consumer=2) as (cluster, client):
        await client.producer()
        await client.subscribe(kind=SHARED, permits=100, initialPosition=EARLIEST)
        await publish(client, range(2))
        assert await client.entry_ids(2) == [0, 1]
        await trio.sleep(50)
        await publish(client, range(2, 4))
        await client.settle()
        assert not client.bodies(Delivery)
        await trio.sleep(65)
        await passes(cluster, 0)
        assert await client.entry_ids(2) == [2, 3]


async def test_a_topic_whose_bookies_are_away_expires_later_and_others_do_not_wait(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(message_ttl_s=10) as (cluster, client):
        await client.producer()
        await client.producer(2, topic="other")
        await client.subscribe(initialPosition=EARLIEST)
        await client.subscribe(2, topic="other", initialPosition=EARLIEST)
        await publish(client, range(1))
        client.send(0, producer_id=2)
        await client.receipts(1)
        logs, broken = cluster.broker.logs, cluster.broker.log()
        first_stored_since = logs.first_stored_since

        async def hangs(log: Any, start: Position, since_ms: int) -> Position:
            if log is broken:
                await trio.sleep(1_000)
                raise UnavailableError(str(ReadUnknownError(5, 0, "its bookies are away")))
            return await first_stored_since(log, start, since_ms)

        logs.first_stored_since = hangs  # type: ignore[method-assign]
        await passes(cluster)
        other = cluster.broker.topics.loaded["persistent://public/default/other"]
        assert other.subscriptions.by_name["sub"].cursor.mark_delete.entry_id == 0
        assert mark_delete(cluster).entry_id == -1
        logs.first_stored_since = first_stored_since  # type: ignore[method-assign]
        await passes(cluster, 2)
        assert mark_delete(cluster).entry_id == 0


async def test_nothing_expires_while_the_subscription_is_moved(autojump_clock: MockClock) -> None:
    async with broker_with() as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await publish(client, range(3))
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
        found = trio.Event()

        async def find() -> Target:
            await found.wait()
            return Position(5, 0), None

        wait_moved = subscription.begin_move(find)
        assert subscription.skip_to(Position(5, 1)) == 0
        found.set()
        await wait_moved()
        assert subscription.skip_to(Position(5, 1)) == 2
        assert subscription.skip_to(Position(5, 0)) == 0, "a cursor never goes back"
        subscription.drop()
        assert subscription.skip_to(Position(5, 2)) == 0


# -- subscriptions


async def test_a_subscription_that_nobody_uses_is_deleted(autojump_clock: MockClock) -> None:
    async with broker_with(subscription_expiry_minutes=10) as (cluster, client):
        await client.subscribe(1, name="used")
        await client.subscribe(2, name="left")
        await trio.sleep(900)
        subscriptions = cluster.broker.topics.loaded[TOPIC].subscriptions
        client.tell(pb.CommandCloseConsumer(consumer_id=2, request_id=50))
        await trio.sleep(500)
        assert set(subscriptions.by_name) == {"used", "left"}
        await trio.sleep(200)
        assert set(subscriptions.by_name) == {"used"}
        assert set(cluster.broker.log().by_name) == {"used"}


# -- backlog quotas


def quota(policy: Any, *, size: int = -1, age_s: int = -1) -> BacklogQuota:
    return BacklogQuota(limit_size=size, limit_time=age_s, policy=policy)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (HOLD, pb.ProducerBlockedQuotaExceededError),
        (THROW, pb.ProducerBlockedQuotaExceededException),
    ],
)
async def test_a_large_backlog_keeps_producers_out_until_there_is_room(
    policy: str, code: int, autojump_clock: MockClock
) -> None:
    async with broker_with(size_quota=quota(policy, size=500)) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST, permits=10)
        await publish(client, range(3), size=300)
        await client.deliveries(3)
        assert not client.bodies(pb.CommandCloseProducer)
        await passes(cluster)
        await client.wait(pb.CommandCloseProducer)
        began = trio.current_time()
        refused = await client.producer(2)
        assert refused.error == code
        assert "quota" in refused.message
        assert trio.current_time() - began < (6 if policy == HOLD else 0.1)
        client.ack(0, 1, 2)
        await client.settle(1)
        assert isinstance(await client.producer(2), pb.CommandProducerSuccess)


async def test_a_producer_that_waits_is_opened_when_there_is_room(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(size_quota=quota(HOLD, size=500)) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST, permits=10)
        await publish(client, range(3), size=300)
        await passes(cluster)
        client.tell(pb.CommandProducer(topic=TOPIC, producer_id=2, request_id=700))
        await client.settle(2)
        assert not client.bodies(pb.CommandProducerSuccess)
        # Its request holds up nobody: a lookup of the same connection is answered.
        assert isinstance(await client.producer(3, topic="other"), pb.CommandProducerSuccess)
        client.ack(0, 1, 2)
        with trio.fail_after(2):
            (success,) = await client.wait(pb.CommandProducerSuccess)
        assert success.request_id == 700


async def test_what_was_sent_before_a_producer_is_closed_gets_its_receipt(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(size_quota=quota(HOLD, size=500)) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await publish(client, range(3), size=300)
        log = cluster.broker.log()
        log.held = True
        client.send(3)
        await trio.sleep(55)
        with trio.fail_after(20):
            (producer,) = cluster.broker.topics.loaded[TOPIC].producers.by_name.values()
            while not producer.stopping:  # noqa: ASYNC110
                await trio.sleep(0.1)
        client.send(4)  # The broker takes it no more: the client will repeat it.
        await client.settle()
        log.release()
        await client.wait(pb.CommandCloseProducer)
        assert [r.sequence_id for r in client.bodies(SendReceipt)] == [3]
        assert len(log.entries) == 4


async def test_the_oldest_messages_of_a_large_backlog_are_evicted(
    autojump_clock: MockClock,
) -> None:
    async with broker_with(size_quota=quota(EVICT, size=2_000)) as (cluster, client):
        await client.producer()
        await client.subscribe(1, name="behind", initialPosition=EARLIEST)
        await client.subscribe(2, name="fine", initialPosition=EARLIEST)
        await publish(client, range(10), size=300)
        topic = cluster.broker.topics.loaded[TOPIC]
        topic.subscriptions.by_name["fine"].skip_to(Position(5, 7))
        await passes(cluster)
        left = topic.log.behind(mark_delete(cluster, "behind")).bytes
        assert 1_300 < left <= 1_800
        assert mark_delete(cluster, "fine").entry_id == 7
        assert topic.quotas.evictions == {"size": 1}
        assert not client.bodies(pb.CommandCloseProducer)


async def test_an_old_backlog_is_evicted_by_age(autojump_clock: MockClock) -> None:
    async with broker_with(age_quota=quota(EVICT, age_s=100)) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await publish(client, range(2))
        await trio.sleep(80)
        await publish(client, range(2, 4))
        await trio.sleep(95)
        assert mark_delete(cluster).entry_id == 1
        assert cluster.broker.topics.loaded[TOPIC].quotas.evictions == {"time": 1}


async def test_an_old_backlog_keeps_producers_out(autojump_clock: MockClock) -> None:
    async with broker_with(age_quota=quota(THROW, age_s=100)) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST, permits=5)
        await publish(client, range(1))
        await passes(cluster, 3)
        await client.wait(pb.CommandCloseProducer)
        refused = await client.producer(2)
        assert refused.error == pb.ProducerBlockedQuotaExceededException
        client.ack(0)
        await client.settle(1)
        assert isinstance(await client.producer(2), pb.CommandProducerSuccess)


async def test_all_producers_that_wait_share_one_look_at_the_backlog(
    autojump_clock: MockClock,
) -> None:
    """The age of a backlog is read from bookies, and those may be slow."""
    async with broker_with(age_quota=quota(HOLD, age_s=100)) as (cluster, client):
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await publish(client, range(1))
        topic, logs = cluster.broker.topics.loaded[TOPIC], cluster.broker.logs
        reads, real = 0, logs.stored_ms
        await trio.sleep(1)  # The answer for the first producer is old then.

        async def slow(*args: Any) -> int | None:
            nonlocal reads
            reads += 1
            await trio.sleep(2)
            return await real(*args)

        logs.stored_ms = slow  # type: ignore[method-assign, assignment]
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(topic.quotas.wait_room, lambda: None)
        assert reads == 1


async def test_system_cursors_count_for_no_quota(autojump_clock: MockClock) -> None:
    async with broker_with(size_quota=quota(THROW, size=500)) as (cluster, client):
        await client.producer()
        log = cluster.broker.log()
        await log.open_cursor("__compaction", initial=log.before_first)
        await publish(client, range(5), size=300)
        await passes(cluster)
        assert isinstance(await client.producer(2), pb.CommandProducerSuccess)
        assert not client.bodies(pb.CommandCloseProducer)


def test_a_quota_of_zero_means_that_there_may_be_no_backlog() -> None:
    below = defaults(parse({}))
    none = replace(below, size_quota=quota(HOLD, size=0), age_quota=quota(HOLD, age_s=0))
    assert exceeded(none, 0, None) == []
    assert len(exceeded(none, 1, 0.5)) == 2
    assert exceeded(below, 1 << 60, 1e9) == []


# -- inactive topics


GONE = InactiveTopics("delete_when_no_subscriptions", 300, delete_while_inactive=True)
CAUGHT_UP = InactiveTopics("delete_when_subscriptions_caught_up", 300, delete_while_inactive=True)


async def test_an_empty_topic_that_nobody_uses_is_deleted(autojump_clock: MockClock) -> None:
    async with broker_with(inactive_topics=GONE) as (cluster, client):
        await client.producer()
        await passes(cluster, 8)
        assert NAME in cluster.broker.logs.by_name, "it is in use"
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=50))
        await passes(cluster, 2)
        assert NAME in cluster.broker.logs.by_name
        await passes(cluster, 6)
        assert NAME not in cluster.broker.logs.by_name
        assert isinstance(await client.producer(2), pb.CommandProducerSuccess)


async def test_a_message_that_comes_at_the_last_moment_keeps_the_topic(
    autojump_clock: MockClock,
) -> None:
    """The decision to delete is looked at again when nobody can publish any more."""
    async with broker_with(inactive_topics=GONE) as (cluster, client):
        await client.producer()
        topics = cluster.broker.topics
        topic = topics.loaded[TOPIC]
        topic.policies = replace(topic.policies, inactive_topics=GONE)
        topic.used_ms = 0
        for producer in list(topic.producers.by_name.values()):
            topic.producers.remove(producer)
        log = cluster.broker.log()
        log.held = True
        topic.append(memoryview(b"x"), 1, _Nobody(), is_chunk=False)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topics._delete_unused, topic)
            await trio.sleep(0.1)
        assert NAME in cluster.broker.logs.by_name
        assert log.closed


class _Nobody:
    def stored(self, position: Position | None, error: Exception | None) -> None:
        pass


USE = Use(
    in_use=False,
    partition=False,
    retained=False,
    subscriptions=0,
    backlogs=0,
    remembered=0,
    idle_s=1_000,
)


@pytest.mark.parametrize(
    "used",
    [
        {"in_use": True},
        {"partition": True},
        {"retained": True},
        {"backlogs": 1, "subscriptions": 1},
        {"remembered": 1},
        {"idle_s": 299},
    ],
    ids=str,
)
def test_a_topic_that_somebody_may_need_is_never_inactive(used: dict[str, Any]) -> None:
    for mode in (GONE, CAUGHT_UP):
        policies = replace(defaults(parse({})), inactive_topics=mode)
        assert is_inactive(policies, USE)
        assert not is_inactive(policies, replace(USE, **used))


def test_a_subscription_keeps_a_topic_unless_the_policy_says_otherwise() -> None:
    policies = replace(defaults(parse({})), inactive_topics=GONE)
    idle = replace(USE, subscriptions=1)
    assert not is_inactive(policies, idle)
    assert is_inactive(replace(policies, inactive_topics=CAUGHT_UP), idle)


@given(use=st.builds(Use), off=st.sampled_from([InactiveTopics(), None]))
def test_by_default_no_topic_is_inactive(use: Use, off: InactiveTopics | None) -> None:
    policies = defaults(parse({}))
    assert not is_inactive(policies, USE)
    assert not is_inactive(policies if off is None else replace(policies, inactive_topics=off), use)


async def test_the_time_begins_when_the_policy_is_set(autojump_clock: MockClock) -> None:
    async with broker_with() as (cluster, client):
        await client.producer()
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=50))
        await passes(cluster, 20)
        await change(cluster, inactive_topics=GONE)
        await passes(cluster, 2)
        assert NAME in cluster.broker.logs.by_name
        await passes(cluster, 6)
        assert NAME not in cluster.broker.logs.by_name
