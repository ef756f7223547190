"""The events that clients of ledgers see: those of `tests.history.events` about entries.

Entries have no names of their own: the ledger and the entry id tell a reader what was sent.
Digests are of payloads.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerCreate:
    """A ledger was created, and this is its only writer."""

    ledger: int
    writer: str  # unique in the history
    quorums: tuple[int, int, int]  # ensemble, write, ack
    manner: str = "plain"  # plain, advanced, deferred


@dataclass(frozen=True, slots=True)
class Append:
    """The writer is about to send an entry."""

    ledger: int
    writer: str
    entry: int
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The writer was told that this entry, and all before it, are safe."""

    ledger: int
    writer: str
    entry: int


@dataclass(frozen=True, slots=True)
class WriterStopped:
    """The writer appends no more; unconfirmed entries may be kept, or not."""

    ledger: int
    writer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recover:
    """A client is about to open the ledger with recovery."""

    ledger: int
    who: str


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """A client was told where the ledger ends, for good."""

    ledger: int
    who: str
    last: int  # the last entry; -1: the ledger is empty
    length: int  # bytes
    how: str  # close, recovery, read


@dataclass(frozen=True, slots=True)
class LacSeen:
    """A reader was told that this entry, and all before it, are confirmed."""

    ledger: int
    reader: str
    entry: int


@dataclass(frozen=True, slots=True)
class Entries:
    """A reader was given entries, in order.  The entries that one reader is given have no gaps."""

    ledger: int
    reader: str  # a stream of its own, unique in the history
    first: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoEntry:
    """A reader was told for certain that there is no such entry; -1: no such ledger."""

    ledger: int
    reader: str
    entry: int


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """Everything is healed, and this reader has read the ledger from 0 to its end."""

    ledger: int
    reader: str


@dataclass(frozen=True, slots=True)
class LedgerDelete:
    """From now on the ledger may be gone."""

    ledger: int
    who: str
