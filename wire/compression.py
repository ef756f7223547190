"""The codecs with which a batch may be compressed, and their limits.

    LZ4      a raw LZ4 block without header
    ZLIB     a zlib stream
    ZSTD     a zstd frame
    SNAPPY   a raw snappy block

Decompressed data may not exceed the size that the sender announced, and that size may not exceed
the limit of the reader.  Memory is allocated once, in the announced size.
"""

from enum import IntEnum

import cramjam

from daybook.wire.errors import MalformedError, OversizeError
from daybook.wire.transport import Buffer


class CompressionType(IntEnum):
    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_ZSTD_LEVEL = 1  # Twice as fast as the default, and a tenth larger.


def compress(kind: CompressionType, data: Buffer) -> Buffer:
    """Return `data` compressed, or `data` itself for NONE."""
    match kind:
        case CompressionType.NONE:
            return data
        case CompressionType.LZ4:
            return memoryview(cramjam.lz4.compress_block(data, store_size=False))
        case CompressionType.ZLIB:
            return memoryview(cramjam.zlib.compress(data))
        case CompressionType.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
        case CompressionType.SNAPPY:
            return memoryview(cramjam.snappy.compress_raw(data))


def decompress(kind: int, data: Buffer, uncompressed_size: int, limit: int) -> Buffer:
    """Return the decompressed data, `uncompressed_size` bytes according to the sender.

    Raise OversizeError if that exceeds `limit`, MalformedError if the data have another size.
    """
    if kind == CompressionType.NONE:
        return data
    if not 0 <= uncompressed_size <= limit:
        raise OversizeError(
            f"the batch has {uncompressed_size} bytes when decompressed, and at most {limit} are"
            " allowed"
        )
    if uncompressed_size == 0:
        return b""
    out = bytearray(uncompressed_size)
    try:
        match kind:
            case CompressionType.LZ4:
                size = cramjam.lz4.decompress_block_into(data, out, output_len=uncompressed_size)
            case CompressionType.ZLIB:
                size = cramjam.zlib.decompress_into(data, out)
            case CompressionType.ZSTD:
                size = cramjam.zstd.decompress_into(data, out)
            case CompressionType.SNAPPY:
                size = cramjam.snappy.decompress_raw_into(data, out)
            case _:
                raise MalformedError(f"the batch has the unknown compression {kind}")
    except cramjam.DecompressionError as error:
        raise MalformedError(f"the batch cannot be decompressed: {error}") from None
    if size != uncompressed_size:
        raise MalformedError(
            f"the batch has {size} bytes when decompressed, and its metadata say"
            f" {uncompressed_size}"
        )
    return out
