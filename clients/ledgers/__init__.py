"""Ledgers of a BookKeeper cluster, for applications: `daybook.ledgers`.

    address.py      zk://host:port/ledgers
    client.py       connect; create, open, delete and list ledgers
    writer.py       append entries, many at a time; the ids are the ledger's, or the caller's
    deferred.py     append entries that are on disk when they are forced, not before
    reader.py       read a range, or follow a ledger while it grows
    entries.py      an entry; entries read ahead
    blocking.py     the same for code without trio; blocking_writer.py: its writers
    errors.py       what goes wrong: did it take effect, what helps
    limits.py       how much

All of it is thin: the rules of ledgers are in `bookie.ledger`.
"""

from bookie.ledger.bookies import BookieLimits
from bookie.ledger.context import LedgerLimits
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.protocol.placement import Fragment, Quorums
from bookie.ledger.protocol.racks import RackRule
from bookie.ledger.racks import Placement, RackFile, RackScript, RackTable
from clients.ledgers import blocking
from clients.ledgers.client import Client, Digest, LedgerOptions, connect
from clients.ledgers.deferred import DeferredWriter
from clients.ledgers.entries import Entry, EntryStream
from clients.ledgers.errors import (
    ClusterError,
    CutShortError,
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
from wire import process

__all__ = [
    "AdvancedWriter",
    "BookieLimits",
    "Client",
    "ClusterError",
    "CutShortError",
    "DeferredWriter",
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
    "LedgerOptions",
    "LedgerState",
    "Limits",
    "MalformedMetadataError",
    "MetadataInDoubtError",
    "MetadataUnavailableError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotEnoughBookiesError",
    "Outcome",
    "Placement",
    "Quorums",
    "RackFile",
    "RackRule",
    "RackScript",
    "RackTable",
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
    "process",
]
