"""The few facts that a broker needs about an entry, such as the number of its messages.

The bytes of an entry are passed on as they were stored; nothing here changes them.
"""

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from daybook.broker.protocol.dispatch.murmur import murmur3
from daybook.broker.protocol.dispatch.places import Place
from daybook.wire.batch import BATCH_MAX, messages_counted, peek_metadata
from daybook.wire.errors import MalformedError, TruncatedError
from daybook.wire.messages.consumer import encode_message_id
from daybook.wire.proto import pulsar_pb2 as pb

_NO_KEY = b"NONE_KEY"
_KEY_BYTES_MAX = 4096  # A longer key is shortened before it is hashed.


@dataclass(slots=True)
class EntryHead:
    """The facts about one entry.

    The producer's part begins at `start`, behind the broker's own block.
    """

    start: int
    messages: int
    is_batch: bool = False
    publish_time_ms: int = 0
    marker: bool = False  # not for consumers
    deliver_at_ms: int = 0
    group: str | None = None  # if the entry is a chunk: the id of its message
    group_ends: bool = False  # the entry is the last chunk
    left: int | None = None  # the messages of a batch that compaction left, as bits
    key: int = 0  # the hash of its key; `keyed_head` only


class Payload:
    """The bytes of an entry, which all consumers that get it share.

    `data` is the entry as it was stored, and `own` what its producer has sent.
    """

    __slots__ = ("_message_id", "data", "own")

    def __init__(self, data: memoryview, start: int) -> None:
        self.data = data
        self.own = data[start:] if start else data
        self._message_id = b""

    def message_id(self, place: Place, partition: int) -> bytes:
        """Return the id of the entry as MESSAGE has it.

        It is encoded once, since all consumers of an entry read the same partition.
        """
        if not self._message_id:
            self._message_id = encode_message_id(*place, partition)
        return self._message_id


def entry_head(data: memoryview) -> EntryHead:
    """Return the facts about an entry.  Raise a WireError if the bytes are not an entry."""
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
    if metadata.compacted_batch_indexes:
        head.left = _left(metadata.compacted_batch_indexes, head.messages)
    return head


def _left(indexes: Iterable[int], messages: int) -> int | None:
    """Return the indexes as bits; None if they cannot be those of the batch."""
    if messages > BATCH_MAX or not all(0 <= index < messages for index in indexes):
        return None
    left = 0
    for index in indexes:
        left |= 1 << index
    return left


def keyed_head(data: memoryview) -> EntryHead:
    """Return the facts about a stored entry as `delivered_head` does, and the hash of its key."""
    try:
        start, metadata = peek_metadata(data)
    except (TruncatedError, MalformedError):
        return EntryHead(0, 1, key=murmur3(_NO_KEY))
    head = _head(start, metadata)
    head.key = key_hash(sticky_key(metadata))
    return head


def key_hash(key: bytes) -> int:
    """Return the hash that stands for a key: Pulsar's, except for very long keys.

    Murmur3 runs in Python here, so a key of some megabytes would occupy the broker for a second.
    """
    return murmur3(key if len(key) <= _KEY_BYTES_MAX else blake2b(key).digest())


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """Return the key by which the messages of a key_shared subscription are ordered.

    A message without a key has one of its own, the same for all its chunks.
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = _bytes(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            try:
                return b64decode(key, validate=True)
            except ValueError:
                pass  # The producer has not kept its word, so its text is the key.
        return key
    if metadata.producer_name:
        return b"%b-%d" % (_bytes(metadata.producer_name), metadata.sequence_id)
    return _NO_KEY


def _bytes(text: str | bytes) -> bytes:
    """Return a text of the metadata; the parser passes on bytes that are not UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def delivered_head(data: memoryview) -> EntryHead:
    """Return the facts about a stored entry.

    A stored entry that cannot be read counts as one message, and goes to consumers as it is.
    """
    try:
        return entry_head(data)
    except (TruncatedError, MalformedError):
        return EntryHead(0, 1)
