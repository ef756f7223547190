"""Cut the messages of an entry into columns, without an object for each message.

Most batches are regular: each message has metadata of the same size and layout, and data of the
same size.  Such a batch is a matrix with a row for each message, so numpy cuts it in one pass.  A
loop over the bytes cuts all others.

A column that was not asked for is not computed.
"""

# pyright: basic
# (the libraries underneath have no types)

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from daybook.clients.spark.entry import Messages
from daybook.clients.spark.schema import KeyType
from daybook.wire.batch import (
    SingleMetadata,
    is_batch,
    num_messages,
)
from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.fields import DELIMITED, U32, VARINT, iter_fields
from daybook.wire.proto import pulsar_pb2 as pb

NO_KEY, TEXT_KEY, BYTES_KEY = -1, 0, 1
_TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
_SIZE_BYTES = 4
_REGULAR_HEAD_MAX = 512  # bytes; longer metadata are not compared across all messages of a batch
_KNOWN_MAX = 4096
_COMPARED_MAX = 16  # keys that are compared with a whole batch, each in one pass
_KEY, _EVENT_TIME, _SEQUENCE_ID = 2, 5, 8  # fields of SingleMessageMetadata
_KEY_TAG, _PAYLOAD_SIZE_TAG = 0x12, 0x18  # fields 2 and 3, as one byte with their wire types
_VARINT_BYTES_MAX = 9  # in a regular batch, so that a value fits 63 bits

Numbers: TypeAlias = Any  # a numpy array of int64
Flags: TypeAlias = Any  # a numpy array of bool
Properties: TypeAlias = Sequence[tuple[str, str]]


@dataclass(slots=True)
class Texts:
    """Values of bytes, one after the other, or a matrix with a row for each value.

    `lengths` is a number if all values have the same length, as those of a matrix have.  `nulls` is
    None if none of them is null.
    """

    lengths: Numbers | int
    data: bytes | Numbers
    nulls: Flags | None = None

    @property
    def size(self) -> int:
        data = self.data
        return len(data) if isinstance(data, bytes) else data.nbytes


@dataclass(slots=True)
class Cut:
    """The messages of one entry, in columns.  None stands for a column of nulls, or of nothing."""

    indexes: range | Numbers  # in the entry; compaction may have removed others
    values: Texts | None = None
    keys: Texts | None = None
    event_times_ms: Numbers | None = None  # 0: none
    properties: Sequence[Properties] | None = None
    key_kinds: Numbers | None = None
    ordering_keys: Texts | None = None


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
    mask: Numbers
    expected: Numbers
    single: SingleMetadata  # one message has it
    fields: dict[int, tuple[int, int]]  # where the values are that may differ

    def fits(self, rows: Numbers) -> bool:
        """Return True if all messages of a batch have this layout."""
        differ = (rows[:, : self.head_bytes] & self.mask) != self.expected
        return not np.count_nonzero(differ)


class Cutter:
    """Cuts entries into columns.

    It remembers parsed metadata and the layout of the latest regular batch: most messages share
    theirs.  Messages whose key, as the column has it, is none of `only_keys` are left out.
    """

    def __init__(
        self, columns: Sequence[str], key_type: KeyType, only_keys: Set[bytes] | None = None
    ) -> None:
        self._wanted = _Wanted.by(columns, key_type)
        assert only_keys is None or self._wanted.keys, "without keys there is nothing to compare"
        self._only_keys = only_keys
        self._known: dict[bytes, SingleMetadata] = {}
        self._layout: _Layout | None = None

    def cut(self, messages: Messages, low: int, high: int) -> Cut:
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

    def _cut_regular(self, body: memoryview, count: int, low: int, high: int) -> Cut | None:
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
        cut, taken = Cut(range(low, high)), rows[low:high]
        if self._only_keys is not None:
            kept = _rows_with(self._only_keys, taken, fields.get(_KEY))
            cut, taken = Cut(low + kept), taken[kept]
        count = len(taken)
        if wanted.values and not single.null_value:
            cut.values = Texts(single.payload_size, taken[:, layout.head_bytes :])
        if wanted.keys and single.key is not None:
            first, last = fields[_KEY]
            keys = taken[:, first:last]
            # Keys alone must not keep the memory of large values.
            cut.keys = Texts(last - first, keys.copy() if cut.values is None else keys)
        if wanted.event_times and _EVENT_TIME in fields:
            first, last = fields[_EVENT_TIME]
            cut.event_times_ms = _varints(taken[:, first:last])
        if wanted.properties and single.properties:
            cut.properties = [single.properties] * count
        if wanted.key_kinds:
            cut.key_kinds = np.full(count, _kind_of(single), np.int8)
        if wanted.ordering_keys:  # They are equal, because the layout has no place for others.
            cut.ordering_keys = repeated(single.ordering_key, count)
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

    def _cut_one_by_one(self, body: memoryview, count: int, low: int, high: int) -> Cut:
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

    def _columns(self, found: "_Loop", low: int, high: int) -> Cut:
        """Return the columns of the messages `low` to `high` - 1."""
        others = {i: each for i, each in found.others.items() if low <= i < high}
        kept: Sequence[int] = range(low, high)
        if any(each.compacted_out for each in others.values()):
            kept = [i for i in kept if i not in others or not others[i].compacted_out]
        if self._only_keys is not None:
            kept = [i for i in kept if found.keys[i] in self._only_keys]
        wanted, cut = self._wanted, Cut(np.array(kept, np.int64))
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
            plain = [NO_KEY if key is None else TEXT_KEY for key in found.keys]
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


def _rows_with(keys: Set[bytes], rows: Numbers, place: tuple[int, int] | None) -> Numbers:
    """Return which rows of a matrix have one of the keys at a place; None if they have no key."""
    found = np.zeros(len(rows), np.bool_)
    if place is not None:
        first, last = place
        column = rows[:, first:last]
        alike = [key for key in keys if len(key) == last - first]
        if len(alike) > _COMPARED_MAX:
            found = np.fromiter((each.tobytes() in keys for each in column), np.bool_, len(rows))
        else:
            for key in alike:
                found |= (column == np.frombuffer(key, np.uint8)).all(axis=1)
    return np.flatnonzero(found)


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


def _varints(column: Numbers) -> Numbers:
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
        return NO_KEY
    is_bytes = single.key_is_base64 and _decoded(single.key) is not None
    return BYTES_KEY if is_bytes else TEXT_KEY


def repeated(value: bytes | None, count: int) -> Texts | None:
    if value is None:
        return None
    return Texts(np.full(count, len(value), np.int64), value * count)


def _texts(values: Sequence[bytes | None]) -> Texts | None:
    try:
        lengths = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
    except TypeError:  # Some value is None, which has no length.
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        if nulls.all():
            return None
        lengths = np.fromiter((len(value or b"") for value in values), np.int64, len(values))
        return Texts(lengths, b"".join(filter(None, values)), nulls)
    return Texts(lengths, b"".join(values))  # type: ignore[arg-type]
