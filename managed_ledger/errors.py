"""The errors of logs.

ManagedLedgerError
  FencedError            another owner has taken the log over, or may have done so, or the log has
                         to be opened again: pending appends are in doubt, and this handle cannot
                         be used any more
  ClosedError            the owner has closed this handle
  TerminatedError        the log was terminated: nothing can be appended
  ListFullError          the list of ledgers is full: nothing can be appended until it is trimmed
  EntryTooLargeError     no bookie takes an entry of that size: it is not appended
  NoSuchLogError         the log does not exist
  LogCorruptError        a ledger that the list names is gone, or a record does not parse
  ForeignListsError      the lists of the metadata store do not fit the ledgers of a root
  InvalidNameError       no log or cursor can have that name

LedgerIdTooLowError      (a LedgerError) a new ledger does not fit behind the others; the attempt is
                         repeated
"""

from daybook.bookie.errors import LedgerError, Remedy


class ManagedLedgerError(Exception):
    """A log refused, or failed."""


class FencedError(ManagedLedgerError):
    """This handle no longer serves the log; another one may.  Pending appends are in doubt."""


class ClosedError(ManagedLedgerError):
    """The log, or the cursor, was closed."""


class TerminatedError(ManagedLedgerError):
    """Nothing can be appended to a terminated log."""


class ListFullError(ManagedLedgerError):
    """The list has no room for another ledger: nothing is appended until the list is trimmed."""


class EntryTooLargeError(ManagedLedgerError):
    """The entry is larger than any bookie accepts; the log takes smaller ones."""


class NoSuchLogError(ManagedLedgerError):
    """No log has that name."""


class LogCorruptError(ManagedLedgerError):
    """The records of the log in the metadata store cannot be true."""


class ForeignListsError(ManagedLedgerError):
    """The lists of the metadata store were apparently written with other ledgers."""


class InvalidNameError(ManagedLedgerError):
    """A log or cursor of that name could not be stored."""


class LedgerIdTooLowError(LedgerError):
    """The metadata store counts ledger ids from a point that it had passed before."""

    remedy = Remedy.RETRY

    def __init__(self, ledger_id: int, above: int) -> None:
        super().__init__(
            f"the metadata store gave out the ledger id {ledger_id}, which is not above {above}:"
            " its counter of ids was lost or restored from a copy; each attempt moves it on by one"
        )
        self.ledger_id = ledger_id
