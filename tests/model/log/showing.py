"""The texts of calls and answers in a chart."""

from daybook.managed_ledger.cursor_ledger import IN_RECORD
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.metadata.store import Check, Create, Delete, Set
from tests.model.log.events import (
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
)
from tests.model.log.rules import CURSOR_RECORD, LIST


def show(what: object) -> str:
    match what:
        case Get(path):
            return f"reads {_name(path)}"
        case Children():
            return "reads the names of cursors"
        case Create(path, value):
            return f"creates {_name(path)} {_value(path, value)}"
        case Set(path, value, version):
            return f"writes {_name(path)} {_value(path, value)} over {version}"
        case Delete(path):
            return f"deletes {_name(path)}"
        case Check(path, version):
            return f"if {_name(path)} is {version}"
        case Multi(operations):
            return ", ".join(map(show, operations))
        case NewLedger(of_cursor):
            return f"creates a ledger{' for the cursor' * of_cursor}"
        case OpenLedger(ledger_id, recover):
            return f"{'recovers' if recover else 'opens'} ledger {ledger_id}"
        case CloseLedger(ledger_id, last):
            return f"closes ledger {ledger_id} at {last}"
        case DeleteLedger(ledger_id):
            return f"deletes ledger {ledger_id}"
        case Found(value, version):
            return f"version {version} {_value(LIST, value)}"
        case Opened(entries):
            return f"{len(entries)} entries"
        case Error():
            return what.name
        case _:
            return "ok" if what is None else str(what)


def _name(path: str) -> str:
    return {LIST: "the list", CURSOR_RECORD: "the cursor's record"}.get(path, path)


def _value(path: str, value: bytes) -> str:
    if path == CURSOR_RECORD:
        info = ManagedCursorInfo.FromString(value)
        where = f"{info.markDeleteLedgerId}:{info.markDeleteEntryId}"
        in_record = info.cursorsLedgerId == IN_RECORD
        return where if in_record else f"{where}, in ledger {info.cursorsLedgerId}"
    try:
        ledgers = ManagedLedgerInfo.FromString(value).ledgerInfo
    except Exception:
        return ""
    return str([each.ledgerId for each in ledgers])
