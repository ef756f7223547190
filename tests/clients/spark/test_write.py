"""A task that writes ends when all its rows are stored, or fails."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
import trio

from daybook.clients.python.errors import BrokerError, MessageTooLargeError
from daybook.clients.spark.row_columns import RowColumns
from daybook.clients.spark.sink_options import SinkOptions
from daybook.clients.spark.write import send_rows
from daybook.clients.spark.write_plan import WritePlan
from daybook.wire.batch import iter_batch, parse_metadata
from daybook.wire.compression import decompress
from daybook.wire.messages.client import Send
from daybook.wire.proto import pulsar_pb2 as pb
from tests.clients.python.fake_broker import PATIENCE_S, FakeCluster, fake_cluster, until

TOPIC = "persistent://public/default/t"
ROWS = 5000
VALUE = RowColumns(0)


def batches(count: int = ROWS) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, 1000):
        values = [b"%d" % number for number in range(first, min(count, first + 1000))]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


async def run(
    cluster: FakeCluster,
    rows: Iterator[pa.RecordBatch],
    columns: RowColumns = VALUE,
    topic: str | None = "t",
) -> int:
    """Run a task in a thread, which has an event loop of its own."""
    plan = WritePlan(SinkOptions(cluster.url, topic, "zstd"), columns)
    call: Callable[[], int] = lambda: send_rows(plan, rows, task=0)  # noqa: E731
    with trio.fail_after(PATIENCE_S):
        return await trio.to_thread.run_sync(call)


def stored(cluster: FakeCluster, topic: str = TOPIC) -> list[bytes]:
    found: list[bytes] = []
    for entry in cluster.topics[topic].entries:
        metadata, body = parse_metadata(memoryview(entry.payload))
        data = bytes(decompress(metadata.compression, body, metadata.uncompressed_size, 1 << 20))
        found += [each for _, each in iter_batch(data, metadata.num_messages_in_batch)]
    return found


async def test_a_task_stores_its_rows_in_order() -> None:
    async with fake_cluster() as cluster:
        assert await run(cluster, batches()) == ROWS
        assert stored(cluster) == [b"%d" % number for number in range(ROWS)]
        (sent,) = {send.compression for send in sends(cluster)}
        assert sent == pb.ZSTD


def sends(cluster: FakeCluster) -> list[pb.MessageMetadata]:
    commands = cluster.brokers["b1"].commands(Send)
    return [parse_metadata(memoryview(bytes(each.payload)))[0] for each in commands]


async def test_a_task_without_rows_asks_for_nothing() -> None:
    async with fake_cluster() as cluster:
        assert await run(cluster, iter(())) == 0
        assert cluster.brokers["b1"].received == []


async def test_a_task_does_not_end_before_its_last_receipt() -> None:
    async with fake_cluster() as cluster, trio.open_nursery() as nursery:
        broker = cluster.brokers["b1"]
        broker.hold_receipts = True
        ended = trio.Event()

        async def task() -> None:
            await run(cluster, batches(10))
            ended.set()

        nursery.start_soon(task)
        await until(lambda: broker.commands(Send))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not ended.is_set()
        broker.release_receipts()
        with trio.fail_after(PATIENCE_S):
            await ended.wait()


async def test_a_task_fails_if_a_message_is_refused() -> None:
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].send_errors = [pb.NotAllowedError]
        with pytest.raises(BrokerError):
            await run(cluster, batches())


async def test_a_row_that_is_too_large_is_explained() -> None:
    async with fake_cluster() as cluster:
        cluster.brokers["b1"].max_message_size = 1000
        large = pa.RecordBatch.from_arrays([pa.array([b"x" * 2000])], names=["value"])
        with pytest.raises(MessageTooLargeError, match="the broker takes at most 1000"):
            await run(cluster, iter([large]))


async def test_each_partition_and_topic_gets_its_rows() -> None:
    async with fake_cluster() as cluster:
        cluster.partitions["persistent://public/default/a"] = 2
        rows = pa.RecordBatch.from_pydict(
            {
                "value": [b"1", b"2", b"3", b"4"],
                "topic": ["a", "b", "a", "a"],
                "partition": pa.array([1, None, 0, 1], pa.int32()),
            }
        )
        assert await run(cluster, iter([rows]), RowColumns(0, topic=1, partition=2), None) == 4
        of = "persistent://public/default/"
        found = {name.removeprefix(of): stored(cluster, name) for name in cluster.topics}
        assert found == {"a-partition-0": [b"3"], "a-partition-1": [b"1", b"4"], "b": [b"2"]}


async def test_a_task_goes_on_at_the_next_owner() -> None:
    async with fake_cluster("b1", "b2") as cluster, trio.open_nursery() as nursery:
        first = cluster.brokers["b1"]
        first.drop_sends = True
        nursery.start_soon(run, cluster, batches())
        await until(lambda: first.commands(Send))
        cluster.owner[TOPIC] = "b2"
        first.kill()
    assert sorted(set(stored(cluster)), key=int) == [b"%d" % number for number in range(ROWS)]
