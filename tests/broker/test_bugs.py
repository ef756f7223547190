"""An error that nobody expected costs one topic or one connection, never the broker."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.watch import DispatchWatch
from daybook.broker.topics.topic import Topic
from daybook.wire.messages.client import SendReceipt
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.broker.test_policies import broker_with
from tests.harness.broker import Client, Cluster, handlers_of, open_broker

BAD, GOOD = (TopicName.parse(name).full for name in ("bad", "good"))


def fails(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


async def fails_later(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


async def two_topics(cluster: Cluster) -> tuple[Client, Client]:
    """Return a client with a producer of the bad topic, and one with a producer of the other."""
    first, second = await cluster.client(), await cluster.client()
    await first.producer(1, topic=BAD)
    await second.producer(1, topic=GOOD)
    return first, second


async def check_damage(cluster: Cluster, good: Client, *, dropped: bool = True) -> None:
    """Check that only the bad topic is dropped, that this is counted, and that it loads again."""
    topics = cluster.broker.topics
    assert topics.bugs.found >= 1
    assert (BAD in topics.loaded) == (not dropped)
    good.send(0)
    await good.receipts(1)
    topics.bugs.found = 0
    await trio.sleep(60)
    later = await cluster.client()
    assert isinstance(await later.producer(1, topic=BAD), pb.CommandProducerSuccess)
    later.send(0)
    await later.receipts(1)
    assert not topics.bugs.found


def break_trim(topic: Topic) -> None:
    topic.log.trim = fails_later  # type: ignore[method-assign]


def break_quotas(topic: Topic) -> None:
    topic.quotas.enforce = fails_later  # type: ignore[method-assign]


@pytest.mark.parametrize("make", [break_trim, break_quotas])
async def test_a_bug_in_the_upkeep_of_a_topic_costs_that_topic(
    make: Callable[[Topic], None], autojump_clock: MockClock
) -> None:
    async with broker_with(message_ttl_s=300) as (cluster, _):
        bad, good = await two_topics(cluster)
        make(cluster.broker.topics.loaded[BAD])
        await trio.sleep(70)
        assert bad.bodies(pb.CommandCloseProducer), "its client is told"
        await check_damage(cluster, good)


async def test_a_bug_of_a_topic_that_changes_its_policies_costs_that_topic(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        _, good = await two_topics(cluster)
        topics = cluster.broker.topics
        topic = topics.loaded[BAD]
        topic.apply_policies = fails  # type: ignore[method-assign]
        topic.policies = replace(topic.policies)  # another object than the one in force
        await trio.sleep(70)
        await check_damage(cluster, good)


async def test_a_topic_that_fails_before_it_runs_is_refused_and_loads_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the clients that had asked for it waited until they gave up, and so did later ones."""
    async with open_broker() as cluster:
        good, bad = await cluster.client(), await cluster.client()
        await good.producer(1, topic=GOOD)
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "run", fails_later)
            began_s = trio.current_time()
            refused = await bad.producer(1, topic=BAD)
            assert isinstance(refused, pb.CommandError)
            assert refused.error == pb.ServiceNotReady
            assert trio.current_time() - began_s < 5
        await check_damage(cluster, good)


async def test_a_bug_where_idle_topics_are_looked_for_costs_one_topic(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Topic.is_held.fget  # type: ignore[attr-defined]
    asked = [False]

    def is_held(topic: Topic) -> bool:
        if topic.name.full == BAD and not asked[0]:
            asked[0] = True
            raise ZeroDivisionError
        return bool(held(topic))

    async with open_broker(settings={"topic_idle_unload_s": 600.0, "keep_alive_s": 1e6}) as cluster:
        _, good = await two_topics(cluster)
        monkeypatch.setattr(Topic, "is_held", property(is_held))
        await trio.sleep(150)
        assert asked[0]
        await check_damage(cluster, good)


async def test_a_bug_in_what_only_looks_at_a_topic_leaves_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates and the watch over dispatch change nothing that is stored."""
    async with open_broker() as cluster:
        bad, good = await two_topics(cluster)
        await bad.subscribe(topic=BAD)
        topics = cluster.broker.topics
        topic = topics.loaded[BAD]
        topic.tick_rates = fails  # type: ignore[method-assign]
        await trio.sleep(61)
        del topic.tick_rates
        await check_damage(cluster, good, dropped=False)
        with monkeypatch.context() as patch:
            patch.setattr(DispatchWatch, "_stalls", fails)
            await topics.watch.look()
        await check_damage(cluster, good, dropped=False)
        assert topics.loaded[BAD] is topic


async def test_a_bug_in_a_task_of_a_topic_costs_that_topic(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        _, good = await two_topics(cluster)
        cluster.broker.topics.loaded[BAD].start_task(fails_later)
        await good.settle()
        await check_damage(cluster, good)


@pytest.mark.parametrize("command", ["send", "ack", "flow", "redeliver"])
async def test_a_bug_in_a_command_costs_its_topic_and_its_connection(
    command: str, autojump_clock: MockClock
) -> None:
    """The command may have changed one half of the topic, so nobody is served from that."""
    async with open_broker() as cluster:
        bad, good = await two_topics(cluster)
        other = await cluster.client()
        await other.producer(1, topic=BAD, producer_name="other")
        await bad.subscribe(1, topic=BAD, kind=pb.CommandSubscribe.Shared)
        topic = cluster.broker.topics.loaded[BAD]
        subscription = topic.subscriptions.by_name["sub"]
        topic.append = fails  # type: ignore[method-assign]
        for name in ("ack", "flow", "redeliver"):
            setattr(subscription, name, fails)
        match command:
            case "send":
                bad.send(0)
            case "ack":
                bad.ack(0)
            case "flow":
                bad.flow(1)
            case _:
                bad.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        await good.settle()
        (error,) = cluster.broker.errors
        assert isinstance(error, ExceptionGroup)
        cluster.broker.errors.clear()
        assert bad.frames.closed
        assert not other.frames.closed
        assert other.bodies(pb.CommandCloseProducer)
        await check_damage(cluster, good)


async def test_a_bug_while_a_subscription_is_moved_costs_its_topic(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        bad, good = await two_topics(cluster)
        await bad.subscribe(1, topic=BAD)
        topic = cluster.broker.topics.loaded[BAD]
        cursor = topic.subscriptions.by_name["sub"].cursor
        cursor.reset = fails_later  # type: ignore[method-assign]
        bad.tell(pb.CommandSeek(consumer_id=1, request_id=7, message_publish_time=1))
        await good.settle()
        cluster.broker.errors.clear()
        assert topic.closed
        await check_damage(cluster, good)


async def test_a_bug_at_the_end_of_a_turn_costs_one_connection(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        bad, good = await two_topics(cluster)
        (producer,) = cluster.broker.topics.loaded[BAD].producers.by_name.values()
        producer.connection.call_at_flush(fails)
        await good.settle()
        assert bad.frames.closed
        assert cluster.broker.context.request_counts.bugs == 1
        good.send(0)
        await good.receipts(1)


async def test_a_bug_where_requests_take_turns_costs_one_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker() as cluster:
        bad, good = await two_topics(cluster)
        turns = cluster.broker.context.request_turns
        (producer,) = cluster.broker.topics.loaded[BAD].producers.by_name.values()
        queue = handlers_of(producer)._requests
        monkeypatch.setattr(queue, "begin_next", fails)
        turns.enter(queue)
        await good.settle()
        assert bad.frames.closed
        assert isinstance(await good.producer(2, topic=BAD), pb.CommandProducerSuccess)
        assert cluster.broker.context.request_counts.bugs == 1


@pytest.mark.parametrize("task", [False, True])
async def test_a_bug_of_a_topic_that_stores_nothing_costs_that_topic(
    task: bool, autojump_clock: MockClock
) -> None:
    bad, good = "non-persistent://public/default/bad", "non-persistent://public/default/good"
    async with open_broker() as cluster:
        client, topics = await cluster.client(), cluster.broker.topics
        for number, name in enumerate((bad, good)):
            await client.producer(number, topic=name)
            await client.subscribe(number, topic=name, permits=10)
        topic = topics.non_persistent.loaded[bad]
        if task:
            topic.start_task(fails_later)
        else:
            topic.subscriptions.by_name["sub"].deliver = fails  # type: ignore[method-assign]
            client.send(0, producer_id=0)
            await client.wait(SendReceipt)
        await client.settle()
        assert topic.closed
        assert topics.bugs.found == 1
        topics.bugs.found = 0
        assert bad not in topics.non_persistent.loaded
        client.send(0, producer_id=1)
        await client.wait(Delivery)
        assert isinstance(await client.producer(2, topic=bad), pb.CommandProducerSuccess)


async def test_a_bug_that_repeats_is_logged_a_few_times_and_always_counted(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        bugs, lines = cluster.broker.topics.bugs, list[str]()
        bugs._log._log = type("Lines", (), {"error": lambda _, event, **__: lines.append(event)})()
        for _ in range(10):
            with bugs.contained(TopicName.parse(BAD), "a test"):
                fails()
        assert (bugs.found, len(lines)) == (10, 3)
        bugs.found = 0
