"""The metadata store and the ledgers of one log: what becomes of what brokers ask for.

A ledger is one thing here: entries are sent, stored (on an ack quorum), and heard of; recovery
fences and closes in one step, and keeps any number of those that were sent and not stored.  The
rules inside a ledger are searched by themselves (`tests.model.ledger`).
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
)

Records: TypeAlias = tuple[tuple[str, bytes, int], ...]
"""Path, value, version; sorted."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """`stored` of its `entries` were stored by its writer, the others by recovery; the writer has
    `heard` of so many, and has `sent` so many.  `listed`: a list has named it."""

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
"""Their ids count from 1."""


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
    """All that may come of it now."""
    match call:
        case Get(path):
            yield world, world.record(path)
        case Children(path):
            yield world, _children(world, path)
        case Create() | Set() | Delete():
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
    """All of them or none."""
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
    """An entry gets onto an ack quorum, if bookies take it still."""
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
    """Its writer hears of the next entry that it has stored."""
    if ledger.refused or ledger.heard == ledger.stored:
        return None
    return replace(ledger, heard=ledger.heard + 1)


def refuse(ledger: Ledger) -> Ledger | None:
    """Its writer hears that bookies take no more: something of it was under way."""
    if ledger.refused or not ledger.fenced or ledger.sent == ledger.heard:
        return None
    return replace(ledger, refused=True)
