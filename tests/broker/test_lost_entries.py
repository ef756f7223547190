"""An entry of which no copy can be read: it is never skipped, and holds up as little as it can."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.explain import explain
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.protocol.dispatch.unreadable import ASIDE_MAX, PATIENCE_S, Unreadable
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

EARLIEST = pb.CommandSubscribe.Earliest
SHARED, FAILOVER = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover
EXCLUSIVE, KEY_SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Key_Shared
SETTINGS = {"keep_alive_s": 1e6}


def subscription_of(cluster: Cluster) -> Subscription:
    return cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")


def causes(cluster: Cluster) -> dict[str, str | None]:
    found = explain(subscription_of(cluster), cluster.broker.clock.now_ms(), trio.current_time())
    return {each.cause: each.position for each in found.blockers if "read" in each.cause}


async def consumer(
    cluster: Cluster, lost: set[int], kind: Any, count: int = 5, **meta: Any
) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send(n, **meta)
    await client.receipts(count)
    cluster.broker.log().lost |= lost
    await client.subscribe(kind=kind, initialPosition=EARLIEST, permits=100)
    return client


def got(client: Client) -> list[int]:
    found = [each.entry_id for each in client.bodies(Delivery)]
    client.got.clear()
    return found


async def test_new_entries_of_a_shared_subscription_go_on_behind_it(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await consumer(cluster, {1, 2}, SHARED)
        await trio.sleep(PATIENCE_S - 1)
        assert got(client) == [0]
        assert causes(cluster) == {"readFails": "5:1"}
        await trio.sleep(PATIENCE_S * 3)
        assert got(client) == [], "the entry behind it cannot be read either: perhaps none can"
        cluster.broker.log().lost.discard(2)
        await trio.sleep(2)
        assert got(client) == [2, 3, 4]
        assert causes(cluster) == {"unreadable": "5:1"}
        watch = cluster.broker.topics.watch
        await watch.look()
        assert watch.unreadable == 1
        assert subscription_of(cluster).cursor.mark_delete == Position(5, -1)
        cluster.broker.log().lost.clear()
        await trio.sleep(6)
        assert got(client) == [1], "it comes when it can be read again"
        await watch.look()
        assert watch.unreadable == 0
        assert not subscription_of(cluster).dispatcher.unreadable.all


async def test_an_entry_at_the_end_is_waited_for(autojump_clock: MockClock) -> None:
    """Nothing shows that others can be read, and nobody waits for them."""
    async with open_broker(settings=SETTINGS) as cluster:
        client = await consumer(cluster, {4}, SHARED)
        await trio.sleep(60)
        assert got(client) == [0, 1, 2, 3]
        assert causes(cluster) == {"readFails": "5:4"}
        client.send(9)
        await trio.sleep(2)
        assert [each for each in got(client) if each > 3] == [5]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_an_entry_that_came_back_is_put_aside_at_once(
    kind: Any, autojump_clock: MockClock
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await consumer(cluster, set(), kind, partition_key="k")
        assert await client.entry_ids(5) == [0, 1, 2, 3, 4]
        cluster.broker.log().lost = {1, 3}
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        client.send(5, partition_key="k")
        await trio.sleep(1)
        # All have the same key: those of a key_shared subscription wait for the first lost one.
        assert got(client) == ([0, 2, 4, 5] if kind == SHARED else [0])
        assert (5, 1) in subscription_of(cluster).dispatcher.unreadable.aside
        client.ack(1)  # An administrator may do that, too.
        await trio.sleep(6)
        assert got(client) == ([] if kind == SHARED else [2])
        cluster.broker.log().lost.clear()
        await trio.sleep(6)
        assert got(client) == ([3] if kind == SHARED else [3, 4, 5])


async def test_other_keys_go_on(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await consumer(cluster, set(), KEY_SHARED, 2, partition_key="a")
        await client.entry_ids(2)
        cluster.broker.log().lost = {0}
        client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        for n in range(2, 4):
            client.send(n, partition_key="b")
        await trio.sleep(1)
        assert got(client) == [2, 3]
        cluster.broker.log().lost.clear()
        await trio.sleep(6)
        assert got(client) == [0, 1]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, KEY_SHARED])
async def test_where_order_is_promised_the_subscription_waits(
    kind: Any, autojump_clock: MockClock
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await consumer(cluster, {1}, kind)
        await trio.sleep(60)
        assert got(client) == [0]
        assert causes(cluster) == {"readFails": "5:1"}
        await subscription_of(cluster).acknowledge(Position(5, 1))
        await trio.sleep(2)
        assert got(client) == [2, 3, 4], "it is acknowledged, so nobody has to read it"
        assert causes(cluster) == {}


async def test_a_consumer_that_comes_later_finds_it_again(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        client = await consumer(cluster, {0}, SHARED)
        await trio.sleep(PATIENCE_S + 2)
        assert got(client) == [1, 2, 3, 4]
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        assert not len(subscription_of(cluster).dispatcher.unreadable)
        cluster.broker.log().lost.clear()
        await client.subscribe(kind=SHARED, permits=100)
        assert await client.entry_ids(5) == [0, 1, 2, 3, 4]


def test_so_many_are_put_aside_and_no_more() -> None:
    unreadable = Unreadable()
    for number in range(ASIDE_MAX):
        assert unreadable.has_room
        unreadable.put_aside((1, number), "lost", 0)
    assert not unreadable.has_room


def test_the_time_of_a_failure_is_that_of_the_first_one() -> None:
    unreadable, late = Unreadable(), int(PATIENCE_S * 1000)
    assert not unreadable.failed((1, 1), "lost", 5)
    assert not unreadable.failed((1, 1), "lost", late + 4)
    assert unreadable.failed((1, 1), "lost", late + 5)
    assert not unreadable.failed((1, 2), "lost", late + 6), "another entry"
    unreadable.put_aside((1, 2), "lost", late + 9)
    (only,) = unreadable.all
    assert only.since_ms == late + 6
