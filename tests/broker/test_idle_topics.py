"""Topics that nobody uses leave memory, and come back with everything when somebody asks."""

from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook.broker.config import parse
from daybook.broker.namespaces.policy_table import EffectivePolicies, defaults
from daybook.broker.namespaces.policy_types import BacklogQuota, InactiveTopics
from daybook.broker.protocol.idle import REMEMBERED_S, Presence, has_work_to_come, may_unload
from daybook.broker.protocol.upkeep import Use
from daybook.broker.topics.topic import Topic
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.broker.test_policies import EARLIEST, SHARED, change
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

IDLE_S = 100.0
SETTINGS = {"keep_alive_s": 1e6, "topic_idle_unload_s": IDLE_S}
NAME = TopicName.parse(TOPIC)
PLAIN = defaults(parse({}))


def is_loaded(cluster: Cluster) -> bool:
    return TOPIC in cluster.broker.topics.loaded


async def leave(client: Client, *, producer: int = 0, consumer: int = 0) -> None:
    if producer:
        await client.ask(pb.CommandCloseProducer(producer_id=producer), pb.CommandSuccess)
    if consumer:
        await client.ask(pb.CommandCloseConsumer(consumer_id=consumer), pb.CommandSuccess)


async def publish(client: Client, numbers: range) -> None:
    for number in numbers:
        client.send(number)
    await client.receipts(len(numbers))


async def test_a_topic_leaves_memory_when_nobody_has_used_it_for_long_enough(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await trio.sleep(3 * IDLE_S)
        assert is_loaded(cluster), "a producer and a consumer are connected"
        await leave(client, producer=1)
        await trio.sleep(3 * IDLE_S)
        assert is_loaded(cluster), "a consumer is connected"
        await leave(client, consumer=1)
        await trio.sleep(IDLE_S * 0.7)
        assert is_loaded(cluster), "the time begins when the last one has left"
        await trio.sleep(IDLE_S * 0.6)
        assert not is_loaded(cluster)


async def test_a_question_about_a_topic_keeps_it_in_memory(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        topic = await cluster.broker.topics.get(NAME, create=True)
        for _ in range(10):
            await trio.sleep(IDLE_S * 0.9)
            assert await cluster.broker.topics.get(NAME, create=False) is topic
        await trio.sleep(IDLE_S * 1.3)
        assert topic.closed


async def test_the_next_use_finds_the_messages_and_the_subscription_where_it_was(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=10, initialPosition=EARLIEST)
        await publish(client, range(3))
        ids = await client.entry_ids(3)
        client.ack(ids[0])
        await client.settle()
        await leave(client, producer=1, consumer=1)
        await trio.sleep(2 * IDLE_S)
        assert not is_loaded(cluster)
        await client.subscribe(2, permits=10)
        assert await client.entry_ids(2) == ids[1:]


async def test_without_the_setting_topics_stay(autojump_clock: MockClock) -> None:
    async with open_broker(settings={**SETTINGS, "topic_idle_unload_s": 0}) as cluster:
        topic = await cluster.broker.topics.get(NAME, create=True)
        await trio.sleep(100 * IDLE_S)
        assert topic.serving


async def test_a_client_that_comes_during_the_close_waits_and_gets_the_topic(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, may_end, close = trio.Event(), trio.Event(), Topic.close

    async def slow(topic: Topic) -> None:
        await close(topic)
        closing.set()
        await may_end.wait()

    monkeypatch.setattr(Topic, "close", slow)
    async with open_broker(settings=SETTINGS) as cluster:
        client = await cluster.client()
        before = await cluster.broker.topics.get(NAME, create=True)
        await closing.wait()
        client.tell(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7))
        await client.settle()
        assert not client.bodies(pb.CommandError)
        may_end.set()
        await client.wait(pb.CommandProducerSuccess)
        assert cluster.broker.topics.loaded[TOPIC] is not before
        await publish(client, range(1))


async def test_a_client_that_comes_before_the_close_begins_keeps_the_topic(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        topics = cluster.broker.topics
        topic = await topics.get(NAME, create=True)
        await trio.sleep(IDLE_S * 0.7)
        topic.asked_s -= IDLE_S
        topics.rest(NAME)
        # The task that closes it has not run yet.
        assert await topics.get(NAME, create=False) is topic
        await trio.sleep(IDLE_S * 0.5)
        assert topic.serving
        assert await topics.get(NAME, create=False) is topic


async def test_a_topic_that_waits_for_an_exclusive_producer_stays(
    autojump_clock: MockClock,
) -> None:
    """The producer that waits has no place in the topic yet."""
    async with open_broker(settings=SETTINGS) as cluster:
        topic = await cluster.broker.topics.get(NAME, create=True)
        topic.producers.arriving += 1
        await trio.sleep(3 * IDLE_S)
        assert topic.serving
        topic.producers.arriving -= 1
        await trio.sleep(2 * IDLE_S)
        assert topic.closed


async def test_a_subscription_whose_messages_will_expire_keeps_its_topic_until_they_have(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)
        await change(cluster, message_ttl_s=1000)
        await publish(client, range(2))
        await leave(client, producer=1, consumer=1)
        await trio.sleep(900)
        assert is_loaded(cluster)
        await trio.sleep(400)
        assert not is_loaded(cluster)
        await client.subscribe(2, permits=10)
        await publish_to_new(client)
        assert len(await client.entry_ids(1)) == 1, "only the new message is there"


async def publish_to_new(client: Client) -> None:
    await client.producer(5)
    client.send(0, producer_id=5)
    await client.receipts(1)


async def test_counts_of_redeliveries_keep_a_topic_for_an_hour(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=SHARED, permits=10, initialPosition=EARLIEST)
        await publish(client, range(1))
        await client.entry_ids(1)
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        await client.entry_ids(1)
        await leave(client, producer=1, consumer=1)
        await trio.sleep(REMEMBERED_S - 2 * IDLE_S)
        assert is_loaded(cluster)
        await trio.sleep(4 * IDLE_S)
        assert not is_loaded(cluster)


# -- the rule

NOBODY = Use(
    in_use=False,
    partition=False,
    retained=True,
    subscriptions=0,
    backlogs=0,
    remembered=0,
    idle_s=1e9,
)
GONE = InactiveTopics("delete_when_no_subscriptions", 300, delete_while_inactive=True)
CAUGHT_UP = InactiveTopics("delete_when_subscriptions_caught_up", 300, delete_while_inactive=True)
EVICT = BacklogQuota(limit_time=60, policy="consumer_backlog_eviction")
HOLD = BacklogQuota(limit_time=60, policy="producer_request_hold")

WORK: list[tuple[EffectivePolicies, Use, bool]] = [
    (PLAIN, replace(NOBODY, subscriptions=1, backlogs=1), False),
    (replace(PLAIN, message_ttl_s=5), replace(NOBODY, subscriptions=1, backlogs=1), True),
    (replace(PLAIN, message_ttl_s=5), replace(NOBODY, subscriptions=1), False),
    (replace(PLAIN, subscription_expiry_minutes=5), replace(NOBODY, subscriptions=1), True),
    (replace(PLAIN, subscription_expiry_minutes=5), NOBODY, False),
    (replace(PLAIN, age_quota=EVICT), replace(NOBODY, subscriptions=1, backlogs=1), True),
    (replace(PLAIN, age_quota=EVICT), replace(NOBODY, subscriptions=1), False),
    (replace(PLAIN, age_quota=HOLD), replace(NOBODY, subscriptions=1, backlogs=1), False),
    (replace(PLAIN, inactive_topics=GONE), NOBODY, False),
    (replace(PLAIN, inactive_topics=GONE), replace(NOBODY, retained=False), True),
    (
        replace(PLAIN, inactive_topics=GONE),
        replace(NOBODY, retained=False, subscriptions=1),
        False,
    ),
    (
        replace(PLAIN, inactive_topics=CAUGHT_UP),
        replace(NOBODY, retained=False, subscriptions=1),
        True,
    ),
    (
        replace(PLAIN, inactive_topics=CAUGHT_UP),
        replace(NOBODY, retained=False, subscriptions=1, backlogs=1),
        False,
    ),
    (replace(PLAIN, inactive_topics=GONE), replace(NOBODY, retained=False, partition=True), False),
    (replace(PLAIN, inactive_topics=GONE), replace(NOBODY, retained=False, remembered=1), False),
]


@pytest.mark.parametrize(("policies", "use", "expected"), WORK)
def test_policies_that_time_alone_brings_to_act_keep_a_topic(
    policies: EffectivePolicies, use: Use, *, expected: bool
) -> None:
    assert has_work_to_come(policies, use) is expected
    presence = Presence(asked_s=1e9, busy=False, remembers=False, use=use)
    assert may_unload(policies, presence, 100.0) is not expected


@given(
    asked_s=st.floats(0, 1e5),
    busy=st.booleans(),
    remembers=st.booleans(),
    in_use=st.booleans(),
)
def test_a_topic_rests_only_if_nothing_speaks_against_it(
    *, asked_s: float, busy: bool, remembers: bool, in_use: bool
) -> None:
    presence = Presence(asked_s, busy, remembers, replace(NOBODY, in_use=in_use))
    needed_s = REMEMBERED_S if remembers else 100.0
    expected = asked_s >= needed_s and not busy and not in_use
    assert may_unload(PLAIN, presence, 100.0) is expected
    assert not may_unload(PLAIN, presence, 0.0)
