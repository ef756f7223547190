"""Integers inside frames and protobuf messages, for messages that are handled as slices.

Fixed-width integers are big-endian in both protocols.  A varint is protobuf's: seven bits per byte,
the least significant first; at most ten bytes, and a value below 2**64.  A negative int32 or int64
is the varint of its two's complement in 64 bits.
"""

from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias

from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.transport import Buffer

U32 = Struct(">I")
U64 = Struct(">Q")
I32 = Struct(">i")
I64 = Struct(">q")

VARINT = 0  # protobuf's wire types; 3 and 4 are groups, which no peer sends
FIXED64 = 1
DELIMITED = 2
FIXED32 = 5

_VARINT_BYTES_MAX = 10
_U64_END = 1 << 64

Field: TypeAlias = tuple[int, int, int, int]
"""Number, wire type, start and end of the value; for a varint the value itself and its end."""


def encode_varint(value: int) -> bytes:
    """Return `value` as a varint; a negative value has 64 bits."""
    if value < 0:
        value += _U64_END
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(buffer: Buffer, offset: int = 0) -> tuple[int, int]:
    """Return the varint at `offset`, unsigned, and the offset behind it."""
    value = shift = 0
    for index in range(offset, min(offset + _VARINT_BYTES_MAX, len(buffer))):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _U64_END:
                raise MalformedError("a varint is larger than 64 bits")
            return value, index + 1
        shift += 7
    if len(buffer) - offset < _VARINT_BYTES_MAX:
        raise TruncatedError("a varint is cut off")
    raise MalformedError("a varint has more than ten bytes")


def signed(value: int) -> int:
    """Return the int64 that was sent as this varint."""
    return value - _U64_END if value >= 1 << 63 else value


def encode_tag(number: int, wire_type: int) -> bytes:
    return encode_varint(number << 3 | wire_type)


def iter_fields(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the protobuf message in `buffer[start:end]`, in the order of their bytes.

    A field is (number, wire type, first, last): the offsets of its value, or for a varint its
    unsigned value and the offset of its end.
    """
    end = len(buffer) if end is None else end
    offset = start
    while offset < end:
        tag, offset = decode_varint(buffer, offset)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise MalformedError("a field has the number 0")
        first = offset
        match wire_type:
            case 0:
                first, offset = decode_varint(buffer, offset)
            case 1:
                offset += 8
            case 2:
                size, first = decode_varint(buffer, offset)
                offset = first + size
            case 5:
                offset += 4
            case _:
                raise MalformedError(f"a field has the unknown wire type {wire_type}")
        if offset > end:
            raise TruncatedError(f"field {number} is longer than its message")
        yield number, wire_type, first, offset
