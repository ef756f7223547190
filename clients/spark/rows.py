"""Arrow rows become the messages of batches, column by column; no row ever is a Python object.

The rows of an Arrow batch are sorted by topic and partition, which keeps their order within each
partition.  Then the metadata of all messages of a partition are encoded at once, and cut into
batches with the data (`wire.batch` describes the layout).  A batch that is not full waits for the
next rows of its partition.

A partition is chosen as by the producer of the Python client (`protocol.routing`): by the column
`partition`, else by the hash of the key, else in turns, about a batch of bytes to each partition.
"""

# pyright: basic, reportAttributeAccessIssue=false
# (the libraries underneath have no types)

from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daybook.clients.python.limits import ProducerLimits
from daybook.clients.python.protocol.batching import Batch
from daybook.clients.python.protocol.routing import Router
from daybook.clients.spark.row_columns import RowColumns
from daybook.wire.fields import U32, encode_varint

BATCH_MESSAGES_MAX = ProducerLimits().batch_messages_max
BATCH_BYTES_MAX = ProducerLimits().batch_bytes_max
_KNOWN_MAX = 1 << 16
_HASH_END = 1 << 64

# Fields of SingleMessageMetadata and of KeyValue: number and wire type.
_PROPERTY, _KEY, _SIZE, _EVENT_TIME = b"\x0a", b"\x12", b"\x18", b"\x28"
_IS_BASE64, _IS_NULL = b"\x30\x01", b"\x48\x01"
_PROPERTY_NAME, _PROPERTY_VALUE = b"\x0a", b"\x12"


@dataclass(frozen=True, slots=True)
class Target:
    """A partition of a topic; 0 is the only one of a topic without partitions."""

    topic: str
    partition: int


@dataclass(slots=True)
class _Waiting:
    """The messages of a partition that do not fill a batch yet."""

    parts: list[bytes] = field(default_factory=list[bytes])  # metadata, data, metadata, data, ...
    sizes: list[int] = field(default_factory=list[int])  # bytes of each message
    keys: list[bytes | None] = field(default_factory=list["bytes | None"])
    keys_are_bytes: list[bool] = field(default_factory=list[bool])


class RowEncoder:
    """One instance per task.  It is told the number of partitions of each topic that it meets."""

    def __init__(
        self,
        columns: RowColumns,
        topic: str | None,
        first_turn: int = 0,
        *,
        hashes_rows: bool = False,
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._first_turn = first_turn
        self._routers: dict[str, Router] = {}
        self._turn_bytes: dict[str, int] = {}  # messages without a key, in the partition's turn
        self._waiting: dict[Target, _Waiting] = {}
        self._sizes = _Sizes()
        self._properties: dict[tuple[str, object], bytes] = {}
        self._hashes_rows = hashes_rows
        self.rows = 0
        self.hash = 0  # the sum of a hash of each row modulo 2**64, in whatever order they come

    def unknown_topics(self, rows: pa.RecordBatch) -> list[str]:
        """Return the topics of these rows that `add_topic` has not named yet."""
        names: list[Any] = [self._topic]
        if self._columns.topic is not None:
            names = rows.column(self._columns.topic).unique().to_pylist()
            if None in names:
                raise ValueError("the column 'topic' of a row is null, and there is no such option")
        return [name for name in names if name not in self._routers]

    def add_topic(self, topic: str, partitions: int) -> None:
        """Note the number of partitions of a topic; 0 for a topic without partitions."""
        self._routers[topic] = Router(max(1, partitions), first=self._first_turn)
        self._turn_bytes[topic] = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[Target, Batch]]:
        """Encode rows, and yield the batches that are full.  All their topics must be known."""
        self.rows += rows.num_rows
        for topic, of_topic in self._by_topic(rows):
            partitions = self._partitions(topic, of_topic)
            for partition, part in _split(of_topic, partitions):
                target = Target(topic, partition)
                waiting = self._waiting.setdefault(target, _Waiting())
                self._encode(part, waiting)
                for batch in self._cut(waiting, everything=False):
                    yield target, batch

    def rest(self) -> Iterator[tuple[Target, Batch]]:
        """Yield the batches that are not full."""
        for target, waiting in self._waiting.items():
            for batch in self._cut(waiting, everything=True):
                yield target, batch

    # -- the partition of each row

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._columns.topic is None:
            assert self._topic is not None
            yield self._topic, rows
            return
        found = rows.column(self._columns.topic).dictionary_encode()
        names = found.dictionary.to_pylist()
        for index, part in _split(rows, found.indices):
            yield names[index], part

    def _partitions(self, topic: str, rows: pa.RecordBatch) -> pa.Array:
        """Return the partition of each row."""
        router, count = self._routers[topic], rows.num_rows
        chosen = pa.nulls(count, pa.int32())
        if self._columns.partition is not None:
            chosen = rows.column(self._columns.partition)
            bounds = pc.min_max(chosen).as_py()
            if bounds["min"] is not None:
                for partition in bounds.values():
                    if not 0 <= partition < router.partitions:
                        raise ValueError(
                            f"the column 'partition' of a row is {partition}, and {topic} has the"
                            f" partitions 0 to {router.partitions - 1}"
                        )
        elif router.partitions == 1:
            return pa.repeat(pa.scalar(0, pa.int32()), count)
        if self._columns.key is not None and chosen.null_count:
            chosen = pc.coalesce(chosen, self._partitions_of_keys(router, rows))
        if chosen.null_count:
            chosen = pc.coalesce(chosen, self._turns(topic, router, rows, chosen))
        return chosen

    def _partitions_of_keys(self, router: Router, rows: pa.RecordBatch) -> pa.Array:
        keys = _as_bytes(rows.column(self._columns.key)).dictionary_encode()
        known = [router.for_key(key) for key in keys.dictionary.to_pylist()]
        return pa.array(known, pa.int32()).take(keys.indices)

    def _turns(
        self, topic: str, router: Router, rows: pa.RecordBatch, chosen: pa.Array
    ) -> pa.Array:
        """Return the partition for each row if it had to take its turn."""
        sizes = pc.binary_length(_as_bytes(rows.column(self._columns.value)))
        sizes = pc.add(pc.fill_null(pc.cast(sizes, pa.int64()), 0), BATCH_BYTES_MAX // 2000)
        # Rows that have a partition take no turn from the others.
        ends = pc.cumulative_sum(pc.if_else(chosen.is_null(), sizes, 0))
        ends = pc.add(ends, self._turn_bytes[topic])
        turns = pc.add(pc.divide(ends, BATCH_BYTES_MAX), router.turn)
        whole = pc.multiply(pc.divide(turns, router.partitions), router.partitions)
        found = pc.cast(pc.subtract(turns, whole), pa.int32())
        self._turn_bytes[topic] = ends[-1].as_py() % BATCH_BYTES_MAX
        router.turn = found[-1].as_py()
        return found

    # -- the messages of a partition

    def _encode(self, rows: pa.RecordBatch, waiting: _Waiting) -> None:
        columns, count = self._columns, rows.num_rows
        values = _as_bytes(rows.column(columns.value))
        data: list[bytes] = pc.fill_null(values, b"").to_pylist()
        fields: list[bytes] = list(map(self._sizes.__getitem__, map(len, data)))
        keys: list[bytes | None] = [None] * count
        are_bytes = [False] * count
        if columns.key is not None:
            are_bytes = self._are_bytes(rows)
            keys, key_fields = _keys(rows.column(columns.key), are_bytes)
            fields = list(map(bytes.__add__, key_fields, fields))
        if columns.event_time is not None:
            fields = list(map(bytes.__add__, fields, _event_times(rows.column(columns.event_time))))
        if any(are_bytes):
            fields = [
                each + _IS_BASE64 if key is not None and is_bytes else each
                for each, key, is_bytes in zip(fields, keys, are_bytes, strict=True)
            ]
        if values.null_count:
            for index in pc.indices_nonzero(values.is_null()).to_pylist():
                fields[index] += _IS_NULL
        properties = self._properties_of(rows)
        if properties is not None:
            fields = list(map(bytes.__add__, properties, fields))
        heads = [U32.pack(len(each)) + each for each in fields]
        parts = [b""] * (2 * count)
        parts[0::2], parts[1::2] = heads, data
        if self._hashes_rows:
            hashes = sum(map(_hash, map(bytes.__add__, heads, data)))
            self.hash = (self.hash + hashes) % _HASH_END
        waiting.parts += parts
        waiting.sizes += [len(head) + len(body) for head, body in zip(heads, data, strict=True)]
        waiting.keys += keys
        waiting.keys_are_bytes += are_bytes

    def _are_bytes(self, rows: pa.RecordBatch) -> list[bool]:
        """Return for each row whether its key is given as bytes."""
        assert self._columns.key is not None
        by_type = not _is_text(rows.column(self._columns.key))
        if self._columns.key_is_bytes is None:
            return [by_type] * rows.num_rows
        found = pc.fill_null(rows.column(self._columns.key_is_bytes), by_type)
        return list(found.to_pylist())

    def _properties_of(self, rows: pa.RecordBatch) -> list[bytes] | None:
        """Return the encoded properties of each row; None if no row has any."""
        index = self._columns.properties
        if index is not None:
            found = rows.column(index)
            names, values = found.keys, found.items
        elif self._columns.headers is not None:
            found = rows.column(self._columns.headers)
            names, values = found.values.field("key"), found.values.field("value")
        else:
            return None
        offsets = found.offsets.to_pylist()
        if offsets[0] == offsets[-1]:
            return None
        pairs = [
            self._property(name, value)
            for name, value in zip(names.to_pylist(), values.to_pylist(), strict=True)
        ]
        valid = found.is_valid().to_pylist()
        return [
            b"".join(pairs[offsets[row] : offsets[row + 1]]) if valid[row] else b""
            for row in range(len(found))
        ]

    def _property(self, name: str | None, value: str | bytes | None) -> bytes:
        if name is None or value is None:
            raise ValueError(
                f"the property {name!r} of a row has no value: leave the property away, or give"
                " it an empty text"
            )
        known = self._properties.get((name, value))
        if known is not None:
            return known
        text = value.encode() if isinstance(value, str) else value
        try:
            text.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"the header {name!r} of a row is not UTF-8, and properties are texts: encode it,"
                " for example by base64"
            ) from None
        pair = _delimited(_PROPERTY_NAME, name.encode()) + _delimited(_PROPERTY_VALUE, text)
        found = _delimited(_PROPERTY, pair)
        if len(self._properties) >= _KNOWN_MAX:
            self._properties.clear()
        self._properties[name, value] = found
        return found

    def _cut(self, waiting: _Waiting, *, everything: bool) -> Iterator[Batch]:
        """Yield the full batches of a partition, and keep the rest."""
        if not waiting.sizes:
            return
        ends = list(accumulate(waiting.sizes))
        first, done = 0, 0
        while first < len(ends):
            is_full = len(ends) - first >= BATCH_MESSAGES_MAX or ends[-1] - done >= BATCH_BYTES_MAX
            if not is_full and not everything:
                break
            # At least one message: a large one is alone in its batch.
            last = max(first + 1, bisect_right(ends, done + BATCH_BYTES_MAX))
            last = min(last, first + BATCH_MESSAGES_MAX)
            body = b"".join(waiting.parts[2 * first : 2 * last])
            key, is_bytes = waiting.keys[first], waiting.keys_are_bytes[first]
            text = None
            if key is not None:
                text = b64encode(key).decode() if is_bytes else key.decode()
            count, is_base64 = last - first, key is not None and is_bytes
            yield Batch(body, count, 0, count - 1, text, is_base64)
            done, first = ends[last - 1], last
        del waiting.parts[: 2 * first], waiting.sizes[:first], waiting.keys[:first]
        del waiting.keys_are_bytes[:first]


class _Sizes(dict[int, bytes]):
    """The field of each size of a message: looked up, or computed once."""

    def __missing__(self, size: int) -> bytes:
        found = _SIZE + encode_varint(size)
        if len(self) < _KNOWN_MAX:
            self[size] = found
        return found


def _split(rows: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each number, in their order."""
    if not rows.num_rows:
        return
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] == bounds["max"]:
        yield bounds["min"], rows
        return
    order = pc.sort_indices(numbers)  # it is stable
    runs = pc.run_end_encode(numbers.take(order))
    ordered, first = rows.take(order), 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield number, ordered.slice(first, end - first)
        first = end


def _hash(message: bytes) -> int:
    return int.from_bytes(blake2b(message, digest_size=8).digest())


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _as_bytes(column: pa.Array) -> pa.Array:
    """Return texts as their UTF-8 bytes, without a copy."""
    if not _is_text(column):
        return column
    large = pa.types.is_large_string(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def _keys(column: pa.Array, are_bytes: list[bool]) -> tuple[list[bytes | None], list[bytes]]:
    """Return the key of each row, and its field."""
    found = _as_bytes(column).dictionary_encode()
    known: list[bytes | None] = [*found.dictionary.to_pylist(), None]
    rows: list[int] = pc.fill_null(found.indices, len(known) - 1).to_pylist()
    keys = [known[row] for row in rows]
    if any(are_bytes) and not all(are_bytes):
        kinds = list(zip(keys, are_bytes, strict=True))
        fields = {kind: _key_field(kind[0], is_bytes=kind[1]) for kind in set(kinds)}
        return keys, [fields[kind] for kind in kinds]
    in_order = [_key_field(key, is_bytes=any(are_bytes)) for key in known]
    return keys, [in_order[row] for row in rows]


def _key_field(key: bytes | None, *, is_bytes: bool) -> bytes:
    if key is None:
        return b""
    if is_bytes:
        return _delimited(_KEY, b64encode(key))
    try:
        key.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"the key {key!r:.80} of a row is not UTF-8: cast the column 'key' to binary, without"
            " keyIsBytes=false"
        ) from None
    return _delimited(_KEY, key)


def _event_times(column: pa.Array) -> list[bytes]:
    """Return the field of each event time, in ms since the epoch; nothing for null."""
    times = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    if times.null_count < len(times) and pc.min(times).as_py() < 0:
        raise ValueError(
            "the column 'eventTime' of a row is before 1970, which a message cannot say"
        )
    return [b"" if ms is None else _EVENT_TIME + encode_varint(ms) for ms in times.to_pylist()]


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + encode_varint(len(content)) + content
