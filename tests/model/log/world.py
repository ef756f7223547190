"""The metadata store and the ledgers of one log: the possible outcomes of brokers' calls.

A ledger is atomic here: its entries are sent, stored (on an ack quorum), and confirmed to the
writer.  Recovery fences and closes it in one step, and keeps any prefix of the entries that were
sent and not stored.  The steps inside a ledger have a model of their own (`tests.model.ledger`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from daybook.wire.metadata.store import ANY, Check, Create, Delete, Operation, Set
from tests.model.log.events import (
    Call,
    Children,
    CloseLedger,
    DeleteLedger,
    Error,
    Found,
    Get,
    Multi,
    NewLedger,
    Opened,
    OpenLedger,
    Result,
    Written,
)

Records: TypeAlias = tuple[tuple[str, bytes, int], ...]
"""Path, value, version; sorted."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger.  The writer has sent `sent` entries; `stored` of `entries` came from it, the others
    from recovery; `heard` were confirmed to it.  `listed`: a list has named the ledger."""

    owner: int
    of_cursor: bool
    entries: tuple[bytes, ...] = ()
    in_flight: tuple[bytes, ...] = ()
    sent: int = 0
    stored: int = 0
    heard: int = 0
    end: int | None = None
    fenced: bool = False
    refused: bool = False
    deleted: bool = False
    listed: bool = False


Ledgers: TypeAlias = tuple[Ledger, ...]
"""The ledgers in the order of their ids, which begin at 1."""


@dataclass(frozen=True, slots=True)
class World:
    records: Records = ()
    ledgers: Ledgers = ()

    def record(self, path: str) -> Found | None:
        for each, value, version in self.records:
            if each == path:
                return Found(value, version)
        return None

    def with_record(self, path: str, found: Found | None) -> "World":
        records = {each: (value, version) for each, value, version in self.records}
        records.pop(path, None)
        if found is not None:
            records[path] = (found.value, found.version)
        return replace(self, records=tuple((each, *records[each]) for each in sorted(records)))

    def ledger(self, ledger_id: int) -> Ledger:
        return self.ledgers[ledger_id - 1]

    def with_ledger(self, ledger_id: int, ledger: Ledger) -> "World":
        ledgers = list(self.ledgers)
        ledgers[ledger_id - 1] = ledger
        return replace(self, ledgers=tuple(ledgers))


def carry_out(world: World, broker: int, call: Call) -> Iterator[tuple[World, Result]]:
    """Yield all possible outcomes of a call that is carried out now."""
    match call:
        case Get(path):
            yield world, world.record(path)
        case Children(path):
            yield world, _children(world, path)
        case Set(path):
            after, done = _operate(world, (call,))
            below = _children(after, path) or ()
            yield after, done if isinstance(done, Error) else Written(done[0], len(below))
        case Create() | Delete():
            after, done = _operate(world, (call,))
            yield after, done if isinstance(done, Error) else done[0]
        case Multi(operations):
            yield _operate(world, operations)
        case NewLedger(of_cursor):
            made = replace(world, ledgers=(*world.ledgers, Ledger(broker, of_cursor)))
            yield made, len(made.ledgers)
        case OpenLedger(ledger_id, recover):
            yield from _open(world, ledger_id, recover=recover)
        case CloseLedger(ledger_id, last_entry_id):
            yield _close(world, ledger_id, last_entry_id)
        case DeleteLedger(ledger_id):
            gone = replace(world.ledger(ledger_id), deleted=True)
            yield world.with_ledger(ledger_id, gone), None
        case _:
            assert_never(call)


# -- the metadata store


def _children(world: World, path: str) -> tuple[str, ...] | None:
    if world.record(path) is None:
        return None
    prefix = f"{path}/"
    return tuple(each[len(prefix) :] for each, _, _ in world.records if each.startswith(prefix))


def _operate(
    world: World, operations: tuple[Operation, ...]
) -> tuple[World, tuple[int, ...] | Error]:
    """Carry out all operations or none."""
    versions: list[int] = []
    after = world
    for operation in operations:
        error = _refusal(after, operation)
        if error is not None:
            return world, error
        match operation:
            case Create(path, value):
                after = after.with_record(path, Found(value, 0))
                versions.append(0)
            case Set(path, value):
                before = after.record(path)
                assert before is not None
                after = after.with_record(path, Found(value, before.version + 1))
                versions.append(before.version + 1)
            case Delete(path):
                after = after.with_record(path, None)
                versions.append(-1)
            case Check():
                versions.append(-1)
            case _:
                assert_never(operation)
    return after, tuple(versions)


def _refusal(world: World, operation: Operation) -> Error | None:
    found = world.record(operation.path)
    if isinstance(operation, Create):
        return None if found is None else Error.EXISTS
    if found is None:
        return Error.NO_RECORD
    if operation.version not in (ANY, found.version):
        return Error.CONFLICT
    if isinstance(operation, Delete) and _children(world, operation.path):
        return Error.NOT_EMPTY
    return None


# -- ledgers


def _open(world: World, ledger_id: int, *, recover: bool) -> Iterator[tuple[World, Result]]:
    ledger = world.ledger(ledger_id)
    if ledger.deleted:
        yield world, Error.NO_LEDGER
    elif ledger.end is not None:
        yield world, Opened(ledger.entries[: ledger.end + 1])
    elif not recover:
        yield world, Opened(ledger.entries[: ledger.heard])
    else:
        for kept in range(len(ledger.in_flight) + 1):
            entries = ledger.entries + ledger.in_flight[:kept]
            closed = replace(
                ledger, entries=entries, in_flight=(), end=len(entries) - 1, fenced=True
            )
            yield world.with_ledger(ledger_id, closed), Opened(entries)


def _close(world: World, ledger_id: int, last_entry_id: int) -> tuple[World, Result]:
    ledger = world.ledger(ledger_id)
    if ledger.deleted:
        return world, Error.NO_LEDGER
    if ledger.end is not None or ledger.fenced:
        return world, None if ledger.end == last_entry_id else Error.FENCED
    closed = replace(
        ledger,
        entries=ledger.entries[: last_entry_id + 1],
        in_flight=(),
        stored=min(ledger.stored, last_entry_id + 1),
        end=last_entry_id,
        fenced=True,
    )
    return world.with_ledger(ledger_id, closed), None


def sent(world: World, ledger_id: int, data: bytes) -> World:
    ledger = world.ledger(ledger_id)
    in_flight = ledger.in_flight if ledger.fenced else (*ledger.in_flight, data)
    return world.with_ledger(ledger_id, replace(ledger, sent=ledger.sent + 1, in_flight=in_flight))


def store_next(ledger: Ledger) -> Ledger | None:
    """Store the next entry on an ack quorum; return None if there is none, or it is fenced."""
    if ledger.fenced or not ledger.in_flight:
        return None
    first, *rest = ledger.in_flight
    return replace(
        ledger,
        entries=(*ledger.entries, first),
        in_flight=tuple(rest),
        stored=ledger.stored + 1,
    )


def hear_next(ledger: Ledger) -> Ledger | None:
    """Confirm the next stored entry to the writer; return None if there is none."""
    if ledger.refused or ledger.heard == ledger.stored:
        return None
    return replace(ledger, heard=ledger.heard + 1)


def refuse(ledger: Ledger) -> Ledger | None:
    """Report the fence to the writer, which has an entry under way; return None if it has not."""
    if ledger.refused or not ledger.fenced or ledger.sent == ledger.heard:
        return None
    return replace(ledger, refused=True)
