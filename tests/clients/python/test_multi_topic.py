"""Consumers of several topics, by a list and by a pattern: a broker of ours, logs in memory."""

import re
from collections import Counter

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

import daybook
from daybook.clients.python.client import Client
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.topic_choice import TopicPattern, topic_choice
from daybook.wire.topics import TopicName
from tests.clients.python.fake_broker import fake_cluster, until
from tests.clients.python.real_broker import client_of, real_broker

FULL = "persistent://public/default/"
QUICK = ClientLimits(backoff_initial_s=0.01, backoff_max_s=0.05)


async def send(client: Client, topic: str, count: int, first: int = 0) -> None:
    async with await client.create_producer(topic, batching=False) as producer:
        for number in range(first, first + count):
            producer.send_nowait(f"{topic} {number}".encode())


async def receive(consumer: Consumer, count: int) -> list[str]:
    found: list[str] = []
    with trio.fail_after(600):
        while len(found) < count:
            message = await consumer.receive()
            found.append((message.data or b"").decode())
            await consumer.ack(message)
    return found


async def test_a_list_of_topics_is_one_consumer(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster:
        cluster.broker.policies.partition_counts[FULL + "b"] = 3
        async with client_of(cluster, "client", QUICK) as client:
            consumer = await client.subscribe(["a", "b"], "s", initial_position="earliest")
            assert consumer.topics == [FULL + "a", FULL + "b"]
            await send(client, "a", 5)
            await send(client, "b", 9)
            found = await receive(consumer, 14)
            assert sorted(found) == sorted(
                [f"a {n}" for n in range(5)] + [f"b {n}" for n in range(9)]
            )
            await consumer.flush_acks()
            await consumer.aclose()
            again = await client.subscribe(["a", "b"], "s")
            with trio.move_on_after(5) as scope:
                await again.receive()
            assert scope.cancelled_caught


async def test_acknowledgements_by_id_go_to_the_topic_of_the_id(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(["a", "b"], "s", ack_receipts=True)
        await send(client, "a", 3)
        await send(client, "b", 3)
        ids = [(await consumer.receive()).message_id for _ in range(6)]
        assert Counter(place.topic for place in ids) == {FULL + "a": 3, FULL + "b": 3}
        plain = daybook.MessageId.decode(ids[0].encode())
        assert plain == ids[0]
        with pytest.raises(ValueError, match="names no topic"):
            await consumer.ack(plain)
        await consumer.ack(daybook.MessageId.decode(ids[0].encode(), ids[0].topic))
        await consumer.ack(ids[1:])
        with pytest.raises(ValueError, match="does not receive from"):
            await consumer.ack(daybook.MessageId(1, 1, topic=FULL + "c"))
        await consumer.aclose()
        again = await client.subscribe(["a", "b"], "s")
        with trio.move_on_after(5) as scope:
            await again.receive()
        assert scope.cancelled_caught


async def test_topics_take_turns(autojump_clock: MockClock) -> None:
    """A quiet topic does not wait behind all that a busy one has sent ahead."""
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(["busy", "quiet"], "s", initial_position="earliest")
        await send(client, "busy", 500)
        await send(client, "quiet", 3)
        await trio.sleep(1)
        found = await receive(consumer, 20)
        assert sum(each.startswith("quiet") for each in found) == 3


async def test_all_topics_share_one_queue() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        names = [f"t{n}" for n in range(10)]
        consumer = await client.subscribe(
            names, "s", initial_position="earliest", receiver_queue_size=50
        )
        for name in names:
            await send(client, name, 100)
        await until(lambda: len(cluster.brokers["b1"].connections[0].consumers) == 10)
        await trio.lowlevel.checkpoint()
        fakes = cluster.brokers["b1"].connections[0].consumers.values()
        await until(lambda: all(each.permits == 0 for each in fakes))
        assert sum(each.next for each in fakes) <= 50
        assert len(await receive(consumer, 1000)) == 1000


async def test_a_pattern_finds_what_comes_from_its_first_message_on(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        await send(client, "orders-1", 2)
        await send(client, "others", 2)
        consumer = await client.subscribe(
            re.compile("orders-.*"), "s", initial_position="earliest", discovery_s=30
        )
        assert consumer.topics == [FULL + "orders-1"]
        assert await receive(consumer, 2) == ["orders-1 0", "orders-1 1"]
        await send(client, "orders-2", 2)
        cluster.broker.policies.partition_counts[FULL + "orders-3"] = 2
        await send(client, "orders-3", 2)
        assert sorted(await receive(consumer, 4)) == [
            "orders-2 0", "orders-2 1", "orders-3 0", "orders-3 1"
        ]  # fmt: skip
        assert consumer.topics == [FULL + f"orders-{n}" for n in (1, 2, 3)]


async def test_a_pattern_may_find_nothing_yet(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        consumer = await client.subscribe(re.compile("orders-.*"), "s", discovery_s=30)
        assert consumer.topics == []
        await send(client, "orders-1", 1)
        assert await receive(consumer, 1) == ["orders-1 0"]


async def test_a_deleted_topic_leaves_the_pattern_and_is_not_created_again(
    autojump_clock: MockClock,
) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        await send(client, "orders-1", 1)
        await send(client, "orders-2", 1)
        consumer = await client.subscribe(
            re.compile(FULL + "orders-.*"), "s", initial_position="earliest", discovery_s=30
        )
        assert len(await receive(consumer, 2)) == 2
        await cluster.broker.topics.delete(TopicName.parse("orders-1"), force=True)
        await trio.sleep(100)
        assert consumer.topics == [FULL + "orders-2"]
        assert await client.topics() == [FULL + "orders-2"]
        await send(client, "orders-2", 1, first=1)
        assert await receive(consumer, 1) == ["orders-2 1"]
        await consumer.flush_acks()


async def test_a_list_ends_with_its_last_topic() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        for name in "ab":
            await send(client, name, 1)
            cluster.topics[FULL + name].terminated = name == "a"
        consumer = await client.subscribe(["a", "b"], "s", initial_position="earliest")
        assert sorted([(await anext(consumer)).data or b"" for _ in range(2)]) == [b"a 0", b"b 0"]
        with trio.move_on_after(0.05) as scope:
            await anext(consumer)
        assert scope.cancelled_caught
        cluster.topics[FULL + "b"].terminated = True
        cluster.brokers["b1"].close_consumers()
        with trio.fail_after(60):
            # Messages without an acknowledgement come again first.
            assert len([each async for each in consumer]) == 2


async def test_one_refused_topic_closes_all(autojump_clock: MockClock) -> None:
    async with real_broker() as cluster, client_of(cluster, "client", QUICK) as client:
        other = await client.subscribe("b", "s")
        with pytest.raises(daybook.BusyError):
            await client.subscribe(["a", "b", "c"], "s")
        await other.aclose()
        consumer = await client.subscribe(["a", "b", "c"], "s")
        assert consumer.connected


@pytest.mark.parametrize(
    ("text", "topic", "matches"),
    [
        ("orders-.*", "orders-1", True),
        ("orders-.*", "orders-", True),
        ("orders-.*", "my-orders-1", False),
        ("orders", "orders-1", False),
        ("orders-.*", "shop/eu/orders-1", False),
        ("shop/eu/.*", "shop/eu/orders-1", True),
        ("persistent://shop/eu/.*", "shop/eu/orders-1", True),
        ("persistent://shop/eu/.*", "shop/us/orders-1", False),
        ("orders-.*", "non-persistent://public/default/orders-1", False),
    ],
)
def test_a_pattern_is_for_whole_names(text: str, topic: str, matches: bool) -> None:
    assert TopicPattern.parse(re.compile(text)).matches(TopicName.parse(topic)) == matches


def test_partitions_are_found_by_their_topic() -> None:
    pattern = TopicPattern.parse(re.compile("a|b"))
    found = pattern.select([FULL + "a-partition-0", FULL + "a-partition-1", FULL + "b", "x://y"])
    assert {name.local: len(names) for name, names in found.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize("text", ["shop/.*", "non-persistent://a/b/.*", ".*/eu/x", "a.b://c"])
def test_a_pattern_names_one_namespace(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        TopicPattern.parse(re.compile(text))


def test_a_list_names_no_partition_twice() -> None:
    with pytest.raises(ValueError, match="is a partition of"):
        topic_choice(["a", "a-partition-1"])
    with pytest.raises(ValueError, match="empty"):
        topic_choice([])
    assert len(topic_choice(["a", FULL + "a"]).names) == 1


def test_ids_are_compared_without_their_topics() -> None:
    one, other = daybook.MessageId(1, 2), daybook.MessageId(1, 3)
    same = daybook.MessageId(1, 2, topic=FULL + "a")
    assert one == same
    assert (one != same) is False  # The base class has a comparison of its own.
    assert hash(one) == hash(same)
    assert one != other
    assert one < other
    assert len({one, same, other}) == 2
