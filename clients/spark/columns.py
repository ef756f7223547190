"""Turn stored entries into Arrow columns.

    rows = RowBuilder(columns, key_type, topic, partition)
    head = read_head(entry.payload)
    messages = unpack(head.metadata, head.body)
    rows.add(messages, place, first_offset, low, high)     # messages low..high-1 of the entry
    batch = rows.take()

A column that was not asked for is not computed.  A time that Spark cannot hold (after the year
9999) is null.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from daybook.clients.python.message_id import MessageId
from daybook.clients.spark.cutter import (
    BYTES_KEY,
    NO_KEY,
    Cut,
    Cutter,
    Flags,
    Numbers,
    Properties,
    Texts,
    repeated,
)
from daybook.clients.spark.entry import Messages
from daybook.clients.spark.schema import DEFAULT, KeyType
from daybook.wire.batch import (
    is_batch,
)
from daybook.wire.errors import MalformedError
from daybook.wire.fields import encode_varint
from daybook.wire.proto import pulsar_pb2 as pb

TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
_BATCH_INDEX_TAG = b"\x20"  # field 4 of a message id, a varint
BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 8 << 20
_PAIR_BYTES = 8  # a property has two offsets, beside its name and text
_VERSION_BYTES_MAX = 1024  # brokers give versions of 8 bytes

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
    "keyIsBytes": pa.bool_(),
    "orderingKey": pa.binary(),
    "schemaVersion": pa.binary(),
}


def arrow_schema(columns: Sequence[str] = DEFAULT, key_type: KeyType = "binary") -> pa.Schema:
    """Return the schema of the Arrow batches with these columns."""
    key = pa.string() if key_type == "string" else pa.binary()
    return pa.schema([(name, key if name == "key" else _TYPES[name]) for name in columns])


@dataclass(slots=True)
class Place:
    """Where an entry is, and the partition in the ids of its messages: -1 for none."""

    ledger_id: int
    entry_id: int
    partition: int


@dataclass(slots=True)
class _Part:
    """The rows of one entry."""

    place: Place
    first_offset: int  # the offset of the entry's first message
    publish_ms: int | None
    is_batch: bool
    cut: Cut
    schema_version: bytes | None = None  # None: the entry names none

    def __len__(self) -> int:
        return len(self.cut.indexes)

    @property
    def size(self) -> int:
        """The bytes of the columns whose values may have any length.

        Offsets in Arrow have 32 bits.  The others have few bytes for each row, and rows are
        limited too.
        """
        cut = self.cut
        size = cut.values.size if cut.values is not None else 0
        if cut.keys is not None:
            size += cut.keys.size
        if cut.ordering_keys is not None:
            size += cut.ordering_keys.size
        if cut.properties:
            size += sum(map(_size_of, cut.properties))
        if self.schema_version is not None:
            size += len(self.schema_version) * len(self)
        return size


class RowBuilder:
    """Collects rows until there are enough for an Arrow batch.

    Messages whose key is none of `only_keys` have no row.
    """

    def __init__(
        self,
        columns: Sequence[str],
        key_type: KeyType,
        topic: str,
        partition: int,
        only_keys: Set[bytes] | None = None,
    ) -> None:
        self._schema = arrow_schema(columns, key_type)
        self._topic = topic
        self._partition = partition
        self._cutter = Cutter(columns, key_type, only_keys)
        self._needs_key = only_keys is not None
        self._has_versions = "schemaVersion" in columns
        self._parts: list[_Part] = []
        self.rows = 0
        self._bytes = 0
        self._build: dict[str, Callable[[Any], Any]] = {
            "key": lambda kind: self._texts(kind, lambda part: part.cut.keys),
            "value": lambda kind: self._texts(kind, lambda part: part.cut.values),
            "topic": lambda kind: pa.repeat(pa.scalar(self._topic, kind), self.rows),
            "partition": lambda kind: pa.repeat(pa.scalar(self._partition, kind), self.rows),
            "offset": self._offsets,
            "timestamp": self._timestamps,
            "eventTime": self._event_times,
            "properties": self._properties,
            "messageId": self._message_ids,
            "headers": self._headers,
            "keyIsBytes": self._keys_are_bytes,
            "orderingKey": lambda kind: self._texts(kind, lambda part: part.cut.ordering_keys),
            "schemaVersion": lambda kind: self._texts(kind, _schema_versions),
        }

    @property
    def full(self) -> bool:
        return self.rows >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def add(self, messages: Messages, place: Place, first_offset: int, low: int, high: int) -> None:
        """Add the messages `low` to `high` - 1 of an entry.

        Raise a WireError, and add none, if they cannot be read.
        """
        metadata = messages.metadata
        version = self._version_of(metadata)
        if version is not None and len(version) > _VERSION_BYTES_MAX:
            raise MalformedError(f"the version of the schema has {len(version):,} bytes")
        cut = self._cutter.cut(messages, low, high)
        publish_ms = metadata.publish_time
        self._add(_Part(place, first_offset, publish_ms, is_batch(metadata), cut, version))

    def add_nulls(
        self,
        metadata: pb.MessageMetadata | None,
        place: Place,
        first_offset: int,
        low: int,
        high: int,
    ) -> None:
        """Add rows without content for messages that cannot be read.

        `metadata` is None if not even these can be read.
        """
        if self._needs_key:
            return  # These rows have none.
        publish_ms = None if metadata is None else metadata.publish_time
        batch = metadata is not None and is_batch(metadata)
        version = None if metadata is None else self._version_of(metadata)
        if version is not None and len(version) > _VERSION_BYTES_MAX:
            version = None
        cut = Cut(range(low, high))
        self._add(_Part(place, first_offset, publish_ms, batch, cut, version))

    def _version_of(self, metadata: pb.MessageMetadata) -> bytes | None:
        has_version = self._has_versions and metadata.HasField("schema_version")
        return metadata.schema_version if has_version else None

    def _add(self, part: _Part) -> None:
        if len(part):
            self._parts.append(part)
            self.rows += len(part)
            self._bytes += part.size

    def take(self) -> pa.RecordBatch:
        """Return the rows, and begin a new batch."""
        columns = [self._build[each.name](each.type) for each in self._schema]
        # Without a column there would be no number of rows either.
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._parts, self.rows, self._bytes = [], 0, 0
        return batch

    # -- columns

    def _texts(self, kind: Any, column: Callable[[_Part], Texts | None]) -> Any:  # noqa: ANN401
        offsets = np.zeros(self.rows + 1, np.int32)
        nulls = np.zeros(self.rows, np.bool_)
        found: list[Texts] = []
        at = 0
        for part in self._parts:
            texts, following = column(part), at + len(part)
            if texts is None:
                nulls[at:following] = True
            else:
                offsets[at + 1 : following + 1] = texts.lengths
                found.append(texts)
                if texts.nulls is not None:
                    nulls[at:following] = texts.nulls
            at = following
        np.cumsum(offsets, out=offsets)
        buffers = [_validity(nulls), pa.py_buffer(offsets), pa.py_buffer(_joined(found))]
        return pa.Array.from_buffers(kind, self.rows, buffers)

    def _numbers(self, kind: Any, parts: list[Numbers], nulls: Flags | None) -> Any:  # noqa: ANN401
        numbers = np.ascontiguousarray(np.concatenate(parts), np.int64)
        validity = None if nulls is None else _validity(nulls)
        return pa.Array.from_buffers(kind, self.rows, [validity, pa.py_buffer(numbers)])

    def _offsets(self, kind: Any) -> Any:  # noqa: ANN401
        return self._numbers(kind, [_offsets_of(part) for part in self._parts], None)

    def _timestamps(self, kind: Any) -> Any:  # noqa: ANN401
        times = [
            -1 if (at := shown_time_ms(part.publish_ms)) is None else at for part in self._parts
        ]
        counts = [len(part) for part in self._parts]
        repeated = np.repeat(np.array(times, np.int64), counts)
        return self._numbers(kind, [repeated * 1000], repeated < 0)

    def _event_times(self, kind: Any) -> Any:  # noqa: ANN401
        none = np.zeros(self.rows, np.int64)
        times = np.concatenate(
            [
                none[: len(part)] if part.cut.event_times_ms is None else part.cut.event_times_ms
                for part in self._parts
            ]
        )
        return self._numbers(kind, [times * 1000], (times == 0) | (times > TIME_MS_MAX))

    def _properties(self, kind: Any) -> Any:  # noqa: ANN401
        if all(part.cut.properties is None for part in self._parts):
            empty = pa.array([], pa.string())
            return pa.MapArray.from_arrays(_zeros(self.rows + 1), empty, empty)
        return pa.array([list(dict(each).items()) for each in self._pairs()], kind)

    def _headers(self, kind: Any) -> Any:  # noqa: ANN401
        # All of them, in order: a map of properties has each name once.
        found = [
            [{"key": name, "value": text.encode()} for name, text in each] for each in self._pairs()
        ]
        return pa.array(found, kind)

    def _keys_are_bytes(self, kind: Any) -> Any:  # noqa: ANN401
        kinds = np.concatenate(
            [
                np.full(len(part), NO_KEY, np.int8)
                if part.cut.key_kinds is None
                else part.cut.key_kinds
                for part in self._parts
            ]
        )
        return pa.array(kinds == BYTES_KEY, kind, mask=kinds == NO_KEY)

    def _pairs(self) -> list[Properties]:
        nothing: list[Properties] = [()]
        return [each for part in self._parts for each in part.cut.properties or nothing * len(part)]

    def _message_ids(self, kind: Any) -> Any:  # noqa: ANN401
        lengths: list[Numbers] = []
        data: list[bytes] = []
        for part in self._parts:
            texts = _ids(part)
            lengths.append(texts.lengths)
            data.append(texts.data)
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
        return pa.Array.from_buffers(kind, self.rows, buffers)


def shown_time_ms(time_ms: int | None) -> int | None:
    """Return a time as the column shows it; None if there is none, or Spark cannot hold it."""
    return None if time_ms is None or time_ms > TIME_MS_MAX else time_ms


def _size_of(pairs: Properties) -> int:
    return sum(len(name) + len(text) + _PAIR_BYTES for name, text in pairs)


def _schema_versions(part: _Part) -> Texts | None:
    return repeated(part.schema_version, len(part))


def _joined(parts: Sequence[Texts]) -> Numbers:
    """Return the bytes of all values, one after the other: their only copy."""
    matrices = [part.data for part in parts if not isinstance(part.data, bytes)]
    if len(matrices) == len(parts) and len({each.shape[1] for each in matrices}) == 1:
        return np.concatenate(matrices).reshape(-1)
    found = np.empty(sum(part.size for part in parts), np.uint8)
    at = 0
    for part in parts:
        following = at + part.size
        if isinstance(part.data, bytes):
            found[at:following] = np.frombuffer(part.data, np.uint8)
        else:
            found[at:following].reshape(part.data.shape)[:] = part.data
        at = following
    return found


def _offsets_of(part: _Part) -> Numbers:
    indexes = part.cut.indexes
    if isinstance(indexes, range):
        return np.arange(part.first_offset + indexes.start, part.first_offset + indexes.stop)
    return part.first_offset + indexes


def _ids(part: _Part) -> Texts:
    """Return `MessageId.encode()` of each message of an entry.

    The index in the batch is the last field, so the messages share the bytes before it.
    """
    place, indexes = part.place, list(part.cut.indexes)
    shared = MessageId(place.ledger_id, place.entry_id, -1, place.partition).encode()
    if not part.is_batch:
        return Texts(np.full(len(indexes), len(shared), np.int64), shared * len(indexes))
    ids = [shared + _index_field(index) for index in indexes]
    return Texts(np.fromiter(map(len, ids), np.int64, len(ids)), b"".join(ids))


@cache
def _index_field(index: int) -> bytes:
    return _BATCH_INDEX_TAG + encode_varint(index)


@cache
def _zero() -> Any:  # noqa: ANN401
    return pa.scalar(0, pa.int32())


def _zeros(count: int) -> Any:  # noqa: ANN401
    return pa.repeat(_zero(), count)


def _validity(nulls: Flags) -> Any:  # noqa: ANN401
    """Return the bitmap of Arrow; None if nothing is null."""
    if not nulls.any():
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))
