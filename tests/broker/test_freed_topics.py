"""A topic that has been unloaded is freed at once, and does not wait for the garbage collector.

The collector stops the whole process: for a second and more where thousands of topics are loaded,
in which the session of the broker may end.
"""

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.protocol.bundles import BundleName
from daybook.broker.topics.topic import Topic
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.broker import TOPIC, Client, Cluster, open_broker
from tests.harness.garbage import collector_off, left_to_the_collector

_COUNT = 3
_ALL = BundleName("public/default/0x00000000_0xffffffff")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    with collector_off():
        yield


async def _unload(cluster: Cluster, name: TopicName) -> None:
    await cluster.broker.topics.unload(name)


async def _drop(cluster: Cluster, _name: TopicName) -> None:
    cluster.broker.topics.drop_bundle(_ALL)


async def _delete(cluster: Cluster, name: TopicName) -> None:
    await cluster.broker.topics.delete(name, force=True)


async def _lose(cluster: Cluster, name: TopicName) -> None:
    cluster.broker.topics.loaded[name.full].log.on_fenced()


async def _unused(_client: Client) -> None:
    pass


async def _exclusive(client: Client) -> None:
    await client.producer()
    client.send(0)
    await client.receipts(1)
    await client.subscribe(permits=10)
    await client.deliveries(0)


async def _shared(client: Client) -> None:
    """Two consumers that have something back, acknowledged and under way, and a seek."""
    await _consume(client, pb.CommandSubscribe.Shared)


async def _key_shared(client: Client) -> None:
    await _consume(client, pb.CommandSubscribe.Key_Shared)


async def _failover(client: Client) -> None:
    await _consume(client, pb.CommandSubscribe.Failover)


async def _consume(client: Client, kind: pb.CommandSubscribe.SubType) -> None:
    await client.producer()
    for number in range(20):
        client.send(number, partition_key=str(number))
    await client.receipts(20)
    earliest = pb.CommandSubscribe.Earliest
    for consumer in (1, 2):
        await client.subscribe(consumer, kind=kind, permits=4, initialPosition=earliest)
    await client.settle()
    client.ack(2)
    client.tell(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    await client.settle()
    await client.subscribe(3, name="volatile", durable=False, permits=1)
    await client.subscribe(4, name="moved", permits=100)
    await client.ask(pb.CommandSeek(consumer_id=4, message_publish_time=1), pb.CommandSuccess)


async def _waiting(client: Client) -> None:
    """A producer waits until another one leaves."""
    await client.producer(1, producer_access_mode=pb.Exclusive)
    client.tell(
        pb.CommandProducer(
            topic=TOPIC, producer_id=2, request_id=99, producer_access_mode=pb.WaitForExclusive
        )
    )
    await client.settle()


@pytest.mark.parametrize("end", [_unload, _drop, _delete, _lose])
@pytest.mark.parametrize("use", [_unused, _exclusive, _shared, _key_shared, _failover, _waiting])
async def test_a_topic_that_has_ended_is_freed(
    use: Callable[[Client], Awaitable[None]],
    end: Callable[[Cluster, TopicName], Awaitable[None]],
    autojump_clock: MockClock,
) -> None:
    gone = list[weakref.ref[Topic]]()
    async with open_broker() as cluster:

        async def come_and_go() -> None:
            client = await cluster.client()
            name = TopicName.parse(TOPIC)
            gone.append(weakref.ref(await cluster.broker.topics.get(name, create=True)))
            await use(client)
            await end(cluster, name)
            await trio.sleep(1)
            client.frames.close()
            await trio.sleep(100)

        await come_and_go()
        gc.collect()  # Earlier tests have left something, too.
        for _ in range(_COUNT):
            await come_and_go()
        assert not left_to_the_collector(_COUNT)
        assert [topic() for topic in gone] == [None] * (1 + _COUNT)
