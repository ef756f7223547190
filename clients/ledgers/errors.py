"""The errors of `daybook.ledgers`.  Each says two things, so that a program can decide:

    outcome   did the request take effect?   NOT_APPLIED, or UNKNOWN: it may have, or may yet
    remedy    what helps?                    GIVE_UP, RETRY (the same request, later), or REOPEN:
                                             open the ledger with recovery, which says what it
                                             keeps, and continue in a new ledger

    error                      outcome       remedy    when
    LedgerError                                        all of them
      NoSuchLedgerError        NOT_APPLIED   GIVE_UP   the metadata store says that there is none
      LedgerExistsError        NOT_APPLIED   GIVE_UP   create: the id that you gave is taken
      UnauthorizedError        NOT_APPLIED   GIVE_UP   another password
      NotEnoughBookiesError    NOT_APPLIED   RETRY     create: too few bookies answer
      EntryTooLargeError       NOT_APPLIED   GIVE_UP   append: no bookie would take it
      DuplicateEntryError      NOT_APPLIED   GIVE_UP   append: you gave that entry id before
      EntryNotSentError        NOT_APPLIED   REOPEN    append: the one before it was never given
      LedgerClosedError        NOT_APPLIED   GIVE_UP   you closed or abandoned it, or the client
        CutShortError          UNKNOWN       REOPEN    the client ended in the middle of the call
      LedgerFencedError        UNKNOWN       REOPEN    another client took the ledger over
      WriterWithdrawnError     UNKNOWN       REOPEN    bookies refuse this writer; `reason`
      InDoubtError             UNKNOWN       REOPEN    the writer stopped before it was confirmed
      NoSuchEntryError         NOT_APPLIED   GIVE_UP   read: behind the last confirmed one, or all
                                                       bookies that should hold it say no
      ReadUnknownError         NOT_APPLIED   RETRY     read: no copy now, and nobody can say no
      RecoveryAbortedError     NOT_APPLIED   RETRY     open: too few answers to decide on the end
      MalformedMetadataError   NOT_APPLIED   GIVE_UP   the record of the ledger does not parse
      MetadataUnavailableError NOT_APPLIED   RETRY     the metadata store does not answer
      MetadataInDoubtError     UNKNOWN       RETRY     it did not answer to a change
      MetadataDeniedError      NOT_APPLIED   GIVE_UP   it refuses access: the identity has no right
      ClusterError             NOT_APPLIED   GIVE_UP   no ledgers there, or not in a layout we know

Values that make no sense (a negative id, an ack quorum above the write quorum) are ValueErrors.
"""

from collections.abc import Generator
from contextlib import contextmanager

from daybook.bookie.errors import (
    DuplicateEntryError,
    EntryNotSentError,
    EntryTooLargeError,
    InDoubtError,
    LedgerClosedError,
    LedgerError,
    LedgerExistsError,
    LedgerFencedError,
    MalformedMetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    Outcome,
    ReadUnknownError,
    RecoveryAbortedError,
    RegistryError,
    Remedy,
    UnauthorizedError,
    WriterWithdrawnError,
)
from daybook.wire.metadata.store import (
    AccessDeniedError,
    MetadataError,
    OutcomeUnknownError,
    StoreUnavailableError,
)

__all__ = [
    "ClusterError",
    "CutShortError",
    "DuplicateEntryError",
    "EntryNotSentError",
    "EntryTooLargeError",
    "InDoubtError",
    "LedgerClosedError",
    "LedgerError",
    "LedgerExistsError",
    "LedgerFencedError",
    "MalformedMetadataError",
    "MetadataDeniedError",
    "MetadataInDoubtError",
    "MetadataUnavailableError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotEnoughBookiesError",
    "Outcome",
    "ReadUnknownError",
    "RecoveryAbortedError",
    "Remedy",
    "UnauthorizedError",
    "WriterWithdrawnError",
    "translated",
]


class MetadataUnavailableError(LedgerError):
    """The metadata store does not answer."""

    remedy = Remedy.RETRY


class MetadataInDoubtError(LedgerError):
    """The metadata store did not answer to a change, which may have been made, or may yet be."""

    outcome = Outcome.UNKNOWN
    remedy = Remedy.RETRY


class MetadataDeniedError(LedgerError):
    """The metadata store refuses access: this program has no identity, or one without the right."""


class CutShortError(LedgerClosedError):
    """The client ended in the middle of the call.

    The request may have been carried out, or may yet be.
    """

    outcome = Outcome.UNKNOWN
    remedy = Remedy.REOPEN


class ClusterError(LedgerError):
    """The metadata store holds no usable cluster of bookies at that root."""


@contextmanager
def translated() -> Generator[None]:
    """Translate errors of the metadata store to errors of this module."""
    try:
        yield
    except StoreUnavailableError as error:
        raise MetadataUnavailableError(str(error)) from error
    except OutcomeUnknownError as error:
        raise MetadataInDoubtError(str(error)) from error
    except AccessDeniedError as error:
        raise MetadataDeniedError(str(error)) from error
    except (MetadataError, RegistryError) as error:
        raise ClusterError(str(error)) from error
