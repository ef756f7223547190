"""One change of a ledger's metadata by compare-and-swap, until it is known what became of it.

A write has three outcomes: it was carried out, it met another version, or nobody knows.  The last
one is never taken for either of the others: the record is read again, and the change decided anew.
And since a write that nobody heard of may be carried out *later*, the change is settled only when
the version has moved on: by our own write, or somebody's.

What is wanted is a pure function of the metadata as stored, `decide(metadata, version)`: the new
metadata, or KEEP (what is stored will do: it is what we want, or better), or REFUSE (the ledger is
no longer in a state in which we may want it).  For the same argument it returns the same.

    WRITING -- Conflict, Unknown --> READING -- Stored --> decide --> WRITING or settled
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import Fragment


class Ruling(Enum):
    KEEP = auto()
    REFUSE = auto()


Decide: TypeAlias = Callable[[LedgerMetadata, int], LedgerMetadata | Ruling]


# -- Events: what came of the last effect


@dataclass(frozen=True, slots=True)
class Written:
    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write found another version; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer to the write: it may have been carried out, or may yet be."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The write was certainly not carried out, or the read was not answered."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a read."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such record any more."""


Event: TypeAlias = Written | Conflict | Unknown | Unavailable | Stored | Missing


# -- Effects


@dataclass(frozen=True, slots=True)
class Write:
    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read the record; `patiently`: after a pause, the store did not answer."""

    patiently: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The metadata are these, as wanted."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class NotAllowed:
    """The metadata are these, and must not be changed as wanted."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class NotDone:
    """The store does not answer, and nothing has been changed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The ledger was deleted."""


Effect: TypeAlias = Write | Read | Settled | NotAllowed | NotDone | Gone


Snapshot: TypeAlias = tuple[Write | None, bool]


class UpdateProtocol:
    """Call `start` with what was read last, then `step` with what came of each effect."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._wanted: Write | None = None
        self._doubtful = False  # a write of ours may be carried out later

    def start(self, metadata: LedgerMetadata, version: int) -> Effect:
        return self._proceed(metadata, version)

    def step(self, event: Event) -> Effect:
        match event:
            case Written(version):
                assert self._wanted is not None
                return Settled(self._wanted.metadata, version)
            case Conflict():
                return Read()
            case Unknown():
                self._doubtful = True
                return Read()
            case Unavailable():
                return Read(patiently=True) if self._doubtful else NotDone()
            case Stored(metadata, version):
                return self._proceed(metadata, version)
            case Missing():
                return Gone()
            case _:
                assert_never(event)

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

    # -- for searches

    def snapshot(self) -> Snapshot:
        """All of the state between two steps, but for what is wanted: that is the caller's."""
        return self._wanted, self._doubtful

    def restore(self, snapshot: Snapshot) -> None:
        self._wanted, self._doubtful = snapshot

    def canonical(self) -> Snapshot:
        """The same for states that nobody can tell apart."""
        return self.snapshot()


# -- What is wanted


def change_ensemble(previous: Fragment, wanted: Fragment) -> Decide:
    """The writer goes on with other bookies, while the ledger is open and its tail is ours."""

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        if metadata.state is not LedgerState.OPEN:
            return Ruling.REFUSE
        if metadata.last_fragment == wanted:
            return Ruling.KEEP
        if metadata.last_fragment != previous:
            return Ruling.REFUSE  # Nobody but its writer changes the tail of an open ledger.
        return metadata.with_ensemble(wanted)

    return decide


def close_by_writer(last_entry_id: int, length: int) -> Decide:
    """The writer's own end; never over a recovery, whose end may be another one."""

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        if metadata.state is LedgerState.OPEN:
            return metadata.closed_at(last_entry_id, length)
        same = metadata.closed and metadata.last_entry_id == last_entry_id
        return Ruling.KEEP if same else Ruling.REFUSE

    return decide


def mark_in_recovery(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
    """Its writer can change nothing any more.  A recovery that runs already is joined."""
    return metadata.in_recovery() if metadata.state is LedgerState.OPEN else Ruling.KEEP


def close_by_recovery(
    marked_version: int, last_entry_id: int, length: int, changes: tuple[Fragment, ...]
) -> Decide:
    """The end that recovery has found; one that another recovery wrote first is as good."""

    def decide(metadata: LedgerMetadata, version: int) -> LedgerMetadata | Ruling:
        if metadata.closed:
            return Ruling.KEEP
        if metadata.state is not LedgerState.IN_RECOVERY or version != marked_version:
            return Ruling.REFUSE  # What was decided, was decided about other metadata.
        return metadata.closed_at(last_entry_id, length, changes)

    return decide
