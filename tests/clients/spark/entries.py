"""Stored entries for tests of the Spark source, as brokers and producers write them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daybook.clients.spark.entry import Head, StoredEntry, read_head
from daybook.wire.batch import broker_entry_metadata, encode_batch, encode_payload
from daybook.wire.compression import CompressionType, compress
from daybook.wire.proto import pulsar_pb2 as pb

LEDGER = 7


@dataclass(frozen=True)
class Stored:
    """An entry with the bytes that bookies keep."""

    ledger_id: int
    entry_id: int
    data: bytes

    @property
    def split(self) -> StoredEntry:
        return StoredEntry.of(self.ledger_id, self.entry_id, self.data)

    @property
    def head(self) -> Head:
        return read_head(self.split.payload)


def stored(
    payload: bytes, last_offset: int | None, entry_id: int = 0, ledger_id: int = LEDGER
) -> Stored:
    """Return the entry that a broker stores; without an offset, as old Pulsar brokers do."""
    head = b"" if last_offset is None else broker_entry_metadata(1, last_offset)
    return Stored(ledger_id, entry_id, head + payload)


def metadata(**fields: Any) -> pb.MessageMetadata:
    base: dict[str, Any] = {"producer_name": "p", "sequence_id": 0, "publish_time": 1000}
    return pb.MessageMetadata(**(base | fields))


def single(data: bytes, **fields: Any) -> bytes:
    """Return a message that is alone in its entry."""
    return encode_payload(metadata(**fields), data)


def batch(
    messages: Sequence[tuple[dict[str, Any], bytes]],
    compression: CompressionType = CompressionType.NONE,
    **fields: Any,
) -> bytes:
    """Return a batch; each message has the fields of its metadata, and its data."""
    body = encode_batch(
        [(pb.SingleMessageMetadata(payload_size=0, **own), data) for own, data in messages]
    )
    if compression is not CompressionType.NONE:
        fields |= {"compression": int(compression), "uncompressed_size": len(body)}
    packed = bytes(compress(compression, body))
    return encode_payload(metadata(num_messages_in_batch=len(messages), **fields), packed)


def numbered(first: int, count: int, entry_id: int = 0, *, alone: bool = False) -> Stored:
    """Return an entry whose messages are their offsets, in words."""
    if alone:
        payload = single(b"%d" % first, publish_time=1000 + first)
    else:
        data: list[tuple[dict[str, Any], bytes]] = [
            ({}, b"%d" % offset) for offset in range(first, first + count)
        ]
        payload = batch(data, publish_time=1000 + first)
    return stored(payload, first + count - 1, entry_id)
