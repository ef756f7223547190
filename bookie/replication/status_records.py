"""Status records and alarms for operators: the work of each worker, and failed repairs.

    <root>/underreplication/alarms/<ledger id>   persistent, until the ledger is whole or gone
    <root>/underreplication/workers/<name>       ephemeral: a worker and its progress

Both are JSON with a version.  The work itself does not depend on them.

    NO_COPY    some entries have no copy left, or only on bookies that are gone
    UNREADABLE the ledger's metadata do not parse, or are inconsistent
    NO_SPARE   no writable bookie outside the ensemble is left to take the place
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import msgspec

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import (
    ANY,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
)

_VERSION = 1
_ALARM_NAME = re.compile(r"\d{10}|[1-9]\d{10,18}")


class AlarmKind(Enum):
    NO_COPY = "no copy"
    NO_SPARE = "no spare"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Alarm:
    ledger_id: int
    trouble: AlarmKind  # the record has this name
    why: str
    since_ms: int
    entries: tuple[tuple[int, int], ...] = ()  # first and last of each run

    def encode(self) -> bytes:
        record = {
            "version": _VERSION,
            "trouble": self.trouble.value,
            "why": self.why,
            "since_ms": self.since_ms,
            "entries": self.entries,
        }
        return json.dumps(record).encode()

    @classmethod
    def decode(cls, ledger_id: int, value: bytes) -> "Alarm":
        record = _load(value)
        try:
            entries = tuple((int(first), int(last)) for first, last in record["entries"])
            trouble, since_ms = AlarmKind(record["trouble"]), int(record["since_ms"])
            return cls(ledger_id, trouble, str(record["why"]), since_ms, entries)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise MalformedRecordError(f"an alarm that does not parse: {value[:200]!r}") from error


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker's status.  `pending` counts the marked ledgers it saw; bytes are estimates."""

    worker: str
    doing: str
    ledger_id: int | None
    pending: int
    mended: int
    copied_entries: int
    copied_bytes: int
    rest_bytes: int
    rate_bytes_per_s: float
    eta_s: float | None

    def encode(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> "WorkerStatus":
        record = _load(value)
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise MalformedRecordError(f"a status that does not parse: {value[:200]!r}") from error


def _load(value: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(value)
        version = record["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecordError(
            f"neither an alarm nor a worker's status: {value[:200]!r}"
        ) from error
    if version != _VERSION:
        raise MalformedRecordError(f"a record of version {version!r}")
    return record


class StatusRecords:
    def __init__(self, store: MetadataStore, paths: LedgerPaths) -> None:
        self._store = store
        self._alarms = f"{paths.underreplication}/alarms"
        self._workers = f"{paths.underreplication}/workers"

    async def raise_alarm(self, alarm: Alarm) -> bool:
        """Replace the ledger's alarm; if the old one says the same, keep it and return False."""
        path = self._alarm(alarm.ledger_id)
        while True:
            record = await self._store.get(path)
            try:
                if record is None:
                    await self._store.create(path, alarm.encode(), make_parents=True)
                elif self._says(alarm, record.value):
                    return False
                else:
                    await self._store.set(path, alarm.encode(), ANY)
            except (RecordExistsError, NoRecordError, OutcomeUnknownError):
                continue  # The record has changed, or may have: read it again.
            return True

    def _says(self, alarm: Alarm, value: bytes) -> bool:
        try:
            old = Alarm.decode(alarm.ledger_id, value)
        except MalformedRecordError:
            return False
        return (old.trouble, old.why, old.entries) == (alarm.trouble, alarm.why, alarm.entries)

    async def clear_alarm(self, ledger_id: int) -> None:
        path = self._alarm(ledger_id)
        while await self._store.get(path) is not None:
            with suppress(NoRecordError, OutcomeUnknownError):
                await self._store.delete(path, ANY)

    async def alarmed_ledgers(self) -> Sequence[int]:
        """Return the ledgers that have an alarm, also one that does not parse."""
        names = await self._store.get_children(self._alarms) or []
        return [int(name) for name in names if _ALARM_NAME.fullmatch(name)]

    async def alarms(self) -> Sequence[Alarm]:
        alarms: list[Alarm] = []
        for ledger_id in await self.alarmed_ledgers():
            record = await self._store.get(self._alarm(ledger_id))
            if record is not None:
                with suppress(MalformedRecordError):
                    alarms.append(Alarm.decode(ledger_id, record.value))
        return alarms

    def _alarm(self, ledger_id: int) -> str:
        return f"{self._alarms}/{ledger_id:010d}"

    async def write_status(self, status: WorkerStatus) -> None:
        """Write a worker's status; the record disappears with its session."""
        path = f"{self._workers}/{status.worker}"
        record = await self._store.get(path)
        if record is not None and record.stat.owner != self._store.session_id:
            with suppress(NoRecordError):
                await self._store.delete(path, ANY)  # left by the previous session
            record = None
        with suppress(RecordExistsError, NoRecordError, OutcomeUnknownError):
            if record is not None:
                await self._store.set(path, status.encode(), ANY)
                return
            if await self._store.get(self._workers) is None:
                with suppress(RecordExistsError, OutcomeUnknownError):
                    await self._store.create(self._workers, b"", make_parents=True)
            await self._store.create(path, status.encode(), ephemeral=True)

    async def workers(self) -> Sequence[WorkerStatus]:
        found: list[WorkerStatus] = []
        for name in await self._store.get_children(self._workers) or []:
            record = await self._store.get(f"{self._workers}/{name}")
            if record is not None:
                with suppress(MalformedRecordError):
                    found.append(WorkerStatus.decode(record.value))
        return found
