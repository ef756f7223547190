"""A cursor of a log: what a subscription has acknowledged, in memory and in a ledger of its own.

Acknowledgements count at once, and are durable within the flush interval, or when `flush` returns.
The first record after (re)opening goes into a new ledger, as a whole snapshot; the cursor's record
points there only when that is durable, and only while the log is ours.  Then changes follow, in
order, one record at a time.  Without an answer from there, or an ack quorum for long, the cursor
goes over to a new ledger, in the same way.

A Pulsar broker, or an older one of ours, that opens the topic after a crash reads the last record
as a snapshot (`cursor_ledger`).  So a snapshot is written from time to time while positions above
mark-delete are acknowledged, and a ledger that has records of version 1 is left for a new one as
soon as version 2 is allowed: when the log is opened, or by the log's timer.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursor_ledger import (
    CHANGE_2,
    PART_BYTES_MAX,
    Recovered,
    encode_change,
    encode_change_1,
    encode_properties,
    encode_snapshot,
    is_old,
)
from daybook.managed_ledger.cursor_record import (
    IN_RECORD,
    CursorRecord,
    folded,
    pointing,
    set_position,
)
from daybook.managed_ledger.errors import (
    ClosedError,
    FencedError,
    LogCorruptError,
    ManagedLedgerError,
)
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change, CursorState
from daybook.managed_ledger.records import Owner, custom_metadata, log_path, parse
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.managed_ledger.stuck import Watch
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import VALUE_BYTES_MAX, MetadataError
from daybook.wire.topics import url_decode, url_encode

__all__ = ["IN_RECORD", "RANGES_IN_RECORD_MAX", "Cursor", "recover_cursor"]

RANGES_IN_RECORD_MAX = 1000
RECORD_BYTES_MAX = VALUE_BYTES_MAX // 2  # A larger state stays in the cursor's ledger.
_READ_ENTRIES = 1000
_READ_BYTES = 8 << 20
_REFUSED_PAUSE_S, _REFUSED_PAUSE_S_MAX = 0.2, 5.0
_log = logging.getLogger(__name__)


class Log(Protocol):
    """What a cursor needs of its log."""

    name: str
    config: LogConfig
    ledgers: LedgerList

    @property
    def context(self) -> LogContext: ...

    @property
    def last_confirmed(self) -> Position: ...

    def clip(self, mark_delete: Position) -> Position:
        """The nearest position where a cursor may stand."""
        ...

    def lost(self, reason: str) -> None:
        """The log is somebody else's."""
        ...


class Cursor:
    """`durable` cursors are run by their log; others live in memory only."""

    def __init__(
        self,
        log: Log,
        name: str,
        mark_delete: Position,
        *,
        durable: bool,
        acked: AckSet | None = None,
    ) -> None:
        self.name = name
        self._owner = Owner(log.name, url_encode(name))  # of its ledgers
        self.durable = durable
        self.properties: dict[str, int] = {}
        self._log = log
        self._stored = mark_delete
        self._state = CursorState(
            mark_delete, acked or AckSet(), log.ledgers.next_position, recording=durable
        )
        self._record = CursorRecord(log.ledgers, log.context, log.name, name)
        self._writer: LedgerWriter | None = None
        self._new_writer: LedgerWriter | None = None  # whose snapshot is not durable yet
        self._watch = Watch(log.context, log.name, name)
        self._records = 0
        self._since_snapshot = 0  # changes behind the last snapshot of the ledger
        self._snapshot_due_s = math.inf  # when they have to be followed by another one
        self._old_records = 0  # of version 1, in the ledger that the record names
        self._renewing = False  # a new ledger is wanted, without them
        self._recorded = 0  # the number of changes that are durable
        self._wanted = trio.Event()  # something is to be recorded
        self._urgent = trio.Event()  # and somebody waits for it
        self._settled = trio.Event()
        self._error: ManagedLedgerError | None = None
        self._busy = trio.Lock()

    # -- what it knows

    @property
    def mark_delete(self) -> Position:
        return self._state.mark_delete

    @property
    def held_from(self) -> Position:
        """What lies behind this must be kept: after a crash the cursor may be back there."""
        return min(self._stored, self._state.mark_delete)

    @property
    def stored_mark_delete(self) -> Position:
        return self._stored

    @property
    def read_start(self) -> Position:
        """Where reading begins: behind the mark-delete position."""
        return self._log.ledgers.next_position(self._state.mark_delete)

    @property
    def acked_above(self) -> int:
        """How many positions above the mark-delete position are acknowledged."""
        return len(self._state.acked)

    @property
    def backlog_entries(self) -> int:
        """Entries that are not acknowledged."""
        between = self._log.ledgers.entries_between(self.mark_delete, self._log.last_confirmed)
        return max(0, between - len(self._state.acked))

    @property
    def ledger_id(self) -> int:
        """The cursor's own ledger, -1 if its state is in its record."""
        return self._record.info.cursorsLedgerId

    @property
    def old_records(self) -> int:
        """Records in its ledger that a Pulsar broker would misread."""
        return self._old_records

    @property
    def writer(self) -> LedgerWriter | None:
        """Of the ledger that its record names; None if nothing is written there."""
        return self._writer

    def is_acked(self, position: Position) -> bool:
        return self._state.is_acked(position)

    def acked_ranges(self, at_most: int) -> list[tuple[int, int, int]]:
        """(ledger, first, last) of the acknowledged runs above mark-delete, the first so many."""
        return list(islice(self._state.acked.ranges(), at_most))

    def range_count(self, at_most: int) -> int:
        return self._state.acked.range_count(at_most)

    # -- acknowledging

    def ack(self, positions: Sequence[Position]) -> None:
        """Acknowledge single entries.  Positions without a confirmed entry are not taken."""
        if self._state.ack([p for p in positions if self._is_there(p)]):
            self._wanted.set()

    def _is_there(self, position: Position) -> bool:
        ledgers = self._log.ledgers
        if not position.entry_id >= 0 or position > self._log.last_confirmed:
            return False
        row = ledgers.row(position.ledger_id)
        return ledgers.lists(position.ledger_id) if row is None else position.entry_id < row.entries

    def ack_cumulative(self, position: Position) -> None:
        """Acknowledge everything that is confirmed, up to, and with, `position`."""
        position = self._log.ledgers.floor(min(position, self._log.last_confirmed))
        if self._state.ack_cumulative(position):
            self._wanted.set()

    async def flush(self) -> None:
        """Return when everything acknowledged so far is durable.  Raises ManagedLedgerError."""
        goal = self._state.changes
        while self.durable and self._recorded < goal:
            if self._error is not None:
                raise self._error
            self._wanted.set()
            self._urgent.set()
            await self._settled.wait()

    async def reset(
        self, mark_delete: Position, properties: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Forget all acknowledgements; begin behind `mark_delete`.  Durable when it returns.

        `properties` are stored in the same step.
        """
        self._state.reset(self._log.clip(mark_delete))
        self.properties.update(properties)
        self._wanted.set()
        await self.flush()

    # -- recording

    async def run(self) -> None:
        """Record changes as they come, for as long as the log is open."""
        while self._error is None:
            with trio.move_on_at(self._snapshot_due_s):
                await self._wanted.wait()
            if self._error is None and self._wanted.is_set() and not self._urgent.is_set():
                with trio.move_on_after(self._log.config.flush_s):
                    await self._urgent.wait()
            if self._error is None:
                await self._record_changes()

    async def _record_changes(self) -> None:
        async with self._busy:
            self._wanted, self._urgent = trio.Event(), trio.Event()
            goal = self._state.changes
            change = self._state.take_change()
            due = self._renewing or trio.current_time() >= self._snapshot_due_s
            if (change is not None or due) and not await self._guarded_write(change):
                return
            self._settle(goal)

    def _settle(self, goal: int) -> None:
        self._recorded = max(self._recorded, goal)
        self._settled.set()
        self._settled = trio.Event()

    async def _guarded_write(self, change: Change | None) -> bool:
        try:
            await self._write(change)
        except ManagedLedgerError as error:
            self._give_up(error)
        except MetadataError as error:
            self._give_up(ManagedLedgerError(f"the cursor {self.name} cannot be stored: {error}"))
        else:
            return True
        return False

    def _give_up(self, error: ManagedLedgerError) -> None:
        self.abandon(error)
        if isinstance(error, FencedError):
            self._log.lost(str(error))

    async def _write(self, change: Change | None) -> None:
        """Record a change; None: a snapshot is due, or a new ledger."""
        self._check()
        if self._renewing:
            async with self._log.context.renewals:
                await self._start_ledger()
            return
        full = self._records >= self._log.config.cursor_roll_records
        if self._writer is None or full:
            await self._start_ledger()
            return
        # A change of version 2 would not help a ledger that Pulsar misreads already.
        new = self._may_write_2 and not self._old_records
        whole = change is None or (new and self._snapshot_is_due(change))
        if change is None or whole:
            records = self._snapshot()
        elif new:
            records = [encode_change(change, encode_properties(self.properties))]
        else:
            records = [encode_change_1(change)]
        mark_delete = self.mark_delete
        too_large = not whole and len(records[0]) > PART_BYTES_MAX
        if too_large or not await self._append(records):
            await self._start_ledger()
            return
        self._records += len(records)
        self._stored = mark_delete
        self._old_records += sum(map(is_old, records))
        self._count_since_snapshot(0 if whole else self._since_snapshot + 1)

    @property
    def _may_write_2(self) -> bool:
        return self._log.context.allows(CHANGE_2)

    def _snapshot_is_due(self, change: Change) -> bool:
        """A seek goes back, and a reader that knows no resets has to see where to."""
        if change.reset or trio.current_time() >= self._snapshot_due_s:
            return True
        limit = self._log.config.cursor_snapshot_records
        return bool(self._state.acked) and self._since_snapshot + 1 >= limit

    def _snapshot(self) -> list[bytes]:
        """All that it knows, as records; what was to be recorded is in them, and taken."""
        version = 2 if self._may_write_2 else 1
        config, acked = self._log.config, self._state.acked
        whole_bytes_max = config.cursor_snapshot_bytes_max if version == 2 else None
        parts = encode_snapshot(
            self.mark_delete,
            acked,
            self.properties,
            version=version,
            whole_bytes_max=whole_bytes_max,
        )
        self._state.take_change()
        return parts

    async def _append(self, records: Sequence[bytes]) -> bool:
        """False, and no writer any more, if it is not known that they are durable."""
        writer = self._writer
        assert writer is not None
        try:
            for record in records:
                writer.append([record])
            await writer.wait_confirmed(writer.last_add_pushed)
        except LedgerError:
            writer.abandon()
            self._writer = None  # A new ledger, then, if the log is still ours.
            return False
        return True

    def _count_since_snapshot(self, changes: int) -> None:
        """Changes without holes are as good as a snapshot; the first one with holes counts."""
        if not changes or not self._state.acked or self._old_records:
            self._since_snapshot, self._snapshot_due_s = 0, math.inf
            return
        self._since_snapshot = changes
        if self._snapshot_due_s == math.inf:
            self._snapshot_due_s = trio.current_time() + self._log.config.cursor_snapshot_s

    async def _start_ledger(self) -> None:
        """A new ledger with a whole snapshot; then, and only then, the record points to it."""
        while True:
            self._check()
            mark_delete, parts = self.mark_delete, self._snapshot()
            writer = await self._ledger_with(parts)
            if writer is not None:
                break
            await self._log.context.pause()
        old_id, old_writer = self.ledger_id, self._writer
        try:
            self._check()
            await self._point_to(writer.ledger_id, mark_delete)
        except BaseException:
            writer.abandon()
            raise
        finally:
            self._new_writer = None
        self._writer, self._records = writer, 0
        self._old_records, self._renewing = sum(map(is_old, parts)), False
        self._count_since_snapshot(0)
        self._stored = mark_delete
        if old_writer is not None:
            old_writer.abandon()
        if old_id != IN_RECORD:
            await self._log.context.forget([old_id], self._owner)

    async def _point_to(self, ledger_id: int, mark_delete: Position) -> None:
        """A store that refuses is asked again: the log is still ours, and its owner may mend that.

        FencedError; ManagedLedgerError when it is given up meanwhile.
        """
        pause_s = _REFUSED_PAUSE_S
        while True:
            try:
                await self._record.store(pointing(self._record.info, ledger_id, mark_delete))
            except MetadataError as error:
                text = "the cursor %s of %s is not stored now: %s"
                _log.warning(text, self.name, self._log.name, error)
            else:
                return
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _REFUSED_PAUSE_S_MAX)
            self._check()

    # -- records of version 1, which Pulsar misreads

    def check_format(self) -> None:
        """For a timer: leave a ledger with records of version 1 when version 2 is allowed."""
        if self._old_records and self._may_write_2:
            self._renewing = True
            self._wanted.set()

    async def renew(self) -> None:
        """Before the cursor is run: have a ledger without records of version 1, if that is allowed.

        ManagedLedgerError, MetadataError.
        """
        if not (self._old_records and self._may_write_2):
            return
        try:
            with trio.fail_after(self._log.config.stuck_s):
                await self._start_ledger()
        except trio.TooSlowError:
            raise ManagedLedgerError(
                f"the cursor {self.name} of {self._log.name} needs a new ledger before the topic"
                " can be served, and bookies or metadata store do not answer; try again later"
            ) from None

    async def _ledger_with(self, parts: Sequence[bytes]) -> LedgerWriter | None:
        """A ledger in which these records are durable; None if that does not work now."""
        log = self._log
        custom = custom_metadata(log.name, self.name, log.context.tree)
        writer = None
        try:
            writer = await log.context.client.create(log.config.quorums, custom=custom)
            self._new_writer = writer
            if self._error is not None:  # Given up meanwhile.
                writer.abandon()
            for part in parts:
                writer.append([part])
            await writer.wait_confirmed(writer.last_add_pushed)
        except (LedgerError, MetadataError):
            if writer is not None:
                writer.abandon()
                await log.context.forget([writer.ledger_id], self._owner)
            return None
        return writer

    def check_stuck(self) -> None:
        """For a timer: stop waiting for bookies that a new ledger can do without."""
        writer = self._new_writer or self._writer
        if writer is not None and self._watch.may_leave(writer, self._log.config):
            writer.abandon()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # -- its record

    async def create(self, properties: Mapping[str, str]) -> None:
        """Create the record of a new durable cursor.  FencedError, MetadataError."""
        info = ManagedCursorInfo(cursorsLedgerId=IN_RECORD)
        set_position(info, self.mark_delete)
        for name, value in sorted(properties.items()):
            info.cursorProperties.add(name=name, value=value)
        await self._record.create(info)

    def restore(self, info: ManagedCursorInfo, version: int, old_records: int) -> None:
        """The record as it was found; its ledger is closed by now and is written no more."""
        self._record.info, self._record.version = info, version
        self._old_records = old_records
        for found in info.properties:
            self.properties.setdefault(found.name, found.value)

    # -- the end

    async def close(self) -> None:
        """Store everything: into the record if that is small enough, else as a last snapshot."""
        async with self._busy:
            self._check()
            while self.durable and (
                self.ledger_id != IN_RECORD or self._recorded < self._state.changes
            ):
                goal = self._state.changes
                await self._store_whole()
                self._settle(goal)
                if self._writer is not None and self._state.changes == goal:
                    with suppress(LedgerError, MetadataError):  # Who opens it next closes it then.
                        await self._writer.close()
                    break
            self.abandon(ClosedError(f"the cursor {self.name} was closed"))

    async def _store_whole(self) -> None:
        if self._state.acked.range_count(RANGES_IN_RECORD_MAX) > RANGES_IN_RECORD_MAX:
            await self._start_ledger()
            return
        mark_delete, old_id = self.mark_delete, self.ledger_id
        runs = list(self._state.acked.ranges())
        whole = folded(self._record.info, mark_delete, runs, self.properties)
        if whole.ByteSize() > RECORD_BYTES_MAX:
            await self._start_ledger()
            return
        self._state.take_change()
        await self._record.store(whole)
        self._stored = mark_delete
        self._old_records = 0
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if old_id != IN_RECORD:
            await self._log.context.forget([old_id], self._owner)

    async def delete(self) -> None:
        """Remove the record, then the ledger.  FencedError, MetadataError."""
        self.abandon(ClosedError(f"the subscription {self.name} was deleted"))
        async with self._busy:
            await self._record.delete()
            if self.ledger_id != IN_RECORD:
                await self._log.context.forget([self.ledger_id], self._owner)

    def abandon(self, error: ManagedLedgerError) -> None:
        """Record nothing more; whoever waits is told."""
        if self._error is None:
            self._error = error
            for writer in (self._writer, self._new_writer):
                if writer is not None:
                    writer.abandon()
        self._wanted.set()
        self._urgent.set()
        self._settled.set()
        self._settled = trio.Event()


async def recover_cursor(log: Log, encoded: str) -> Cursor:
    """The durable cursor behind a record.  Fences its ledger: call this after the list is ours.

    Raises ManagedLedgerError, LedgerError.
    """
    path = f"{log_path(log.name)}/{encoded}"
    info, version = await _stored_record(log.context, path)
    try:
        name = url_decode(encoded)
    except WireError as error:
        raise LogCorruptError(f"{path}: {error}") from error
    if url_encode(name) != encoded:
        raise LogCorruptError(f"{path}: the name of a cursor, encoded as nobody does it")
    lengths = log.ledgers.lengths
    recovered = await _recovered(log.context, Owner(log.name, encoded), info, lengths)
    assert recovered.mark_delete is not None
    mark_delete, acked = log.clip(recovered.mark_delete), recovered.acked
    acked.keep_within(lengths)  # An entry that is appended later is not acknowledged by anybody.
    cursor = Cursor(log, name, mark_delete, durable=True, acked=acked)
    cursor.properties = recovered.properties
    cursor.restore(info, version, recovered.old_records)
    return cursor


async def stored_position(
    context: LogContext, log_name: str, encoded: str, ledgers: LedgerList
) -> Position:
    """Where the durable cursor behind a record would stand if it was recovered now.

    Fences its ledger: call this after the list is ours.  ManagedLedgerError, LedgerError.
    """
    info, _ = await _stored_record(context, f"{log_path(log_name)}/{encoded}")
    owner = Owner(log_name, encoded)
    mark_delete = (await _recovered(context, owner, info, ledgers.lengths)).mark_delete
    assert mark_delete is not None
    return mark_delete


async def _stored_record(context: LogContext, path: str) -> tuple[ManagedCursorInfo, int]:
    """Return the content of the record of a cursor, and its version."""
    found = await context.newest(path)
    if found is None:
        raise FencedError(f"{path} vanished while it was being recovered")
    return parse(ManagedCursorInfo(), found.value, path), found.stat.version


async def _recovered(
    context: LogContext, owner: Owner, info: ManagedCursorInfo, lengths: Mapping[int, int]
) -> Recovered:
    """From its ledger, or from the record itself if it has none (or its ledger is lost)."""
    if info.cursorsLedgerId >= 0:
        recovered = Recovered(lengths)
        with suppress(NoSuchLedgerError, NoSuchEntryError):
            await _replay(context, owner, info.cursorsLedgerId, recovered)
        if recovered.mark_delete is not None:
            return recovered
    recovered = Recovered(lengths)
    recovered.start(info)
    return recovered


async def _replay(context: LogContext, owner: Owner, ledger_id: int, recovered: Recovered) -> None:
    reader = await context.answered(lambda: context.open_ledger(ledger_id, owner, recover=True))
    at = 0
    while at <= reader.last_add_confirmed:
        last = min(reader.last_add_confirmed, at + _READ_ENTRIES - 1)
        for entry in await reader.read(at, last, max_bytes=_READ_BYTES):
            recovered.apply(bytes(entry.payload))
            at = entry.entry_id + 1
