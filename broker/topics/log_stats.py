"""The inside of a log, for people: its ledgers and cursors, with the keys of Pulsar.

`log_stats` shows the state in memory, and `log_info` what the metadata store has.
"""

from datetime import UTC, datetime

from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.cursor_ledger import IN_RECORD
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo

_RANGES_MAX = 1_000  # ranges of one cursor that are shown


def log_stats(log: ManagedLedger) -> dict[str, object]:
    sealed: list[dict[str, object]] = [
        {
            "ledgerId": row.ledger_id,
            "entries": row.entries,
            "size": row.bytes,
            "offloaded": False,
            "underReplicated": False,
        }
        for row in log.ledgers.sealed
    ]
    current = {
        "ledgerId": log.current_ledger_id,
        "entries": log.current_entries,
        "size": 0,
        "offloaded": False,
        "underReplicated": False,
    }
    return {
        "entriesAddedCounter": log.appended_entries,
        "numberOfEntries": log.entries_between(log.before_first, log.last_confirmed),
        "totalSize": log.size_bytes,
        "currentLedgerEntries": log.current_entries,
        "currentLedgerSize": log.current_bytes,
        "lastLedgerCreatedTimestamp": _iso(log.rolled_ms),
        "waitingCursorsCount": sum(
            cursor.read_start > log.last_confirmed for cursor in log.cursors.values()
        ),
        "pendingAddEntriesCount": log.pending_entries,
        "pendingAddBytes": log.pending_bytes,
        "lastConfirmedEntry": str(log.last_confirmed),
        "state": log.state.name.title(),
        "waitingFor": log.waiting_for,
        "ledgerListBytes": log.room.bytes,
        "ledgerListBytesMax": log.room.bytes_max,
        "ledgerListRollStretch": log.room.stretch,
        "ledgerListFull": log.full,
        "ledgers": sealed if log.idle else [*sealed, current],
        "cursors": {name: _cursor(log, cursor) for name, cursor in sorted(log.cursors.items())},
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1,
            "entries": -1,
            "size": -1,
            "offloaded": False,
            "underReplicated": False,
        },
    }


def _cursor(log: ManagedLedger, cursor: Cursor) -> dict[str, object]:
    between = log.entries_between(cursor.mark_delete, log.last_confirmed)
    consumed = log.entries_between(log.before_first, cursor.mark_delete) + cursor.acked_above
    return {
        "markDeletePosition": str(cursor.mark_delete),
        "readPosition": str(cursor.read_start),
        "waitingReadOp": cursor.read_start > log.last_confirmed,
        "pendingReadOps": 0,
        "messagesConsumedCounter": consumed,
        "cursorLedger": cursor.ledger_id,
        "cursorLedgerLastEntry": -1 if cursor.writer is None else cursor.writer.last_add_confirmed,
        "state": "NoLedger" if cursor.ledger_id == IN_RECORD else "Open",
        "individuallyDeletedMessages": _ranges(cursor),
        "numberOfEntriesSinceFirstNotAckedMessage": between,
        "totalNonContiguousDeletedMessagesRange": cursor.range_count(_RANGES_MAX),
        "entriesAcknowledgedAbove": cursor.acked_above,
        "recordsThatPulsarMisreads": cursor.old_records,
        "properties": dict(cursor.properties),
    }


def log_info(log: ManagedLedger) -> dict[str, object]:
    info = log.ledgers.info
    found: dict[str, object] = {
        "version": log.ledgers.version,
        "ledgers": [
            {
                "ledgerId": ledger.ledgerId,
                "entries": ledger.entries,
                "size": ledger.size,
                "timestamp": ledger.timestamp,
                "isOffloaded": False,
            }
            for ledger in info.ledgerInfo
        ],
        "properties": {each.key: each.value for each in info.properties},
        "cursors": {name: _cursor_info(each) for name, each in sorted(log.cursors.items())},
    }
    if info.HasField("terminatedPosition"):
        end = info.terminatedPosition
        found["terminatedPosition"] = {"ledgerId": end.ledgerId, "entryId": end.entryId}
    return found


def _cursor_info(cursor: Cursor) -> dict[str, object]:
    info: ManagedCursorInfo = cursor.record
    found: dict[str, object] = {
        "version": cursor.record_version,
        "cursorsLedgerId": info.cursorsLedgerId,
        "properties": {each.name: each.value for each in info.properties},
        "cursorProperties": cursor.labels,
    }
    if info.HasField("markDeleteLedgerId"):
        found["markDelete"] = {
            "ledgerId": info.markDeleteLedgerId,
            "entryId": info.markDeleteEntryId,
        }
    if info.individualDeletedMessages:
        found["individualDeletedMessages"] = [
            {
                "lowerEndpoint": {
                    "ledgerId": each.lowerEndpoint.ledgerId,
                    "entryId": each.lowerEndpoint.entryId,
                },
                "upperEndpoint": {
                    "ledgerId": each.upperEndpoint.ledgerId,
                    "entryId": each.upperEndpoint.entryId,
                },
            }
            for each in info.individualDeletedMessages
        ]
    return found


def _ranges(cursor: Cursor) -> str:
    """Return the acknowledged ranges as Pulsar prints them.

    Each range begins behind the first position that is printed.
    """
    found = cursor.acked_ranges(_RANGES_MAX + 1)
    texts = [f"({ledger}:{first - 1}..{ledger}:{last}]" for ledger, first, last in found]
    if len(texts) > _RANGES_MAX:
        texts[_RANGES_MAX] = "..."
    return f"[{','.join(texts)}]"


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
