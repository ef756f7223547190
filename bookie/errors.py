"""What can go wrong between a ledger client, its bookies and the metadata of ledgers.

Each says whether what was asked for took effect (`outcome`), and what helps (`remedy`):

    LedgerError                 NOT_APPLIED and GIVE_UP unless stated otherwise
      LedgerExistsError         the id that the caller gave is taken
      NoSuchLedgerError         the metadata store says that there is no such ledger
      NoSuchEntryError          the entry is not in the ledger, or every bookie of its write set
                                says so
      LedgerFencedError         UNKNOWN for appends under way: another client recovers the ledger,
                                or has closed it; REOPEN
      LedgerClosedError         this handle was closed, or abandoned, by its owner
      EntryTooLargeError        bookies take no entry of that size
      DuplicateEntryError       the writer was given an entry of that id before
      EntryNotSentError         one before it was never given; REOPEN
      WriterWithdrawnError      UNKNOWN: the writer gave up; `reason` says why; REOPEN
      InDoubtError              UNKNOWN: an append was not confirmed when its writer stopped; REOPEN
      NotEnoughBookiesError     fewer bookies than the ack quorum can be written to now; RETRY
      ReadUnknownError          no copy of the entry could be had, and not every bookie that may
                                hold one said that it does not; RETRY
      UnauthorizedError         the password is not that of the ledger
      RecoveryAbortedError      too few answers to decide where the ledger ends; RETRY
      MalformedMetadataError    the metadata of the ledger do not parse, or contradict themselves
    RegistryError               what bookies find in the metadata store
      LayoutError               the root holds another layout than ours, or none
      ForeignInstanceError      the root holds other ledgers than those of the topics beside it
      BookieIdTakenError        another process is registered under the id of this bookie
      MalformedRecordError      a cookie or a registration that does not parse

What the metadata store itself reports (`wire.metadata.store.MetadataError`) passes through.
"""

from enum import Enum, auto
from typing import ClassVar


class Outcome(Enum):
    NOT_APPLIED = auto()
    UNKNOWN = auto()  # it may have taken effect, or may yet


class Remedy(Enum):
    """What to do next, as a sentence."""

    GIVE_UP = "asking again gives the same answer"
    RETRY = "the same request may succeed later"
    REOPEN = "open the ledger with recovery: it says what was kept; go on in a new ledger"


class LedgerError(Exception):
    """Base of the errors of the ledger client."""

    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    remedy: ClassVar[Remedy] = Remedy.GIVE_UP


class LedgerExistsError(LedgerError):
    """There is a ledger of that id, and it is not the one that was to be created."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"there is a ledger {ledger_id} already")
        self.ledger_id = ledger_id


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
    remedy = Remedy.REOPEN


class LedgerClosedError(LedgerError):
    """The handle was closed or abandoned by its owner."""


class EntryTooLargeError(LedgerError):
    """The entry does not fit into a frame that bookies accept."""


class DuplicateEntryError(LedgerError):
    """The writer was given an entry of that id before; this one was not taken."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id} was given an entry {entry_id} before")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class EntryNotSentError(LedgerError):
    """The writer stopped while the entry waited for one before it; no bookie has heard of it."""

    remedy = Remedy.REOPEN

    def __init__(self, ledger_id: int, entry_id: int, missing: int) -> None:
        super().__init__(
            f"entry {entry_id} of ledger {ledger_id} was not sent: entry {missing} was never given"
        )
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class WriterWithdrawnError(LedgerError):
    """The writer gave up.  Of what was not confirmed, recovery decides what the ledger keeps."""

    outcome = Outcome.UNKNOWN
    remedy = Remedy.REOPEN

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InDoubtError(LedgerError):
    """The append was not confirmed when its writer stopped; the entry may survive or not."""

    outcome = Outcome.UNKNOWN
    remedy = Remedy.REOPEN

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} was not confirmed")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies can be written to than it takes to confirm an entry."""

    remedy = Remedy.RETRY


class ReadUnknownError(LedgerError):
    """Some bookie that may hold the entry could not say; ask again later."""

    remedy = Remedy.RETRY

    def __init__(self, ledger_id: int, entry_id: int, why: str) -> None:
        super().__init__(f"entry {entry_id} of ledger {ledger_id} could not be read: {why}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class UnauthorizedError(LedgerError):
    """The password is not that of the ledger."""


class RecoveryAbortedError(LedgerError):
    """Where the ledger ends could not be decided now.  Trying again does no harm, and may help."""

    remedy = Remedy.RETRY


class MalformedMetadataError(LedgerError):
    """The metadata of a ledger do not parse, or contradict themselves."""


class RegistryError(Exception):
    """What the metadata store holds is not what a bookie can live with."""


class LayoutError(RegistryError):
    """The root holds no ledgers, or keeps them in another layout than ours."""


class ForeignInstanceError(RegistryError):
    """The root holds other ledgers than those that the topics beside it are kept in."""


class BookieIdTakenError(RegistryError):
    """Another process is registered under this id, and did not leave in time."""


class MalformedRecordError(RegistryError):
    """A cookie or a registration that does not parse."""
