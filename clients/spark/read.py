"""What a Spark task does: read its own range of offsets and hand it on as Arrow batches.

Each task opens a client of its own and reads from the broker that owns the partition; the driver
sees offsets only, never a message.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clients.python import blocking
from clients.python.messages import Message, Offset
from clients.spark.offsets import DataLossError, OffsetRange, Retained

BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 8 << 20
RECEIVE_TIMEOUT_S = 60.0

SCHEMA_DDL = (
    "key string, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "eventTime timestamp, properties map<string,string>, messageId binary"
)
ARROW_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("eventTime", pa.timestamp("us", tz="UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("messageId", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """All that a task needs to know; it travels from the driver to a worker."""

    service_url: str
    topic: str
    part: OffsetRange
    fail_on_data_loss: bool


def partition_topics(client: blocking.Client, topic: str) -> list[str]:
    """The topics of all partitions, in order; the topic itself if it has none."""
    count = client.partitions(topic)
    return [f"{topic}-partition-{i}" for i in range(count)] if count else [topic]


def retained_offsets(service_url: str, topic: str) -> dict[int, Retained]:
    """What each partition holds now.  No message is transferred."""
    with blocking.connect(service_url) as client:
        bounds = [client.offsets(name) for name in partition_topics(client, topic)]
    return {i: Retained(held.first, held.next) for i, held in enumerate(bounds)}


def read_task(task: ReadTask) -> Iterator[Any]:
    """The messages of the range, in order, as Arrow batches.

    Raises DataLossError if an offset of the range is not there any more.
    """
    part = task.part
    with blocking.connect(task.service_url) as client:
        topic = partition_topics(client, task.topic)[part.partition]
        expected = part.start
        rows: list[Message] = []
        row_bytes = 0
        with client.create_reader(topic, start=Offset(part.start)) as reader:
            while expected < part.end:
                got = reader.receive_batch(BATCH_ROWS_MAX, timeout_s=RECEIVE_TIMEOUT_S)
                if not got:
                    raise TimeoutError(f"{topic}: nothing arrived from offset {expected} on")
                for message in got:
                    offset = message.offset
                    assert offset is not None, "the broker numbers every message"
                    if offset < expected:
                        continue  # an earlier message of the batch in which the range starts
                    if offset >= part.end:
                        expected = part.end
                        break
                    if offset > expected and task.fail_on_data_loss:
                        raise DataLossError(f"{topic}: offsets {expected} to {offset} are gone")
                    expected = offset + 1
                    rows.append(message)
                    row_bytes += len(message.data)
                    if len(rows) >= BATCH_ROWS_MAX or row_bytes >= BATCH_BYTES_MAX:
                        yield record_batch(rows, task.topic, part.partition)
                        rows, row_bytes = [], 0
        if rows:
            yield record_batch(rows, task.topic, part.partition)


def record_batch(messages: Sequence[Message], topic: str, partition: int) -> pa.RecordBatch:
    """One Arrow batch, column by column."""
    count = len(messages)
    columns: list[list[Any]] = [
        [m.key for m in messages],
        [m.data for m in messages],
        [topic] * count,
        [partition] * count,
        [m.offset for m in messages],
        [m.publish_time_ms * 1000 for m in messages],
        [m.event_time_ms * 1000 if m.event_time_ms else None for m in messages],
        [list(m.properties.items()) for m in messages],
        [m.message_id.encode() for m in messages],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, type=f.type) for c, f in zip(columns, ARROW_SCHEMA, strict=True)],
        schema=ARROW_SCHEMA,
    )
