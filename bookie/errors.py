"""The errors of a ledger client, its bookies and the metadata of ledgers.

Each error says whether the request took effect (`outcome`), and what helps (`remedy`):

    LedgerError                 NOT_APPLIED and GIVE_UP unless stated otherwise
      LedgerExistsError         the id that the caller gave is taken
      NoSuchLedgerError         the metadata store says that there is no such ledger
      NoSuchEntryError          the entry is not in the ledger, or every bookie of its write set
                                says that it is not
      LedgerFencedError         UNKNOWN for appends under way: another client recovers the ledger,
                                or has closed it; REOPEN
      LedgerClosedError         this handle was closed, or abandoned, by its owner
      EntryTooLargeError        bookies accept no entry of that size
      DuplicateEntryError       the writer was given an entry of that id before
      EntryNotSentError         an entry before it was never given to the writer; REOPEN
      WriterWithdrawnError      UNKNOWN: the writer gave up; `reason` says why; REOPEN
      InDoubtError              UNKNOWN: an append was not confirmed when its writer stopped; REOPEN
      NotEnoughBookiesError     fewer bookies than the ack quorum can be written to now; RETRY
      ReadUnknownError          no copy of the entry could be read, and not every bookie that may
                                hold one said that it holds none; RETRY
      UnauthorizedError         the password is not that of the ledger
      RecoveryAbortedError      too few answers to decide where the ledger ends; RETRY
      MalformedMetadataError    the metadata of the ledger do not parse, or contradict themselves
    RegistryError               a bookie cannot work with what the metadata store holds
      LayoutError               the root holds another layout than Daybook's, or none
      ForeignInstanceError      the root holds other ledgers than those of the topics beside it
      BookieIdTakenError        another process is registered under the id of this bookie
      MalformedRecordError      a cookie or a registration that does not parse

Errors of the metadata store itself (`wire.metadata.store.MetadataError`) pass through.
"""

from enum import Enum, auto
from typing import ClassVar


class Outcome(Enum):
    NOT_APPLIED = auto()
    UNKNOWN = auto()  # it may have taken effect, or may yet


class Remedy(Enum):
    """The next step for the caller, as a sentence."""

    GIVE_UP = "asking again gives the same answer"
    RETRY = "the same request may succeed later"
    REOPEN = "open the ledger with recovery: it says what was kept; go on in a new ledger"


class LedgerError(Exception):
    """Base of the errors of the ledger client."""

    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    remedy: ClassVar[Remedy] = Remedy.GIVE_UP


class LedgerExistsError(LedgerError):
    """A ledger of that id exists, and it is not the one that was to be created."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"there is a ledger {ledger_id} already")
        self.ledger_id = ledger_id


class NoSuchLedgerError(LedgerError):
    """The metadata store said that there is no such ledger."""

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
    """Another client recovers the ledger, or has closed it.  This handle no longer writes."""

    outcome = Outcome.UNKNOWN
    remedy = Remedy.REOPEN


class LedgerClosedError(LedgerError):
    """The handle was closed or abandoned by its owner."""


class EntryTooLargeError(LedgerError):
    """The entry does not fit into a frame that bookies accept."""


class DuplicateEntryError(LedgerError):
    """The writer was given an entry of that id before; it refused this one."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id} was given an entry {entry_id} before")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryNotSentError(LedgerError):
    """The writer stopped while the entry waited for an earlier one; it was sent to no bookie."""

    remedy = Remedy.REOPEN

    def __init__(self, ledger_id: int, entry_id: int, missing: int) -> None:
        super().__init__(
            f"entry {entry_id} of ledger {ledger_id} was not sent: entry {missing} was never given"
        )
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class WriterWithdrawnError(LedgerError):
    """The writer gave up.  Recovery decides which unconfirmed entries the ledger keeps."""

    outcome = Outcome.UNKNOWN
    remedy = Remedy.REOPEN

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InDoubtError(LedgerError):
    """The append was not confirmed when its writer stopped; the entry may or may not survive."""

    outcome = Outcome.UNKNOWN
    remedy = Remedy.REOPEN

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} was not confirmed")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies can be written to than are needed to confirm an entry."""

    remedy = Remedy.RETRY


class ReadUnknownError(LedgerError):
    """A bookie that may hold the entry could not say whether it does; a retry may succeed."""

    remedy = Remedy.RETRY

    def __init__(self, ledger_id: int, entry_id: int, why: str) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} could not be read: {why}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class UnauthorizedError(LedgerError):
    """The password is not that of the ledger."""


class RecoveryAbortedError(LedgerError):
    """The end of the ledger could not be decided now.  A retry does no harm, and may succeed."""

    remedy = Remedy.RETRY


class MalformedMetadataError(LedgerError):
    """The metadata of a ledger do not parse, or contradict themselves."""


class RegistryError(Exception):
    """A bookie cannot work with what the metadata store holds."""


class LayoutError(RegistryError):
    """The root holds no ledgers, or keeps them in another layout than Daybook's."""


class ForeignInstanceError(RegistryError):
    """The root holds other ledgers than those in which the topics beside it are stored."""


class BookieIdTakenError(RegistryError):
    """Another process is registered under this id, and did not leave in time."""


class MalformedRecordError(RegistryError):
    """A cookie or a registration does not parse."""
