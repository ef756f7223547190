"""What can go wrong with a log.

ManagedLedgerError
  FencedError            another owner has taken the log over, or it cannot be told that none
                         has, or it has to be opened anew to go on: appends under way are in
                         doubt, this handle is of no use any more
  ClosedError            this handle was closed by its owner
  TerminatedError        the log was terminated: nothing can be appended
  ListFullError          the list of ledgers is full: nothing can be appended until it is trimmed
  EntryTooLargeError     no bookie would take an entry of that size: it is not appended
  NoSuchLogError         there is no such log
  LogCorruptError        a ledger that the list names is gone, or does not parse
  ForeignListsError      the lists of the metadata store do not fit the ledgers of a root
  InvalidNameError       no log, or no cursor, can be called that
"""


class ManagedLedgerError(Exception):
    """A log refused, or failed."""


class FencedError(ManagedLedgerError):
    """This handle serves the log no more; another one may.  What was under way is in doubt."""


class ClosedError(ManagedLedgerError):
    """The log, or the cursor, was closed."""


class TerminatedError(ManagedLedgerError):
    """Nothing can be appended to a terminated log."""


class ListFullError(ManagedLedgerError):
    """The list of ledgers has no room for another one: nothing is appended until it is trimmed."""


class EntryTooLargeError(ManagedLedgerError):
    """An entry of that size is never stored; the log takes others."""


class NoSuchLogError(ManagedLedgerError):
    """There is no log of that name."""


class LogCorruptError(ManagedLedgerError):
    """What the metadata store says of the log cannot be true."""


class ForeignListsError(ManagedLedgerError):
    """The lists of the metadata store were written with other ledgers, as far as can be told."""


class InvalidNameError(ManagedLedgerError):
    """What is called that could not be stored."""
