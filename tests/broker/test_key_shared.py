"""Key_shared subscriptions over raw frames: keys of entries, policies of consumers, statistics."""

from base64 import b64encode
from hashlib import blake2b
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.dispatch.entries import key_hash, keyed_head, sticky_key
from daybook.broker.limits import TopicLimits
from daybook.broker.protocol.dispatch.interface import DispatchLimits
from daybook.broker.protocol.dispatch.murmur import murmur3
from daybook.broker.topics.stats import topic_stats
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker, payload_of

KEY_SHARED = pb.CommandSubscribe.Key_Shared
EARLIEST = pb.CommandSubscribe.Earliest
SPLIT = TopicLimits(dispatch=DispatchLimits(key_shared_points=0))
LOW, HIGH = "key1", "key3"  # With split ranges and two consumers, the second one serves LOW.


def sticky(*ranges: tuple[int, int], out_of_order: bool = False) -> pb.KeySharedMeta:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, allowOutOfOrderDelivery=out_of_order)
    for first, last in ranges:
        meta.hashRanges.add(start=first, end=last)
    return meta


async def join(client: Client, consumer_id: int = 1, permits: int = 100, **options: Any) -> Any:
    return await client.subscribe(
        consumer_id, kind=KEY_SHARED, permits=permits, initialPosition=EARLIEST, **options
    )


async def with_keys(cluster: Cluster, *keys: str) -> Client:
    client = await cluster.client()
    await client.producer()
    for number, key in enumerate(keys):
        client.send(number, partition_key=key)
    await client.receipts(len(keys))
    return client


async def refused(there: Client, newcomer: Client, **options: Any) -> Any:
    """Return the answer to a newcomer, while the client of the consumers in its way is alive."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_pings, there)
        answer = await join(newcomer, **options)
        nursery.cancel_scope.cancel()
    return answer


async def _answer_pings(client: Client) -> None:
    while True:
        await client.wait(pb.CommandPing)
        client.tell(pb.CommandPong())


def stats_of(cluster: Cluster) -> dict[str, Any]:
    stats: Any = topic_stats(cluster.broker.topics.loaded[TOPIC], "")
    found: dict[str, Any] = stats["subscriptions"]["sub"]
    return found


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"ordering_key": b"o", "partition_key": "k"}, b"o"),
        ({"ordering_key": b"", "partition_key": "k"}, b""),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": ""}, b""),
        (
            {"partition_key": b64encode(b"\xff\0").decode(), "partition_key_b64_encoded": True},
            b"\xff\0",
        ),
        ({"partition_key": "not base64!", "partition_key_b64_encoded": True}, b"not base64!"),
        ({}, b"p-7"),
        ({"producer_name": ""}, b"NONE_KEY"),
    ],
)
def test_the_key_of_an_entry(fields: dict[str, Any], key: bytes) -> None:
    options: Any = {"producer_name": "p", "sequence_id": 7, "publish_time": 1, **fields}
    assert sticky_key(pb.MessageMetadata(**options)) == key


def test_an_entry_that_cannot_be_read_has_the_key_of_none() -> None:
    head = keyed_head(memoryview(b"\0\0"))
    assert (head.key, head.messages) == (murmur3(b"NONE_KEY"), 1)
    assert keyed_head(memoryview(payload_of(7))).key == murmur3(b"p-7")


def test_a_key_of_megabytes_does_not_occupy_the_broker() -> None:
    assert key_hash(b"x" * 4096) == murmur3(b"x" * 4096)
    long = b"x" * 4097
    assert key_hash(long) == murmur3(blake2b(long).digest())
    assert key_hash(long) != key_hash(long + b"x")


async def test_each_key_goes_to_one_consumer(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=SPLIT) as cluster:
        client = await with_keys(cluster, LOW, HIGH, LOW, HIGH)
        other = await cluster.client()
        await join(client, permits=0)
        await join(other)
        assert await other.entry_ids(2) == [0, 2]
        client.flow(100)
        assert await client.entry_ids(2) == [1, 3]
        stats = stats_of(cluster)
        assert (stats["type"], stats["keySharedMode"]) == ("Key_Shared", "AUTO_SPLIT")
        assert stats["allowOutOfOrderDelivery"] is False
        assert [c["keyHashRanges"] for c in stats["consumers"]] == [
            ["[32769, 65535]"],
            ["[1, 32768]"],
        ]
        assert stats["consumers"][1]["keyHashRangeArrays"] == [(1, 32768)]


async def test_a_key_that_moved_is_shown_as_draining(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=SPLIT) as cluster:
        client = await with_keys(cluster, LOW, HIGH)
        await join(client)
        assert await client.entry_ids(2) == [0, 1]
        other = await cluster.client()
        await join(other)
        client.send(2, partition_key=LOW)
        await client.receipts(1)
        await client.settle()
        stats = stats_of(cluster)
        assert stats["msgWaitingForConsumer"] == 1
        first, second = stats["consumers"]
        slot = murmur3(LOW.encode()) % 65536
        assert first["drainingHashes"] == [{"hash": slot, "unackMsgs": 1}]
        assert first["drainingHashesCount"] == first["drainingHashesUnackedMessages"] == 1
        assert second["drainingHashesCount"] == 0
        client.ack(0)
        assert await other.entry_ids(1) == [2]
        assert stats_of(cluster)["msgWaitingForConsumer"] == 0


async def test_a_lost_consumer_leaves_its_keys_in_order(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=SPLIT) as cluster:
        client = await with_keys(cluster, LOW, HIGH, LOW, LOW)
        other = await cluster.client()
        await join(client)
        assert await client.entry_ids(4) == [0, 1, 2, 3]
        await join(other)
        client.ack(0)
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        assert await other.entry_ids(3) == [1, 2, 3]


async def test_a_reader_that_is_refused_leaves_no_subscription(autojump_clock: MockClock) -> None:
    async with open_broker(topic_limits=TopicLimits(subscriptions_max=2)) as cluster:
        client = await with_keys(cluster, LOW)
        await join(client, durable=False, name="first", permits=0)
        for number in range(3):
            error = await join(
                client, 2, durable=False, name=f"r{number}", keySharedMeta=sticky((2, 1))
            )
            assert error.error == pb.ConsumerAssignError
        topic = cluster.broker.topics.loaded[TOPIC]
        assert list(topic.subscriptions.by_name) == ["first"]


async def test_a_cumulative_ack_is_refused(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_keys(cluster, LOW)
        await join(client)
        await client.entry_ids(1)
        client.ack(0, cumulative=True, request_id=9)
        (answer,) = await client.wait(pb.CommandAckResponse)
        assert answer.error == pb.NotAllowedError
        assert "key_shared" in answer.message


@pytest.mark.parametrize(
    "meta",
    [
        sticky((0, 65535)),
        pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=True),
    ],
)
async def test_the_first_consumer_sets_the_policy(autojump_clock: MockClock, meta: Any) -> None:
    async with open_broker() as cluster:
        client, other = await cluster.client(), await cluster.client()
        await join(client)
        error = await refused(client, other, keySharedMeta=meta)
        assert error.error == pb.ConsumerAssignError
        assert "auto-split" in error.message
        await client.ask(pb.CommandCloseConsumer(consumer_id=1), pb.CommandSuccess)
        assert isinstance(await join(other, 2, keySharedMeta=meta), pb.CommandSuccess)
        mode = pb.KeySharedMode.Name(meta.keySharedMode)
        assert stats_of(cluster)["keySharedMode"] == mode
        assert stats_of(cluster)["allowOutOfOrderDelivery"] == meta.allowOutOfOrderDelivery


@pytest.mark.parametrize("ranges", [[], [(5, 4)], [(-1, 3)], [(0, 65_536)], [(0, 9), (9, 12)]])
async def test_ranges_that_make_no_sense_are_refused(
    autojump_clock: MockClock, ranges: list[tuple[int, int]]
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        error = await join(client, keySharedMeta=sticky(*ranges))
        assert error.error == pb.ConsumerAssignError


async def test_sticky_ranges_may_not_overlap(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_keys(cluster, LOW, "key2")
        other = await cluster.client()
        await join(client, keySharedMeta=sticky((0, 300)))
        assert await client.entry_ids(1) == [0]
        error = await refused(client, other, keySharedMeta=sticky((300, 400)))
        assert error.error == pb.ConsumerAssignError
        assert "300 to 400 overlap 0 to 300" in error.message
        await join(other, keySharedMeta=sticky((301, 14772)))
        assert await other.entry_ids(1) == [1]
        assert stats_of(cluster)["keySharedMode"] == "STICKY"


async def test_a_dead_consumer_makes_way_for_its_ranges(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await with_keys(cluster, LOW)
        await join(client, keySharedMeta=sticky((0, 300)))
        await client.entry_ids(1)
        cluster.broker.network.block("client-1", "broker")
        other = await cluster.client()
        answer = await join(other, keySharedMeta=sticky((200, 400)))
        assert isinstance(answer, pb.CommandSuccess)
        assert await other.entry_ids(1) == [0]


async def test_chunks_of_a_message_without_a_key_have_one_key(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        others = [await cluster.client() for _ in range(4)]
        for other in others:
            await join(other, permits=10)
        for chunk in range(3):
            client.send_payload(
                5, payload_of(5, uuid="u", chunk_id=chunk, num_chunks_from_msg=3), 1
            )
        await client.receipts(3)
        await client.settle()
        got = [[each.entry_id for each in other.bodies(Delivery)] for other in others]
        assert sorted(got) == [[], [], [], [0, 1, 2]]
