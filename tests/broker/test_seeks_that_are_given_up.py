"""A cursor reset that was begun completes, whatever becomes of its client."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.subscription import Target
from daybook.broker.errors import BrokerError
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import encode_ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.slow_store import hold_resets
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

SHARED = pb.CommandSubscribe.Shared
EARLIEST = pb.CommandSubscribe.Earliest


async def with_batches(cluster: Cluster, count: int, kind: pb.CommandSubscribe.SubType) -> Client:
    """Send batches of four messages, which a consumer has received."""
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send_batch(n, 4)
    await client.receipts(count)
    await client.subscribe(kind=kind, initialPosition=EARLIEST, permits=100)
    await client.deliveries(count)
    return client


def seek(entry_id: int) -> pb.CommandSeek:
    place = pb.MessageIdData(ledgerId=5, entryId=entry_id)
    return pb.CommandSeek(consumer_id=1, request_id=50, message_id=place)


async def cut_in_a_seek(cluster: Cluster, client: Client) -> None:
    """Cut the client off while its reset is being stored; then let the store finish."""
    gate = hold_resets(cluster.broker.log().by_name["sub"])
    client.tell(seek(0))
    await client.wait(pb.CommandCloseConsumer)
    await client.settle()
    client.frames.close()
    await client.settle()
    gate.set()
    await client.settle()


async def test_late_acks_do_not_undo_a_seek_whose_client_is_gone(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_batches(cluster, 5, pb.CommandSubscribe.Exclusive)
        client.ack(4, cumulative=True)
        await client.settle()
        await cut_in_a_seek(cluster, client)
        other = await cluster.client()
        await other.subscribe()
        other.frames.send([encode_ack(1, [(5, 4, None)], cumulative=True)])
        other.flow(100)
        assert await other.entry_ids(5) == [0, 1, 2, 3, 4]


async def test_a_seek_whose_client_is_gone_forgets_what_was_acknowledged_of_batches(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_batches(cluster, 5, SHARED)
        client.frames.send([encode_ack(1, [(5, 0, None), (5, 3, 0b0011)])])
        await client.settle()
        await cut_in_a_seek(cluster, client)
        other = await cluster.client()
        await other.subscribe(kind=SHARED, permits=100)
        got = await other.deliveries(5)
        assert [(d.entry_id, d.ack_set) for d in got] == [(n, None) for n in range(5)]


async def test_a_reset_whose_administrator_stops_waiting_is_whole(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_batches(cluster, 5, SHARED)
        client.frames.send([encode_ack(1, [(5, 0, None), (5, 3, 0b0011)])])
        await client.settle()
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")
        gate = hold_resets(cluster.broker.log().by_name["sub"])

        async def find() -> Target:
            return Position(5, 0), None

        with trio.move_on_after(1) as scope:
            await subscription.move(find)
        assert scope.cancelled_caught
        assert subscription.moving
        gate.set()
        await client.settle()
        assert not subscription.moving
        await client.subscribe(kind=SHARED, permits=100)
        got = await client.deliveries(5)
        assert [(d.entry_id, d.ack_set) for d in got] == [(n, None) for n in range(5)]


async def test_a_move_that_may_not_be_stored_is_whole_in_memory(
    autojump_clock: MockClock,
) -> None:
    """The cursor has its new position then, and the subscription must agree."""
    async with open_broker() as cluster:
        client = await with_batches(cluster, 5, SHARED)
        client.frames.send([encode_ack(1, [(5, 0, None), (5, 3, 0b0011)])])
        await client.settle()
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")
        cursor = cluster.broker.log().by_name["sub"]
        reset = cursor.reset

        async def fail(*args: Any) -> None:
            await reset(*args)
            raise ManagedLedgerError("it is not known whether that is stored")

        cursor.reset = fail  # type: ignore[method-assign,assignment]

        async def find() -> Target:
            return Position(5, 0), None

        with pytest.raises(BrokerError, match="could not be moved"):
            await subscription.move(find)
        await client.subscribe(kind=SHARED, permits=100)
        got = await client.deliveries(5)
        assert [(d.entry_id, d.ack_set) for d in got] == [(n, None) for n in range(5)]
