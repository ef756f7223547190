"""The record of the ledger in the metadata store, and changes of it by compare-and-swap.

A write has three outcomes: it is carried out, refused, or its answer is lost; then it may be
carried out now, later or never.  A client gives its purpose as a value, so that its
`UpdateProtocol`, which holds a function, can be rebuilt in each state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol import update
from daybook.bookie.ledger.protocol.placement import Fragment
from daybook.bookie.ledger.protocol.update import (
    Decide,
    Gone,
    NotAllowed,
    NotDone,
    Read,
    Settled,
    UpdateProtocol,
    Write,
)
from tests.harness.calls import Call, call


@dataclass(frozen=True, slots=True)
class Register:
    """The stored record; `before` is the one that a stale client may read, if the model has any."""

    metadata: LedgerMetadata
    version: int
    before: LedgerMetadata | None = None

    @property
    def stored(self) -> StoredMetadata:
        return StoredMetadata(self.metadata, self.version)

    def written(self, write: Write, *, keep: bool) -> "Register | None":
        """Return the record after the write; None if the version does not match."""
        if write.version != self.version:
            return None
        return Register(write.metadata, self.version + 1, self.metadata if keep else None)


# -- the purposes of a change


@dataclass(frozen=True, slots=True)
class Change:
    previous: Fragment
    wanted: Fragment


@dataclass(frozen=True, slots=True)
class Close:
    last_entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Mark:
    pass


@dataclass(frozen=True, slots=True)
class End:
    marked_version: int
    last_entry_id: int
    length: int
    changes: tuple[Fragment, ...]


Purpose: TypeAlias = Change | Close | Mark | End
Outcome: TypeAlias = Settled | NotAllowed | NotDone | Gone


def _decide(purpose: Purpose) -> Decide:
    match purpose:
        case Change(previous, wanted):
            return update.change_ensemble(previous, wanted)
        case Close(last_entry_id, length):
            return update.close_by_writer(last_entry_id, length)
        case Mark():
            return update.mark_in_recovery
        case End(version, last_entry_id, length, changes):
            return update.close_by_recovery(version, last_entry_id, length, changes)
        case _:
            assert_never(purpose)


@dataclass(frozen=True, slots=True)
class Task:
    """A change in progress: its machine, and the machine's request to the store."""

    purpose: Purpose
    machine: update.Snapshot
    request: Write | Read

    def __str__(self) -> str:
        if isinstance(self.request, Read):
            return "reads the record"
        return f"writes {show(self.request.metadata)} over version {self.request.version}"


def begin(purpose: Purpose, stored: StoredMetadata) -> Task | Outcome:
    protocol = UpdateProtocol(_decide(purpose))
    return _task(purpose, protocol, protocol.start(stored.metadata, stored.version))


def go_on(task: Task, answer: Call) -> Task | Outcome:
    protocol = UpdateProtocol(_decide(task.purpose))
    protocol.restore(task.machine)
    return _task(task.purpose, protocol, answer.apply(protocol))


def _task(purpose: Purpose, protocol: UpdateProtocol, effect: update.Effect) -> Task | Outcome:
    if isinstance(effect, Write | Read):
        return Task(purpose, protocol.canonical(), effect)
    return effect


def found_in_store(stored: StoredMetadata) -> Call:
    """Return the answer to a read, as a call of the client's `UpdateProtocol`."""
    return call("found", stored.metadata, stored.version)


def answer(register: Register, request: Write | Read, after: Register | None) -> Call:
    """Return the answer; `after` is the register after a write, None if the write was refused."""
    if isinstance(request, Read):
        return found_in_store(register.stored)
    return call("conflicted") if after is None else call("written", after.version)


Check: TypeAlias = Callable[[LedgerMetadata, LedgerMetadata], None]


def show(metadata: LedgerMetadata) -> str:
    fragments = " ".join(
        f"{fragment.first_entry_id}:{'+'.join(fragment.ensemble)}"
        for fragment in metadata.fragments
    )
    end = f" at {metadata.last_entry_id}" if metadata.closed else ""
    return f"{metadata.state.name}{end} [{fragments}]"
