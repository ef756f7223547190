"""Key_shared consumers, ordering keys and batches by key, against a fake broker."""

from typing import Any

import pytest

import daybook
from daybook.clients.python.protocol.batching import KeyedBatches
from daybook.wire.batch import iter_batch, parse_metadata
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import FakeCluster, fake_cluster

TOPIC = "persistent://public/default/t"


def entries(cluster: FakeCluster) -> list[tuple[pb.MessageMetadata, list[bytes]]]:
    found: list[tuple[pb.MessageMetadata, list[bytes]]] = []
    for entry in cluster.topics[TOPIC].entries:
        metadata, body = parse_metadata(memoryview(entry.payload))
        messages = [data for _, data in iter_batch(body, metadata.num_messages_in_batch)]
        found.append((metadata, messages))
    return found


async def test_batches_by_key_have_one_key_each_and_numbers_without_gaps() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", batching="by_key", batch_delay_s=60)
        results: list[Any] = []
        for number, key in enumerate(["a", "b", "a", None, b"b", "a"]):
            producer.send_nowait(
                b"%d" % number, key=key, on_result=lambda *result: results.append(result)
            )
        await producer.flush()
        got = entries(cluster)
        assert [messages for _, messages in got] == [[b"0", b"2", b"5"], [b"1", b"4"], [b"3"]]
        assert [m.partition_key for m, _ in got] == ["a", "b", ""]
        assert [m.sequence_id for m, _ in got] == [0, 3, 5]
        assert [m.highest_sequence_id for m, _ in got[:2]] == [2, 4]
        assert producer.last_sequence_id == 5
        assert [(i.entry_id, i.batch_index) for i, _ in results] == [
            (0, 0),
            (0, 1),
            (0, 2),
            (1, 0),
            (1, 1),
            (2, 0),
        ]
        consumer = await client.subscribe("t", "s", initial_position="earliest")
        assert [m.data for m in await consumer.receive_batch()][:3] == [b"0", b"2", b"5"]


async def test_the_ordering_key_decides_over_the_key() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", batching="by_key", batch_delay_s=60)
        for number in range(4):
            producer.send_nowait(b"%d" % number, key="k", ordering_key=b"%d" % (number % 2))
        await producer.flush()
        got = entries(cluster)
        assert [(m.ordering_key, messages) for m, messages in got] == [
            (b"0", [b"0", b"2"]),
            (b"1", [b"1", b"3"]),
        ]
        consumer = await client.subscribe("t", "s", initial_position="earliest")
        message = await consumer.receive()
        assert (message.key, message.ordering_key) == ("k", b"0")


@pytest.mark.parametrize("batching", [True, False])
async def test_an_ordering_key_is_that_of_its_own_entry(batching: bool) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", batching=batching)
        await producer.send(b"0", ordering_key=b"o")
        await producer.send(b"1", key="k")
        found = (
            [(m.HasField("ordering_key"), m.partition_key) for m, _ in entries(cluster)]
            if (batching)
            else [
                (
                    parse_metadata(memoryview(e.payload))[0].HasField("ordering_key"),
                    "k" if n else "",
                )
                for n, e in enumerate(cluster.topics[TOPIC].entries)
            ]
        )
        assert found == [(True, ""), (False, "k")]


async def test_messages_with_numbers_of_their_own_keep_them() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", batching="by_key", batch_delay_s=60)
        producer.send_nowait(b"0", key="a")
        producer.send_nowait(b"1", key="b")
        producer.send_nowait(b"2", key="a", sequence_id=2)
        producer.send_nowait(b"3", key="b", sequence_id=7)
        await producer.flush()
        assert [(m.sequence_id, messages) for m, messages in entries(cluster)] == [
            (0, [b"0"]),
            (1, [b"1"]),
            (2, [b"2"]),
            (7, [b"3"]),
        ]


def test_all_keys_together_fill_the_batches() -> None:
    batches = KeyedBatches[int](messages_max=3, bytes_max=1000)
    assert not batches.add(b"x", "a", None, {}, None, 5, 0)
    assert not batches.add(b"x", "b", None, {}, None, 6, None)
    assert batches.add(b"x", "a", None, {}, None, 7, 1)
    assert [(b.sequence_id, b.highest_sequence_id, r) for b, r in batches.take()] == [
        (5, 6, [(0, 0), (1, 1)]),
        (7, 7, []),
    ]
    assert (batches.count, batches.size) == (0, 0)
    assert batches.add(b"x" * 1000, "a", None, {}, None, 8, None)


async def test_a_subscription_says_how_keys_are_shared() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        await client.subscribe("t", "auto", type="key_shared")
        await client.subscribe(
            "t", "sticky", type="key_shared", key_ranges=[(0, 9), (20, 65_535)], out_of_order=True
        )
        auto, sticky = cluster.brokers["b1"].commands(pb.CommandSubscribe)
        assert auto.subType == sticky.subType == pb.CommandSubscribe.Key_Shared
        assert auto.keySharedMeta.keySharedMode == pb.AUTO_SPLIT
        assert not auto.keySharedMeta.allowOutOfOrderDelivery
        meta = sticky.keySharedMeta
        assert meta.keySharedMode == pb.STICKY
        assert [(r.start, r.end) for r in meta.hashRanges] == [(0, 9), (20, 65_535)]
        assert meta.allowOutOfOrderDelivery


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"type": "shared", "key_ranges": [(0, 1)]}, ValueError, "for key_shared"),
        ({"type": "shared", "out_of_order": True}, ValueError, "for key_shared"),
        ({"type": "key_shared", "key_ranges": []}, ValueError, "is empty"),
        ({"type": "key_shared", "key_ranges": [(2, 1)]}, ValueError, "0 to 65535"),
        ({"type": "key_shared", "key_ranges": [(0, 65_536)]}, ValueError, "0 to 65535"),
        ({"type": "key_shared", "key_ranges": [(0.5, 1)]}, TypeError, "must be an integer"),
    ],
)
async def test_wrong_ranges_are_told_at_once(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        with pytest.raises(error, match=said):
            await client.subscribe("t", "s", **options)


async def test_other_wrong_arguments_are_told_at_once() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        wrong: Any = "key"
        with pytest.raises(ValueError, match="by_key"):
            await client.create_producer("t", batching=wrong)
        producer = await client.create_producer("t")
        with pytest.raises(TypeError, match="ordering_key must be bytes"):
            producer.send_nowait(b"", ordering_key=wrong)
        consumer = await client.subscribe("t", "s", type="key_shared")
        await producer.send(b"")
        with pytest.raises(ValueError, match="a key_shared subscription has no cumulative"):
            await consumer.ack_cumulative(await consumer.receive())
