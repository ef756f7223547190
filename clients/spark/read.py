"""Run a Spark task: read its range of offsets and return it as Arrow batches.

Each task opens its own client and reads from the broker that owns the partition.  The driver only
asks for offsets, and never receives a message.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from daybook.clients.python import blocking
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.messages import Entry, Message, Offset
from daybook.clients.spark.offsets import DataLossError
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.schema import DEFAULT, KeyType
from daybook.wire.fields import encode_varint

BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 8 << 20

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "eventTime": pa.timestamp("us", tz="UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
    "messageId": pa.binary(),
    "headers": pa.list_(_HEADER),
}
_BATCH_INDEX_TAG = b"\x20"  # field 4 of a message id, a varint


def partition_topic(client: blocking.Client, topic: str, partition: int) -> str:
    """Return the topic of one partition: the topic itself if it is not partitioned."""
    if client.partitions(topic, create=False):
        return f"{topic}-partition-{partition}"
    return topic


def arrow_schema(columns: Sequence[str] = DEFAULT, key_type: KeyType = "binary") -> pa.Schema:
    """Return the schema of the Arrow batches with these columns."""
    key = pa.string() if key_type == "string" else pa.binary()
    return pa.schema([(name, key if name == "key" else _TYPES[name]) for name in columns])


ARROW_SCHEMA = arrow_schema()


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Read the messages of the range, in order, as Arrow batches.

    Raise DataLossError if an offset of the range no longer exists.
    """
    part = task.part
    limits = ClientLimits(operation_timeout_s=task.patience_s)
    with blocking.connect(task.service_url, timeout_s=None, limits=limits) as client:
        topic = task.stored_in or partition_topic(client, task.topic, part.partition)
        # The driver checked the range when it planned the query; trimming may have passed it since.
        held = client.offsets(topic)
        expected = max(part.start, held.first)
        if expected > part.start and task.fail_on_data_loss:
            raise DataLossError(
                f"{topic}: the offsets {part.start} to {held.first} are no longer retained; set"
                " failOnDataLoss=false to continue without them"
            )
        if expected >= part.end:
            return
        waiting = _Waiting(task)
        queue_size = min(BATCH_ROWS_MAX, part.end - expected)
        with client.create_reader(
            topic, start=Offset(expected), receiver_queue_size=queue_size
        ) as reader:
            while expected < part.end:
                got = reader.receive_batch(BATCH_ROWS_MAX, timeout_s=task.patience_s)
                if not got:
                    raise TimeoutError(
                        f"{topic}: no message arrived from offset {expected} on for"
                        f" {task.patience_s:g} s"
                    )
                # Messages come in order, so a gap or a repetition shows at once.
                offsets = [_offset(message) for message in got]
                if offsets != list(range(expected, expected + len(got))):
                    got, offsets = _from(expected, got, offsets)
                    if task.fail_on_data_loss:
                        _check_whole(topic, expected, offsets)
                if not offsets:
                    continue
                expected = offsets[-1] + 1
                if expected > part.end:
                    count = sum(offset < part.end for offset in offsets)
                    got, offsets = got[:count], offsets[:count]
                waiting.add(got, offsets)
                if waiting.full:
                    yield waiting.take()
        if waiting.messages:
            yield waiting.take()


def _offset(message: Message) -> int:
    offset = message.offset
    assert offset is not None, "the broker numbers every message"
    return offset


def _from(
    expected: int, messages: list[Message], offsets: list[int]
) -> tuple[list[Message], list[int]]:
    """Drop the messages before `expected`: a broker delivers the whole first entry."""
    skip = sum(offset < expected for offset in offsets)
    return messages[skip:], offsets[skip:]


def _check_whole(topic: str, expected: int, offsets: list[int]) -> None:
    for at, offset in enumerate(offsets, expected):
        if offset != at:
            raise DataLossError(
                f"{topic}: the offsets {at} to {offset} are no longer retained; set"
                " failOnDataLoss=false to continue without them"
            )


class _Waiting:
    """Collects messages until there are enough for an Arrow batch."""

    def __init__(self, task: ReadTask) -> None:
        self.messages: list[Message] = []
        self._offsets: list[int] = []
        self._task = task
        self._bytes = 0

    def add(self, messages: list[Message], offsets: list[int]) -> None:
        self.messages += messages
        self._offsets += offsets
        self._bytes += sum(len(message.data or b"") for message in messages)

    @property
    def full(self) -> bool:
        return len(self.messages) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def take(self) -> pa.RecordBatch:
        batch = record_batch(self.messages, self._offsets, self._task)
        self.messages, self._offsets, self._bytes = [], [], 0
        return batch


def record_batch(
    messages: Sequence[Message], offsets: Sequence[int], task: ReadTask
) -> pa.RecordBatch:
    """Build one Arrow batch with the columns of the task, and compute no others."""
    count = len(messages)
    partition = pa.scalar(task.part.partition, pa.int32())
    build: dict[str, Callable[[], Any]] = {
        "key": lambda: _keys(messages, task.key_type),
        "value": lambda: [None if m.is_null else m.data for m in messages],
        "topic": lambda: pa.repeat(task.topic, count),
        "partition": lambda: pa.repeat(partition, count),
        "offset": lambda: offsets,
        "timestamp": lambda: [m.publish_time_ms * 1000 for m in messages],
        "eventTime": lambda: [
            None if (at := m.event_time_ms) is None else at * 1000 for m in messages
        ],
        "properties": lambda: _properties(messages),
        "messageId": lambda: _message_ids(messages),
        "headers": lambda: _headers(messages),
    }
    schema = arrow_schema(task.columns, task.key_type)
    columns = [(build[field.name](), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(
        [
            each if isinstance(each, pa.Array) else pa.array(each, type=kind)
            for each, kind in columns
        ],
        schema=schema,
    )


def _keys(messages: Sequence[Message], key_type: KeyType) -> list[str | None] | list[bytes | None]:
    """Return the keys: as bytes, or as text, where keys that were given as bytes are base64."""
    if key_type == "string":
        return [m.key for m in messages]
    return [m.key_bytes for m in messages]


def _headers(messages: Sequence[Message]) -> list[list[dict[str, str | bytes]]]:
    return [
        [{"key": name, "value": text.encode()} for name, text in m.properties.items()]
        for m in messages
    ]


def _properties(messages: Sequence[Message]) -> Any:  # noqa: ANN401  a column
    found = [m.properties for m in messages]
    if any(found):
        return [list(each.items()) for each in found]
    empty = pa.array([], pa.string())
    return pa.MapArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), len(found) + 1), empty, empty
    )


def _message_ids(messages: Sequence[Message]) -> list[bytes]:
    """Return `message.message_id.encode()` of each message.

    The batch index is the last field, so the messages of an entry share the bytes before it.
    """
    found: list[bytes] = []
    entry: Entry | None = None
    shared = b""
    indexes: list[bytes] = []
    for message in messages:
        if message.entry is not entry:
            entry = message.entry
            shared = msgspec.structs.replace(message.message_id, batch_index=-1).encode()
        index = message.batch_index
        while len(indexes) <= index:
            indexes.append(_BATCH_INDEX_TAG + encode_varint(len(indexes)))
        found.append(shared if index < 0 else shared + indexes[index])
    return found
