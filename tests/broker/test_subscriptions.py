"""Subscribing, start positions, redelivery, resets and removal: over raw frames."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.clearing import carry_out, plan_skip
from daybook.broker.dispatch.subscription import EXCLUSIVE, Target
from daybook.broker.errors import PreconditionError, UnavailableError
from daybook.broker.limits import ConnectionLimits, TopicLimits
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.broker.topics.topic_subscriptions import ConsumerRequest, check_name
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.messages.consumer import Delivery
from daybook.wire.messages.registry import Command, signed, unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker
from tests.harness.clocks import EPOCH_MS

SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover
EARLIEST = pb.CommandSubscribe.Earliest


async def with_entries(cluster: Cluster, count: int) -> Client:
    client = await cluster.client()
    await client.producer()
    for n in range(count):
        client.send(n, publish_time=EPOCH_MS + n * 10)
    await client.receipts(count)
    return client


def message_id(ledger_id: int, entry_id: int) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=unsigned(ledger_id), entryId=unsigned(entry_id))


@pytest.mark.parametrize("name", ["", " ", ".", "..", "x" * 5000, "\ud800", "pulsar.dedup"])
def test_a_name_that_could_not_be_stored_is_refused(name: str) -> None:
    with pytest.raises(PreconditionError, match="a subscription cannot be named"):
        check_name(name)


# -- start positions


@pytest.mark.parametrize("version", ["daybook", "other"])
async def test_the_answer_has_the_stored_properties_of_the_subscription(
    version: str, autojump_clock: MockClock
) -> None:
    """Those of the request that created it; a later request changes nothing."""
    async with open_broker() as cluster:
        client = await cluster.client(version=version)
        for value in ("first", "second"):
            stored = [pb.KeyValue(key="k", value=value)]
            answer = await client.subscribe(subscription_properties=stored)
            found = {each.key: each.value for each in answer.subscription_properties}
            assert found == ({"k": "first"} if version == "daybook" else {})
            await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)


async def test_a_subscription_that_must_exist_is_not_created(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        refused = await client.subscribe(force_subscription_creation=False)
        assert refused.error == pb.TopicNotFound
        await client.producer()
        refused = await client.subscribe(force_subscription_creation=False)
        assert refused.error == pb.SubscriptionNotFound
        assert not cluster.broker.topics.loaded[TOPIC].subscriptions.by_name
        await client.subscribe(2)
        await client.ask(pb.CommandCloseConsumer(consumer_id=2), pb.CommandSuccess)
        answer = await client.subscribe(3, force_subscription_creation=False)
        assert isinstance(answer, pb.CommandSuccess)


async def test_a_new_subscription_begins_at_either_end(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        await client.subscribe(1, name="late", permits=10)
        await client.subscribe(2, name="early", permits=10, initialPosition=EARLIEST)
        client.send(3)
        got = await client.deliveries(5)
        assert [d.entry_id for d in got if d.consumer_id == 1] == [3]
        assert [d.entry_id for d in got if d.consumer_id == 2] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, SHARED])
async def test_what_cannot_be_read_now_is_read_again(kind: Any, autojump_clock: MockClock) -> None:
    """Absent bookies delay messages, and lose none."""
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        cluster.broker.log().reads_to_fail = 2
        await client.subscribe(1, permits=10, kind=kind, initialPosition=EARLIEST)
        assert [d.entry_id for d in await client.deliveries(3)] == [0, 1, 2]
        assert cluster.broker.log().reads_to_fail == 0


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"start_message_id": message_id(-1, -1)}, 0),
        # On it: the client drops the message if need be.
        ({"start_message_id": message_id(5, 2)}, 2),
        ({"start_message_id": message_id((1 << 63) - 1, (1 << 63) - 1)}, 4),
        ({"start_message_id": message_id(9, 0), "initialPosition": EARLIEST}, 0),
        ({}, 4),
        ({"start_offset": 3}, 3),
        ({"start_offset": 99}, 4),
        ({"start_message_rollback_duration_sec": 3600}, 0),
    ],
)
async def test_a_volatile_subscription_begins_where_it_is_told(
    autojump_clock: MockClock, options: dict[str, Any], first: int
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 4)
        reader = await cluster.client(version="daybook-test")
        await reader.subscribe(durable=False, permits=100, **options)
        client.send(4)
        assert await reader.entry_ids(5 - first) == list(range(first, 5))


async def test_a_volatile_subscription_is_gone_with_its_consumer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        await client.subscribe(durable=False, start_message_id=message_id(-1, -1), permits=9)
        await client.deliveries(3)
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        topic = cluster.broker.topics.loaded[TOPIC]
        assert not topic.subscriptions.by_name
        assert not cluster.broker.log().by_name


async def test_a_skip_does_not_cross_a_move(autojump_clock: MockClock) -> None:
    """It would acknowledge everything from the new place up to the old one, which nobody has."""
    async with open_broker() as cluster:
        client = await with_entries(cluster, 9)
        await client.subscribe(initialPosition=pb.CommandSubscribe.Earliest, permits=100)
        await client.deliveries(9)
        client.ack(5, cumulative=True)
        await client.settle()
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")
        log = cluster.broker.log()
        read = log.read

        async def first() -> Target:
            await trio.lowlevel.checkpoint()
            return Position(5, 0), None

        async def read_and_move(start: Position, **limits: int) -> list[LogEntry]:
            found = await read(start, **limits)
            await subscription.move(first)
            return found

        log.read = read_and_move  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="moved"):
            await carry_out(subscription, await plan_skip(subscription, 2))
        assert subscription.cursor.mark_delete == Position(5, -1)


async def test_metadata_of_megabytes_are_refused(autojump_clock: MockClock) -> None:
    """A connection may have ten thousand consumers, each with metadata of its own."""
    most = ConnectionLimits().metadata_bytes_max
    async with open_broker() as cluster:
        client = await cluster.client()
        for size, code in ((most - 1, None), (most, pb.NotAllowedError)):
            metadata = [pb.KeyValue(key="k", value="x" * size)]
            for answer in (
                await client.subscribe(size, metadata=metadata, name=f"s{size}"),
                await client.ask(
                    pb.CommandProducer(topic=TOPIC, producer_id=size, metadata=metadata),
                    pb.CommandProducerSuccess,
                ),
            ):
                assert (answer.error if isinstance(answer, pb.CommandError) else None) == code


async def test_a_dead_consumer_does_not_count_for_the_limit(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=TopicLimits(consumers_max=1)) as cluster:
        dead, again = await cluster.client(), await cluster.client()
        await dead.subscribe()
        assert isinstance(await again.subscribe(), pb.CommandSuccess)
        error = await again.subscribe(2)
        assert error.error == pb.ConsumerBusy


async def test_durable_and_volatile_do_not_share_a_name(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe()
        error = await client.subscribe(2, durable=False)
        assert error.error == pb.NotAllowedError


# -- permission


async def test_an_exclusive_subscription_has_one_consumer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        first, second = await cluster.client(), await cluster.client()
        await first.subscribe()
        keep = True

        async def answer_pings() -> None:
            while keep:
                await first.wait(pb.CommandPing)
                first.tell(pb.CommandPong())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_pings)
            error = await second.subscribe()
            nursery.cancel_scope.cancel()
        assert error.error == pb.ConsumerBusy


async def test_a_consumer_whose_client_is_dead_makes_way(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        first, second = await cluster.client(), await cluster.client()
        await first.subscribe(permits=10)
        started = trio.current_time()
        answer = await second.subscribe(permits=10)
        assert isinstance(answer, pb.CommandSuccess)
        assert 4.5 < trio.current_time() - started < 6
        await first.wait(pb.CommandCloseConsumer)


async def test_a_volatile_consumer_that_was_dead_leaves_no_position(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        dead, again = await cluster.client(), await cluster.client()
        await dead.subscribe(durable=False, start_message_id=message_id(5, 0), permits=9)
        await dead.deliveries(3)
        await again.subscribe(durable=False, start_message_id=message_id(5, 1), permits=9)
        assert await again.entry_ids(2) == [1, 2]
        del client


async def test_the_type_may_change_when_nobody_is_left(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client, other = await cluster.client(), await cluster.client()
        await client.subscribe(kind=SHARED)
        error = await client.subscribe(2, kind=FAILOVER)
        assert error.error == pb.ConsumerBusy
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        assert isinstance(await other.subscribe(kind=FAILOVER), pb.CommandSuccess)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"replicate_subscription_state": True}, pb.NotAllowedError),
        ({"schema": pb.Schema(name="s", schema_data=b"", type=pb.Schema.Json)}, 18),
        ({"start_offset": 1}, pb.NotAllowedError),
        ({"name": ""}, pb.NotAllowedError),
        ({"name": " "}, pb.NotAllowedError),
        ({"name": "pulsar.dedup"}, pb.NotAllowedError),
        ({"name": "x" * 2000}, pb.NotAllowedError),
        ({"topic": "no/such"}, pb.InvalidTopicName),
        ({"topic": "fresh", "force_topic_creation": False}, pb.TopicNotFound),
    ],
)
async def test_what_is_not_offered_is_refused(
    autojump_clock: MockClock, options: dict[str, Any], code: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        error = await client.subscribe(**options)
        assert error.error == code
        assert not any(log.by_name for log in cluster.broker.logs.by_name.values())


@pytest.mark.parametrize("kind", [pb.Schema.NoSchema, pb.Schema.AutoConsume])
async def test_no_schema_is_no_schema(autojump_clock: MockClock, kind: pb.Schema.Type) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        schema = pb.Schema(name="s", schema_data=b"", type=kind)
        assert isinstance(await client.subscribe(schema=schema), pb.CommandSuccess)


async def test_subscribing_again_with_the_same_id_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe()
        assert isinstance(await client.subscribe(), pb.CommandSuccess)
        assert len(cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub").consumers) == 1


# -- receipts of acknowledgements


async def test_a_receipt_tells_of_an_earlier_ack_that_was_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        await client.subscribe(initialPosition=EARLIEST, permits=10)
        client.ack(0, 9)  # 0 exists, 9 does not; the client asks for no answer.
        client.ack(1, request_id=77)
        (response,) = await client.wait(pb.CommandAckResponse)
        assert (response.request_id, response.error) == (77, pb.NotAllowedError)
        assert "5:9" in response.message
        client.ack(1, request_id=78)
        (response,) = await client.wait(pb.CommandAckResponse)
        assert (response.request_id, response.HasField("error")) == (78, False)
        assert cluster.broker.log().by_name["sub"].mark_delete.entry_id == 1


async def test_an_ack_is_answered_when_its_topic_ends_before_it_is_durable(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 2)
        await client.subscribe(initialPosition=EARLIEST, permits=10)
        cursor = cluster.broker.log().by_name["sub"]
        flushing = trio.Event()

        async def never() -> None:
            flushing.set()
            await trio.sleep_forever()

        cursor.flush = never  # type: ignore[method-assign]
        client.ack(0, request_id=77)
        await flushing.wait()
        client.ack(1, request_id=78)  # It waits for the flush after this one.
        await client.settle()
        cluster.broker.topics.loaded[TOPIC].drop()
        answers = await client.wait(pb.CommandAckResponse, 2)
        assert {each.request_id: each.error for each in answers} == {
            77: pb.ServiceNotReady,
            78: pb.ServiceNotReady,
        }


# -- redelivery


async def test_redelivery_of_an_exclusive_subscription_rewinds(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 5)
        await client.subscribe(initialPosition=EARLIEST, permits=100)
        await client.deliveries(5)
        client.ack(0, 3)
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=4)
        request.message_ids.add(ledgerId=5, entryId=4)
        client.tell(request)
        got = await client.deliveries(3)
        assert [d.entry_id for d in got] == [1, 2, 4]
        assert {d.consumer_epoch for d in got} == {4}
        assert {d.redelivery_count for d in got} == {0}


async def test_shared_redelivery_is_counted_until_it_is_acked(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 3)
        await client.subscribe(kind=SHARED, initialPosition=EARLIEST, permits=100)
        await client.deliveries(3)
        for times in (1, 2):
            request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
            request.message_ids.add(ledgerId=5, entryId=1)
            client.tell(request)
            (delivery,) = await client.deliveries(1)
            assert (delivery.entry_id, delivery.redelivery_count) == (1, times)
        client.ack(0, 1, 2)
        await client.settle()
        assert cluster.broker.log().by_name["sub"].mark_delete.entry_id == 2


async def test_shared_consumers_share_and_inherit(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        await one.producer()
        await one.subscribe(kind=SHARED, permits=1000)
        await two.subscribe(kind=SHARED, permits=1000)
        for n in range(100):
            one.send(n)
        await one.receipts(100)
        await one.settle()
        first = {d.entry_id for d in one.bodies(Delivery)}
        second = {d.entry_id for d in two.bodies(Delivery)}
        assert first | second == set(range(100))
        assert not first & second
        assert min(len(first), len(second)) >= 20
        two.frames.close()
        await one.settle()
        assert {d.entry_id for d in one.bodies(Delivery)} == set(range(100))


async def test_failover_goes_to_the_next_consumer(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        await one.producer()
        await one.subscribe(kind=FAILOVER, consumer_name="a", permits=100)
        (change,) = await one.wait(pb.CommandActiveConsumerChange)
        assert change.is_active
        one.send(0)
        await one.deliveries(1)
        await two.subscribe(kind=FAILOVER, consumer_name="b", permits=100)
        (change,) = await two.wait(pb.CommandActiveConsumerChange)
        assert not change.is_active
        await one.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        (change,) = await two.wait(pb.CommandActiveConsumerChange)
        assert change.is_active
        assert await two.entry_ids(1) == [0]  # The message was not acknowledged.


async def test_a_better_failover_consumer_takes_over_after_a_moment(
    autojump_clock: MockClock,
) -> None:
    topic = f"{TOPIC}-partition-0"
    async with open_broker() as cluster:
        cluster.broker.policies.partition_counts[TOPIC] = 1
        one, two = await cluster.client(), await cluster.client()
        await one.producer(topic=topic)
        await one.subscribe(topic=topic, kind=FAILOVER, consumer_name="b", permits=100)
        await two.subscribe(topic=topic, kind=FAILOVER, consumer_name="a", permits=100)
        one.send(0)
        await one.deliveries(1)
        await trio.sleep(1.5)
        assert await two.entry_ids(1) == [0]


async def test_a_message_for_later_is_delivered_later(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=SHARED, permits=100)
        client.send(0, deliver_at_time=cluster.broker.clock.now_ms() + 2000)
        client.send(1)
        assert await client.entry_ids(1) == [1]
        began = trio.current_time()
        assert await client.entry_ids(1) == [0]
        assert 1.9 < trio.current_time() - began < 2.2


async def test_a_shared_consumer_that_does_not_ack_is_blocked(autojump_clock: MockClock) -> None:
    limits = TopicLimits(dispatch=DispatchLimits(unacked_messages_max=5))
    async with open_broker(topic_limits=limits) as cluster:
        client = await with_entries(cluster, 20)
        await client.subscribe(kind=SHARED, initialPosition=EARLIEST, permits=100)
        assert await client.entry_ids(5) == [0, 1, 2, 3, 4]
        await client.settle()
        assert not client.bodies(Delivery)
        stats = await client.ask(
            pb.CommandConsumerStats(consumer_id=1), pb.CommandConsumerStatsResponse
        )
        assert stats.blockedConsumerOnUnackedMsgs
        assert stats.unackedMessages == 5
        client.ack(0, 1, 2, 3)
        assert await client.entry_ids(4) == [5, 6, 7, 8]


async def test_what_an_administrator_skips_blocks_no_consumer_any_more(
    autojump_clock: MockClock,
) -> None:
    limits = TopicLimits(dispatch=DispatchLimits(unacked_messages_max=5))
    async with open_broker(topic_limits=limits) as cluster:
        client = await with_entries(cluster, 5)
        await client.subscribe(kind=SHARED, initialPosition=EARLIEST, permits=100)
        await client.deliveries(5)
        await client.settle()
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub")
        await subscription.skip_all()
        client.send(5)
        assert await client.entry_ids(1) == [5]


async def test_the_answer_to_a_subscription_comes_first(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=1, request_id=1)
        request.subType = FAILOVER
        client.tell(request)
        await client.settle(0.5)
        kinds = [type(c.body) for c in client.got if isinstance(c, Command)]
        assert kinds == [pb.CommandSuccess, pb.CommandActiveConsumerChange]


async def test_a_failover_consumer_hears_that_it_is_active_when_it_asks_for_messages(
    autojump_clock: MockClock,
) -> None:
    """Go's client drops messages that come right behind the answer to SUBSCRIBE."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe(kind=FAILOVER)
        await client.settle(0.1)
        assert not client.bodies(pb.CommandActiveConsumerChange)
        client.flow(1)
        (change,) = await client.wait(pb.CommandActiveConsumerChange)
        assert change.is_active
        await client.settle(1)
        assert not client.bodies(pb.CommandActiveConsumerChange)


async def test_a_failover_consumer_that_asks_for_nothing_hears_after_a_moment_what_is_so_then(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        await one.subscribe(kind=FAILOVER, consumer_name="a")
        await one.wait(pb.CommandActiveConsumerChange)
        began = trio.current_time()
        await two.subscribe(kind=FAILOVER, consumer_name="b")
        await one.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        (change,) = await two.wait(pb.CommandActiveConsumerChange)
        assert change.is_active
        assert 0.25 <= trio.current_time() - began < 0.3
        await two.settle(1)
        assert not two.bodies(pb.CommandActiveConsumerChange)


@pytest.mark.parametrize("flows", [False, True])
async def test_a_consumer_that_is_closed_at_once_hears_of_it_when_its_client_knows_it(
    autojump_clock: MockClock, flows: bool
) -> None:
    """Go's client would ignore the close, and would never ask for messages again."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe()
        if flows:
            client.flow(1)
            await client.settle()
        began = trio.current_time()
        await cluster.broker.topics.unload(cluster.broker.log().name)
        await client.wait(pb.CommandCloseConsumer)
        waited_s = trio.current_time() - began
        assert waited_s < 0.1 if flows else 0.25 <= waited_s < 0.3


async def test_a_failover_consumer_that_leaves_at_once_hears_nothing_more(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe(kind=FAILOVER)
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        await client.settle(1)
        assert not client.bodies(pb.CommandActiveConsumerChange)


async def test_what_was_read_for_a_consumer_that_left_is_not_given_to_the_next(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        one, two = await with_entries(cluster, 5), await cluster.client()
        log, gate = cluster.broker.log(), trio.Event()
        read = log.read

        async def slow(start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
            found = await read(start, max_entries=max_entries, max_bytes=max_bytes)
            if not gate.is_set():
                await gate.wait()
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.01)  # The next one is at work by now.
            return found

        log.read = slow  # type: ignore[method-assign]
        await one.subscribe(initialPosition=EARLIEST, permits=9)
        await two.subscribe(2, name="other")
        await one.settle()
        topic = cluster.broker.topics.loaded[TOPIC]
        subscription = topic.subscriptions.get("sub")
        (left,) = subscription.consumers.values()
        (other,) = topic.subscriptions.get("other").consumers.values()
        # All happens in one turn of the loop: the read is over, and no task has seen its result.
        gate.set()
        subscription.remove(left)
        request = ConsumerRequest(7, "sub", EXCLUSIVE)
        consumer = topic.subscriptions.join(subscription, request, other.connection)
        subscription.flow(consumer, 100)
        await one.settle()
        assert [d.entry_id for d in two.bodies(Delivery)] == [0, 1, 2, 3, 4]
        assert not one.bodies(Delivery)


# -- moving


@pytest.mark.parametrize(
    ("request_", "first"),
    [
        (pb.CommandSeek(message_id=message_id(5, 2)), 2),
        (pb.CommandSeek(message_id=message_id(-1, -1)), 0),
        (pb.CommandSeek(message_id=message_id((1 << 63) - 1, (1 << 63) - 1)), 6),
        (pb.CommandSeek(message_publish_time=EPOCH_MS + 25), 3),
        (pb.CommandSeek(message_publish_time=EPOCH_MS + 30), 3),
        (pb.CommandSeek(message_publish_time=0), 0),
        (pb.CommandSeek(offset=4), 4),
        (pb.CommandSeek(offset=400), 6),
    ],
)
async def test_seeking(autojump_clock: MockClock, request_: pb.CommandSeek, first: int) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 6)
        await client.subscribe(initialPosition=EARLIEST, permits=100)
        await client.deliveries(6)
        client.ack(0, 1, 2, 3, 5)
        request_.consumer_id = 1
        answer = await client.ask(request_, pb.CommandSuccess)
        assert isinstance(answer, pb.CommandSuccess)
        await client.wait(pb.CommandCloseConsumer)
        await client.subscribe(permits=100)
        client.send(6)
        assert await client.entry_ids(7 - first) == list(range(first, 7))


async def test_closing_comes_before_the_answer_to_a_seek(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 2)
        await client.subscribe(permits=100)
        client.got.clear()
        client.tell(pb.CommandSeek(consumer_id=1, request_id=5, message_publish_time=0))
        await client.settle()
        kinds = [type(c.body).__name__ for c in client.got if isinstance(c, Command)]
        assert kinds == ["CommandCloseConsumer", "CommandSuccess"]


async def test_who_subscribes_while_the_cursor_is_moved_waits(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 5)
        await client.subscribe(permits=9)
        cursor, gate = cluster.broker.log().by_name["sub"], trio.Event()
        reset = cursor.reset

        async def slow(*args: Any) -> None:
            await gate.wait()
            await reset(*args)

        cursor.reset = slow  # type: ignore[method-assign,assignment]
        seek = pb.CommandSeek(consumer_id=1, request_id=5, message_id=message_id(5, 2))
        client.tell(seek)
        await client.wait(pb.CommandCloseConsumer)
        request = pb.CommandSubscribe(topic=TOPIC, subscription="sub", consumer_id=1, request_id=6)
        request.subType = pb.CommandSubscribe.Exclusive
        client.tell(request)
        await client.settle()
        assert not client.got
        gate.set()
        assert [s.request_id for s in await client.wait(pb.CommandSuccess, 2)] == [5, 6]
        client.flow(9)
        assert await client.entry_ids(3) == [2, 3, 4]


async def test_a_volatile_cursor_survives_its_move(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 6)
        await client.subscribe(durable=False, permits=100)
        await client.ask(
            pb.CommandSeek(consumer_id=1, message_id=message_id(5, 3)), pb.CommandSuccess
        )
        await client.subscribe(durable=False, start_message_id=message_id(-1, -1), permits=100)
        assert await client.entry_ids(3) == [3, 4, 5]


async def test_a_volatile_cursor_that_nobody_comes_back_to_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 2)
        await client.subscribe(durable=False, permits=100)
        await client.ask(
            pb.CommandSeek(consumer_id=1, message_id=message_id(5, 1)), pb.CommandSuccess
        )
        topic = cluster.broker.topics.loaded[TOPIC]
        assert topic.subscriptions.by_name
        await trio.sleep(61)
        client.tell(pb.CommandPong())
        assert not topic.subscriptions.by_name


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.CommandSeek(consumer_id=1), pb.NotAllowedError),
        (pb.CommandSeek(consumer_id=9, offset=1), pb.MetadataError),
    ],
)
async def test_seeks_without_a_place_or_a_consumer(
    autojump_clock: MockClock, request_: pb.CommandSeek, code: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.subscribe()
        error = await client.ask(request_, pb.CommandSuccess)
        assert error.error == code


# -- the last message


async def test_the_last_message_id(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client(version="daybook-test")
        await client.producer()
        await client.subscribe(initialPosition=EARLIEST)

        async def last() -> pb.CommandGetLastMessageIdResponse:
            request = pb.CommandGetLastMessageId(consumer_id=1)
            answer: pb.CommandGetLastMessageIdResponse
            answer = await client.ask(request, pb.CommandGetLastMessageIdResponse)
            return answer

        empty = await last()
        assert signed(empty.last_message_id.ledgerId) == -1
        assert signed(empty.last_message_id.entryId) == -1
        assert (empty.first_offset, empty.next_offset) == (0, 0)
        client.send(0)
        client.send_batch(1, 8)
        await client.receipts(2)
        found = await last()
        assert (found.last_message_id.ledgerId, found.last_message_id.entryId) == (5, 1)
        assert found.last_message_id.batch_index == 7
        assert found.last_message_id.partition == -1
        mark_delete = found.consumer_mark_delete_position
        assert (mark_delete.ledgerId, signed(mark_delete.entryId)) == (5, -1)
        assert (found.first_offset, found.next_offset) == (0, 9)
        client.send(9)
        await client.receipts(1)
        assert (await last()).last_message_id.batch_index == -1


async def test_sealed_ledgers_are_told_to_clients_of_ours_that_ask(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        request = pb.CommandGetLastMessageId(consumer_id=1, with_ledgers=True)
        for version in ("daybook-test", "other"):
            client = await cluster.client(version=version)
            name = f"persistent://public/default/{version}"
            await client.producer(topic=name)
            await client.subscribe(initialPosition=EARLIEST, topic=name)
            log = cluster.broker.log(name)
            log.ledger_entries = 2
            for n in range(5):
                client.send_batch(n, 3)
            await client.receipts(5)
            answer = await client.ask(request, pb.CommandGetLastMessageIdResponse)
            if version == "other":
                assert not answer.ledgers
                assert not answer.HasField("ledgers_url")
                continue
            assert answer.ledgers_url == "zk://zookeeper:2181/ledgers"
            told = [
                (each.ledger_id, each.first_offset, each.next_offset, each.entries)
                for each in answer.ledgers
            ]
            assert told == [(5, 0, 6, 2), (6, 6, 12, 2)]
            assert answer.ledgers[0].bytes == sum(map(len, log.entries[:2]))
            request.ClearField("with_ledgers")
            answer = await client.ask(request, pb.CommandGetLastMessageIdResponse)
            assert not answer.ledgers
            request.with_ledgers = True


# -- removing


async def test_unsubscribing_forgets_the_subscription(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_entries(cluster, 2)
        await client.subscribe(initialPosition=EARLIEST)
        answer = await client.ask(pb.CommandUnsubscribe(consumer_id=1), pb.CommandSuccess)
        assert isinstance(answer, pb.CommandSuccess)
        assert not client.bodies(pb.CommandCloseConsumer)  # The client would subscribe again.
        assert not cluster.broker.log().by_name


async def test_others_keep_a_subscription_unless_it_is_forced(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        one, two = await cluster.client(), await cluster.client()
        await one.subscribe(kind=SHARED)
        await two.subscribe(kind=SHARED)
        error = await one.ask(pb.CommandUnsubscribe(consumer_id=1), pb.CommandSuccess)
        assert error.error == pb.ConsumerBusy
        await one.ask(pb.CommandUnsubscribe(consumer_id=1, force=True), pb.CommandSuccess)
        await two.wait(pb.CommandCloseConsumer)
        assert not cluster.broker.log().by_name
