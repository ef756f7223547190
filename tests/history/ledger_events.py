"""What clients of ledgers see: the events of `tests.history.events` that are about entries.

Entries have no names of their own: who reads one finds out by its ledger and its id what was sent.
Digests are of payloads.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerCreate:
    """There is a ledger, and this is its only writer."""

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
    """It appends nothing any more; what was not confirmed may be kept, or not."""

    ledger: int
    writer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Somebody is about to open the ledger with recovery."""

    ledger: int
    who: str


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """Somebody was told where the ledger ends, for good."""

    ledger: int
    who: str
    last: int  # entry; -1: it is empty
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
    """A reader was given entries, in order.  What one reader is given has no gaps."""

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
