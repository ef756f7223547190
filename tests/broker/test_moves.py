"""Acknowledgements from before a subscription's reset do not move it again."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import daybook
from daybook.broker.dispatch.subscription import Subscription, Target
from daybook.broker.errors import UnavailableError
from daybook.broker.service.lookup import LookupResult
from daybook.clients.python.errors import InDoubtError
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import encode_ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker
from tests.harness.fake_log import FakeCursor

EARLIEST = pb.CommandSubscribe.Earliest
SHARED, FAILOVER = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover
FIRST = Position(5, 0)
BEFORE = Position(5, -1)


async def with_entries(cluster: Cluster, count: int) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send_batch(n, 2)
    await client.receipts(count)
    return client


def subscription_of(cluster: Cluster) -> Subscription:
    return cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")


def cursor_of(cluster: Cluster) -> FakeCursor:
    return cluster.broker.log().by_name["sub"]


async def reset(cluster: Cluster, to: Position = FIRST) -> None:
    """Reset the subscription as an administrator does."""

    async def find() -> Target:
        await trio.lowlevel.checkpoint()
        return to, None

    await subscription_of(cluster).move(find)


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        ([(5, 3, None), (5, 4, None)], {}),
        ([(5, 4, None)], {"cumulative": True}),
        ([(5, 2, 0b10)], {}),
        ([(5, 2, 0b10)], {"cumulative": True}),
    ],
)
async def test_an_ack_of_what_was_not_delivered_since_a_reset_is_void(
    autojump_clock: MockClock, ids: list[Any], options: dict[str, Any]
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 5)
        await client.subscribe(initialPosition=EARLIEST, kind=FAILOVER, permits=100)
        await client.deliveries(5)
        await reset(cluster)
        client.frames.send([encode_ack(1, ids, **options)])  # No consumer has this id now.
        await client.wait(pb.CommandCloseConsumer)
        await client.subscribe(kind=FAILOVER, permits=2)
        assert await client.entry_ids(1) == [0]
        # The late acknowledgement is for earlier deliveries.  Its client need not know that it is
        # void.
        client.frames.send([encode_ack(1, ids, request_id=7, **options)])
        (answer,) = await client.wait(pb.CommandAckResponse)
        assert (answer.request_id, answer.HasField("error")) == (7, False)
        cursor = cursor_of(cluster)
        assert (cursor.mark_delete, cursor.acked) == (BEFORE, set())
        client.flow(100)
        again = await client.deliveries(4)
        assert [(d.entry_id, d.ack_set) for d in again] == [(n, None) for n in (1, 2, 3, 4)]
        client.frames.send([encode_ack(1, [(5, 4, None)], cumulative=True, request_id=8)])
        await client.wait(pb.CommandAckResponse)
        assert cursor.mark_delete == Position(5, 4)


async def test_acks_of_others_do_not_undo_the_seek_of_one(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 6), await cluster.client()
        await one.subscribe(initialPosition=EARLIEST, kind=SHARED, permits=6)
        await two.subscribe(kind=SHARED)
        assert await one.entry_ids(3) == [0, 1, 2]
        two.flow(6)
        assert await two.entry_ids(3) == [3, 4, 5]
        place = pb.MessageIdData(ledgerId=5, entryId=0)
        answer = await one.ask(pb.CommandSeek(consumer_id=1, message_id=place), pb.CommandSuccess)
        assert isinstance(answer, pb.CommandSuccess)
        await two.wait(pb.CommandCloseConsumer)
        await two.subscribe(kind=SHARED)
        two.ack(3, 4, 5)
        await two.settle()
        assert not cursor_of(cluster).acked
        two.flow(100)
        assert await two.entry_ids(6) == [0, 1, 2, 3, 4, 5]
        two.ack(0, 1, 2, 3, 4, 5)
        await two.settle()
        assert cursor_of(cluster).mark_delete == Position(5, 5)


async def test_acks_after_a_takeover_count_though_nothing_was_delivered_here(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        await client.subscribe(initialPosition=EARLIEST, permits=100)
        await client.deliveries(3)
        await cluster.broker.topics.unload(cluster.broker.log().name)
        await client.wait(pb.CommandCloseConsumer)
        await client.subscribe()
        client.ack(0, 1)
        await client.settle()
        assert cursor_of(cluster).mark_delete == Position(5, 1)


async def test_a_volatile_subscription_whose_move_failed_is_dropped_in_the_end(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 2)
        await client.subscribe(durable=False, name="reader", permits=9)

        async def fail(log: object, offset: int) -> Position:
            await trio.lowlevel.checkpoint()
            raise UnavailableError("its bookies are away")

        cluster.broker.logs.position_of_offset = fail  # type: ignore[method-assign]
        error = await client.ask(pb.CommandSeek(consumer_id=1, offset=0), pb.CommandSuccess)
        assert error.error == pb.ServiceNotReady
        subscriptions = cluster.broker.topics.loaded[TOPIC].subscriptions
        assert "reader" in subscriptions.by_name  # Its client may come back.
        for _ in range(7):
            await trio.sleep(10)
            client.tell(pb.CommandPong())
        assert not subscriptions.by_name


async def test_our_own_clients_are_told_of_the_latest_move(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        ours = await cluster.client(version="daybook-test")
        theirs = await cluster.client(version="Pulsar-Java-v4.0.0")
        answer = await ours.subscribe(kind=SHARED)
        assert not answer.HasField("moved")
        told: list[int] = []
        for _ in range(2):
            await reset(cluster)
            for _ in range(2):  # The same reset has the same number.
                answer = await ours.subscribe(2, kind=SHARED)
                told.append(answer.moved)
                await ours.ask(pb.CommandCloseConsumer(consumer_id=2), pb.CommandSuccess)
        assert told[0] == told[1] < told[2] == told[3]
        answer = await theirs.subscribe(3, kind=SHARED)
        assert not answer.HasField("moved")


Acting = Callable[[daybook.Consumer, list[daybook.Message]], Awaitable[None]]


async def _one_by_one(consumer: daybook.Consumer, messages: list[daybook.Message]) -> None:
    await consumer.ack(messages)


async def _up_to(consumer: daybook.Consumer, messages: list[daybook.Message]) -> None:
    await consumer.ack_cumulative(messages[-1])


@pytest.mark.parametrize("receipts", [False, True])
@pytest.mark.parametrize("acknowledge", [_one_by_one, _up_to])
@pytest.mark.parametrize("when", ["at once", "behind the redelivery", "behind a takeover"])
async def test_a_reset_outlives_what_our_own_client_acknowledges_of_before(
    autojump_clock: MockClock, acknowledge: Acting, receipts: bool, when: str
) -> None:
    async with open_broker() as cluster:
        broker = cluster.broker
        broker.lookups.result = LookupResult(
            "pulsar://broker:6650", None, redirect=False, authoritative=True
        )
        network = broker.network.of("app")
        async with daybook.connect("pulsar://broker:6650", network=network) as client:
            consumer = await client.subscribe(
                "t", "sub", initial_position="earliest", ack_receipts=receipts
            )
            sender = await with_entries(cluster, 5)
            messages = [await consumer.receive() for _ in range(10)]
            await reset(cluster)
            if when == "behind a takeover":
                await broker.topics.unload(broker.log().name)
            if when != "at once":
                # The consumer has all of it again, and delivers none of it yet.
                await sender.settle(5)
            if receipts:
                with pytest.raises(InDoubtError, match="moved the subscription"):
                    await acknowledge(consumer, messages)
            else:
                await acknowledge(consumer, messages)
                with pytest.raises(InDoubtError, match="moved the subscription"):
                    await consumer.flush_acks()
            with trio.fail_after(60):
                again = [await consumer.receive() for _ in range(10)]
            assert [m.offset for m in again] == [m.offset for m in messages]
            assert cursor_of(cluster).mark_delete == BEFORE
            await acknowledge(consumer, again)
            await consumer.flush_acks()
            await sender.settle(5)
            assert cursor_of(cluster).mark_delete == Position(5, 4)


@pytest.mark.parametrize(
    ("trimmed", "bits", "got"),
    [
        (0, 0b10, [(1, 0b10), (2, None)]),
        (2, 0b10, [(2, None), (3, None)]),
        (0, 0b100, [(2, None), (3, None)]),
    ],
    ids=["it is there", "it was trimmed", "it has no such message"],
)
async def test_a_seek_into_a_batch_takes_no_message_of_another_one(
    trimmed: int, bits: int, got: list[tuple[int, int | None]], autojump_clock: MockClock
) -> None:
    """The bits of an entry that is gone must not count for the entry that is first now."""
    async with open_broker() as cluster:
        client = await with_entries(cluster, 4)
        await client.subscribe(initialPosition=EARLIEST)
        cluster.broker.log().trimmed = trimmed
        place = pb.MessageIdData(ledgerId=5, entryId=1, ack_set=[bits])
        await client.ask(pb.CommandSeek(consumer_id=1, message_id=place), pb.CommandSuccess)
        await client.wait(pb.CommandCloseConsumer)
        await client.subscribe(permits=4)
        found = await client.deliveries(2)
        assert [(each.entry_id, each.ack_set) for each in found] == got
