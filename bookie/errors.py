"""What can go wrong between a ledger client, its bookies and the metadata of ledgers.

Each says whether what was asked for took effect:

    LedgerError                 NOT_APPLIED unless stated otherwise
      NoSuchLedgerError         the metadata store says that there is no such ledger
      NoSuchEntryError          the entry is not in the ledger, or every bookie of its write set
                                says so
      LedgerFencedError         UNKNOWN for appends under way: another client recovers the ledger,
                                or has closed it
      LedgerClosedError         this handle was closed, or abandoned, by its owner
      EntryTooLargeError        bookies take no entry of that size
      WriterWithdrawnError      UNKNOWN: the writer gave up; `reason` says why
      InDoubtError              UNKNOWN: an append was not confirmed when its writer stopped
      NotEnoughBookiesError     fewer bookies than the ack quorum can be written to now
      ReadUnknownError          no copy of the entry could be had, and not every bookie that may
                                hold one said that it does not
      UnauthorizedError         the password is not that of the ledger
      RecoveryAbortedError      too few answers to decide where the ledger ends; try again
      MalformedMetadataError    the metadata of the ledger do not parse, or contradict themselves
    RegistryError               what bookies find in the metadata store
      LayoutError               the root holds another layout than ours, or none
      BookieIdTakenError        another process is registered under the id of this bookie
      MalformedRecordError      a cookie or a registration that does not parse

What the metadata store itself reports (`wire.metadata.store.MetadataError`) passes through.
"""

from enum import Enum, auto
from typing import ClassVar


class Outcome(Enum):
    NOT_APPLIED = auto()
    UNKNOWN = auto()  # it may have taken effect, or may yet


class LedgerError(Exception):
    """Base of the errors of the ledger client."""

    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED


class NoSuchLedgerError(LedgerError):
    """There is no such ledger, and the metadata store said so."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} does not exist")
        self.ledger_id = ledger_id


class NoSuchEntryError(LedgerError):
    """The entry is not in the ledger."""

    def __init__(self, ledger_id: int, entry_id: int, why: str = "") -> None:
        detail = f": {why}" if why else ""
        super().__init__(f"ledger {ledger_id} has no entry {entry_id}{detail}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class LedgerFencedError(LedgerError):
    """Another client recovers the ledger, or has closed it.  This handle does not write again."""

    outcome = Outcome.UNKNOWN


class LedgerClosedError(LedgerError):
    """The handle was closed or abandoned by its owner."""


class EntryTooLargeError(LedgerError):
    """The entry does not fit into a frame that bookies accept."""


class WriterWithdrawnError(LedgerError):
    """The writer gave up.  Of what was not confirmed, recovery decides what the ledger keeps."""

    outcome = Outcome.UNKNOWN

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InDoubtError(LedgerError):
    """The append was not confirmed when its writer stopped; the entry may survive or not."""

    outcome = Outcome.UNKNOWN

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} was not confirmed")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies can be written to than it takes to confirm an entry."""


class ReadUnknownError(LedgerError):
    """Some bookie that may hold the entry could not say; ask again later."""

    def __init__(self, ledger_id: int, entry_id: int, why: str) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} could not be read: {why}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class UnauthorizedError(LedgerError):
    """The password is not that of the ledger."""


class RecoveryAbortedError(LedgerError):
    """Where the ledger ends could not be decided now.  Trying again does no harm, and may help."""


class MalformedMetadataError(LedgerError):
    """The metadata of a ledger do not parse, or contradict themselves."""


class RegistryError(Exception):
    """What the metadata store holds is not what a bookie can live with."""


class LayoutError(RegistryError):
    """The root holds no ledgers, or keeps them in another layout than ours."""


class BookieIdTakenError(RegistryError):
    """Another process is registered under this id, and did not leave in time."""


class MalformedRecordError(RegistryError):
    """A cookie or a registration that does not parse."""
