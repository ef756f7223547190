"""The compaction of a loaded topic: the compacted ledger in force, and the run under way.

The compacted ledger in force is named by the cursor `__compaction`, so the next owner of the topic
finds it there.  A run publishes its ledger in one record of that cursor: the new horizon and the
name of the ledger change together.  Only then the ledger before it is deleted.  A crash at any
point leaves one of the two in force, and at worst the other one as an orphan.

    NOT_RUN --start--> RUNNING --> SUCCESS | ERROR --start--> RUNNING
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random

import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.compaction.compacted_ledger import CompactedLedger
from daybook.broker.compaction.compactor import Compactor, Progress
from daybook.broker.errors import BrokerError, ConflictError
from daybook.broker.limits import CompactionLimits
from daybook.broker.protocol.compaction import ChangedError, Selection, TooManyKeysError
from daybook.broker.topics.topic_log import TopicCursor, TopicLog, TopicLogs
from daybook.managed_ledger.compacted import CURSOR, LEDGER, no_metadata
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError
from daybook.wire.rate_limit import RateLimit
from daybook.wire.topics import TopicName

_SALT_BYTES = 16
_FAILURES = (
    BrokerError,
    ChangedError,
    LedgerError,
    ManagedLedgerError,
    MetadataError,
    TooManyKeysError,
    trio.TooSlowError,
)
StartTask = Callable[[Callable[[], Awaitable[None]]], None]


class CompactionStatus(Enum):
    """The names are Pulsar's."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Published:
    """A compacted ledger that is in force: it replaces everything up to `horizon`."""

    horizon: Position
    ledger_id: int


@dataclass(slots=True)
class CompactionCounts:
    """The numbers of one topic since it was loaded."""

    succeeded: int = 0
    failed: int = 0
    removed: int = 0
    kept_entries: int = 0
    kept_bytes: int = 0
    last_removed: int = 0
    last_succeeded_ms: int = 0
    last_failed_ms: int = 0
    last_duration_ms: int = 0


class Compactions:
    """The resources that the compactions of all topics of a broker share."""

    def __init__(
        self, limits: CompactionLimits, *, clock: WallClock, rng: Random, log: Log
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.rng = rng
        self.log = log
        self.rate = RateLimit(limits.bytes_per_s, limits.read_bytes)
        self.slots = trio.CapacityLimiter(limits.runs_max)


class TopicCompaction:
    """One instance per loaded topic.  `start_task` runs a task for as long as it is loaded."""

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        logs: TopicLogs,
        shared: Compactions,
        start_task: StartTask,
    ) -> None:
        self.status = CompactionStatus.NOT_RUN
        self.last_error = ""
        self.counts = CompactionCounts()
        self.progress: Progress | None = None  # the run that is under way
        self.published = _published(log)
        self._name = name
        self._log = log
        self._logs = logs
        self._shared = shared
        self._start_task = start_task
        self._open: CompactedLedger | None = None  # the ledger of `published`, once it was read
        self._opening = trio.Lock()
        self._scope: trio.CancelScope | None = None  # set while a run is under way
        self._over = trio.Event()
        self._failures = 0  # in a row
        self._not_before_s = 0.0  # the threshold starts no run before

    @property
    def horizon(self) -> Position | None:
        """The position up to which the compacted ledger replaces the log; None without one."""
        return None if self.published is None else self.published.horizon

    @property
    def running(self) -> bool:
        return self._scope is not None

    def before_log(self, position: Position) -> Position | None:
        """Return the position if only the compacted ledger has entries there, else None."""
        if self.published is None or position > self._log.before_first:
            return None
        return max(position, Position(0, 0))

    def ledger_stats(self) -> dict[str, object]:
        """Return the compacted ledger as Pulsar's internal statistics show it.

        Its size is known when somebody has read it.
        """
        reader = None if self._open is None else self._open.reader
        return {
            "ledgerId": -1 if self.published is None else self.published.ledger_id,
            "entries": -1 if reader is None else reader.entries,
            "size": -1 if reader is None else reader.bytes,
            "offloaded": False,
            "underReplicated": False,
        }

    # -- reading

    async def read(
        self, start: Position, through: Position, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Return entries of the compacted ledger in force, from `start` on, up to `through`.

        Raise LedgerError, ManagedLedgerError.
        """
        ledger = await self._opened()
        if ledger is None:
            return []
        return await ledger.read(start, through, max_entries=max_entries, max_bytes=max_bytes)

    async def last_message(self, through: Position) -> tuple[Position, int] | None:
        """Return the last entry of the compacted ledger up to `through`, and an index.

        It is that of the last message that is left of the entry, or -1 if the entry is no batch.
        """
        ledger = await self._opened()
        return None if ledger is None else await ledger.last_message(through)

    async def _opened(self) -> CompactedLedger | None:
        async with self._opening:
            published = self.published
            if published is None:
                return None
            if self._open is None:
                with no_metadata(published.ledger_id, 0):
                    reader = await self._logs.open_compacted(self._log, published.ledger_id)
                if self.published is not published:  # A run has published another one meanwhile.
                    return CompactedLedger(reader)
                self._open = CompactedLedger(reader)
            return self._open

    # -- running

    def start(self) -> None:
        """Start a run.  Raise ConflictError if one is under way."""
        if self.running:
            raise ConflictError(f"a compaction of {self._name} is running already: wait for it")
        self.status, self.last_error = CompactionStatus.RUNNING, ""
        self._scope, self._over = trio.CancelScope(), trio.Event()
        self._start_task(self._run)

    def start_if_due(self, threshold_bytes: int) -> None:
        """Start a run if at least so many bytes lie behind the horizon; 0 switches this off."""
        if threshold_bytes <= 0 or self.running or trio.current_time() < self._not_before_s:
            return
        behind = self.horizon or self._log.before_first
        if self._log.behind(behind).bytes >= threshold_bytes:
            self.start()

    async def delete(self) -> None:
        """Delete the compacted ledger, because the topic is deleted and nothing names it."""
        if self.published is not None:
            await self._logs.delete_compacted(self._log, self.published.ledger_id)

    async def forget(self) -> None:
        """Delete the compacted ledger, because what it was made of is to be dropped.

        The cursor moves to the end and names no ledger, in one record.  Readers of the compacted
        topic then read the log.
        """
        await self.stop()
        cursor = self._log.cursors.get(CURSOR)
        if cursor is None:
            return
        left = {name: number for name, number in cursor.properties.items() if name != LEDGER}
        cursor.advance(self._log.last_confirmed, left)
        await cursor.flush()
        before, self.published, self._open = self.published, None, None
        if before is not None:
            with suppress(BrokerError):
                await self._logs.delete_compacted(self._log, before.ledger_id)

    async def wait_ended(self) -> None:
        """Return when no run is under way."""
        while self._scope is not None:
            await self._over.wait()

    async def stop(self) -> None:
        """Cancel the run that is under way, and wait for its end."""
        if self._scope is not None:
            self._scope.cancel()
            await self._over.wait()

    async def _run(self) -> None:
        shared, counts = self._shared, self.counts
        scope, over = self._scope, self._over
        assert scope is not None
        began_ms = shared.clock.now_ms()
        # A run that is cancelled keeps this: the topic is closed, or lost.
        status, error = CompactionStatus.ERROR, "the topic was closed or moved to another broker"
        try:
            with scope:
                async with shared.slots:
                    await self._compact()
                status, error = CompactionStatus.SUCCESS, ""
        except _FAILURES as failure:
            error = str(failure) or "bookies did not confirm what was written: try again later"
            shared.log.warning("a topic was not compacted", topic=self._name.full, why=error)
        finally:
            now_ms = shared.clock.now_ms()
            self.status, self.last_error = status, error
            self.progress = self._scope = None
            counts.last_duration_ms = now_ms - began_ms
            if status is CompactionStatus.SUCCESS:
                counts.succeeded += 1
                counts.last_succeeded_ms = now_ms
                self._failures = 0
            else:
                counts.failed += 1
                counts.last_failed_ms = now_ms
                self._failures += 1
                limits = shared.limits
                pause_s = limits.retry_s * 2 ** min(self._failures - 1, 16)
                self._not_before_s = trio.current_time() + min(pause_s, limits.retry_max_s)
            over.set()

    async def _compact(self) -> None:
        log, limits, before = self._log, self._shared.limits, self.published
        # The cursor comes first: from here on the log keeps what the run reads.
        cursor = log.cursors.get(CURSOR)
        if cursor is None:
            cursor = await log.open_cursor(CURSOR, initial=log.before_first)
        horizon = log.last_confirmed
        begin = log.before_first if before is None else before.horizon
        if log.next_position(begin) > horizon:
            return  # There is nothing that an earlier run has not read.
        selection = Selection(
            keys_max=limits.keys_max,
            salt=self._shared.rng.randbytes(_SALT_BYTES),
            retain_keyless=limits.retain_keyless,
        )
        progress = self.progress = Progress(horizon, self._shared.clock.now_ms())
        compacted = await self._opened()
        source = None
        if before is not None:
            assert compacted is not None
            source = before.horizon, compacted
        compactor = Compactor(log, source, selection, progress, limits, self._shared.rate)
        await compactor.select()
        ledger_id = await self._write(compactor, horizon)
        await self._publish(cursor, Published(horizon, ledger_id))
        counts = self.counts
        counts.last_removed = selection.removed
        counts.removed += selection.removed
        counts.kept_entries = progress.written_entries
        counts.kept_bytes = progress.written_bytes

    async def _write(self, compactor: Compactor, horizon: Position) -> int:
        """Write a ledger; return its id.  If that fails, the ledger is deleted."""
        writer = await self._logs.create_compacted(self._log, horizon)
        try:
            await compactor.write(writer)
        except BaseException:
            # Nothing names the ledger yet, and only this run could.
            writer.abandon()
            with trio.CancelScope(shield=True), trio.move_on_after(self._shared.limits.delete_s):
                await self._logs.delete_compacted(self._log, writer.ledger_id)
            raise
        return writer.ledger_id

    async def _publish(self, cursor: TopicCursor, new: Published) -> None:
        """Put a complete ledger in force, and delete the one before it.

        If the record may not be durable, both ledgers stay: the next owner finds out which of them
        is in force, and the other one is an orphan.
        """
        cursor.advance(new.horizon, {**cursor.properties, LEDGER: new.ledger_id})
        await cursor.flush()
        before, self.published, self._open = self.published, new, None
        if before is not None:
            with suppress(BrokerError):
                await self._logs.delete_compacted(self._log, before.ledger_id)


def _published(log: TopicLog) -> Published | None:
    """Return the compacted ledger that the cursor names."""
    cursor = log.cursors.get(CURSOR)
    if cursor is None or LEDGER not in cursor.properties:
        return None
    return Published(cursor.mark_delete, cursor.properties[LEDGER])
