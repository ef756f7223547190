"""The format of the log (`docs/formats/bookie_storage.md`).  The functions here are pure.

A log is a run of bytes with positions from 0; a segment is a file with some of them:

    segment   header 28, then batches
    batch     header 28, then records: what one write put on the disk
    record    header 28, then its payload; an entry is stored as it was received

Each checksum also covers the creation id of the segment and the position, which are not stored.  So
a batch or a record is valid at its own position only, and leftovers of older files never pass for
new ones.  Each batch carries a *mark*, the position below which the log was durable when the batch
was written.  Bytes that are unreadable below a mark were lost.  Bytes that are unreadable behind
the last mark were being written when the machine stopped, and no client got an answer for them.

| kind | ledger_id | entry_id | payload |
|---|---|---|---|
| ENTRY | its ledger | its id | the entry |
| MASTER_KEY | its ledger | -1 | the key |
| FENCE | its ledger | -1 | none |
| EXPLICIT_LAC | its ledger | the LAC | the body of the request, as it came |
| TOMBSTONE | its ledger | -1 | none: it was deleted, late adds must not bring it back |
| LIMBO | its ledger, -1 = all of this log | -1 | none: absence is unknown from here on |
| LIMBO_END | its ledger, -1 = all of this log | -1 | none: until here |
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

VERSION = 1
NO_ENTRY_ID = -1
EVERY_LEDGER = -1

_SEGMENT = struct.Struct(">8sIIQI")  # magic, version, zero, creation id, checksum
_SEGMENT_MAGIC = b"DAYBKLOG"
SEGMENT_HEADER_BYTES = _SEGMENT.size

_BATCH = struct.Struct(">4sIIIIQ")  # magic, checksum, flags, count, size, durable
BATCH_MAGIC = b"\xdbBAT"
BATCH_HEADER_BYTES = _BATCH.size
_BATCH_COVER = struct.Struct(">QQIIIQ")  # creation id, position; flags, count, size, durable

_RECORD = struct.Struct(">IIIqq")  # checksum, size, kind, ledger id, entry id
RECORD_HEADER_BYTES = _RECORD.size
_FIELDS = struct.Struct(">IIqq")  # the same behind the checksum
_RECORD_COVER = struct.Struct(">QIIqq")  # position; size, kind, ledger id, entry id
_CHECKSUM = struct.Struct(">I")
_SEED = struct.Struct(">Q")


class Kind(IntEnum):
    ENTRY = 1
    MASTER_KEY = 2
    FENCE = 3
    EXPLICIT_LAC = 4
    TOMBSTONE = 5
    LIMBO = 6
    LIMBO_END = 7


class BatchFlag(IntFlag):
    NONE = 0
    END = 1  # a clean stop: the last batch of its process, without records


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    creation_id: int  # no two segments of a log have the same

    def encode(self) -> bytes:
        body = _SEGMENT.pack(_SEGMENT_MAGIC, VERSION, 0, self.creation_id, 0)
        return body[:-4] + _CHECKSUM.pack(crc32c(body[:-4]))

    @classmethod
    def decode(cls, data: Buffer) -> "SegmentHeader | None":
        """Return None if this is not a whole and valid header."""
        if len(data) < SEGMENT_HEADER_BYTES:
            return None
        magic, version, _, creation_id, checksum = _SEGMENT.unpack_from(data)
        if magic != _SEGMENT_MAGIC or checksum != crc32c(data[: SEGMENT_HEADER_BYTES - 4]):
            return None
        if version != VERSION:
            raise UnsupportedVersionError(f"log segment of version {version}, known: {VERSION}")
        return cls(creation_id)


class UnsupportedVersionError(Exception):
    """A newer release has written this."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    flags: BatchFlag
    count: int
    size: int  # the bytes of its records
    durable: int


@dataclass(frozen=True, slots=True)
class Record:
    position: int
    kind: Kind
    ledger_id: int
    entry_id: int
    payload: memoryview


def record_seed(creation_id: int) -> int:
    """Return the start value of the checksums of all records in a segment."""
    return crc32c(_SEED.pack(creation_id))


def encode_record_header(
    seed: int, position: int, kind: Kind, ledger_id: int, entry_id: int, payload: Buffer
) -> bytes:
    """Return the bytes in front of the payload."""
    cover = _RECORD_COVER.pack(position, len(payload), kind, ledger_id, entry_id)
    return _CHECKSUM.pack(crc32c(payload, crc32c(cover, seed))) + cover[8:]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one ledger, at least one, in one piece.

    In front of each entry there is space for a record header, which `make_records` fills in.  The
    piece then goes to the disk as it is.
    """

    ledger_id: int
    first: int
    data: memoryview
    sizes: Sequence[int]


class SharedRun(NamedTuple):
    """A run in a piece of memory that holds the runs of other ledgers, too.

    With thousands of ledgers each entry is a run of its own.  Python makes a tuple in a third of
    the time of a dataclass.
    """

    ledger_id: int
    first: int
    master_key: bytes
    sizes: list[int]
    begin: int  # the offset in the piece of the first entry's record header


def make_records(
    seed: int,
    position: int,
    ledger_id: int,
    first: int,
    data: memoryview,
    sizes: Sequence[int],
    at: int = 0,
) -> list[int]:
    """Make records of consecutive entries in place; return the position of each.

    From `at` on `data` has RECORD_HEADER_BYTES of room in front of each entry; `position` is that
    of the first one.
    """
    positions: list[int] = []
    entry_id = first
    pack_fields, pack_checksum, pack_position = _FIELDS.pack_into, _CHECKSUM.pack_into, _SEED.pack
    for size in sizes:
        end = at + RECORD_HEADER_BYTES + size
        # As `encode_record_header`, in place: the fields first, since the checksum covers them.
        pack_fields(data, at + _CHECKSUM.size, size, Kind.ENTRY, ledger_id, entry_id)
        own_seed = crc32c(pack_position(position), seed)
        pack_checksum(data, at, crc32c(data[at + _CHECKSUM.size : end], own_seed))
        positions.append(position)
        position += end - at
        at = end
        entry_id += 1
    return positions


def entries_of_run(data: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Yield the entries of these sizes, each of which lies behind RECORD_HEADER_BYTES."""
    at = 0
    for size in sizes:
        at += RECORD_HEADER_BYTES + size
        yield data[at - size : at]


def decode_record(seed: int, position: int, data: memoryview) -> Record | None:
    """Return the record at the front of `data`; None if there is no valid one."""
    if len(data) < RECORD_HEADER_BYTES:
        return None
    checksum, size, kind, ledger_id, entry_id = _RECORD.unpack_from(data)
    if len(data) < RECORD_HEADER_BYTES + size:
        return None
    payload = data[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + size]
    cover = _RECORD_COVER.pack(position, size, kind, ledger_id, entry_id)
    if checksum != crc32c(payload, crc32c(cover, seed)):
        return None
    if kind not in _KINDS:
        raise UnsupportedVersionError(f"a log record of kind {kind}")
    return Record(position, Kind(kind), ledger_id, entry_id, payload)


_KINDS = frozenset(Kind)


def decode_records(seed: int, position: int, data: memoryview) -> tuple[list[Record], bool]:
    """Return the records of a batch, and True if none of them is damaged.

    A damaged record is skipped by the size that it claims; the checksum of the next one tells
    whether that was its size.
    """
    records: list[Record] = []
    whole = True
    offset = 0
    while offset < len(data):
        record = decode_record(seed, position + offset, data[offset:])
        if record is not None:
            records.append(record)
        else:
            whole = False
        if len(data) - offset < RECORD_HEADER_BYTES:
            break
        offset += RECORD_HEADER_BYTES + _RECORD.unpack_from(data, offset)[1]
    return records, whole


def end_of_records(data: Buffer, offset: int, wanted: int) -> int:
    """Return where a record ends, about `wanted` bytes behind `offset`, by the claimed sizes."""
    at = offset
    while at < offset + wanted and at + RECORD_HEADER_BYTES <= len(data):
        at += RECORD_HEADER_BYTES + _RECORD.unpack_from(data, at)[1]
    return at if offset < at <= len(data) else len(data)


def encode_batch_header(
    creation_id: int, position: int, flags: BatchFlag, count: int, size: int, durable: int
) -> bytes:
    checksum = crc32c(_BATCH_COVER.pack(creation_id, position, flags, count, size, durable))
    return _BATCH.pack(BATCH_MAGIC, checksum, flags, count, size, durable)


def decode_batch_header(creation_id: int, position: int, data: Buffer) -> BatchHeader | None:
    """Return None if no batch of this segment begins here."""
    if len(data) < BATCH_HEADER_BYTES:
        return None
    magic, checksum, flags, count, size, durable = _BATCH.unpack_from(data)
    if magic != BATCH_MAGIC:
        return None
    if checksum != crc32c(_BATCH_COVER.pack(creation_id, position, flags, count, size, durable)):
        return None
    return BatchHeader(BatchFlag(flags), count, size, durable)
