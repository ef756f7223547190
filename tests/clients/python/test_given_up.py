"""An open that a client gives up leaves nothing at the broker, while others use the connection.

A real client and a real broker: the client gives up at any step, by cancellation or time-out.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import TopicLimits
from daybook.clients.python.arguments import SubscriptionTypeName
from daybook.clients.python.client import Client
from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.connection_handler import ConnectionHandler
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.errors import (
    BrokerError,
    BusyError,
    ClosedError,
    NotAllowedError,
    TopicTerminatedError,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.producer import Producer
from daybook.clients.python.reader import Reader
from daybook.clients.python.topic_consumer import TopicConsumer
from daybook.clients.python.topic_producer import TopicProducer
from daybook.wire.topics import TopicName
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import HOST, TOPIC, Cluster

STEP_S = 0.00002  # a fifth of the way to the broker
IMPATIENT = ClientLimits(request_timeout_s=1, operation_timeout_s=3)
PATIENT = ClientLimits(request_timeout_s=1, operation_timeout_s=30)
Opened: TypeAlias = Producer | Consumer | Reader
Open: TypeAlias = Callable[[Client], Awaitable[Opened]]

OPENINGS: dict[str, Open] = {
    "exclusive": lambda client: client.subscribe("t", "s"),
    "failover": lambda client: client.subscribe("t", "s", type="failover", consumer_name="a"),
    "shared": lambda client: client.subscribe("t", "s", type="shared"),
    "reader": lambda client: client.create_reader("t", start="earliest"),
    "reader from the end": lambda client: client.create_reader("t", name="r"),
    "producer": lambda client: client.create_producer("t", name="p"),
}


def left_behind(cluster: Cluster) -> list[str]:
    """Return the producers, consumers and volatile subscriptions of all topics."""
    found: list[str] = []
    for topic in cluster.broker.topics.loaded.values():
        found += [f"producer {name}" for name in topic.producers.by_name if name != "other"]
        for subscription in topic.subscriptions.by_name.values():
            found += [f"consumer {each.name}" for each in subscription.consumers.values()]
            found += [] if subscription.durable else [f"volatile {subscription.name}"]
    return found


async def check_nothing_is_left(cluster: Cluster, client: Client) -> None:
    """Check that nothing is left: others still use the connection, and the handlers have ended."""
    await trio.sleep(1)
    assert not left_behind(cluster)
    links: list[object] = []
    for connection in client._pool._connections.values():
        links += connection.consumers.values()
        links += (each for each in connection.producers.values() if each is not None)
    assert len(links) <= 1  # the producer keeps its own
    assert not client._sources


@pytest.mark.parametrize("what", OPENINGS)
async def test_an_opening_that_is_cancelled_leaves_nothing(
    what: str, autojump_clock: MockClock
) -> None:
    """The open is cancelled after each number of steps, from before its first request on."""
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        other = await client.create_producer("t", name="other")
        opened = steps = 0
        while opened < 3:
            with trio.move_on_after(steps * STEP_S) as scope:
                made = await OPENINGS[what](client)
                opened += 1
                await made.aclose()
            if scope.cancelled_caught:
                await check_nothing_is_left(cluster, client)
            steps += 1
        assert steps > 20
        await other.send(b"the connection is in use")


@pytest.mark.parametrize("what", OPENINGS)
async def test_an_opening_that_is_given_up_in_the_moment_of_its_success_leaves_nothing(
    what: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (TopicConsumer, TopicProducer):

        async def register_and_abandon(
            link: ConnectionHandler,
            connection: BrokerConnection,
            register: Callable[[Any, BrokerConnection], Awaitable[None]] = kind._register,
        ) -> None:
            await register(link, connection)
            link.abandon()

        monkeypatch.setattr(kind, "_register", register_and_abandon)
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        with pytest.raises(ClosedError):
            await OPENINGS[what](client)
        await check_nothing_is_left(cluster, client)


@pytest.mark.parametrize("what", OPENINGS)
async def test_an_opening_that_takes_too_long_leaves_nothing(
    what: str, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app", IMPATIENT) as client:
        cluster.broker.logs.gate = trio.Event()
        with pytest.raises(BrokerError):
            await OPENINGS[what](client)
        cluster.broker.logs.gate.set()
        await check_nothing_is_left(cluster, client)


@pytest.mark.parametrize("what", OPENINGS)
async def test_an_opening_that_takes_several_requests_is_there_once(
    what: str, autojump_clock: MockClock
) -> None:
    """Each request times out; the topic is loaded meanwhile, and then it succeeds."""
    async with real_broker() as cluster, client_of(cluster, "app", PATIENT) as client:
        cluster.broker.logs.gate = gate = trio.Event()
        async with trio.open_nursery() as nursery:

            async def load_slowly() -> None:
                await trio.sleep(2.5)
                gate.set()

            nursery.start_soon(load_slowly)
            made = await OPENINGS[what](client)
        await trio.sleep(1)
        there = [each for each in left_behind(cluster) if not each.startswith("volatile")]
        assert len(there) == 1
        await made.aclose()
        await check_nothing_is_left(cluster, client)


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
@pytest.mark.parametrize("names", ["ab", "ba"])
async def test_who_subscribes_behind_one_who_gave_up_gets_the_messages(
    kind: SubscriptionTypeName, names: str, autojump_clock: MockClock
) -> None:
    async with (
        real_broker() as cluster,
        client_of(cluster, "impatient") as impatient,
        client_of(cluster, "app") as client,
    ):
        cluster.broker.logs.gate = trio.Event()
        with trio.move_on_after(1):
            await impatient.subscribe("t", "s", type=kind, consumer_name=names[0])
        cluster.broker.logs.gate.set()
        with trio.fail_after(60):
            consumer = await client.subscribe("t", "s", type=kind, consumer_name=names[1])
            producer = await client.create_producer("t")
            await producer.send(b"0")
            assert (await consumer.receive()).data == b"0"
        assert consumer.active


@pytest.mark.parametrize("what", ["exclusive", "producer"])
async def test_what_was_given_up_may_be_opened_again_at_once(
    what: str, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        gave_up = True
        steps = 0
        while gave_up:
            with trio.move_on_after(steps * STEP_S) as scope:
                await (await OPENINGS[what](client)).aclose()
            gave_up = scope.cancelled_caught
            await (await OPENINGS[what](client)).aclose()
            steps += 1
        assert steps > 20


@pytest.mark.parametrize("what", OPENINGS)
@pytest.mark.parametrize("taken", [0, 2])
async def test_if_one_partition_is_refused_none_stays(
    what: str, taken: int, autojump_clock: MockClock
) -> None:
    async with (
        real_broker() as cluster,
        client_of(cluster, "first") as first,
        client_of(cluster, "app") as client,
    ):
        cluster.broker.policies.partition_counts[TOPIC] = 3
        holder = await first.create_producer(f"t-partition-{taken}", name="p")
        exclusive = await first.subscribe(f"t-partition-{taken}", "s")
        if what.startswith("reader"):
            topic = cluster.broker.topics.loaded[f"{TOPIC}-partition-{taken}"]
            await topic.subscriptions.create(
                "r", topic.log.before_first
            )  # durable: not for readers
            opening: Open = lambda c: c.create_reader("t", name="r")  # noqa: E731
        else:
            opening = OPENINGS[what]
        with pytest.raises((BusyError, NotAllowedError)):
            await opening(client)
        await holder.aclose()
        await exclusive.aclose()
        await check_nothing_is_left(cluster, client)


@pytest.mark.parametrize("what", OPENINGS)
async def test_a_client_that_loses_its_connection_while_it_opens_is_there_once(
    what: str, autojump_clock: MockClock
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        for steps in range(0, 60, 3):
            cluster.broker.logs.gate = gate = trio.Event()
            await cluster.broker.topics.unload(TopicName.parse(TOPIC))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut_and_open, cluster, steps, gate)
                made = await OPENINGS[what](client)
            await trio.sleep(1)
            volatile = [each for each in left_behind(cluster) if each.startswith("volatile")]
            assert len(left_behind(cluster)) - len(volatile) == 1
            await made.aclose()
            await check_nothing_is_left(cluster, client)


async def cut_and_open(cluster: Cluster, steps: int, gate: trio.Event) -> None:
    await trio.sleep(steps * STEP_S)
    cluster.broker.network.cut(HOST)
    await trio.sleep(steps % 2)
    gate.set()


@pytest.mark.parametrize("what", OPENINGS)
async def test_what_ends_with_an_error_leaves_nothing(what: str, autojump_clock: MockClock) -> None:
    """Its block ends with an error, or its `aclose` is cancelled, at once or on the way."""
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        other = await client.create_producer("t", name="other")
        with pytest.raises(KeyError):
            async with await OPENINGS[what](client):
                raise KeyError
        await check_nothing_is_left(cluster, client)
        for steps in range(10):
            made = await OPENINGS[what](client)
            with trio.move_on_after(steps * STEP_S):
                await made.aclose()
            await check_nothing_is_left(cluster, client)
        await other.send(b"the connection is in use")


async def test_a_reader_whose_first_seek_is_cancelled_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        other = await client.create_producer("t", name="other")
        await other.send(b"0")
        gave_up, steps = True, 0
        while gave_up:
            with trio.move_on_after(steps * STEP_S) as scope:
                reader = await client.create_reader("t", start=datetime.fromtimestamp(1, UTC))
                await reader.aclose()
            gave_up = scope.cancelled_caught
            await trio.sleep(TopicLimits().return_s)  # A moved reader may come back.
            await check_nothing_is_left(cluster, client)
            steps += 1


async def test_a_producer_of_a_topic_that_has_ended_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "app") as client:
        producer = await client.create_producer("t", name="p")
        cluster.broker.log().terminated = True
        with pytest.raises(TopicTerminatedError):
            await producer.send(b"0")
        await trio.sleep(1)
        assert not left_behind(cluster)
