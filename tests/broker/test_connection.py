"""The handshake, requests that any broker answers, refusals, clients that misbehave."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.broker.limits import ConnectionLimits, RequestLimits
from daybook.broker.protocol.session import NOT_OFFERED
from daybook.broker.protocol.topic_watchers import topics_hash
from daybook.broker.service import client_consumers
from daybook.broker.service.lookup import LookupResult
from daybook.wire.batch import encode_payload
from daybook.wire.messages.client import SendReceipt, encode_send
from daybook.wire.messages.consumer import Delivery
from daybook.wire.messages.registry import NO_ID, Command, encode
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, connection_of, handlers_of, open_broker

T = pb.BaseCommand


async def test_the_greeting(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client(connect=False)
        connected = await client.connect(version="Pulsar-CPP-v4.2.0", protocol=20)
        assert connected.server_version == "daybook/test"
        assert connected.protocol_version == 20
        assert connected.max_message_size == 5 * 1024 * 1024
        assert connected.feature_flags.supports_topic_watchers


async def test_the_largest_message_fits_into_bookies_with_its_headers(
    autojump_clock: MockClock,
) -> None:
    """Clients cut chunks of this size: Apache's bookies, and smaller ones, have to take them."""
    async with open_broker() as cluster:
        cluster.broker.stored_bytes_max = 5 * 1024 * 1024 - 500
        connected = await (await cluster.client(connect=False)).connect()
        assert connected.max_message_size == 5 * 1024 * 1024 - 500 - 10 * 1024


async def test_ping_is_answered(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        client.tell(pb.CommandPing())
        await client.wait(pb.CommandPong)


async def test_a_stranger_who_is_silent_costs_no_task_beside_that_which_reads(
    autojump_clock: MockClock,
) -> None:
    def tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    async with open_broker() as cluster:
        client = await cluster.client(connect=False)
        await wait_all_tasks_blocked()
        before = tasks()
        await client.connect()
        await wait_all_tasks_blocked()
        assert tasks() == before + 1  # which keeps the connection alive


async def test_a_silent_client_is_asked_and_then_cut(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        began = trio.current_time()
        await client.wait_closed()
        assert 60 <= trio.current_time() - began <= 95
        assert client.bodies(pb.CommandPing)
        assert not cluster.broker.topics.loaded[TOPIC].producers.by_name


async def test_a_client_that_only_publishes_is_not_silent(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        for n in range(20):
            client.send(n)
            await trio.sleep(20)
        await client.receipts(20)
        assert not client.frames.closed


# -- requests


async def test_lookup(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandLookupTopic(topic="t", authoritative=True, advertised_listener_name="")
        answer = await client.ask(request, pb.CommandLookupTopicResponse)
        assert answer.response == pb.CommandLookupTopicResponse.Connect
        assert answer.brokerServiceUrl == "pulsar://there:6650"
        assert cluster.broker.lookups.asked == [(TOPIC, True)]
        cluster.broker.lookups.result = LookupResult(
            "pulsar://leader:6650", None, redirect=True, authoritative=False
        )
        answer = await client.ask(request, pb.CommandLookupTopicResponse)
        assert answer.response == pb.CommandLookupTopicResponse.Redirect
        assert not answer.authoritative


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"topic": "a/b"}, pb.InvalidTopicName),
        ({"topic": "t", "advertised_listener_name": "inside"}, pb.ServiceNotReady),
    ],
)
async def test_lookups_that_fail(
    autojump_clock: MockClock, options: dict[str, Any], code: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandLookupTopic(**options)
        answer = await client.ask(request, pb.CommandLookupTopicResponse)
        assert answer.response == pb.CommandLookupTopicResponse.Failed
        assert answer.error == code


@pytest.mark.parametrize(
    ("options", "partitions", "code"),
    [
        ({"topic": "p"}, 4, None),
        ({"topic": "fresh"}, 0, None),
        ({"topic": "fresh", "metadata_auto_creation_enabled": False}, 0, pb.TopicNotFound),
        ({"topic": "no/such/t"}, 0, pb.TopicNotFound),
        ({"topic": "no/such"}, 0, pb.InvalidTopicName),
    ],
)
async def test_partitioned_metadata(
    autojump_clock: MockClock, options: dict[str, Any], partitions: int, code: int | None
) -> None:
    async with open_broker() as cluster:
        cluster.broker.policies.partition_counts["persistent://public/default/p"] = 4
        client = await cluster.client()
        request = pb.CommandPartitionedTopicMetadata(**options)
        answer = await client.ask(request, pb.CommandPartitionedTopicMetadataResponse)
        assert answer.partitions == partitions
        if code is None:
            assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
        else:
            assert answer.error == code


def test_the_hash_of_a_topic_list() -> None:
    names = ["persistent://public/default/b", "persistent://public/default/a"]
    assert topics_hash(names) == "c7559e98"
    assert topics_hash([]) == "00000000"


async def test_the_topics_of_a_namespace(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(topic="a")
        cluster.broker.policies.partition_counts["persistent://public/default/p"] = 2
        request = pb.CommandGetTopicsOfNamespace(namespace="public/default")
        answer = await client.ask(request, pb.CommandGetTopicsOfNamespaceResponse)
        prefix = "persistent://public/default/"
        expected = [prefix + "a", prefix + "p-partition-0", prefix + "p-partition-1"]
        assert list(answer.topics) == expected
        assert not answer.filtered
        request.topics_hash = answer.topics_hash
        again = await client.ask(request, pb.CommandGetTopicsOfNamespaceResponse)
        assert not again.changed
        assert not again.topics
        for name in ("__change_events", "b__transaction_pending_ack"):
            await client.producer(producer_id=len(name), topic=name)
        request = pb.CommandGetTopicsOfNamespace(namespace="public/default")
        answer = await client.ask(request, pb.CommandGetTopicsOfNamespaceResponse)
        assert list(answer.topics) == expected  # Pulsar's own topics are not for consumers.
        request = pb.CommandGetTopicsOfNamespace(namespace="no/such")
        answer = await client.ask(request, pb.CommandGetTopicsOfNamespaceResponse)
        assert not answer.topics
        assert answer.changed
        assert answer.topics_hash == topics_hash([])


@pytest.mark.parametrize(
    ("pattern", "filtered", "names"),
    [
        ("persistent://public/default/p", True, ["p-partition-0", "p-partition-1"]),
        ("persistent://public/default/(a|b)", True, ["a"]),
        ("persistent://public/default/(?=A)", False, ["a", "p-partition-0", "p-partition-1"]),
        (
            "persistent://public/default/" + "a" * 300,
            False,
            ["a", "p-partition-0", "p-partition-1"],
        ),
    ],
)
async def test_the_broker_applies_an_expression_if_it_can(
    autojump_clock: MockClock, pattern: str, filtered: bool, names: list[str]
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(topic="a")
        cluster.broker.policies.partition_counts["persistent://public/default/p"] = 2
        request = pb.CommandGetTopicsOfNamespace(namespace="public/default", topics_pattern=pattern)
        answer = await client.ask(request, pb.CommandGetTopicsOfNamespaceResponse)
        assert list(answer.topics) == [f"persistent://public/default/{name}" for name in names]
        assert answer.filtered is filtered
        assert answer.topics_hash == topics_hash(answer.topics)


async def test_an_unknown_consumer_has_no_stats(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        request = pb.CommandConsumerStats(consumer_id=7)
        answer = await client.ask(request, pb.CommandConsumerStatsResponse)
        assert answer.error_code == pb.ConsumerNotFound


# -- known commands that are not supported

_FILLED: dict[int, Any] = {
    T.NEW_TXN: pb.CommandNewTxn(request_id=7),
    T.ADD_PARTITION_TO_TXN: pb.CommandAddPartitionToTxn(request_id=7),
    T.ADD_SUBSCRIPTION_TO_TXN: pb.CommandAddSubscriptionToTxn(request_id=7),
    T.END_TXN: pb.CommandEndTxn(request_id=7),
    T.END_TXN_ON_PARTITION: pb.CommandEndTxnOnPartition(request_id=7),
    T.END_TXN_ON_SUBSCRIPTION: pb.CommandEndTxnOnSubscription(request_id=7),
    T.TC_CLIENT_CONNECT_REQUEST: pb.CommandTcClientConnectRequest(request_id=7, tc_id=0),
    T.SCALABLE_TOPIC_LOOKUP: pb.CommandScalableTopicLookup(session_id=7, topic="t"),
    T.SCALABLE_TOPIC_CLOSE: pb.CommandScalableTopicClose(session_id=7),
    T.SCALABLE_TOPIC_SUBSCRIBE: pb.CommandScalableTopicSubscribe(
        request_id=7, topic="t", subscription="s", consumer_name="c", consumer_id=1
    ),
    T.WATCH_SCALABLE_TOPICS: pb.CommandWatchScalableTopics(watch_id=7, namespace="public/default"),
    T.WATCH_SCALABLE_TOPICS_CLOSE: pb.CommandWatchScalableTopicsClose(watch_id=7),
    T.WATCH_TC_ASSIGNMENTS: pb.CommandWatchTcAssignments(watch_id=7),
    T.WATCH_TC_ASSIGNMENTS_CLOSE: pb.CommandWatchTcAssignmentsClose(watch_id=7),
}
_FILLED[T.SCALABLE_TOPIC_SUBSCRIBE].consumer_type = pb.STREAM


@pytest.mark.parametrize("number", sorted(NOT_OFFERED), ids=T.Type.Name)
async def test_what_is_not_offered_is_answered_with_its_error(
    autojump_clock: MockClock, number: int
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        client.tell(_FILLED[number])
        await client.settle()
        (answer,) = client.got
        assert isinstance(answer, Command)
        body = answer.body
        named = next(
            getattr(body, name)
            for name in ("request_id", "session_id", "watch_id")
            if hasattr(body, name)
        )
        assert named == 7
        error = body.error_code if hasattr(body, "error_code") else body.error
        assert error == pb.NotAllowedError
        assert not client.frames.closed


async def test_transactions_are_refused_where_they_hide(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=9)
        payload = encode_payload(
            pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b""
        )
        send = pb.CommandSend(producer_id=1, sequence_id=0, txnid_most_bits=3)
        base = pb.BaseCommand(type=T.SEND)
        base.send.CopyFrom(send)
        command = base.SerializeToString()
        size = len(command)
        client.frames.send(
            [
                (4 + size + len(payload)).to_bytes(4, "big"),
                size.to_bytes(4, "big"),
                command,
                payload,
            ]
        )
        (error,) = await client.wait(pb.CommandSendError)
        assert error.error == pb.NotAllowedError
        ack = pb.CommandAck(consumer_id=1, request_id=8, txnid_most_bits=3)
        ack.ack_type = pb.CommandAck.Individual
        client.tell(ack)
        (response,) = await client.wait(pb.CommandAckResponse)
        assert response.error == pb.NotAllowedError


# -- clients that misbehave


async def expect_cut(client: Client, *, told: bool = True) -> None:
    await client.wait_closed()
    await client.settle()
    errors = client.bodies(pb.CommandError)
    if told:
        assert [e.request_id for e in errors] == [NO_ID]


@pytest.mark.parametrize(
    "frame",
    [
        encode(pb.CommandPing()),
        encode(pb.CommandLookupTopic(topic="t", request_id=1)),
        encode_send(1, 1, 0),
    ],
    ids=["ping", "lookup", "send"],
)
async def test_a_command_before_connect(autojump_clock: MockClock, frame: bytes) -> None:
    async with open_broker() as cluster:
        client = await cluster.client(connect=False)
        client.frames.send([frame])
        await expect_cut(client)


@pytest.mark.parametrize(
    "frame",
    [
        encode(pb.CommandConnect(client_version="x", protocol_version=19)),
        encode(pb.CommandSuccess(request_id=1)),
        encode(pb.CommandAuthResponse()),
        encode(pb.CommandFlow(consumer_id=1, messagePermits=0)),
        encode_send(9, 1, 0),
        b"\x00\x00\x00\x02\x00\x00",
        b"\x00\x00\x00\x05\x00\x00\x00\x09\x00",
        b"\x00\x00\x00\x09\x00\x00\x00\x05\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\xb0\x00\x00",
    ],
    ids=[
        "a second connect",
        "an answer",
        "authentication",
        "no permits",
        "an unknown producer",
        "a short frame",
        "a long command",
        "garbage",
        "negative",
        "huge",
        "oversized",
    ],
)
async def test_breaking_the_protocol(autojump_clock: MockClock, frame: bytes) -> None:
    async with open_broker() as cluster:
        good = await cluster.client()
        await good.producer()
        bad = await cluster.client()
        bad.frames.send([frame])
        await expect_cut(bad)
        good.send(0)
        await good.receipts(1)


async def test_an_entry_that_makes_no_sense_is_not_stored(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        client.send_payload(0, b"\x00\x00\x00\xff\x01\x02")
        await expect_cut(client)
        assert not cluster.broker.log().entries


async def test_half_a_frame_and_then_silence(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        client.frames.send([b"\x00\x00\x10\x00\x00\x00"])
        began = trio.current_time()
        await client.wait_closed()
        assert trio.current_time() - began <= 40


async def test_whoever_says_nothing_at_all_is_cut(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client(connect=False)
        began = trio.current_time()
        await client.wait_closed()
        assert trio.current_time() - began <= 11
        await client.settle()
        assert not cluster.broker.serving


async def test_a_consumer_that_never_reads_holds_little_and_is_cut(
    autojump_clock: MockClock,
) -> None:
    limits = ConnectionLimits(dispatch_bytes_max=1 << 20)
    async with open_broker(connection_limits=limits) as cluster:
        good, bad = await cluster.client(), await cluster.client()
        await good.producer()
        await good.subscribe(name="good", permits=100_000)
        await bad.subscribe(name="bad", permits=100_000)
        bad.reading = False
        bad.flow(1)
        await bad.settle()
        for n in range(100):
            good.send(n, b"x" * 100_000)
        await good.deliveries(100)
        await good.settle()
        (slow,) = [
            s.consumers[next(iter(s.consumers))]
            for s in cluster.broker.topics.loaded[TOPIC].subscriptions.by_name.values()
            if s.name == "bad"
        ]
        connection = connection_of(slow)
        assert slow.connection.room_bytes <= 0
        assert connection._frames.pending_bytes < 2 << 20
        for _ in range(10):
            good.tell(pb.CommandPing())
            await trio.sleep(20)
        assert "bad" in cluster.broker.topics.loaded[TOPIC].subscriptions.by_name
        assert not cluster.broker.topics.loaded[TOPIC].subscriptions.get("bad").consumers
        good.send(100)
        await good.deliveries(1)


async def test_a_client_that_pings_and_never_reads_is_cut(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(dispatch_bytes_max=1 << 20)
    async with open_broker(connection_limits=limits) as cluster:
        good, bad = await cluster.client(), await cluster.client()
        await good.producer()
        await bad.subscribe(permits=100_000)
        bad.reading = False
        bad.flow(1)
        await bad.settle()
        for n in range(60):
            good.send(n, b"x" * 100_000)
        await good.receipts(60)
        for _ in range(30):
            bad.tell(pb.CommandPing())
            good.tell(pb.CommandPing())
            await trio.sleep(5)
        assert not cluster.broker.topics.loaded[TOPIC].subscriptions.get("sub").consumers
        assert cluster.broker.context.dispatch_memory.slow == 0


async def test_a_flood_of_requests_is_bounded(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(requests=RequestLimits(under_way_max=5), unread_bytes_max=10_000)
    async with open_broker(connection_limits=limits) as cluster:
        good, bad = await cluster.client(), await cluster.client()
        await good.producer()
        cluster.broker.logs.gate = trio.Event()
        for n in range(200):
            bad.tell(pb.CommandProducer(topic=f"t{n}", producer_id=n, request_id=n))
        await bad.settle(1)
        assert len(cluster.broker.logs.opened) == 1 + 5
        good.send(0)
        await good.receipts(1)
        cluster.broker.logs.gate.set()
        await bad.wait(pb.CommandProducerSuccess, 200)


async def test_who_asks_and_never_reads_is_not_answered_for_ever(
    autojump_clock: MockClock,
) -> None:
    limits = ConnectionLimits(unread_bytes_max=100_000)
    async with open_broker(connection_limits=limits) as cluster:
        good, bad = await cluster.client(), await cluster.client()
        await good.producer()
        await bad.subscribe(name="bad")
        bad.reading = False
        bad.flow(1)
        good.send(0)
        await good.receipts(1)
        (consumer,) = (
            cluster.broker.topics.loaded[TOPIC].subscriptions.get("bad").consumers.values()
        )
        asked = encode(pb.CommandCloseProducer(producer_id=9, request_id=1)) * 10_000
        for _ in range(60):
            bad.frames.send([asked])
            await trio.sleep(0.01)
        connection = connection_of(consumer)
        assert 0 < connection._frames.pending_bytes < 1_500_000
        assert bad.frames.pending_bytes > 1_000_000


async def test_too_many_producers_on_one_connection(autojump_clock: MockClock) -> None:
    async with open_broker(connection_limits=ConnectionLimits(producers_max=3)) as cluster:
        client = await cluster.client()
        for n in range(3):
            assert isinstance(await client.producer(n), pb.CommandProducerSuccess)
        assert (await client.producer(4)).error == pb.NotAllowedError


async def test_closing_what_is_being_opened(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        cluster.broker.logs.gate = trio.Event()
        client.tell(pb.CommandProducer(topic="t", producer_id=1, request_id=10))
        subscribe = pb.CommandSubscribe(topic="t", subscription="s", consumer_id=1, request_id=11)
        subscribe.subType = pb.CommandSubscribe.Exclusive
        client.tell(subscribe)
        await client.settle()
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=12))
        client.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=13))
        await client.settle()
        assert {b.request_id for b in client.bodies(pb.CommandSuccess)} == {12, 13}
        assert {b.request_id for b in client.bodies(pb.CommandError)} == {10, 11}
        cluster.broker.logs.gate.set()
        await client.settle()
        topic = cluster.broker.topics.loaded[TOPIC]
        assert not topic.producers.by_name
        assert not topic.subscriptions.by_name


async def test_closing_what_was_opened_in_this_very_moment(autojump_clock: MockClock) -> None:
    """The topic has admitted it, the client has closed it, and the request does not know it yet."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(7, producer_name="first")
        topic = cluster.broker.topics.loaded[TOPIC]
        (first,) = topic.producers.by_name.values()
        handlers = handlers_of(first)
        add, prepare = topic.producers.add, topic.subscriptions.prepare

        async def add_and_close(*args: Any, **options: Any) -> Any:
            producer = await add(*args, **options)
            close = pb.CommandCloseProducer(producer_id=1, request_id=12)
            handlers._handle(Command(T.CLOSE_PRODUCER, close), 0)
            return producer

        async def prepare_and_close(*args: Any) -> Any:
            subscription = await prepare(*args)
            close = pb.CommandCloseConsumer(consumer_id=1, request_id=13)
            handlers._handle(Command(T.CLOSE_CONSUMER, close), 0)
            return subscription

        topic.producers.add = add_and_close  # type: ignore[method-assign]
        topic.subscriptions.prepare = prepare_and_close  # type: ignore[assignment, method-assign]
        assert isinstance(await client.producer(1), pb.CommandError)
        assert isinstance(await client.subscribe(1), pb.CommandError)
        assert list(topic.producers.by_name) == ["first"]
        assert not topic.subscriptions.get("sub").consumers
        assert len(handlers._producers._protocol) == 1
        assert not len(handlers._consumers._protocol)


async def test_a_close_is_answered_when_the_opening_is_undone(autojump_clock: MockClock) -> None:
    """A step that must not be left halfway delays the opening: the close waits for it."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(7, producer_name="first")
        topic = cluster.broker.topics.loaded[TOPIC]
        add, prepare, gate = topic.producers.add, topic.subscriptions.prepare, trio.Event()

        async def add_late(*args: Any, **options: Any) -> Any:
            with trio.move_on_after(10, shield=True):
                await gate.wait()
            return await add(*args, **options)

        async def prepare_late(*args: Any) -> Any:
            with trio.move_on_after(10, shield=True):
                await gate.wait()
            return await prepare(*args)

        topic.producers.add = add_late  # type: ignore[method-assign]
        topic.subscriptions.prepare = prepare_late  # type: ignore[assignment, method-assign]
        subscribe = pb.CommandSubscribe(topic="t", subscription="s", consumer_id=1, request_id=11)
        subscribe.subType = pb.CommandSubscribe.Exclusive
        client.tell(subscribe)
        client.tell(pb.CommandProducer(topic="t", producer_id=1, request_id=12))
        await client.settle()
        client.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=13))
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=14))
        await client.settle()
        assert not client.bodies(pb.CommandSuccess)
        assert (await client.subscribe(1, name="s")).error == pb.ServiceNotReady
        assert (await client.producer(1)).error == pb.ServiceNotReady
        gate.set()
        await client.settle()
        assert {b.request_id for b in client.bodies(pb.CommandSuccess)} == {13, 14}
        assert {b.request_id for b in client.bodies(pb.CommandError)} == {11, 12}
        assert list(topic.producers.by_name) == ["first"]
        assert not any(each.consumers for each in topic.subscriptions.by_name.values())
        assert isinstance(await client.subscribe(1, name="s"), pb.CommandSuccess)
        assert isinstance(await client.producer(1), pb.CommandProducerSuccess)


@pytest.mark.parametrize("by", ["a close", "the end of the connection"])
async def test_a_volatile_subscription_goes_with_the_opening_that_made_it(
    by: str, autojump_clock: MockClock
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer(7)
        topic = cluster.broker.topics.loaded[TOPIC]
        (producer,) = topic.producers.by_name.values()
        handlers = handlers_of(producer)
        prepare = topic.subscriptions.prepare

        async def prepare_and_end(*args: Any) -> Any:
            subscription = await prepare(*args)
            if by == "a close":
                close = pb.CommandCloseConsumer(consumer_id=1, request_id=13)
                handlers._handle(Command(T.CLOSE_CONSUMER, close), 0)
            else:
                await handlers._leave()
            return subscription

        topic.subscriptions.prepare = prepare_and_end  # type: ignore[assignment, method-assign]
        subscribe = pb.CommandSubscribe(
            topic="t", subscription="s", consumer_id=1, request_id=11, durable=False
        )
        subscribe.subType = pb.CommandSubscribe.Exclusive
        client.tell(subscribe)
        await client.settle()
        assert not topic.subscriptions.by_name


@pytest.mark.parametrize("by", ["a close", "the end of the connection"])
async def test_a_producer_that_waited_for_exclusive_access_and_was_given_up_gets_none(
    by: str, autojump_clock: MockClock
) -> None:
    async with open_broker() as cluster:
        first, second, third = [await cluster.client() for _ in range(3)]
        for client in (first, second, third):
            waiting = pb.CommandProducer(topic="t", producer_id=1, request_id=1)
            waiting.producer_access_mode = pb.WaitForExclusive
            client.tell(waiting)
            await client.wait(pb.CommandProducerSuccess)
        if by == "a close":
            second.tell(pb.CommandCloseProducer(producer_id=1, request_id=2))
            (closed,) = await second.wait(pb.CommandSuccess)
            assert closed.request_id == 2
        else:
            second.frames.close()
        topic = cluster.broker.topics.loaded[TOPIC]
        await third.settle()
        assert topic.producers.waiting == 1
        first.tell(pb.CommandCloseProducer(producer_id=1, request_id=2))
        (ready,) = await third.wait(pb.CommandProducerSuccess)
        assert ready.producer_ready
        assert list(topic.producers.by_name) == [ready.producer_name]
        assert not second.bodies(pb.CommandProducerSuccess)


@pytest.mark.parametrize("by", ["a close", "the end of the connection"])
@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover])
async def test_a_consumer_that_was_given_up_keeps_nobody_from_messages(
    kind: pb.CommandSubscribe.SubType, by: str, autojump_clock: MockClock
) -> None:
    """The consumer is closed at every step of its opening; then another client subscribes."""
    for steps in range(25):
        async with open_broker() as cluster:
            gone, client = await cluster.client(), await cluster.client()
            subscribe = pb.CommandSubscribe(
                topic="t", subscription="sub", consumer_id=1, request_id=11, consumer_name="a"
            )
            subscribe.subType = kind
            gone.tell(subscribe)
            for _ in range(steps):
                await trio.sleep(0.00002)
            if by == "a close":
                gone.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=12))
                while not any(b.request_id == 12 for b in gone.bodies(pb.CommandSuccess)):
                    await gone.wait_more()
            else:
                gone.frames.close()
                await client.settle()
            assert isinstance(
                await client.subscribe(1, kind=kind, permits=10, consumer_name="b"),
                pb.CommandSuccess,
            )
            await client.producer()
            client.send(0)
            await client.deliveries(1)


async def test_a_client_that_leaves_while_it_opens(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        cluster.broker.logs.gate = trio.Event()
        client.tell(pb.CommandProducer(topic="t", producer_id=1, request_id=10))
        await client.settle()
        client.frames.close()
        await client.settle()
        cluster.broker.logs.gate.set()
        await client.settle()
        assert not cluster.broker.topics.loaded[TOPIC].producers.by_name
        assert not cluster.broker.topics._waiters


async def test_everything_is_cleaned_up_behind_a_client(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=10)
        client.send(0)
        await client.deliveries(1)
        client.frames.close()
        await client.settle()
        topic = cluster.broker.topics.loaded[TOPIC]
        assert not topic.producers.by_name
        assert not topic.subscriptions.get("sub").consumers
        assert not cluster.broker.serving


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(frames=st.lists(st.binary(min_size=0, max_size=60), min_size=1, max_size=6))
def test_no_bytes_break_the_broker(frames: list[bytes]) -> None:
    async def main() -> None:
        async with open_broker() as cluster:
            client = await cluster.client()
            for frame in frames:
                client.frames.send([len(frame).to_bytes(4, "big") + frame])
            await trio.sleep(1)
            other = await cluster.client()
            await other.producer()
            other.send(0)
            assert await other.wait(SendReceipt)
            assert not other.bodies(Delivery)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_other_tasks_run_while_thousands_of_consumers_leave(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_consumers, "_LEAVE_AT_ONCE", 3)
    async with open_broker() as cluster:
        gone, count = await cluster.client(), 10
        for consumer_id in range(count):
            await gone.subscribe(consumer_id, kind=pb.CommandSubscribe.Key_Shared)
        subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
        checkpoint, left = trio.lowlevel.checkpoint, list[int]()

        async def watched() -> None:
            left.append(len(subscription.consumers))
            await checkpoint()

        lowlevel = SimpleNamespace(checkpoint=watched)
        monkeypatch.setattr(client_consumers, "trio", SimpleNamespace(lowlevel=lowlevel))
        gone.frames.close()
        await trio.sleep(1)
        assert left == [7, 4, 1]
        assert not subscription.consumers
        # Another client finds the subscription as it is.
        await (await cluster.client()).subscribe(1, kind=pb.CommandSubscribe.Key_Shared)
        assert len(subscription.consumers) == 1
