"""Turn stored entries into Arrow columns, without an object for each message.

    rows = RowBuilder(columns, key_type, topic, partition)
    entry = read_head(data)                              # offsets and metadata
    rows.add(unpack(entry), place, first_offset, low, high)     # messages low..high-1 of the entry
    batch = rows.take()

Most batches are regular: each message has metadata of the same size and layout, and data of the
same size.  Such a batch is a matrix with a row for each message, so numpy cuts it in one pass.  A
loop over the bytes cuts all others.

A column that was not asked for is not computed.  A time that Spark cannot hold (after the year
9999) is null.
"""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from daybook.clients.python.messages import MessageId
from daybook.clients.spark.schema import DEFAULT, KeyType
from daybook.wire.batch import (
    SingleMetadata,
    is_batch,
    num_messages,
    parse_metadata,
    split_broker_metadata,
    verify_checksum,
)
from daybook.wire.compression import decompress
from daybook.wire.errors import MalformedError, TruncatedError, WireError
from daybook.wire.fields import DELIMITED, U32, VARINT, encode_varint, iter_fields
from daybook.wire.proto import pulsar_pb2 as pb

BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 8 << 20
DECOMPRESSED_MAX = 128 << 20  # the Python client has the same limit
_TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
_SIZE_BYTES = 4
_REGULAR_HEAD_MAX = 512  # bytes; longer metadata are not compared across all messages of a batch
_KNOWN_MAX = 4096
_KEY, _EVENT_TIME, _SEQUENCE_ID = 2, 5, 8  # fields of SingleMessageMetadata
_KEY_TAG, _PAYLOAD_SIZE_TAG = 0x12, 0x18  # fields 2 and 3, as one byte with their wire types
_VARINT_BYTES_MAX = 9  # in a regular batch, so that a value fits 63 bits
_BATCH_INDEX_TAG = b"\x20"  # field 4 of a message id, a varint

_Numbers: TypeAlias = Any  # a numpy array of int64
_Flags: TypeAlias = Any  # a numpy array of bool
_Properties: TypeAlias = Sequence[tuple[str, str]]

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
_NO_KEY, _TEXT_KEY, _BYTES_KEY = -1, 0, 1


def arrow_schema(columns: Sequence[str] = DEFAULT, key_type: KeyType = "binary") -> pa.Schema:
    """Return the schema of the Arrow batches with these columns."""
    key = pa.string() if key_type == "string" else pa.binary()
    return pa.schema([(name, key if name == "key" else _TYPES[name]) for name in columns])


# -- an entry


@dataclass(slots=True)
class Head:
    """The offset and the metadata that an entry states.

    `last_offset` is that of its last message; None if no broker numbered the entry.
    """

    last_offset: int | None
    metadata: pb.MessageMetadata
    body: memoryview

    @property
    def messages(self) -> int:
        return num_messages(self.metadata)

    @property
    def is_chunk(self) -> bool:
        """True if the entry holds a part of one message."""
        return self.metadata.num_chunks_from_msg > 1


def read_head(data: memoryview) -> Head:
    """Parse the metadata of an entry, and verify its checksum.  Raise a WireError."""
    _, last, payload = split_broker_metadata(data)
    return head_of(last, payload)


def head_of(last_offset: int | None, payload: memoryview) -> Head:
    """Parse the metadata of an entry without the broker's block, as `read_head` does."""
    verify_checksum(payload)
    return Head(last_offset, *parse_metadata(payload))


def split_offset(data: memoryview) -> tuple[int | None, memoryview]:
    """Return the offset of the last message of an entry, readable or not, and what follows.

    The offset is None if it is unknown; the rest is the whole entry if it cannot be split.
    """
    try:
        _, last, payload = split_broker_metadata(data)
    except WireError:
        return None, data
    return last, payload


@dataclass(slots=True)
class Messages:
    """The body of an entry, or of a message that was joined from chunks: not compressed."""

    metadata: pb.MessageMetadata
    body: memoryview


def unpack(metadata: pb.MessageMetadata, body: memoryview) -> Messages:
    """Return the messages of an entry.  Raise a WireError, with a sentence, if none can be had."""
    if metadata.encryption_keys:
        raise MalformedError("the message is encrypted, and Spark has no keys")
    if metadata.compression != pb.NONE and metadata.uncompressed_size:
        kind, size = int(metadata.compression), metadata.uncompressed_size
        body = memoryview(decompress(kind, body, size, DECOMPRESSED_MAX))
    return Messages(metadata, body)


# -- the columns of one entry


@dataclass(slots=True)
class _Texts:
    """Values of bytes, one after the other, or a matrix with a row for each value.

    `lengths` is a number if all values have the same length, as those of a matrix have.  `nulls` is
    None if none of them is null.
    """

    lengths: _Numbers | int
    data: bytes | _Numbers
    nulls: _Flags | None = None

    @property
    def size(self) -> int:
        return len(self.data) if isinstance(self.data, bytes) else int(self.data.size)


@dataclass(slots=True)
class _Cut:
    """The messages of one entry, in columns.  None stands for a column of nulls, or of nothing."""

    indexes: range | _Numbers  # in the entry; compaction may have removed others
    values: _Texts | None = None
    keys: _Texts | None = None
    event_times_ms: _Numbers | None = None  # 0: none
    properties: Sequence[_Properties] | None = None
    key_kinds: _Numbers | None = None
    ordering_keys: _Texts | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The parts of a message that the columns need."""

    values: bool
    keys: bool
    key_type: KeyType
    event_times: bool
    properties: bool
    key_kinds: bool
    ordering_keys: bool

    @classmethod
    def by(cls, columns: Sequence[str], key_type: KeyType) -> "_Wanted":
        return cls(
            "value" in columns,
            "key" in columns,
            key_type,
            "eventTime" in columns,
            "properties" in columns or "headers" in columns,
            "keyIsBytes" in columns,
            "orderingKey" in columns,
        )


@dataclass(slots=True)
class _Loop:
    """The messages of an entry, as a loop over its bytes finds them: where the data are, and keys.

    `others` has the metadata of those that have more than a key and a size, by index.
    """

    body: bytes
    firsts: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    keys: list[bytes | None] = field(default_factory=list["bytes | None"])
    others: dict[int, SingleMetadata] = field(default_factory=dict[int, SingleMetadata])


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of all messages of a regular batch.

    Messages whose metadata are `expected` where `mask` has bits differ in values only: in letters
    of an ASCII key, and in the numbers of varints of the same length.
    """

    stride: int  # bytes of each message with its metadata
    head_bytes: int  # the size of the metadata, and the metadata
    mask: _Numbers
    expected: _Numbers
    single: SingleMetadata  # one message has it
    fields: dict[int, tuple[int, int]]  # where the values are that may differ

    def fits(self, rows: _Numbers) -> bool:
        """Return True if all messages of a batch have this layout."""
        differ = (rows[:, : self.head_bytes] & self.mask) != self.expected
        return not np.count_nonzero(differ)


class Cutter:
    """Cuts entries into columns.

    It remembers parsed metadata and the layout of the latest regular batch: most messages share
    theirs.
    """

    def __init__(self, columns: Sequence[str], key_type: KeyType) -> None:
        self._wanted = _Wanted.by(columns, key_type)
        self._known: dict[bytes, SingleMetadata] = {}
        self._layout: _Layout | None = None

    def cut(self, messages: Messages, low: int, high: int) -> _Cut:
        """Return the messages `low` to `high` - 1 of an entry.  Raise a WireError."""
        metadata, body = messages.metadata, messages.body
        if not is_batch(metadata):
            single = _single_of(metadata, len(body))
            key = _key_of(single, self._wanted.key_type)
            return self._columns(
                _Loop(bytes(body), [0], [len(body)], [key], {0: single}), low, high
            )
        count = num_messages(metadata)
        found = self._cut_regular(body, count, low, high)
        return self._cut_one_by_one(body, count, low, high) if found is None else found

    # -- a regular batch

    def _cut_regular(self, body: memoryview, count: int, low: int, high: int) -> _Cut | None:
        """Cut a batch whose messages have the same layout; return None if it is not regular."""
        stride, left = divmod(len(body), count)
        if left or stride <= _SIZE_BYTES:
            return None
        rows = np.frombuffer(body, np.uint8).reshape(count, stride)
        layout = self._layout
        if layout is None or layout.stride != stride or not layout.fits(rows):
            layout = self._layout_of(body, stride)
            if layout is None or not layout.fits(rows):
                return None
            self._layout = layout
        wanted, single, fields = self._wanted, layout.single, layout.fields
        cut, taken = _Cut(range(low, high)), rows[low:high]
        if wanted.values and not single.null_value:
            cut.values = _Texts(single.payload_size, taken[:, layout.head_bytes :])
        if wanted.keys and single.key is not None:
            first, last = fields[_KEY]
            keys = taken[:, first:last]
            # Keys alone must not keep the memory of large values.
            cut.keys = _Texts(last - first, keys.copy() if cut.values is None else keys)
        if wanted.event_times and _EVENT_TIME in fields:
            first, last = fields[_EVENT_TIME]
            cut.event_times_ms = _varints(taken[:, first:last])
        if wanted.properties and single.properties:
            cut.properties = [single.properties] * (high - low)
        if wanted.key_kinds:
            cut.key_kinds = np.full(high - low, _kind_of(single), np.int8)
        if wanted.ordering_keys:  # They are equal, because the layout has no place for others.
            cut.ordering_keys = _repeated(single.ordering_key, high - low)
        return cut

    def _layout_of(self, body: memoryview, stride: int) -> _Layout | None:
        """Return the layout of the first message; None if no regular batch has it."""
        head_bytes = _SIZE_BYTES + U32.unpack_from(body)[0]
        if not _SIZE_BYTES < head_bytes <= min(stride, _REGULAR_HEAD_MAX):
            return None
        single = self._single(bytes(body[_SIZE_BYTES:head_bytes]))
        if single.payload_size != stride - head_bytes or single.compacted_out:
            return None
        wanted = self._wanted
        as_bytes = wanted.keys and wanted.key_type == "binary"
        if single.key_is_base64 and (as_bytes or wanted.key_kinds):
            return None
        fields = _fields(body, head_bytes)
        if fields is None:
            return None
        head = np.frombuffer(body[:head_bytes], np.uint8)
        mask = np.full(head_bytes, 0xFF, np.uint8)
        for number, (first, last) in fields.items():
            # A key must be ASCII, so that it is text without another look.
            if number != _KEY or bytes(body[first:last]).isascii():
                mask[first:last] = 0x80
        return _Layout(stride, head_bytes, mask, head & mask, single, fields)

    # -- any batch

    def _cut_one_by_one(self, body: memoryview, count: int, low: int, high: int) -> _Cut:
        raw, sized = bytes(body), U32.unpack_from
        found = _Loop(raw)
        at, end = 0, len(raw)
        for index in range(count):  # All of them: an entry is readable as a whole, or not.
            head = at + _SIZE_BYTES
            first = head + sized(raw, at)[0] if head <= end else end + 1
            if first > end:
                raise TruncatedError("a batch is cut off")
            size, key = _key_and_size(raw, head, first)
            if size < 0:
                single = found.others[index] = self._single(raw[head:first])
                size, key = single.payload_size, _key_of(single, self._wanted.key_type)
            at = first + size
            if at > end:
                raise TruncatedError("a batch is cut off")
            found.firsts.append(first)
            found.ends.append(at)
            found.keys.append(key)
        return self._columns(found, low, high)

    def _columns(self, found: "_Loop", low: int, high: int) -> _Cut:
        """Return the columns of the messages `low` to `high` - 1."""
        others = {i: each for i, each in found.others.items() if low <= i < high}
        kept: Sequence[int] = range(low, high)
        if any(each.compacted_out for each in others.values()):
            kept = [i for i in kept if i not in others or not others[i].compacted_out]
        wanted, cut = self._wanted, _Cut(np.array(kept, np.int64))
        if wanted.values:
            raw, firsts, ends = found.body, found.firsts, found.ends
            values: list[bytes | None] = [raw[firsts[i] : ends[i]] for i in kept]
            for at, i in enumerate(kept if others else ()):
                if i in others and others[i].null_value:
                    values[at] = None
            cut.values = _texts(values)
        if wanted.keys:
            cut.keys = _texts([found.keys[i] for i in kept])
        if wanted.event_times and any(each.event_time_ms for each in others.values()):
            times = [
                min(others[i].event_time_ms, _TIME_MS_MAX + 1) if i in others else 0 for i in kept
            ]
            cut.event_times_ms = np.array(times, np.int64)
        if wanted.properties and any(each.properties for each in others.values()):
            cut.properties = [others[i].properties if i in others else () for i in kept]
        if wanted.key_kinds:
            plain = [_NO_KEY if key is None else _TEXT_KEY for key in found.keys]
            cut.key_kinds = np.array(
                [_kind_of(others[i]) if i in others else plain[i] for i in kept], np.int8
            )
        if wanted.ordering_keys:
            cut.ordering_keys = _texts(
                [others[i].ordering_key if i in others else None for i in kept]
            )
        return cut

    def _single(self, raw: bytes) -> SingleMetadata:
        known = self._known.get(raw)
        if known is not None:
            return known
        try:
            single = SingleMetadata.from_message(pb.SingleMessageMetadata.FromString(raw))
        except DecodeError as error:
            raise MalformedError(
                f"the metadata of a message in a batch cannot be parsed: {error}"
            ) from None
        if single.sequence_id is None:  # Metadata with a sequence id are never repeated.
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[raw] = single
        return single


def _single_of(metadata: pb.MessageMetadata, size: int) -> SingleMetadata:
    """Return the metadata of a message that is alone in its entry, in the form of a batch."""
    has_key = metadata.HasField("partition_key") and not metadata.null_partition_key
    return SingleMetadata(
        size,
        metadata.partition_key if has_key else None,
        metadata.partition_key_b64_encoded,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        tuple((pair.key, pair.value) for pair in metadata.properties),
        metadata.event_time,
        None,
        metadata.null_value,
        False,
    )


def _fields(body: memoryview, end: int) -> dict[int, tuple[int, int]] | None:
    """Return where the values are whose bytes may differ in a regular batch, by field number.

    Return None if the metadata have a field twice, or a number that is too long.
    """
    found: dict[int, tuple[int, int]] = {}
    before = _SIZE_BYTES
    for number, wire_type, first, last in iter_fields(body, _SIZE_BYTES, end):
        if number == _KEY and wire_type == DELIMITED:
            if number in found:
                return None
            found[number] = first, last
        elif number in (_EVENT_TIME, _SEQUENCE_ID) and wire_type == VARINT:
            # The number begins behind the tag, which has one byte; `last` is its end.
            if number in found or body[before] > 0x7F or last - before - 1 > _VARINT_BYTES_MAX:
                return None
            found[number] = before + 1, last
        before = last
    return found


def _varints(column: _Numbers) -> _Numbers:
    """Return the numbers in a matrix of varints of the same length, cut at the largest time."""
    numbers = np.zeros(len(column), np.int64)
    for index in range(column.shape[1]):
        numbers |= (column[:, index].astype(np.int64) & 0x7F) << (7 * index)
    return np.minimum(numbers, _TIME_MS_MAX + 1)


def _key_and_size(raw: bytes, head: int, end: int) -> tuple[int, bytes | None]:
    """Return the size of the data and the key, if the metadata `raw[head:end]` have nothing else.

    Return -1 and None if they have, or if they need another look.  Most messages of irregular
    batches have such metadata, and to parse these as protobuf takes several times as long.
    """
    key = None
    if end - head > 2 and raw[head] == _KEY_TAG:
        first = head + 2
        head = first + raw[first - 1]
        key = raw[first:head]
        if raw[first - 1] > 0x7F or head >= end or not key.isascii():
            return -1, None
    if end - head < 2 or raw[head] != _PAYLOAD_SIZE_TAG:
        return -1, None
    low, more = raw[head + 1], end - head - 2  # more: bytes of the size behind its first one
    if more == 0 and low < 0x80:
        return low, key
    if more == 1 and low > 0x7F > raw[head + 2]:
        return low & 0x7F | raw[head + 2] << 7, key
    if more == 2 and low > 0x7F and raw[head + 2] > 0x7F and raw[head + 3] < 0x80:
        return low & 0x7F | (raw[head + 2] & 0x7F) << 7 | raw[head + 3] << 14, key
    return -1, None


def _key_of(single: SingleMetadata, key_type: KeyType) -> bytes | None:
    """Return the bytes of the column: in text, a key that was given as bytes is base64."""
    if single.key is None:
        return None
    key = single.key.encode()
    if key_type == "binary" and single.key_is_base64:
        decoded = _decoded(single.key)
        return key if decoded is None else decoded
    return key


def _decoded(key: str) -> bytes | None:
    """Return the bytes of a base64 text; None if it is none."""
    try:
        return b64decode(key.encode(), validate=True)
    except (Base64Error, ValueError):
        return None


def _kind_of(single: SingleMetadata) -> int:
    """Return how the producer gave the key.

    A key that is said to be base64, and is not, is shown as the text that it is.
    """
    if single.key is None:
        return _NO_KEY
    is_bytes = single.key_is_base64 and _decoded(single.key) is not None
    return _BYTES_KEY if is_bytes else _TEXT_KEY


def _repeated(value: bytes | None, count: int) -> _Texts | None:
    if value is None:
        return None
    return _Texts(np.full(count, len(value), np.int64), value * count)


def _texts(values: Sequence[bytes | None]) -> _Texts | None:
    try:
        lengths = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
    except TypeError:  # Some value is None, which has no length.
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        if nulls.all():
            return None
        lengths = np.fromiter((len(value or b"") for value in values), np.int64, len(values))
        return _Texts(lengths, b"".join(filter(None, values)), nulls)
    return _Texts(lengths, b"".join(values))  # type: ignore[arg-type]


# -- the rows of many entries


@dataclass(frozen=True, slots=True)
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
    cut: _Cut
    schema_version: bytes | None = None  # None: the entry names none

    def __len__(self) -> int:
        return len(self.cut.indexes)


class RowBuilder:
    """Collects rows until there are enough for an Arrow batch."""

    def __init__(
        self, columns: Sequence[str], key_type: KeyType, topic: str, partition: int
    ) -> None:
        self._schema = arrow_schema(columns, key_type)
        self._topic = topic
        self._partition = partition
        self._cutter = Cutter(columns, key_type)
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
        cut = self._cutter.cut(messages, low, high)
        publish_ms, version = metadata.publish_time, _version_of(metadata)
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
        publish_ms = None if metadata is None else metadata.publish_time
        batch = metadata is not None and is_batch(metadata)
        version = None if metadata is None else _version_of(metadata)
        cut = _Cut(range(low, high))
        self._add(_Part(place, first_offset, publish_ms, batch, cut, version))

    def _add(self, part: _Part) -> None:
        if len(part):
            self._parts.append(part)
            self.rows += len(part)
            self._bytes += 0 if part.cut.values is None else part.cut.values.size

    def take(self) -> pa.RecordBatch:
        """Return the rows, and begin a new batch."""
        columns = [self._build[each.name](each.type) for each in self._schema]
        # Without a column there would be no number of rows either.
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._parts, self.rows, self._bytes = [], 0, 0
        return batch

    # -- columns

    def _texts(self, kind: Any, column: Callable[[_Part], _Texts | None]) -> Any:  # noqa: ANN401
        offsets = np.zeros(self.rows + 1, np.int32)
        nulls = np.zeros(self.rows, np.bool_)
        found: list[_Texts] = []
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

    def _numbers(self, kind: Any, parts: list[_Numbers], nulls: _Flags | None) -> Any:  # noqa: ANN401
        numbers = np.ascontiguousarray(np.concatenate(parts), np.int64)
        validity = None if nulls is None else _validity(nulls)
        return pa.Array.from_buffers(kind, self.rows, [validity, pa.py_buffer(numbers)])

    def _offsets(self, kind: Any) -> Any:  # noqa: ANN401
        return self._numbers(kind, [_offsets_of(part) for part in self._parts], None)

    def _timestamps(self, kind: Any) -> Any:  # noqa: ANN401
        times = [
            -1 if (at := part.publish_ms) is None or at > _TIME_MS_MAX else at
            for part in self._parts
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
        return self._numbers(kind, [times * 1000], (times == 0) | (times > _TIME_MS_MAX))

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
                np.full(len(part), _NO_KEY, np.int8)
                if part.cut.key_kinds is None
                else part.cut.key_kinds
                for part in self._parts
            ]
        )
        return pa.array(kinds == _BYTES_KEY, kind, mask=kinds == _NO_KEY)

    def _pairs(self) -> list[_Properties]:
        nothing: list[_Properties] = [()]
        return [each for part in self._parts for each in part.cut.properties or nothing * len(part)]

    def _message_ids(self, kind: Any) -> Any:  # noqa: ANN401
        lengths: list[_Numbers] = []
        data: list[bytes] = []
        for part in self._parts:
            texts = _ids(part)
            lengths.append(texts.lengths)
            data.append(texts.data)
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
        return pa.Array.from_buffers(kind, self.rows, buffers)


def _version_of(metadata: pb.MessageMetadata) -> bytes | None:
    return metadata.schema_version if metadata.HasField("schema_version") else None


def _schema_versions(part: _Part) -> _Texts | None:
    return _repeated(part.schema_version, len(part))


def _joined(parts: Sequence[_Texts]) -> _Numbers:
    """Return the bytes of all values, one after the other: their only copy."""
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


def _offsets_of(part: _Part) -> _Numbers:
    indexes = part.cut.indexes
    if isinstance(indexes, range):
        return np.arange(part.first_offset + indexes.start, part.first_offset + indexes.stop)
    return part.first_offset + indexes


def _ids(part: _Part) -> _Texts:
    """Return `MessageId.encode()` of each message of an entry.

    The index in the batch is the last field, so the messages share the bytes before it.
    """
    place, indexes = part.place, list(part.cut.indexes)
    shared = MessageId(place.ledger_id, place.entry_id, -1, place.partition).encode()
    if not part.is_batch:
        return _Texts(np.full(len(indexes), len(shared), np.int64), shared * len(indexes))
    ids = [shared + _index_field(index) for index in indexes]
    return _Texts(np.fromiter(map(len, ids), np.int64, len(ids)), b"".join(ids))


@cache
def _index_field(index: int) -> bytes:
    return _BATCH_INDEX_TAG + encode_varint(index)


@cache
def _zero() -> Any:  # noqa: ANN401
    return pa.scalar(0, pa.int32())


def _zeros(count: int) -> Any:  # noqa: ANN401
    return pa.repeat(_zero(), count)


def _validity(nulls: _Flags) -> Any:  # noqa: ANN401
    """Return the bitmap of Arrow; None if nothing is null."""
    if not nulls.any():
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))
