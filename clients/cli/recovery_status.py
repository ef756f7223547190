"""The state of auto-recovery, read from the metadata store."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.layout import check_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Check, Underreplication
from daybook.bookie.replication.auditor import Election
from daybook.bookie.replication.status_records import Alarm, StatusRecords, WorkerStatus
from daybook.wire.metadata.store import MetadataStore

_LATEST_MS = 253402300799999  # the last one of the year 9999


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    paused: bool
    auditor: str | None
    marked: int
    locked: int
    delay_s: int | None
    checked_ms: int | None
    workers: Sequence[WorkerStatus]
    alarms: Sequence[Alarm]

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "state": "paused" if self.paused else "on",
            "auditor": self.auditor,
            "under_replicated": self.marked,
            "being_mended": self.locked,
            "lost_bookie_delay_s": self.delay_s,
            "all_checked": None if self.checked_ms is None else as_time(self.checked_ms),
        }

    def worker_rows(self) -> list[dict[str, object]]:
        return [
            {
                "worker": worker.worker,
                "doing": worker.doing,
                "ledger": worker.ledger_id,
                "pending": worker.pending,
                "mended": worker.mended,
                "copied": as_bytes(worker.copied_bytes),
                "rest": as_bytes(worker.rest_bytes),
                "eta": None if worker.eta_s is None else f"{worker.eta_s:.0f} s",
            }
            for worker in self.workers
        ]

    def alarm_rows(self) -> list[dict[str, object]]:
        return [
            {
                "ledger": alarm.ledger_id,
                "trouble": alarm.trouble.value,
                "entries": " ".join(f"{first}-{last}" for first, last in alarm.entries) or None,
                "since": as_time(alarm.since_ms),
                "why": alarm.why,
            }
            for alarm in self.alarms
        ]


async def describe(store: MetadataStore, root: str) -> RecoveryStatus:
    paths = LedgerPaths(root)
    underreplication, status = Underreplication(store, paths, ""), StatusRecords(store, paths)
    await check_layout(store, paths)
    await underreplication.check_layout()
    checked_ms = delay_s = None
    with suppress(MalformedRecordError):
        checked_ms = await underreplication.check_began_ms(Check.LEDGERS)
    with suppress(MalformedRecordError):
        delay_s = await underreplication.lost_delay_s()
    marked = [ledger_id async for ledger_id in underreplication.marked_ledgers()]
    return RecoveryStatus(
        paused=await underreplication.is_paused(),
        auditor=await Election(store, paths, "").auditor(),
        marked=len(marked),
        locked=len(await underreplication.locks()),
        delay_s=delay_s,
        checked_ms=checked_ms,
        workers=await status.workers(),
        alarms=await status.alarms(),
    )


def as_time(at_ms: int) -> str:
    if not 0 <= at_ms <= _LATEST_MS:
        return "?"  # written by a machine without a clock
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def as_bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
