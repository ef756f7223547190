"""Compacted ledgers: the last message of each key of a topic, in a ledger of its own.

An entry of a compacted ledger is an entry of the topic with its original position in front, in the
format of Pulsar's brokers:

    | size u32 | MessageIdData | size u32 | entry |

The entry is as the log has it, or a batch from which messages were removed.  Positions ascend.  The
ledger is closed before the cursor `__compaction` names it in its property `CompactedTopicLedger`,
and it never changes after that.  The position of that cursor is the *horizon*: the compacted ledger
replaces everything up to it.

Pulsar's brokers open a compacted ledger with the digest CRC32 and an empty password, whatever its
metadata say.
"""

import struct
from collections.abc import Generator
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.bookie.ledger.reader import LedgerReader
from daybook.bookie.ledger.writer import ALWAYS_TAKEN_BYTES, LedgerWriter
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.log import COMPACTED_MORE_BYTES, ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.managed_ledger.records import LedgerOwner
from daybook.wire.fields import U32
from daybook.wire.messages.registry import signed, unsigned
from daybook.wire.metadata.store import MetadataError
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer

CURSOR = "__compaction"
LEDGER = "CompactedTopicLedger"  # the property of that cursor: the id of the compacted ledger
_SIZE = U32.size
_HEAD_BYTES_MAX = COMPACTED_MORE_BYTES - 8  # The digest of other ledgers may be 4 bytes shorter.


class BadCompactedEntryError(LedgerError):
    """An entry of a compacted ledger does not parse."""


def encode_head(position: Position, partition: int, size: int) -> bytes:
    """Return what stands in front of an entry of `size` bytes."""
    message_id = pb.MessageIdData(
        ledgerId=unsigned(position.ledger_id),
        entryId=unsigned(position.entry_id),
        partition=partition,
    ).SerializeToString()
    return U32.pack(len(message_id)) + message_id + U32.pack(size)


def decode_entry(ledger_id: int, entry_id: int, data: memoryview) -> LogEntry:
    """Return the entry of the topic with its original position.

    Raise BadCompactedEntryError.
    """
    try:
        end = _SIZE + U32.unpack_from(data)[0]
        message_id = pb.MessageIdData.FromString(bytes(data[_SIZE:end]))
        size = U32.unpack_from(data, end)[0]
    except (DecodeError, struct.error) as error:
        raise _bad(ledger_id, entry_id) from error
    if len(data) != end + _SIZE + size or not message_id.IsInitialized():
        raise _bad(ledger_id, entry_id)
    position = Position(signed(message_id.ledgerId), signed(message_id.entryId))
    return LogEntry(position, data[end + _SIZE :])


def _bad(ledger_id: int, entry_id: int) -> BadCompactedEntryError:
    return BadCompactedEntryError(
        f"entry {entry_id} of the compacted ledger {ledger_id} does not parse: the ledger was"
        " damaged, or something else wrote it"
    )


@contextmanager
def no_metadata(ledger_id: int, entry_id: int) -> Generator[None]:
    """Raise ReadUnknownError for a MetadataError, as a read of the log does: it is tried again."""
    try:
        yield
    except MetadataError as error:
        raise ReadUnknownError(ledger_id, entry_id, f"no metadata: {error}") from error


class CompactedReader:
    """A compacted ledger, which is closed."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    @property
    def entries(self) -> int:
        return self._ledger.last_add_confirmed + 1

    @property
    def bytes(self) -> int:
        return self._ledger.length

    async def read(self, first: int, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Return entries from the entry id `first` on: at least one if there is one.

        Raise LedgerError.
        """
        last = min(self.entries, first + max_entries) - 1
        if first > last:
            return []
        with no_metadata(self.ledger_id, first):
            found = await self._ledger.read(first, last, max_bytes=max_bytes)
        return [decode_entry(self.ledger_id, each.entry_id, each.payload) for each in found]


class CompactedWriter:
    """A compacted ledger that is being written."""

    def __init__(self, ledger: LedgerWriter, partition: int) -> None:
        self._ledger = ledger
        self._partition = partition
        self._last: Position | None = None

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    def fits(self, data: Buffer) -> bool:
        """Return True if bookies take an entry.  They take all that the log has taken."""
        size = len(data) + _HEAD_BYTES_MAX
        return size <= ALWAYS_TAKEN_BYTES or size <= self._ledger.payload_bytes_max

    def append(self, position: Position, data: Buffer) -> None:
        """Append an entry of the topic.  Raise LedgerError if the ledger takes it not."""
        assert self._last is None or self._last < position
        self._last = position
        head = encode_head(position, self._partition, len(data))
        assert len(head) <= _HEAD_BYTES_MAX
        self._ledger.append([head, data])

    async def wait_confirmed(self) -> None:
        """Wait until everything that was appended is confirmed.  Raise LedgerError."""
        if self._ledger.last_add_pushed >= 0:
            await self._ledger.wait_confirmed(self._ledger.last_add_pushed)

    async def close(self) -> None:
        """Close the ledger, which is complete.  Raise LedgerError, MetadataError."""
        await self.wait_confirmed()
        await self._ledger.close()

    def abandon(self) -> None:
        self._ledger.abandon()


def compacted_owner(log_name: str) -> LedgerOwner:
    """Return the owner of the compacted ledgers of a log."""
    return LedgerOwner(log_name, topic=TopicName.of_managed_ledger(log_name).full)


async def create_compacted(log: ManagedLedger, horizon: Position) -> CompactedWriter:
    """Create a ledger for the compaction that reads up to `horizon`."""
    log.check()
    topic = TopicName.of_managed_ledger(log.name)
    compacted_to = pb.MessageIdData(
        ledgerId=unsigned(horizon.ledger_id),
        entryId=unsigned(horizon.entry_id),
        partition=topic.partition,
    ).SerializeToString()
    ledger = await log.context.create_compacted_ledger(log.config.quorums, topic.full, compacted_to)
    return CompactedWriter(ledger, topic.partition)


async def open_compacted(log: ManagedLedger, ledger_id: int) -> CompactedReader:
    """Open a compacted ledger of the log.  Raise LogCorruptError, LedgerError, MetadataError.

    A ledger that is named is closed.  One that was left open by a crash of a Pulsar broker is
    closed here.
    """
    reader = await log.context.open_ledger(ledger_id, compacted_owner(log.name), recover=True)
    return CompactedReader(reader)


async def delete_compacted(context: LogContext, log_name: str, ledger_id: int) -> bool:
    """Delete a compacted ledger that nothing names; return False if that does not work now."""
    return await context.delete_ledger(ledger_id, compacted_owner(log_name))
