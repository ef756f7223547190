"""A change of a ledger's metadata by compare-and-swap, until its result is known.

A write is carried out, or meets another version, or its result is unknown.  An unknown result is
never taken for one of the other two: the record is read again, and the change decided anew.  Such a
write may still be carried out *later*, so the change is settled only once the version has moved on,
by our own write or by another one.

`decide(metadata, version)` is a pure function of the stored metadata.  It returns the new metadata,
or KEEP (the stored metadata are as wanted, or better), or REFUSE (the state of the ledger no longer
allows the change).  It returns the same value for the same arguments.

    WRITING -- conflicted, outcome_unknown --> READING -- found --> decide --> WRITING or settled
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import Fragment


class Ruling(Enum):
    KEEP = auto()
    REFUSE = auto()


Decide: TypeAlias = Callable[[LedgerMetadata, int], LedgerMetadata | Ruling]


# -- Effects


@dataclass(frozen=True, slots=True)
class Write:
    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read the record; `patiently` means after a pause, since the store did not answer."""

    patiently: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The metadata are as wanted."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The metadata are these, and the change is not allowed."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class NotDone:
    """The store does not answer, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The ledger was deleted."""


Effect: TypeAlias = Write | Read | Settled | NotAllowed | NotDone | Gone


Snapshot: TypeAlias = tuple[Write | None, bool]


class UpdateProtocol:
    """Call `start` with the metadata read last, then a method for the result of each effect."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._wanted: Write | None = None
        self._doubtful = False  # A write without an answer may be carried out later.

    def start(self, metadata: LedgerMetadata, version: int) -> Effect:
        return self._proceed(metadata, version)

    def written(self, version: int) -> Effect:
        """The write was carried out."""
        assert self._wanted is not None
        return Settled(self._wanted.metadata, version)

    def conflicted(self) -> Effect:
        """The write met another version; nothing was changed."""
        return Read()

    def outcome_unknown(self) -> Effect:
        """The write was not answered; it may have been carried out, or may yet be."""
        self._doubtful = True
        return Read()

    def unavailable(self) -> Effect:
        """The write was certainly not carried out, or the read was not answered."""
        # With a write in doubt, "not done" would be a guess: only the record can tell.
        return Read(patiently=True) if self._doubtful else NotDone()

    def found(self, metadata: LedgerMetadata, version: int) -> Effect:
        """The record was read."""
        return self._proceed(metadata, version)

    def missing(self) -> Effect:
        """The record no longer exists."""
        return Gone()

    def _proceed(self, metadata: LedgerMetadata, version: int) -> Effect:
        ruling = self._decide(metadata, version)
        match ruling:
            case Ruling.KEEP:
                return Settled(metadata, version)
            case Ruling.REFUSE:
                return NotAllowed(metadata, version)
            case _:
                self._wanted = Write(ruling, version)
                return self._wanted

    # -- for the model checker

    def snapshot(self) -> Snapshot:
        """Return the whole state between two inputs, except `decide`: the caller has that."""
        return self._wanted, self._doubtful

    def restore(self, snapshot: Snapshot) -> None:
        self._wanted, self._doubtful = snapshot

    def canonical(self) -> Snapshot:
        """Return the same value for states that behave the same."""
        return self.snapshot()


# -- Decisions


def change_ensemble(previous: Fragment, wanted: Fragment) -> Decide:
    """Continue with other bookies while the ledger is open and its last fragment is ours."""

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        if metadata.state is not LedgerState.OPEN:
            return Ruling.REFUSE
        if metadata.last_fragment == wanted:
            return Ruling.KEEP
        if metadata.last_fragment != previous:
            return Ruling.REFUSE  # Only its writer changes the last fragment of an open ledger.
        return metadata.with_ensemble(wanted)

    return decide


def close_by_writer(last_entry_id: int, length: int) -> Decide:
    """Close at the end of the writer; never during a recovery, which may find another end."""

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        if metadata.state is LedgerState.OPEN:
            return metadata.closed_at(last_entry_id, length)
        same = metadata.closed and metadata.last_entry_id == last_entry_id
        return Ruling.KEEP if same else Ruling.REFUSE

    return decide


def mark_in_recovery(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
    """Stop the writer from changing the metadata; join a recovery that runs already."""
    return metadata.in_recovery() if metadata.state is LedgerState.OPEN else Ruling.KEEP


def close_by_recovery(
    marked_version: int, last_entry_id: int, length: int, changes: tuple[Fragment, ...]
) -> Decide:
    """Close at the end that recovery found; keep the end of another recovery that came first."""

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        if metadata.closed:
            return Ruling.KEEP
        if metadata.state is not LedgerState.IN_RECOVERY or version != marked_version:
            return Ruling.REFUSE  # The recovery was based on other metadata.
        return metadata.closed_at(last_entry_id, length, changes)

    return decide
