"""Patterns that follow the broker's list of topics: a broker of ours, logs in memory."""

import re

import pytest
import trio
from trio.testing import MockClock

from daybook.clients.python import topic_watch
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.topic_choice import TopicPattern
from daybook.wire.topics import TopicName
from tests.broker.test_topic_watchers import topics_of
from tests.clients.python.real_broker import client_of, real_broker
from tests.clients.python.test_multi_topic import receive, send
from tests.harness.broker import Cluster

FULL = "persistent://public/default/"
QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


async def create(cluster: Cluster, name: str) -> None:
    """Put a topic into the metadata store, as its log does."""
    await topics_of(cluster).create(name)


async def test_a_new_topic_is_consumed_within_a_second(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(re.compile("orders-.*"), "s", discovery_s=3600)
        await create(cluster, "others-1")
        await send(client, "orders-1", 3)  # before the consumer knows the topic
        await create(cluster, "orders-1")
        began = trio.current_time()
        assert await receive(consumer, 3) == [f"orders-1 {n}" for n in range(3)]
        assert trio.current_time() - began < 1
        assert consumer.topics == [FULL + "orders-1"]


async def test_another_broker_is_asked_when_the_connection_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(re.compile("orders-.*"), "s", discovery_s=3600)
        await trio.sleep(1)
        (await client._pool.service()).close("lost, says the test")
        await send(client, "orders-1", 1)
        await create(cluster, "orders-1")
        began = trio.current_time()
        assert await receive(consumer, 1) == ["orders-1 0"]
        assert trio.current_time() - began < 5


async def test_a_topic_that_cannot_be_opened_yet_is_tried_again_soon(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(re.compile("orders-.*"), "s", discovery_s=3600)
        other = await client.subscribe("orders-1", "s")  # It has the subscription for itself.
        await create(cluster, "orders-1")
        await trio.sleep(5)
        assert consumer.topics == []
        await other.aclose()
        await send(client, "orders-1", 1)
        with trio.fail_after(20):
            assert await receive(consumer, 1) == ["orders-1 0"]


async def test_a_topic_that_vanishes_leaves(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        await send(client, "orders-1", 1)
        consumer = await client.subscribe(
            re.compile("orders-.*"), "s", initial_position="earliest", discovery_s=3600
        )
        assert await receive(consumer, 1) == ["orders-1 0"]
        await cluster.broker.topics.delete(TopicName.parse("orders-1"), force=True)
        await trio.sleep(2)
        assert consumer.topics == []


async def test_without_watchers_topics_are_looked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An expression that the broker refuses.
    monkeypatch.setattr(topic_watch, "expression_for", lambda _: "(?=x)")
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(re.compile("orders-.*"), "s", discovery_s=30)
        await create(cluster, "orders-1")
        await send(client, "orders-1", 1)
        began = trio.current_time()
        assert await receive(consumer, 1) == ["orders-1 0"]
        assert 25 < trio.current_time() - began < 40


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("orders-.*", "public/default/orders-.*"),
        ("orders?", "public/default/order.*"),
        ("a|b", "public/default/.*"),
        ("(a|b)c", "public/default/.*"),
        ("a*", "public/default/.*"),
        ("(?i)orders-.*", "public/default/.*"),
        ("shop.x/eu/orders-.*", r"shop\.x/eu/orders-.*"),
        ("persistent://shop/eu/orders-.*", "shop/eu/orders-.*"),
        (r"a\.b", "public/default/a.*"),
        ("a" * 60, "public/default/" + "a" * 16 + ".*"),
    ],
)
def test_the_expression_for_brokers_matches_at_least_what_the_pattern_does(
    pattern: str, expression: str
) -> None:
    parsed = TopicPattern.parse(re.compile(pattern))
    assert topic_watch.expression_for(parsed) == f"persistent://{expression}"
