"""Split stored entries: the offset and the metadata that an entry states, and its messages."""

# pyright: basic
# (the libraries underneath have no types)

from dataclasses import dataclass

from daybook.wire.batch import (
    num_messages,
    split_broker_metadata,
    verified_metadata,
)
from daybook.wire.compression import decompress
from daybook.wire.errors import MalformedError, WireError
from daybook.wire.proto import pulsar_pb2 as pb

DECOMPRESSED_MAX = 128 << 20  # the Python client has the same limit


@dataclass(slots=True)
class StoredEntry:
    """An entry as it is stored, without the block of its broker.

    `last_offset` is that of its last message; None if no broker numbered the entry, and its reader
    has not counted.
    """

    ledger_id: int
    entry_id: int
    last_offset: int | None
    payload: memoryview

    @classmethod
    def of(cls, ledger_id: int, entry_id: int, data: bytes) -> "StoredEntry":
        return cls(ledger_id, entry_id, *split_offset(memoryview(data)))

    @property
    def position(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id


@dataclass(slots=True)
class Head:
    """The metadata and the body of an entry."""

    metadata: pb.MessageMetadata
    body: memoryview

    @property
    def messages(self) -> int:
        return num_messages(self.metadata)

    @property
    def is_chunk(self) -> bool:
        """True if the entry holds a part of one message."""
        return self.metadata.num_chunks_from_msg > 1


def read_head(payload: memoryview) -> Head:
    """Parse the metadata of an entry, and verify its checksum.  Raise a WireError."""
    return Head(*verified_metadata(payload))


def split_offset(data: memoryview) -> tuple[int | None, memoryview]:
    """Return the offset of the last message of an entry, readable or not, and what follows.

    The offset is None if it is unknown; the rest is the whole entry if it cannot be split.
    """
    try:
        _, last, payload = split_broker_metadata(data)
    except WireError:
        return None, data
    return last, payload


@dataclass(slots=True)
class Messages:
    """The body of an entry, or of a message that was joined from chunks: not compressed."""

    metadata: pb.MessageMetadata
    body: memoryview


def unpack(metadata: pb.MessageMetadata, body: memoryview) -> Messages:
    """Return the messages of an entry.  Raise a WireError, with a sentence, if none can be had."""
    if metadata.encryption_keys:
        raise MalformedError("the message is encrypted, and Spark has no keys")
    if metadata.compression != pb.NONE and metadata.uncompressed_size:
        kind, size = int(metadata.compression), metadata.uncompressed_size
        body = memoryview(decompress(kind, body, size, DECOMPRESSED_MAX))
    return Messages(metadata, body)
