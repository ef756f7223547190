"""One connection's requests about its consumers are carried out in the order of their arrival."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.subscription import Target
from daybook.broker.limits import TopicLimits
from daybook.managed_ledger.position import Position
from daybook.wire.messages.registry import Command, encode
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

EARLIEST = pb.CommandSubscribe.Earliest
TIMES = range(12)  # Tasks that are started together run in any order.


def seek(request_id: int, entry_id: int = 2, consumer_id: int = 1) -> pb.CommandSeek:
    place = pb.MessageIdData(ledgerId=5, entryId=entry_id)
    return pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=place)


def unsubscribe(request_id: int, consumer_id: int = 1) -> pb.CommandUnsubscribe:
    return pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)


def close(request_id: int, consumer_id: int = 1) -> pb.CommandCloseConsumer:
    return pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)


def subscribe(request_id: int, consumer_id: int = 1) -> pb.CommandSubscribe:
    request = pb.CommandSubscribe(
        topic=TOPIC, subscription="sub", consumer_id=consumer_id, request_id=request_id
    )
    request.subType = pb.CommandSubscribe.Exclusive
    request.initialPosition = EARLIEST
    return request


Request = pb.CommandSeek | pb.CommandUnsubscribe | pb.CommandCloseConsumer | pb.CommandSubscribe


async def with_consumer(cluster: Cluster, entries: int = 5) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(entries):
        client.send(n)
    await client.receipts(entries)
    await client.subscribe(initialPosition=EARLIEST, permits=9)
    await client.deliveries(entries)
    client.ack(*range(entries))
    await client.settle()
    client.got.clear()
    return client


async def answers(client: Client, *requests: Request) -> dict[int, str]:
    """Return the answers to requests that arrive together."""
    client.frames.send([encode(request) for request in requests])
    with trio.fail_after(60):
        while True:
            found = [c.body for c in client.got if isinstance(c, Command)]
            said = {
                body.request_id: type(body).__name__.removeprefix("Command")
                for body in found
                if isinstance(body, pb.CommandSuccess | pb.CommandError)
            }
            if len(said) == len(requests):
                return said
            await client.settle()


def mark_delete(cluster: Cluster) -> Position:
    return cluster.broker.log().by_name["sub"].mark_delete


@pytest.mark.parametrize("_", TIMES)
async def test_what_is_unsubscribed_is_not_moved(autojump_clock: MockClock, _: int) -> None:
    async with open_broker() as cluster:
        client = await with_consumer(cluster)
        said = await answers(client, unsubscribe(1), seek(2))
        assert said == {1: "Success", 2: "Error"}
        assert not cluster.broker.log().by_name


@pytest.mark.parametrize("_", TIMES)
async def test_a_seek_in_front_of_an_unsubscribe_is_carried_out(
    autojump_clock: MockClock, _: int
) -> None:
    """The seek closes the consumer, so there is none left that could unsubscribe."""
    async with open_broker() as cluster:
        client = await with_consumer(cluster)
        said = await answers(client, seek(1), unsubscribe(2))
        assert said == {1: "Success", 2: "Error"}
        assert mark_delete(cluster) == Position(5, 1)


@pytest.mark.parametrize("_", TIMES)
async def test_who_subscribes_behind_a_seek_begins_at_its_place(
    autojump_clock: MockClock, _: int
) -> None:
    async with open_broker() as cluster:
        client = await with_consumer(cluster)
        said = await answers(client, seek(1), subscribe(2))
        assert said == {1: "Success", 2: "Success"}
        order = [type(c.body).__name__ for c in client.got if isinstance(c, Command)]
        assert order == ["CommandCloseConsumer", "CommandSuccess", "CommandSuccess"]
        client.flow(9)
        assert await client.entry_ids(3) == [2, 3, 4]


@pytest.mark.parametrize("_", TIMES)
async def test_who_subscribes_behind_an_unsubscribe_has_a_new_subscription(
    autojump_clock: MockClock, _: int
) -> None:
    async with open_broker() as cluster:
        client = await with_consumer(cluster)
        consumer_id = 1 + _ % 2  # The same one again, or another one.
        said = await answers(client, unsubscribe(1), subscribe(2, consumer_id))
        assert said == {1: "Success", 2: "Success"}
        assert not client.bodies(pb.CommandCloseConsumer)
        client.flow(9, consumer_id)
        assert await client.entry_ids(5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("_", TIMES)
async def test_a_seek_in_front_of_a_close_is_carried_out(autojump_clock: MockClock, _: int) -> None:
    async with open_broker() as cluster:
        client = await with_consumer(cluster)
        said = await answers(client, seek(1), close(2))
        assert said == {1: "Success", 2: "Success"}
        assert mark_delete(cluster) == Position(5, 1)


@pytest.mark.parametrize("_", TIMES)
async def test_behind_a_close_nothing_is_moved_and_nothing_unsubscribed(
    autojump_clock: MockClock, _: int
) -> None:
    async with open_broker() as cluster:
        client = await with_consumer(cluster)
        said = await answers(client, close(1), seek(2), unsubscribe(3))
        assert said == {1: "Success", 2: "Error", 3: "Error"}
        assert mark_delete(cluster) == Position(5, 4)


async def test_a_client_that_leaves_in_a_seek_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    """Others can subscribe, and can reset the cursor."""
    async with open_broker() as cluster:
        client, other = await with_consumer(cluster), await cluster.client()
        gate = hold_resets(cluster)
        client.tell(seek(1))
        await client.wait(pb.CommandCloseConsumer)
        client.frames.close()
        await other.settle()
        gate.set()
        await other.subscribe(permits=9)
        assert isinstance(await other.ask(seek(0, 3), pb.CommandSuccess), pb.CommandSuccess)
        assert mark_delete(cluster) == Position(5, 2)


async def test_a_new_subscription_waits_until_the_old_one_of_its_name_is_deleted(
    autojump_clock: MockClock,
) -> None:
    """Otherwise it would find the old cursor, and then lose it."""
    async with open_broker() as cluster:
        client, other = await with_consumer(cluster), await cluster.client()
        log, gate = cluster.broker.log(), trio.Event()
        delete = log.delete_cursor

        async def slow(name: str) -> None:
            await gate.wait()
            await delete(name)

        log.delete_cursor = slow  # type: ignore[method-assign]
        client.tell(unsubscribe(1))
        other.tell(subscribe(2))
        await other.settle()
        assert not client.got
        assert not other.got
        gate.set()
        await other.wait(pb.CommandSuccess)
        await client.wait(pb.CommandSuccess)
        other.flow(9)
        assert await other.entry_ids(5) == [0, 1, 2, 3, 4]
        assert "sub" in log.by_name


def hold_resets(cluster: Cluster) -> trio.Event:
    """Let resets of the cursor wait for the event."""
    cursor, gate = cluster.broker.log().by_name["sub"], trio.Event()
    reset = cursor.reset

    async def slow(*args: Any) -> None:
        await gate.wait()
        await reset(*args)

    cursor.reset = slow  # type: ignore[method-assign,assignment]
    return gate


async def test_who_waited_for_a_dead_consumer_waits_for_a_move_that_began_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """Once, a consumer that joined was given, and acknowledged, messages of the old position."""
    async with open_broker(topic_limits=TopicLimits(probe_s=5.0)) as cluster:
        dead, heir = await with_consumer(cluster), await cluster.client()
        dead.reading = False
        cluster.broker.network.block("client-1", "broker")
        gate = hold_resets(cluster)
        heir.tell(subscribe(1))
        await heir.settle(1)  # The broker is probing the client of the first consumer.
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")

        async def find() -> Target:
            await trio.lowlevel.checkpoint()
            return Position(5, 3), None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscription.move, find)
            await heir.settle(10)
            assert not heir.bodies(pb.CommandSuccess)
            assert not subscription.consumers
            gate.set()
        await heir.wait(pb.CommandSuccess)
        heir.flow(9)
        assert await heir.entry_ids(2) == [3, 4]
