"""The codecs are inverse to each other, and never produce more than announced and allowed."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.wire.compression import CompressionType, compress, decompress
from daybook.wire.errors import MalformedError, OversizeError, WireError

KINDS = list(CompressionType)
REAL = KINDS[1:]
LIMIT = 1 << 20


@given(st.sampled_from(KINDS), st.binary(max_size=4000))
def test_what_was_compressed_comes_out(kind: CompressionType, data: bytes) -> None:
    packed = compress(kind, memoryview(data))
    assert bytes(decompress(kind, packed, len(data), LIMIT)) == data


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("announced", [1, 9_999, 10_001])
def test_another_size_than_announced_is_malformed(kind: CompressionType, announced: int) -> None:
    packed = compress(kind, b"a" * 10_000)
    with pytest.raises(MalformedError):
        decompress(kind, packed, announced, LIMIT)


@pytest.mark.parametrize("kind", REAL)
def test_more_than_the_limit_is_not_tried(kind: CompressionType) -> None:
    with pytest.raises(OversizeError):
        decompress(kind, b"", LIMIT + 1, LIMIT)


@given(st.sampled_from(REAL), st.binary(max_size=60), st.integers(0, 300))
def test_garbage_is_a_wire_error_or_of_the_announced_size(
    kind: CompressionType, garbage: bytes, announced: int
) -> None:
    with suppress(WireError):
        assert len(decompress(kind, garbage, announced, LIMIT)) == announced


def test_an_unknown_codec_is_malformed() -> None:
    with pytest.raises(MalformedError):
        decompress(9, b"x", 1, LIMIT)


def test_zlib_is_the_zlib_format_and_lz4_and_snappy_are_raw_blocks() -> None:
    data = b"daybook " * 4
    assert zlib.decompress(compress(CompressionType.ZLIB, data)) == data
    assert bytes(compress(CompressionType.SNAPPY, b"ab")) == b"\x02\x04ab"
    assert bytes(compress(CompressionType.LZ4, b"ab")) == b"\x20ab"
