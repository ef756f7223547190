"""The messages of Arrow rows, as they stand in a batch: made by columns, not row by row.

A message is its metadata and its value (`wire.batch` describes the layout).  Each part of it is an
Arrow array with one element for each row, which is empty if the row lacks the part:

    | size u32 | properties | key | size of the value | event time | flags | value |

One call of Arrow joins the parts of all rows.  The data of the result are the messages, one behind
the other, so each run of rows is the body of a batch.  The bytes are those of a producer: protobuf
writes the fields of SingleMessageMetadata in this order, too.
"""

# pyright: basic, reportAttributeAccessIssue=false
# (the libraries underneath have no types)

from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daybook.clients.spark.row_columns import RowColumns

try:
    from xxhash import xxh3_64_intdigest
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "Spark's sink needs xxhash, which is not installed: install it with"
        " pip install 'daybook-mq[spark]', where the driver and the Python workers run",
        name="xxhash",
    ) from None

_Numbers: TypeAlias = np.ndarray[Any, Any]

HASH_END = 1 << 64

# Fields of SingleMessageMetadata and of KeyValue: number and wire type.
_PROPERTY, _KEY, _SIZE, _EVENT_TIME = b"\x0a", b"\x12", b"\x18", b"\x28"
_IS_BASE64, _IS_NULL = b"\x30\x01", b"\x48\x01"
_PROPERTY_NAME, _PROPERTY_VALUE = b"\x0a", b"\x12"

_BYTES = pa.large_binary()  # Its offsets have 64 bits, so no sum of sizes is too large.
_BASE64_FLAG, _NULL_FLAG = 1, 2
_FLAGS = pa.array([b"", _IS_BASE64, _IS_NULL, _IS_BASE64 + _IS_NULL], _BYTES)
_BASE64_FILL = pa.array([b"", b"\0", b"\0\0"], _BYTES)
_NOTHING = pa.scalar(b"", _BYTES)


@dataclass(frozen=True, slots=True)
class RowMessages:
    """The messages of the rows of an Arrow batch, and what of them decides about the partition."""

    encoded: pa.Array  # large_binary: each element is one message
    value_sizes: pa.Array  # int64
    keys: "RowKeys | None"

    @classmethod
    def encode(cls, columns: RowColumns, rows: pa.RecordBatch) -> "RowMessages":
        """Raise ValueError for a row that cannot be a message."""
        values = as_bytes(rows.column(columns.value))
        value_sizes = byte_sizes(values)
        keys = None if columns.key is None else RowKeys.of(columns, rows)
        parts = [
            _properties(columns, rows),
            *_key_fields(keys),
            _varints(_SIZE, value_sizes),
            _event_times(columns, rows),
            _flags(values, keys),
        ]
        parts = [part for part in parts if part is not None]
        head = _u32(_joined_sizes(parts))
        return cls(_join(head, *parts, values), pa.array(value_sizes), keys)

    def key(self, row: int) -> tuple[str | None, bool]:
        """Return the key of a row as text, and whether the text is base64."""
        return (None, False) if self.keys is None else self.keys.text(row)

    def hash_sum(self) -> int:
        """Return the sum of a hash of each message.

        A sum does not depend on the order of rows, nor on the Arrow batches in which they come.
        XXH3 with 64 bits spreads each bit of a message over all of its own, so two different
        messages have the same hash with a chance of about 2**-64.  It is no defence against someone
        who looks for two such messages: the hash is to show that a query, when it repeats a batch,
        computes other rows.
        """
        bounds, data = offsets_and_data(self.encoded)
        at = bounds.tolist()
        return sum(map(xxh3_64_intdigest, map(data.__getitem__, map(slice, at, at[1:]))))


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The key of each row, as bytes and as the text that its message has."""

    plain: pa.Array  # large_binary; null for a row without a key
    texts: pa.Array  # large_binary; empty for a row without a key
    absent: _Numbers | None  # booleans; None if every row has a key
    are_base64: _Numbers | bool

    @classmethod
    def of(cls, columns: RowColumns, rows: pa.RecordBatch) -> "RowKeys":
        column = rows.column(columns.key)
        plain, are_bytes = as_bytes(column), not _is_text(column)
        absent = _as_numpy(plain.is_null()) if plain.null_count else None
        if columns.key_is_bytes is not None:
            each = pc.fill_null(rows.column(columns.key_is_bytes), are_bytes)
            if each.true_count and each.false_count:
                given_as_text = pc.if_else(each, _NOTHING, plain)
                _check_keys(given_as_text)
                texts = pc.if_else(each, _base64(plain), pc.fill_null(given_as_text, _NOTHING))
                return cls(plain, texts, absent, _as_numpy(each))
            are_bytes = bool(each.true_count)
        if not are_bytes:
            _check_keys(plain)
            return cls(plain, pc.fill_null(plain, _NOTHING), absent, are_base64=False)
        return cls(plain, _base64(plain), absent, are_base64=True)

    def text(self, row: int) -> tuple[str | None, bool]:
        if self.absent is not None and self.absent[row]:
            return None, False
        is_base64 = self.are_base64 if isinstance(self.are_base64, bool) else self.are_base64[row]
        return self.texts[row].as_py().decode(), bool(is_base64)


def as_bytes(column: pa.Array) -> pa.Array:
    """Return texts or bytes as large_binary; only the offsets are copied."""
    return column if column.type == _BYTES else column.cast(_BYTES)


def byte_sizes(column: pa.Array) -> _Numbers:
    """Return the number of bytes of each element; 0 for null."""
    return _as_numpy(pc.fill_null(pc.binary_length(column), 0))


def offsets_and_data(column: pa.Array) -> tuple[_Numbers, memoryview]:
    """Return where the elements of a large_binary without nulls begin and end, and the bytes."""
    _, offsets, data = column.buffers()
    first, count = column.offset, len(column) + 1
    found = np.frombuffer(offsets, np.int64, count, first * 8)
    return found, memoryview(b"" if data is None else data)


# -- the parts of the messages


def _key_fields(keys: RowKeys | None) -> tuple[pa.Array, ...]:
    """Return the head of each key's field, and the texts; nothing if no row has a key."""
    if keys is None:
        return ()
    return _varints(_KEY, byte_sizes(keys.texts), keys.absent), keys.texts


def _event_times(columns: RowColumns, rows: pa.RecordBatch) -> pa.Array | None:
    """Return the field of each event time, in ms since the epoch; it is empty for null."""
    if columns.event_time is None:
        return None
    column = rows.column(columns.event_time)
    times = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    absent = _as_numpy(times.is_null()) if times.null_count else None
    plain = _as_numpy(pc.fill_null(times, 0))
    if plain.min() < 0:
        raise ValueError(
            "the column 'eventTime' of a row is before 1970, which a message cannot say"
        )
    return _varints(_EVENT_TIME, plain, absent)


def _flags(values: pa.Array, keys: RowKeys | None) -> pa.Array | None:
    """Return the flags of each row; None if no row has any."""
    found = np.zeros(len(values), np.int8)
    if keys is not None:
        found[:] = np.where(keys.are_base64, _BASE64_FLAG, 0)
        if keys.absent is not None:
            found[keys.absent] = 0
    if values.null_count:
        found[_as_numpy(values.is_null())] |= _NULL_FLAG
    return _FLAGS.take(pa.array(found)) if found.any() else None


def _properties(columns: RowColumns, rows: pa.RecordBatch) -> pa.Array | None:
    """Return the encoded properties of each row; None if no row has any."""
    if columns.properties is not None:
        found = _without_null_content(rows.column(columns.properties))
        names, values = found.keys, found.items
    elif columns.headers is not None:
        found = _without_null_content(rows.column(columns.headers))
        names, values = found.values.field("key"), found.values.field("value")
    else:
        return None
    offsets = _as_numpy(found.offsets).astype(np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    if first == end:
        return None
    pairs = _property_fields(names.slice(first, end - first), values.slice(first, end - first))
    # The properties of a row are neighbours, so a row is a range of the bytes of all of them.
    bounds, data = offsets_and_data(pairs)
    return _from_buffers(bounds[offsets - first], data)


def _without_null_content(column: pa.Array) -> pa.Array:
    """Return lists or maps of which those that are null have no elements: Arrow allows them."""
    return column.take(pa.array(np.arange(len(column)))) if column.null_count else column


def _property_fields(names: pa.Array, values: pa.Array) -> pa.Array:
    """Return the field of each property."""
    for missing in (names, values):
        if missing.null_count:
            name = names[pc.index(missing.is_null(), value=True).as_py()].as_py()
            raise ValueError(
                f"the property {name!r} of a row has no value: leave the property away, or give"
                " it an empty text"
            )
    names, values = as_bytes(names), as_bytes(values)
    for texts in (names, values):
        row = _not_utf_8(texts)
        if row is not None:
            name = names[row].as_py().decode(errors="replace")
            raise ValueError(
                f"the property {name!r} of a row is not UTF-8, and properties are texts: encode it,"
                " for example by base64"
            )
    name_heads = _varints(_PROPERTY_NAME, byte_sizes(names))
    value_heads = _varints(_PROPERTY_VALUE, byte_sizes(values))
    pairs = (name_heads, names, value_heads, values)
    return _join(_varints(_PROPERTY, _joined_sizes(pairs)), *pairs)


# -- the keys


def _check_keys(texts: pa.Array) -> None:
    row = _not_utf_8(texts)
    if row is not None:
        raise ValueError(
            f"the key {texts[row].as_py()!r:.80} of a row is not UTF-8: cast the column 'key' to"
            " binary, without keyIsBytes=false"
        )


def _base64(keys: pa.Array) -> pa.Array:
    """Return each key as base64; an empty text for null.

    All keys are encoded in one call.  So each of them is filled up to a multiple of three bytes
    before, and what comes of the filling becomes `=` behind.
    """
    fill = -byte_sizes(keys) % 3
    bounds, data = offsets_and_data(_join(keys, _BASE64_FILL.take(pa.array(fill))))
    texts = np.frombuffer(bytearray(b2a_base64(data[: bounds[-1]], newline=False)), np.uint8)
    bounds = bounds // 3 * 4
    ends = bounds[1:]
    texts[ends[fill > 0] - 1] = ord("=")
    texts[ends[fill > 1] - 2] = ord("=")
    return _from_buffers(bounds, texts)


# -- columns of bytes


def _varints(tag: bytes, numbers: _Numbers, absent: _Numbers | None = None) -> pa.Array:
    """Return `tag` and a varint for each number, which is at least 0; nothing where `absent`."""
    width = max(1, (int(numbers.max()).bit_length() + 6) // 7)
    table = np.empty((len(numbers), len(tag) + width), np.uint8)
    table[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    sizes = np.full(len(numbers), len(tag) + 1)
    for place in range(width):
        left = numbers >> 7 * place
        has_more = left > 0x7F
        table[:, len(tag) + place] = left & 0x7F | np.where(has_more, 0x80, 0)
        sizes += has_more
    if absent is not None:
        sizes[absent] = 0
    bounds = _bounds(sizes)
    if bounds[-1] < table.size:
        table = table[np.arange(table.shape[1]) < sizes[:, None]]
    return _from_buffers(bounds, table)


def _u32(numbers: _Numbers) -> pa.Array:
    data = numbers.astype(">u4")
    return _from_buffers(np.arange(len(numbers) + 1, dtype=np.int64) * data.itemsize, data)


def _bounds(sizes: _Numbers) -> _Numbers:
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _from_buffers(bounds: _Numbers, data: Any) -> pa.Array:  # noqa: ANN401
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BYTES, len(bounds) - 1, buffers)


def _join(*parts: pa.Array) -> pa.Array:
    """Return for each row its parts, joined; a part that is null is empty."""
    return pc.binary_join_element_wise(
        *parts, _NOTHING, null_handling="replace", null_replacement=""
    )


def _joined_sizes(parts: Sequence[pa.Array]) -> _Numbers:
    """Return for each row the bytes of its parts together."""
    found: _Numbers = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        found += byte_sizes(part)
    return found


def _not_utf_8(column: pa.Array) -> int | None:
    """Return the first row that is not UTF-8, None if all are."""
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:
        for row, text in enumerate(column.to_pylist()):
            try:
                (text or b"").decode()
            except UnicodeDecodeError:
                return row
    return None


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _as_numpy(column: pa.Array) -> _Numbers:
    found: _Numbers = column.to_numpy(zero_copy_only=False)
    return found
