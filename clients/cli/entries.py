"""What an entry of a topic's log says of itself, for people who look at ledgers."""

from dataclasses import dataclass

from daybook.wire.batch import (
    is_batch,
    iter_batch,
    num_messages,
    parse_metadata,
    split_broker_metadata,
)
from daybook.wire.compression import decompress
from daybook.wire.errors import WireError
from daybook.wire.proto import pulsar_pb2 as pb

_DECOMPRESSED_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Description:
    """None is what cannot be said."""

    messages: int | None = None
    first_offset: int | None = None
    publish_time_ms: int | None = None
    data: bytes | None = None  # of the first message


def describe(payload: memoryview) -> Description:
    """As much as can be said; what does not parse, or is encrypted, is not described."""
    try:
        _, index, rest = split_broker_metadata(payload)
        metadata, body = parse_metadata(rest)
        count = num_messages(metadata)
        first_offset = None if index is None else index - count + 1
        data = None if metadata.encryption_keys else _first_data(metadata, body, count)
    except WireError:
        return Description()
    return Description(count, first_offset, metadata.publish_time, data)


def _first_data(metadata: pb.MessageMetadata, body: memoryview, count: int) -> bytes | None:
    plain: bytes = bytes(body)
    if metadata.compression != pb.NONE and metadata.uncompressed_size:
        kind, size = int(metadata.compression), metadata.uncompressed_size
        plain = bytes(decompress(kind, body, size, _DECOMPRESSED_MAX))
    if not is_batch(metadata):
        return plain
    return next((data for _, data in iter_batch(plain, count)), None)
