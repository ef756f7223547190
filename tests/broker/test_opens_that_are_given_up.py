"""A subscription whose creation was begun exists, whatever becomes of its client."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.slow_store import SlowStore
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

EARLIEST = pb.CommandSubscribe.Earliest


async def with_entries(cluster: Cluster, count: int) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send(n)
    await client.receipts(count)
    return client


def hidden(cluster: Cluster) -> set[str]:
    """Return the cursors without a subscription."""
    shown = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name
    return set(cluster.broker.log().by_name) - set(shown)


def subscribe(request_id: int = 50) -> pb.CommandSubscribe:
    request = pb.CommandSubscribe(
        topic=TOPIC, subscription="new", consumer_id=7, request_id=request_id
    )
    request.subType = pb.CommandSubscribe.Exclusive
    request.initialPosition = EARLIEST
    return request


OPENS = [
    subscribe(),
    pb.CommandProducer(topic=TOPIC, producer_id=7, request_id=50, initial_subscription_name="new"),
]


@pytest.mark.parametrize("open_", OPENS, ids=["consumer", "producer"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "closed"])
async def test_an_open_that_is_given_up_leaves_a_subscription_and_no_hidden_cursor(
    autojump_clock: MockClock, nursery: trio.Nursery, open_: Any, cut: bool
) -> None:
    async with open_broker() as cluster:
        other = await with_entries(cluster, 3)
        store = SlowStore(cluster.broker.log(), nursery)
        client = await cluster.client()
        client.tell(open_)
        await client.settle()
        assert store.asked == 1
        if cut:
            client.frames.close()
        elif isinstance(open_, pb.CommandSubscribe):
            client.tell(pb.CommandCloseConsumer(consumer_id=7, request_id=51))
        else:
            client.tell(pb.CommandCloseProducer(producer_id=7, request_id=51))
        await other.settle()
        store.gate.set()
        await other.settle()
        assert set(cluster.broker.log().by_name) == {"new"}
        assert not hidden(cluster)
        await other.subscribe(name="new", permits=9)
        assert await other.entry_ids(3) == [0, 1, 2]


async def test_an_administrator_who_stops_waiting_has_a_subscription(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_broker() as cluster:
        await with_entries(cluster, 3)
        store = SlowStore(cluster.broker.log(), nursery)
        topic = cluster.broker.topics.loaded[TOPIC]
        with trio.move_on_after(1) as scope:
            await topic.subscriptions.create("new", topic.log.before_first)
        assert scope.cancelled_caught
        store.gate.set()
        await trio.sleep(1)
        assert set(topic.subscriptions.by_name) == {"new"}
        assert not hidden(cluster)


async def test_two_who_want_the_same_new_subscription_get_one(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """The second client waits for the creation begun by the first one, though that is gone."""
    async with open_broker() as cluster:
        other = await with_entries(cluster, 3)
        store = SlowStore(cluster.broker.log(), nursery)
        client = await cluster.client()
        client.tell(subscribe())
        await client.settle()
        client.frames.close()
        other.tell(subscribe())
        await other.settle()
        assert store.asked == 1
        assert not other.got
        store.gate.set()
        await other.wait(pb.CommandSuccess)
        assert store.asked == 1
        assert not hidden(cluster)


async def test_two_removals_that_are_given_up_leave_no_cursor(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_broker() as cluster:
        client, other = await with_entries(cluster, 3), await cluster.client()
        await client.subscribe(7, name="new", initialPosition=EARLIEST)
        store = SlowStore(cluster.broker.log(), nursery)
        subscriptions = cluster.broker.topics.loaded[TOPIC].subscriptions
        found = subscriptions.get("new")
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as removals:
                removals.start_soon(subscriptions.remove, found)
                removals.start_soon(subscriptions.remove, found)
        assert scope.cancelled_caught
        other.tell(subscribe())
        await other.settle()
        assert not other.got  # No client gets a subscription over the cursor that is being deleted.
        store.gate.set()
        await other.wait(pb.CommandSuccess)
        other.flow(9, 7)
        assert await other.entry_ids(3) == [0, 1, 2]
        assert set(cluster.broker.log().by_name) == {"new"}
