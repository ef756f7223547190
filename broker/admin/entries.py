"""One stored entry as an answer of the admin REST: its payload, and its metadata as headers.

The headers are those that Pulsar's admin clients know, and X-Daybook-Pending: for an entry of which
a subscription has acknowledged a part, the bits of the other messages, the lowest first, in base64.
The payload is decompressed; a batch stays
whole, and the client splits it.  An encrypted payload, and one that cannot be read, is given as it
is stored.  One that is too large when it is decompressed is refused.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime

from daybook.broker.admin.handling import Content
from daybook.broker.errors import PreconditionError
from daybook.managed_ledger.position import Position
from daybook.wire.batch import parse_metadata, split_broker_metadata
from daybook.wire.compression import decompress
from daybook.wire.errors import OversizeError, WireError
from daybook.wire.proto import pulsar_pb2 as pb

_PROPERTIES_MAX = 16 << 10  # characters; HTTP clients bound the size of headers
_PENDING_MAX = 3 << 10  # bytes, for the same reason; a larger batch is shown without its bits
_TEXTS = (
    "producer_name",
    "sequence_id",
    "replicated_from",
    "partition_key",
    "uncompressed_size",
    "encryption_algo",
    "marker_type",
    "txnid_least_bits",
    "txnid_most_bits",
    "highest_sequence_id",
    "uuid",
    "num_chunks_from_msg",
    "total_chunk_msg_size",
    "chunk_id",
)
_TIMES = ("publish_time", "event_time", "deliver_at_time")
_FLAGS = ("null_value", "partition_key_b64_encoded", "null_partition_key")
_BYTES = ("encryption_param", "schema_version", "ordering_key")


def content_of(
    position: Position, data: memoryview, bytes_max: int, pending: int | None = None
) -> Content:
    """Return an entry; `pending` are the bits of its messages that are not acknowledged.

    Raise PreconditionError if it has more than `bytes_max` bytes when it is decompressed.
    """
    headers = [("X-Pulsar-Message-ID", str(position))]
    if pending is not None and pending.bit_length() <= 8 * _PENDING_MAX:
        bits = pending.to_bytes(-(-pending.bit_length() // 8), "little")
        headers.append(("X-Daybook-Pending", b64encode(bits).decode()))
    try:
        timestamp_ms, index, payload = split_broker_metadata(data)
        metadata, body = parse_metadata(payload)
    except WireError:
        return Content(bytes(data), headers)
    if timestamp_ms is not None:
        headers.append(("X-Pulsar-Broker-Entry-METADATA-timestamp", _iso(timestamp_ms)))
    if index is not None:
        headers.append(("X-Pulsar-Broker-Entry-METADATA-index", str(index)))
    headers += _headers(metadata)
    if metadata.HasField("num_messages_in_batch"):
        headers.append(("X-Pulsar-num-batch-message", str(metadata.num_messages_in_batch)))
        headers.append(("X-Pulsar-batch-size", str(len(body))))
    if metadata.HasField("compression"):
        name = pb.CompressionType.Name(metadata.compression)
        headers.append(("X-Pulsar-compression", name))
    if metadata.encryption_keys or not metadata.compression:
        return Content(bytes(body), headers)
    try:
        plain = decompress(metadata.compression, body, metadata.uncompressed_size, bytes_max)
    except OversizeError:
        raise PreconditionError(
            f"the entry {position} has {metadata.uncompressed_size} bytes when it is decompressed,"
            f" and at most {bytes_max} are shown (max_message_size): read it with a consumer"
        ) from None
    except WireError:
        plain = body
    return Content(bytes(plain), headers)


def _headers(metadata: pb.MessageMetadata) -> Iterator[tuple[str, str]]:
    for each in metadata.properties:
        yield f"X-Pulsar-PROPERTY-{each.key}", each.value
    # Newer admin clients read all properties from one header, which takes any text.
    properties = json.dumps({each.key: each.value for each in metadata.properties})
    if metadata.properties and len(properties) <= _PROPERTIES_MAX:
        yield "X-Pulsar-PROPERTY", properties
    if metadata.HasField("num_chunks_from_msg"):
        yield "X-Pulsar-PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)
        yield "X-Pulsar-PROPERTY-CHUNK-ID", str(metadata.chunk_id)
    yield "X-Pulsar-Is-Encrypted", _flag(len(metadata.encryption_keys) > 0)
    for cluster in metadata.replicate_to:
        yield "X-Pulsar-replicated-to", cluster
    for keys in metadata.encryption_keys:
        yield "X-Pulsar-Base64-encryption-keys", b64encode(keys.SerializeToString()).decode()
    for field in _TEXTS:
        if metadata.HasField(field):
            yield _name(field), str(getattr(metadata, field))
    for field in _TIMES:
        if metadata.HasField(field):
            yield _name(field), _iso(getattr(metadata, field))
    for field in _FLAGS:
        if metadata.HasField(field):
            yield _name(field), _flag(getattr(metadata, field))
    for field in _BYTES:
        if metadata.HasField(field):
            encoded = b64encode(getattr(metadata, field)).decode()
            yield f"X-Pulsar-Base64-{field.replace('_', '-')}", encoded


def _name(field: str) -> str:
    return f"X-Pulsar-{field.replace('_', '-')}"


def _flag(value: object) -> str:
    return "true" if value else "false"


def _iso(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)  # A producer may say any time.
