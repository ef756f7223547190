"""Requests wait for their turn: they hold up nothing else, and no client holds up another one."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import ConnectionLimits, RequestLimits
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.lookup import LookupResult
from daybook.broker.service.request_turns import REQUEST_OVERHEAD_BYTES
from daybook.wire.messages.registry import Command, encode
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness import broker as harness
from tests.harness.broker import TOPIC, Client, Cluster, handlers_of, open_broker

WHERE = LookupResult("pulsar://there:6650", None, redirect=False, authoritative=True)
SMALL = RequestLimits(under_way_max=2, waiting_max=3)


def open_many(client: Client, count: int, *, first: int = 10) -> None:
    """Open so many producers, each of a topic of its own; their ids are those of the requests."""
    for n in range(first, first + count):
        client.tell(pb.CommandProducer(topic=f"t{n}", producer_id=n, request_id=n))


def connection_of(cluster: Cluster, topic: str = TOPIC) -> ClientConnection:
    """Return the connection of the client that has a producer on that topic."""
    (producer,) = cluster.broker.topics.loaded[topic].producers.by_name.values()
    return harness.connection_of(producer)


def assert_nothing_is_left(cluster: Cluster) -> None:
    for turns in (cluster.broker.context.request_turns, cluster.broker.context.lookup_turns):
        assert turns.under_way == 0
        assert (turns.waiting, turns.waiting_bytes) == (0, 0)
        assert not turns._ready
        assert not turns._crowded_out


# -- nothing waits for requests


async def test_sends_and_pings_do_not_wait_for_slow_requests(autojump_clock: MockClock) -> None:
    """300 topics are being loaded for one client; it goes on with the topic that is open."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(permits=1000)
        cluster.broker.logs.gate = trio.Event()
        open_many(client, 300)
        await client.settle()
        assert len(cluster.broker.topics.loads) == 200  # and no more, since it is one client
        assert len(cluster.broker.logs.opened) == 1 + 200
        for n in range(50):
            client.send(n)
            client.tell(pb.CommandPing())
        await client.receipts(50)
        await client.wait(pb.CommandPong)  # One pong answers all pings so far.
        client.ack(*(d.entry_id for d in await client.deliveries(50)))
        lookup = pb.CommandLookupTopic(topic="t")
        assert await client.ask(lookup, pb.CommandLookupTopicResponse)
        assert not client.bodies(pb.CommandProducerSuccess)
        cluster.broker.logs.gate.set()
        await client.wait(pb.CommandProducerSuccess, 300)
        assert cluster.broker.log().by_name["sub"].mark_delete.entry_id == 49
        assert_nothing_is_left(cluster)


async def test_a_slow_topic_is_no_reason_to_leave(autojump_clock: MockClock) -> None:
    """While its topic has too much to store, the connection is not read from: it reports that."""
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        log = cluster.broker.log()
        log.held, log.pending_bytes_max = True, 1000
        for n in range(3):
            client.send(n, b"x" * 1000)
        await client.settle()
        client.tell(pb.CommandPing())
        for _ in range(20):
            heard = client.frames.received_bytes
            await trio.sleep(1.5)
            assert client.frames.received_bytes > heard
        assert not client.bodies(pb.CommandPong)
        log.release()
        await client.receipts(3)
        await client.wait(pb.CommandPong)


# -- waiting requests are bounded


async def test_requests_beyond_the_bound_are_refused(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(requests=SMALL)
    async with open_broker(connection_limits=limits) as cluster:
        client, other = await cluster.client(), await cluster.client()
        await client.producer()
        cluster.broker.logs.gate = trio.Event()
        open_many(client, 9)
        refused = await client.wait(pb.CommandError, 4)
        assert {error.request_id for error in refused} == {15, 16, 17, 18}
        assert {error.error for error in refused} == {pb.ServiceNotReady}
        assert "3 requests of this connection wait already" in refused[0].message
        turns = cluster.broker.context.turns
        assert (turns.under_way, turns.waiting) == (2, 3)
        client.send(0)
        await client.receipts(1)
        other.tell(pb.CommandProducer(topic="other", producer_id=1, request_id=1))
        cluster.broker.logs.gate.set()
        await other.wait(pb.CommandProducerSuccess)
        opened = await client.wait(pb.CommandProducerSuccess, 5)
        assert {success.request_id for success in opened} == {10, 11, 12, 13, 14}
        # The refused request has left no trace: the same producer can be opened.
        assert isinstance(await client.producer(18, topic="t18"), pb.CommandProducerSuccess)
        client.send(0, producer_id=18)
        await client.receipts(1)
        assert_nothing_is_left(cluster)


@pytest.mark.parametrize("who", ["one connection", "all connections"])
async def test_the_bytes_of_requests_that_wait_are_bounded(
    autojump_clock: MockClock, who: str
) -> None:
    size = REQUEST_OVERHEAD_BYTES + len(
        encode(pb.CommandProducer(topic="t10", producer_id=10, request_id=10))
    )
    bound = 5 * size
    one = RequestLimits(under_way_max=1, waiting_bytes_max=bound)
    everybody = RequestLimits(under_way_max=1, waiting_total_bytes=bound)
    limits = ConnectionLimits(requests=one if who == "one connection" else everybody)
    async with open_broker(connection_limits=limits) as cluster:
        client, other = await cluster.client(), await cluster.client()
        cluster.broker.logs.gate = trio.Event()
        open_many(client, 10)
        assert len(await client.wait(pb.CommandError, 4)) == 4
        assert 4 * size < cluster.broker.context.request_turns.waiting_bytes <= bound
        open_many(other, 2, first=40)
        await other.settle()
        assert len(other.bodies(pb.CommandError)) == (who == "all connections")
        client.frames.close()
        await other.settle()
        open_many(other, 1, first=50)
        cluster.broker.logs.gate.set()
        await other.wait(pb.CommandProducerSuccess, 3 - (who == "all connections"))
        assert_nothing_is_left(cluster)


async def test_look_ups_beyond_the_bound_are_refused_in_their_own_way(
    autojump_clock: MockClock,
) -> None:
    limits = ConnectionLimits(lookups=SMALL)
    async with open_broker(connection_limits=limits) as cluster:
        client = await cluster.client()
        gate = hold_lookups(cluster)
        for n in range(8):
            client.tell(pb.CommandLookupTopic(topic="t", request_id=n))
        refused = await client.wait(pb.CommandLookupTopicResponse, 3)
        assert [answer.request_id for answer in refused] == [5, 6, 7]
        assert {answer.error for answer in refused} == {pb.ServiceNotReady}
        gate.set()
        answers = await client.wait(pb.CommandLookupTopicResponse, 5)
        assert {answer.brokerServiceUrl for answer in answers} == {"pulsar://there:6650"}


def hold_lookups(cluster: Cluster) -> trio.Event:
    gate = trio.Event()

    async def lookup(topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        await gate.wait()
        return WHERE

    cluster.broker.lookups.lookup = lookup  # type: ignore[method-assign]
    return gate


async def test_who_leaves_takes_along_what_waits(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        cluster.broker.logs.gate = trio.Event()
        open_many(client, 300)
        await client.settle()
        assert cluster.broker.context.request_turns.under_way == 200
        client.frames.close()
        await client.settle()
        assert_nothing_is_left(cluster)
        cluster.broker.logs.gate.set()
        await client.settle()
        assert not cluster.broker.serving


async def test_what_waits_is_not_begun_for_a_client_that_takes_no_answers(
    autojump_clock: MockClock,
) -> None:
    limits = ConnectionLimits(unread_bytes_max=20_000)
    async with open_broker(connection_limits=limits) as cluster:
        bad = await cluster.client()
        asked = 0

        async def names_in(namespace: str) -> list[str]:
            nonlocal asked
            asked += 1
            await trio.lowlevel.checkpoint()
            return ["persistent://public/default/" + "x" * 100] * 1000

        cluster.broker.topics.names_in = names_in  # type: ignore[method-assign]
        bad.reading = False
        ask = encode(pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=1))
        bad.frames.send([ask * 1000])
        await bad.settle(5)
        assert 20 <= asked <= 60  # 1,000 answers would be 130 MB
        bad.reading = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bad.run)
            await bad.wait(pb.CommandGetTopicsOfNamespaceResponse, 900)
            nursery.cancel_scope.cancel()


# -- the order of turns


class Passes(trio.abc.Instrument):
    """Counts the passes of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize("under_way_max", [20, 100_000])
async def test_a_flood_of_look_ups_delays_others_by_a_few_of_them(
    autojump_clock: MockClock, under_way_max: int
) -> None:
    lookups = RequestLimits(under_way_max=under_way_max, total_max=100_000)
    async with open_broker(connection_limits=ConnectionLimits(lookups=lookups)) as cluster:
        flooder, other = await cluster.client(), await cluster.client()
        passes = Passes()
        asked: list[tuple[int, str]] = []

        async def lookup(topic: TopicName, *, authoritative: bool = False) -> LookupResult:
            asked.append((passes.count, topic.local))
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            return WHERE

        cluster.broker.lookups.lookup = lookup  # type: ignore[method-assign]
        trio.lowlevel.add_instrument(passes)
        frame = encode(pb.CommandLookupTopic(topic="flood", request_id=1))
        flooder.frames.send([frame * 4_000])
        for n in range(20):
            other.tell(pb.CommandLookupTopic(topic="other", request_id=n))
        other.tell(pb.CommandPing())
        await other.wait(pb.CommandPong)
        await other.wait(pb.CommandLookupTopicResponse, 20)
        trio.lowlevel.remove_instrument(passes)
        places = [place for place, (_, name) in enumerate(asked) if name == "other"]
        assert len(places) == 20
        assert places[-1] < 100, "the other's look-ups waited for many of the flood"
        in_one_pass: dict[int, int] = {}
        for number, _ in asked:
            in_one_pass[number] = in_one_pass.get(number, 0) + 1
        assert max(in_one_pass.values()) <= 40, "all others wait for each pass of the loop"
        assert len(asked) == 4_020


async def test_what_one_client_has_under_way_shuts_nobody_out(autojump_clock: MockClock) -> None:
    """One client reaches the limit of the broker; others get one request at a time, and no more."""
    limits = ConnectionLimits(requests=RequestLimits(under_way_max=8, total_max=8))
    async with open_broker(connection_limits=limits) as cluster:
        greedy = await cluster.client()
        others = [await cluster.client() for _ in range(3)]
        cluster.broker.logs.gate = trio.Event()
        open_many(greedy, 20)
        await greedy.settle()
        for number, client in enumerate(others, 1):
            open_many(client, 3, first=100 * number)
        await greedy.settle()
        opened = [name.local for name in cluster.broker.logs.opened]
        assert sorted(opened[8:]) == ["t100", "t200", "t300"]
        cluster.broker.logs.gate.set()
        for client in others:
            await client.wait(pb.CommandProducerSuccess, 3)
        await greedy.wait(pb.CommandProducerSuccess, 20)
        # The waiting requests had their turns one after the other.
        order = [name.local for name in cluster.broker.logs.opened]
        assert {"t101", "t201", "t301"} <= set(order[11:24])
        assert_nothing_is_left(cluster)


async def test_producers_that_wait_for_another_one_take_no_place(
    autojump_clock: MockClock,
) -> None:
    limits = ConnectionLimits(requests=SMALL)
    async with open_broker(connection_limits=limits) as cluster:
        first, client = await cluster.client(), await cluster.client()
        exclusive = pb.CommandProducer(topic="t", producer_id=1)
        exclusive.producer_access_mode = pb.Exclusive
        await first.ask(exclusive, pb.CommandProducerSuccess)
        for n in range(1, 5):
            waiting = pb.CommandProducer(topic="t", producer_id=n, request_id=n)
            waiting.producer_access_mode = pb.WaitForExclusive
            client.tell(waiting)
        told = await client.wait(pb.CommandProducerSuccess, 4)
        assert not any(success.producer_ready for success in told)
        assert isinstance(await client.producer(9, topic="u"), pb.CommandProducerSuccess)
        first.tell(pb.CommandCloseProducer(producer_id=1, request_id=50))
        (ready,) = await client.wait(pb.CommandProducerSuccess)
        assert ready.producer_ready
        client.frames.close()
        await first.settle()
        assert_nothing_is_left(cluster)


# -- requests that depend on each other


async def test_closing_what_waits_to_be_opened(autojump_clock: MockClock) -> None:
    limits = ConnectionLimits(requests=SMALL)
    async with open_broker(connection_limits=limits) as cluster:
        client = await cluster.client()
        cluster.broker.logs.gate = trio.Event()
        open_many(client, 2)
        client.tell(pb.CommandProducer(topic="late", producer_id=1, request_id=1))
        subscribe = pb.CommandSubscribe(topic="late", subscription="s", consumer_id=1, request_id=2)
        subscribe.subType = pb.CommandSubscribe.Exclusive
        client.tell(subscribe)
        client.tell(pb.CommandCloseProducer(producer_id=1, request_id=3))
        client.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=4))
        closed = await client.wait(pb.CommandSuccess, 2)
        assert [success.request_id for success in closed] == [3, 4]
        refused = await client.wait(pb.CommandError, 2)
        assert [error.request_id for error in refused] == [1, 2]
        assert "closed before it was open" in refused[0].message
        client.tell(pb.CommandProducer(topic="later", producer_id=1, request_id=5))
        cluster.broker.logs.gate.set()
        await client.wait(pb.CommandProducerSuccess, 3)
        client.send(0)
        await client.receipts(1)
        assert "persistent://public/default/late" not in cluster.broker.topics.loaded
        assert len(cluster.broker.log("persistent://public/default/later").entries) == 1
        assert_nothing_is_left(cluster)


@pytest.mark.parametrize("kind", ["unsubscribe", "seek"])
async def test_a_request_for_a_consumer_never_reaches_the_next_one_of_its_id(
    autojump_clock: MockClock, kind: str
) -> None:
    limits = ConnectionLimits(requests=RequestLimits(under_way_max=1))
    async with open_broker(connection_limits=limits) as cluster:
        client, second = await cluster.client(), await cluster.client()
        await client.producer()
        await client.subscribe(name="old")
        await client.subscribe(2, name="precious", permits=10)
        client.send(0)
        (delivery,) = await client.deliveries(1)
        client.ack(delivery.entry_id, consumer_id=2)
        await client.settle()
        (producer,) = cluster.broker.topics.loaded[TOPIC].producers.by_name.values()
        handlers = handlers_of(producer)
        cluster.broker.logs.gate = trio.Event()
        open_many(client, 1)
        request: Any = pb.CommandUnsubscribe(consumer_id=1, request_id=1)
        if kind == "seek":
            request = pb.CommandSeek(consumer_id=1, request_id=1, message_publish_time=0)
        client.tell(request)
        client.tell(pb.CommandCloseConsumer(consumer_id=1, request_id=2))
        client.tell(pb.CommandCloseConsumer(consumer_id=2, request_id=3))
        await client.wait(pb.CommandSuccess, 2)
        # The client opens the id again, for another subscription, before the request is begun.
        subscribe = pb.CommandSubscribe(
            topic=TOPIC, subscription="precious", consumer_id=1, request_id=4
        )
        subscribe.subType = pb.CommandSubscribe.Exclusive
        handlers._handle(Command(pb.BaseCommand.SUBSCRIBE, subscribe), 0)
        queue = handlers._requests
        (asked, opening) = queue._waiting
        queue._waiting = {opening: None, asked: None}  # the worst possible order
        cluster.broker.logs.gate.set()
        await client.wait(pb.CommandProducerSuccess, 1)
        (error,) = await client.wait(pb.CommandError)
        assert (error.request_id, error.error) == (1, pb.MetadataError)
        topic = cluster.broker.topics.loaded[TOPIC]
        assert topic.subscriptions.get("precious").consumers
        assert cluster.broker.log().by_name["precious"].mark_delete.entry_id == 0
        assert isinstance(await second.producer(topic="u"), pb.CommandProducerSuccess)
