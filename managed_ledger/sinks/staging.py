"""Staged entries, and what a staging ledger says about itself.

A staged entry is one Pulsar message or batch, without what only the owner of the topic can say:

    | metadata_size u32 | MessageMetadata without the fields 1 to 3 | body ... |

The owner appends producer name, sequence id and publish time *behind* the staged fields.  Protobuf
allows any order, and of two values of one field the last one counts, so the staged bytes are never
parsed and written again.  A checksum is computed then.

A staging ledger has the entries of one attempt in *runs*: neighbouring entries of one topic
partition.  Its last entry is a `StagingEnd` in JSON.  It names the runs, so the ledger proves what
it holds: a ledger whose writer died has none, and cannot be committed.

Between a client and a broker the entries of one body are `| size u32 | staged entry |`, repeated.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from crc32c import crc32c
from google.protobuf.message import DecodeError

from daybook.managed_ledger.protocol.sink import SinkRefusedError
from daybook.managed_ledger.sinks.errors import SinkCorruptError, StagedEntryError
from daybook.wire.batch import (
    BATCH_MAX,
    check_metadata,
    impossible_claim,
    messages_counted,
    num_messages,
)
from daybook.wire.errors import WireError
from daybook.wire.fields import U32, encode_varint
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Buffer

BODY_BYTES_MAX = 4 << 20  # A larger body has one entry.
# The owner adds producer name, sequence id, publish time and its own metadata to an entry.
ENTRY_ROOM_BYTES = 512
_SIZE = U32.size
_CHECKSUM_MAGIC = b"\x0e\x01"
_VERSION = 1
_OF_OWNER = ("producer_name", "sequence_id", "publish_time")
_OTHERS = ("highest_sequence_id", "num_chunks_from_msg", "txnid_least_bits", "marker_type")
HASH_MASK = (1 << 64) - 1


# -- staged entries


def staged_entry(metadata: pb.MessageMetadata, body: Buffer) -> bytes:
    """Return a message or a batch as an entry to be staged.  Raise StagedEntryError."""
    _check_fields(metadata)
    fields = metadata.SerializePartialToString()
    return b"".join((U32.pack(len(fields)), fields, body))


def _check_fields(metadata: pb.MessageMetadata) -> None:
    for name in (*_OF_OWNER, *_OTHERS):
        if metadata.HasField(name):
            why = "the owner of the topic sets it" if name in _OF_OWNER else "it is not possible"
            raise StagedEntryError(f"a staged entry may not have the field {name}: {why}")


def check_staged(entry: memoryview, bytes_max: int) -> int:
    """Return the number of messages of a staged entry that a client sent.

    Raise StagedEntryError if the owner of a topic could not append it, or consumers could not read
    it.
    """
    if len(entry) > bytes_max - ENTRY_ROOM_BYTES:
        raise StagedEntryError(
            f"a staged entry has {len(entry)} bytes, and at most {bytes_max - ENTRY_ROOM_BYTES} are"
            " possible: make smaller batches"
        )
    fields, body = _split(entry)
    try:
        metadata = pb.MessageMetadata.FromString(bytes(fields))
    except DecodeError as error:
        raise StagedEntryError(f"the metadata of a staged entry do not parse: {error}") from None
    _check_fields(metadata)
    # The owner adds these behind the others, so its entry parses to the same metadata.
    metadata.producer_name, metadata.sequence_id, metadata.publish_time = "x", 0, 1
    try:
        check_metadata(metadata)
    except WireError as error:
        raise StagedEntryError(f"a staged entry is not possible: {error}") from None
    claim = impossible_claim(metadata, len(body))
    if claim is not None:
        raise StagedEntryError(f"a staged entry is not possible: {claim}")
    return num_messages(metadata)


def applied_entry(
    entry: memoryview, producer: str, sequence_id: int, publish_ms: int
) -> tuple[bytes, memoryview]:
    """Return the entry as the owner appends it: a new head, and the body of the staged one."""
    fields, body = _split(entry)
    name = producer.encode()
    added = b"\x0a%b%b\x10%b\x18%b" % (
        encode_varint(len(name)),
        name,
        encode_varint(sequence_id),
        encode_varint(publish_ms),
    )
    head = b"".join((U32.pack(len(fields) + len(added)), fields, added))
    checksum = U32.pack(crc32c(body, crc32c(head)))
    return b"".join((_CHECKSUM_MAGIC, checksum, head)), body


def messages_of(entry: memoryview) -> int:
    """Return the number of messages of a staged entry that was checked before."""
    fields, _ = _split(entry)
    return messages_counted(pb.MessageMetadata.FromString(bytes(fields)))


def _split(entry: memoryview) -> tuple[memoryview, memoryview]:
    """Return the metadata and the body of a staged entry."""
    end = _SIZE + U32.unpack_from(entry)[0] if len(entry) >= _SIZE else len(entry) + 1
    if end > len(entry):
        raise StagedEntryError("a staged entry is cut off")
    return entry[_SIZE:end], entry[end:]


# -- bodies


def encode_body(entries: Iterable[Buffer]) -> bytes:
    parts: list[Buffer] = []
    for entry in entries:
        parts += (U32.pack(len(entry)), entry)
    return b"".join(parts)


def decode_body(body: memoryview) -> Iterator[memoryview]:
    """Yield the staged entries of a body.  Raise StagedEntryError."""
    at = 0
    while at < len(body):
        end = at + _SIZE
        if end <= len(body):
            end += U32.unpack_from(body, at)[0]
        if end > len(body) or at + _SIZE > len(body):
            raise StagedEntryError("the body of staged entries is cut off")
        yield body[at + _SIZE : end]
        at = end


# -- what a staging ledger says about itself


class Run(msgspec.Struct, array_like=True):
    """Neighbouring entries of one topic partition: its index in `topics`, first and last entry."""

    topic: int
    first: int
    last: int
    messages: int
    bytes: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


class StagingEnd(msgspec.Struct, rename="camel"):
    """The last entry of a staging ledger."""

    version: int
    sink: str
    attempt: str
    query_id: str
    batch_id: int
    partitions: dict[str, int]  # by topic, as the driver counted them
    topics: list[str]  # topic partitions
    runs: list[Run]
    largest: int  # the bytes of the largest entry
    rows: int
    hash: int

    @property
    def entries(self) -> int:
        return sum(run.entries for run in self.runs)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)


@dataclass(slots=True)
class Runs:
    """The runs of an attempt while it is written."""

    topics: list[str] = field(default_factory=list[str])
    runs: list[Run] = field(default_factory=list[Run])
    entries: int = 0
    largest: int = 0

    def add(self, topic: str, messages: int, size: int) -> None:
        """Note that an entry was appended."""
        entry_id = self.entries
        self.entries += 1
        self.largest = max(self.largest, size)
        if self.runs and self.topics[self.runs[-1].topic] == topic:
            run = self.runs[-1]
            run.last, run.messages, run.bytes = entry_id, run.messages + messages, run.bytes + size
            return
        if topic not in self.topics:
            self.topics.append(topic)
        index = self.topics.index(topic)
        self.runs.append(Run(index, entry_id, entry_id, messages, size))


def encode_end(end: StagingEnd) -> bytes:
    return msgspec.json.encode(end)


def decode_end(data: memoryview, ledger_id: int) -> StagingEnd:
    """Raise SinkCorruptError."""
    try:
        end = msgspec.json.decode(data, type=StagingEnd)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SinkCorruptError(
            f"the last entry of the staging ledger {ledger_id} does not parse: {error}"
        ) from None
    if end.version != _VERSION:
        raise SinkCorruptError(
            f"the staging ledger {ledger_id} has version {end.version}, and this process knows"
            f" version {_VERSION}: a newer release has written it"
        )
    return end


def new_end(
    sink: str,
    attempt: str,
    query_id: str,
    batch_id: int,
    partitions: Mapping[str, int],
    runs: Runs,
    *,
    rows: int,
    hash_: int,
) -> StagingEnd:
    return StagingEnd(
        _VERSION,
        sink,
        attempt,
        query_id,
        batch_id,
        dict(partitions),
        runs.topics,
        runs.runs,
        runs.largest,
        rows,
        hash_,
    )


def check_same_partitions(end: StagingEnd, partitions: Mapping[str, int]) -> None:
    """Raise SinkRefusedError if a task used another number of partitions than the driver.

    The refusal names only the topics of the driver: it may have no right on those of the task.
    """
    if end.partitions != dict(partitions):
        common = {name: end.partitions[name] for name in partitions if name in end.partitions}
        raise SinkRefusedError(
            f"the attempt {end.attempt} counted other topics or partitions than the driver:"
            f" {common} instead of {dict(partitions)}; write the batch again"
        )


__all__ = [
    "BATCH_MAX",
    "BODY_BYTES_MAX",
    "ENTRY_ROOM_BYTES",
    "HASH_MASK",
    "Run",
    "Runs",
    "StagingEnd",
    "applied_entry",
    "check_same_partitions",
    "check_staged",
    "decode_body",
    "decode_end",
    "encode_body",
    "encode_end",
    "messages_of",
    "new_end",
    "staged_entry",
]
