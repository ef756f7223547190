"""Ledgers of a BookKeeper cluster, for applications: `daybook.ledgers`.

    address.py      zk://host:port/ledgers
    client.py       connect; create, open, delete and list ledgers
    writer.py       append entries, many at a time; the writer or the caller assigns the ids
    deferred.py     append entries whose sync waits until they are forced
    reader.py       read a range, or follow a ledger while it grows
    entries.py      an entry; entries read ahead
    blocking.py     the same for code without trio; blocking_writer.py: its writers
    errors.py       the errors, each with its outcome and its remedy
    zookeeper.py    how to connect to ZooKeeper, and as whom
    limits.py       limits of memory and of pending requests

These modules are thin: the rules of ledgers are in `bookie.ledger`.
"""

from daybook.bookie.ledger.bookie_client import BookieLimits
from daybook.bookie.ledger.context import LedgerLimits
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import Fragment, Quorums
from daybook.bookie.ledger.protocol.racks import RackRule
from daybook.bookie.ledger.racks import Placement, RackFile, RackScript, RackTable
from daybook.bookie.ledger.security import BookieAccess
from daybook.clients.ledgers import blocking
from daybook.clients.ledgers.client import Client, Digest, LedgerOptions, connect
from daybook.clients.ledgers.deferred import DeferredWriter
from daybook.clients.ledgers.entries import Entry, EntryStream, EntryView
from daybook.clients.ledgers.errors import (
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
    MetadataDeniedError,
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
from daybook.clients.ledgers.limits import Limits
from daybook.clients.ledgers.reader import Reader, Tail
from daybook.clients.ledgers.writer import AdvancedWriter, Writer
from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
from daybook.wire import process

__all__ = [
    "AdvancedWriter",
    "BookieAccess",
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
    "EntryView",
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
    "MetadataDeniedError",
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
    "ZooKeeperOptions",
    "blocking",
    "connect",
    "process",
]
