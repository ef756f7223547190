"""What a broker has to know of an entry: how many messages it holds, and who must not see it.

The bytes of an entry are passed on as they were stored; nothing here changes them.
"""

import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from wire.errors import MalformedError, TruncatedError
from wire.fields import U32
from wire.proto import pulsar_pb2 as pb

_MAGIC = 0x0E
_BROKER = 0x02
_CHECKSUM = 0x01
_BROKER_HEAD_BYTES = 6
_CHECKSUM_BYTES = 6


@dataclass(slots=True)
class EntryHead:
    """`start`: where the producer's part begins, behind the broker's own block."""

    start: int
    messages: int
    is_batch: bool = False
    publish_time_ms: int = 0
    marker: bool = False  # not for consumers
    deliver_at_ms: int = 0
    group: str | None = None  # a chunk of this message
    group_ends: bool = False


def entry_head(data: memoryview) -> EntryHead:
    """Raises a WireError for bytes that are no entry."""
    try:
        start = 0
        if data[0] == _MAGIC and data[1] == _BROKER:
            start = _BROKER_HEAD_BYTES + U32.unpack_from(data, 2)[0]
        at = start
        if data[at] == _MAGIC and data[at + 1] == _CHECKSUM:
            at += _CHECKSUM_BYTES
        end = at + 4 + U32.unpack_from(data, at)[0]
    except (IndexError, struct.error):
        raise TruncatedError("an entry is cut off") from None
    if end > len(data):
        raise TruncatedError("the metadata of an entry are cut off")
    try:
        metadata = pb.MessageMetadata.FromString(bytes(data[at + 4 : end]))
    except DecodeError as error:
        raise MalformedError(f"the metadata of an entry: {error}") from None
    return _head(start, metadata)


def _head(start: int, metadata: pb.MessageMetadata) -> EntryHead:
    head = EntryHead(
        start,
        max(1, metadata.num_messages_in_batch),
        metadata.HasField("num_messages_in_batch"),
        metadata.publish_time,
        metadata.HasField("marker_type"),
        metadata.deliver_at_time,
    )
    if metadata.num_chunks_from_msg > 1:
        head.group = str(metadata.uuid)
        head.group_ends = metadata.chunk_id == metadata.num_chunks_from_msg - 1
    return head


def delivered_head(data: memoryview) -> EntryHead:
    """The same for an entry that is stored: one that makes no sense goes to consumers as it is."""
    try:
        return entry_head(data)
    except (TruncatedError, MalformedError):
        return EntryHead(0, 1)
