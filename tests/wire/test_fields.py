"""Varints and the walk over the fields of a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire import fields
from daybook.wire.errors import MalformedError, TruncatedError, WireError
from daybook.wire.proto import bookkeeper_pb2 as pb

TABLE = {0: "00", 1: "01", 127: "7f", 128: "8001", 300: "ac02", -1: "ffffffffffffffffff01"}


@pytest.mark.parametrize(("value", "data"), TABLE.items())
def test_varints_as_protobuf_has_them(value: int, data: str) -> None:
    assert fields.encode_varint(value).hex() == data
    assert fields.signed(fields.decode_varint(bytes.fromhex(data))[0]) == value


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.binary(max_size=5), st.binary(max_size=5))
def test_a_varint_comes_back_from_the_middle_of_a_buffer(
    value: int, before: bytes, after: bytes
) -> None:
    data = before + fields.encode_varint(value) + after
    got, end = fields.decode_varint(data, len(before))
    assert got == value % (1 << 64)
    assert end == len(data) - len(after)


def test_varints_that_are_none() -> None:
    with pytest.raises(TruncatedError):
        fields.decode_varint(b"\x80\x80")
    with pytest.raises(TruncatedError):
        fields.decode_varint(b"\x01", 1)
    with pytest.raises(MalformedError):
        fields.decode_varint(b"\x80" * 10 + b"\x01")
    with pytest.raises(MalformedError):
        fields.decode_varint(b"\xff" * 9 + b"\x02")


def test_fields_of_a_message_in_order() -> None:
    message = pb.AddRequest(ledgerId=5, entryId=-1, masterKey=b"key", body=b"", writeFlags=1)
    data = message.SerializeToString()
    seen = [
        (number, wire_type, first if wire_type == 0 else data[first:end])
        for number, wire_type, first, end in fields.iter_fields(data)
    ]
    assert seen == [(1, 0, 5), (2, 0, 2**64 - 1), (3, 2, b"key"), (4, 2, b""), (5, 0, 1)]


@given(st.binary(max_size=60))
def test_walking_any_bytes_ends_or_raises_a_wire_error(data: bytes) -> None:
    try:
        walked = list(fields.iter_fields(data))
    except WireError:
        return
    assert not walked or walked[-1][3] == len(data)
