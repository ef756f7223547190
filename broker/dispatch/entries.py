"""What a broker has to know of an entry: how many messages it holds, and who must not see it.

The bytes of an entry are passed on as they were stored; nothing here changes them.
"""

from dataclasses import dataclass

from daybook.wire.batch import messages_counted, peek_metadata
from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.proto import pulsar_pb2 as pb


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
    start, metadata = peek_metadata(data)
    return _head(start, metadata)


def _head(start: int, metadata: pb.MessageMetadata) -> EntryHead:
    head = EntryHead(
        start,
        messages_counted(metadata),
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
