"""Ledgers of a BookKeeper cluster, for applications: `daybook.ledgers`.

    address.py      zk://host:port/ledgers
    client.py       connect; create, open, delete and list ledgers
    writer.py       append entries, many at a time; the ids are the ledger's, or the caller's
    reader.py       read a range, or follow a ledger while it grows
    entries.py      an entry; entries read ahead
    blocking.py     the same for code without trio; blocking_writer.py: its writers
    errors.py       what goes wrong: did it take effect, what helps
    limits.py       how much

All of it is thin: the rules of ledgers are in `bookie.ledger`.
"""

from bookie.ledger.context import LedgerLimits
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.protocol.placement import Fragment, Quorums
from clients.ledgers import blocking
from clients.ledgers.client import Client, Digest, connect
from clients.ledgers.entries import Entry, EntryStream
from clients.ledgers.errors import (
    ClusterError,
    DuplicateEntryError,
    EntryNotSentError,
    EntryTooLargeError,
    InDoubtError,
    LedgerClosedError,
    LedgerError,
    LedgerExistsError,
    LedgerFencedError,
    MalformedMetadataError,
    MetadataInDoubtError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
    ReadUnknownError,
    RecoveryAbortedError,
    Remedy,
    UnauthorizedError,
    WriterWithdrawnError,
)
from clients.ledgers.limits import Limits
from clients.ledgers.reader import Reader, Tail
from clients.ledgers.writer import AdvancedWriter, Writer

__all__ = [
    "AdvancedWriter",
    "Client",
    "ClusterError",
    "Digest",
    "DuplicateEntryError",
    "Entry",
    "EntryNotSentError",
    "EntryStream",
    "EntryTooLargeError",
    "Fragment",
    "InDoubtError",
    "LedgerClosedError",
    "LedgerError",
    "LedgerExistsError",
    "LedgerFencedError",
    "LedgerLimits",
    "LedgerMetadata",
    "LedgerState",
    "Limits",
    "MalformedMetadataError",
    "MetadataInDoubtError",
    "MetadataUnavailableError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotEnoughBookiesError",
    "Outcome",
    "Quorums",
    "ReadUnknownError",
    "Reader",
    "RecoveryAbortedError",
    "Remedy",
    "Tail",
    "UnauthorizedError",
    "Writer",
    "WriterWithdrawnError",
    "blocking",
    "connect",
]
