"""The durable cursors of a log: what each subscription has acknowledged.

A cursor keeps its state in memory and in a ledger of its own.  Acknowledgements count at once, and
are durable within the flush interval, or when `flush` returns.  After (re)opening, the first record
goes into a new ledger as a whole snapshot.  The record in the metadata store points to that ledger
only when the snapshot is durable, and only while the log has the same owner.  After that, changes
follow in order, one record at a time.  If the ledger does not answer, or gets no ack quorum for
long, the cursor moves to a new ledger in the same way.

A Pulsar broker, or an older Daybook, that opens the topic after a crash reads the last record as a
snapshot (`cursor_ledger`).  So a cursor writes a snapshot from time to time while positions above
mark-delete are acknowledged.  A ledger that has records of version 1 is left for a new one as soon
as version 2 is allowed: when the log is opened, or by the log's timer.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import MappingProxyType

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursor_ledger import (
    CHANGE_2,
    IN_RECORD,
    PART_BYTES_MAX,
    RECORD_BYTES_MAX,
    CursorRecord,
    encode_change,
    encode_change_1,
    encode_holes,
    encode_properties,
    encode_snapshot,
    folded,
    is_old,
    pointing,
    read_record,
    recover_state,
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
from daybook.managed_ledger.protocol.cursor import Change, CursorState, Run
from daybook.managed_ledger.protocol.holes import HoleCount
from daybook.managed_ledger.records import LedgerOwner, check_cursor_name
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.managed_ledger.stalled import StallWatch
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import MetadataError, RecordExistsError
from daybook.wire.topics import url_decode, url_encode

RANGES_IN_RECORD_MAX = 1000
_REFUSED_PAUSE_S, _REFUSED_PAUSE_S_MAX = 0.2, 5.0
_CLOSED_AT_ONCE = 32
_log = logging.getLogger(__name__)


class Cursor:
    """One subscription's position.  Only a `durable` cursor is stored; its log runs it.

    `config` returns the settings of the log as they are now.  `on_lost` is called with the reason
    if the log turns out to have another owner.
    """

    def __init__(
        self,
        context: LogContext,
        ledgers: LedgerList,
        config: Callable[[], LogConfig],
        on_lost: Callable[[str], None],
        name: str,
        mark_delete: Position,
        *,
        durable: bool,
        acked: AckSet | None = None,
        partial: Mapping[Position, int] = MappingProxyType({}),
        holes: HoleCount | None = None,
    ) -> None:
        log_name = ledgers.owner.log
        self.name = name
        self.durable = durable
        self.properties: dict[str, int] = {}
        self._context = context
        self._ledgers = ledgers
        self._config = config
        self._on_lost = on_lost
        self._owner = LedgerOwner(log_name, url_encode(name))  # its ledgers name this owner
        self._stored = mark_delete  # the mark-delete position that is durable
        self._state = CursorState(
            mark_delete,
            acked or AckSet(),
            ledgers.next_position,
            recording=durable,
            parts_bytes_max=config().partial_bytes_max,
            sizes=context.sizes,
            spans=ledgers.spans,
        )
        self._state.take_parts(partial)
        self._state.take_count(holes)
        self._record = CursorRecord(context, ledgers, name)
        self._writer: LedgerWriter | None = None
        self._new_writer: LedgerWriter | None = None  # its snapshot is not durable yet
        self._watch = StallWatch(context, log_name, name)
        self._new_properties = False  # they differ from those of the last record
        self._records = 0  # in the present ledger, behind its first snapshot
        self._since_snapshot = 0  # changes behind the last snapshot of the ledger
        self._snapshot_due_s = math.inf  # the time by which another snapshot must follow them
        self._old_records = 0  # records of version 1 in the ledger that the record names
        self._renewing = False  # a new ledger without records of version 1 is wanted
        self._recorded = 0  # the number of changes that are durable
        self._wanted = trio.Event()  # something is to be recorded
        self._urgent = trio.Event()  # a caller waits for it
        self._settled = trio.Event()  # more changes are durable, or the cursor has ended
        self._error: ManagedLedgerError | None = None  # the reason why nothing is recorded any more
        self._busy = trio.Lock()  # one task writes at a time

    # -- properties

    @property
    def mark_delete(self) -> Position:
        return self._state.mark_delete

    @property
    def held_from(self) -> Position:
        """Ledgers behind this position must be kept: after a crash the cursor may be back there.

        A cursor that was set back holds the ledgers at once, before its new position is stored.
        """
        return min(self._stored, self._state.mark_delete)

    @property
    def stored_mark_delete(self) -> Position:
        """The mark-delete position that is durable."""
        return self._stored

    @property
    def read_start(self) -> Position:
        """The position where reading starts: behind the mark-delete position."""
        return self._ledgers.next_position(self._state.mark_delete)

    @property
    def acked_above(self) -> int:
        """The number of acknowledged positions above the mark-delete position."""
        return len(self._state.acked)

    @property
    def partly_acked(self) -> int:
        """The number of entries of which some messages are acknowledged."""
        return len(self._state.parts)

    def pending_of(self, position: Position) -> int | None:
        """Return the bits of the pending messages of an entry, or None for all of them."""
        return self._state.parts.pending(position)

    @property
    def backlog_entries(self) -> int:
        """The number of entries that are not acknowledged."""
        between = self._ledgers.entries_between(self.mark_delete, self._ledgers.last_confirmed)
        return max(0, between - len(self._state.acked))

    @property
    def holes_top(self) -> Position:
        """The position behind which nothing is acknowledged."""
        return self._state.holes.top if self._state.holes.open else self.mark_delete

    @property
    def holes(self) -> tuple[int, int]:
        """The messages and bytes that are not acknowledged up to `holes_top`, if counted."""
        return self._state.holes.messages, self._state.holes.bytes

    @property
    def uncounted(self) -> AckSet:
        """The entries up to `holes_top` that are not in `holes`, because no size was known."""
        return self._state.holes.uncounted

    def count(self, position: Position, messages: int, size: int) -> None:
        """Tell the size of an entry that was uncounted."""
        self._state.count(position, messages, size)

    def count_run(self, run: Run, messages: int, size: int) -> bool:
        """Tell the size of several entries that were uncounted; see `CursorState.count_run`."""
        return self._state.count_run(run, messages, size)

    @property
    def ledger_id(self) -> int:
        """The cursor's own ledger; -1 if its state is in its record."""
        return self._record.info.cursorsLedgerId

    @property
    def record(self) -> ManagedCursorInfo:
        """Its record in the metadata store."""
        return self._record.info

    @property
    def record_version(self) -> int:
        return self._record.version

    @property
    def old_records(self) -> int:
        """The number of records in its ledger that a Pulsar broker would misread."""
        return self._old_records

    @property
    def is_stored(self) -> bool:
        """True if the durable state of the cursor is the one in memory."""
        return self._recorded >= self._state.changes

    @property
    def writer(self) -> LedgerWriter | None:
        """The writer of the ledger that its record names; None if nothing is written there."""
        return self._writer

    def is_acked(self, position: Position) -> bool:
        return self._state.is_acked(position)

    def acked_ranges(self, at_most: int) -> list[tuple[int, int, int]]:
        """Return the first acknowledged runs above mark-delete as (ledger, first, last)."""
        return list(islice(self._state.acked.ranges(), at_most))

    def range_count(self, at_most: int) -> int:
        """Return the number of acknowledged runs; counting stops above `at_most`."""
        return self._state.acked.range_count(at_most)

    # -- acknowledging

    def ack(self, positions: Sequence[Position]) -> None:
        """Acknowledge single entries.  Positions without a confirmed entry are ignored."""
        if self._state.ack([p for p in positions if self._is_there(p)]):
            self._wanted.set()

    def ack_part(self, position: Position, pending: int) -> bool:
        """Acknowledge the messages of a batch whose bits are not in `pending`.

        Return True if all messages are acknowledged now; the caller then acknowledges the entry.
        """
        if not self._is_there(position):
            return False
        before = self._state.changes
        done = self._state.ack_part(position, pending)
        if self._state.changes != before:
            self._wanted.set()
        return done

    def _is_there(self, position: Position) -> bool:
        """Return True if a confirmed entry lies at `position`.

        A client may send any position.  If the cursor took one that has no entry yet, that entry
        would be skipped when it is appended later.
        """
        ledgers = self._ledgers
        if not position.entry_id >= 0 or position > ledgers.last_confirmed:
            return False
        sealed = ledgers.find_sealed(position.ledger_id)
        if sealed is None:
            return ledgers.lists(position.ledger_id)
        return position.entry_id < sealed.entries

    def ack_cumulative(self, position: Position) -> None:
        """Acknowledge every confirmed entry up to and including `position`."""
        position = self._ledgers.floor(min(position, self._ledgers.last_confirmed))
        if self._state.ack_cumulative(position):
            self._wanted.set()

    def advance(self, mark_delete: Position, properties: Mapping[str, int]) -> None:
        """Acknowledge every entry up to `mark_delete`, and replace all properties.

        Both are stored in one record, so neither is ever stored without the other.
        """
        if properties != self.properties:
            self.properties = dict(properties)
            self._new_properties = True
            self._state.touch()
        self.ack_cumulative(mark_delete)
        self._wanted.set()

    async def flush(self) -> None:
        """Wait until everything acknowledged so far is durable.  Raise ManagedLedgerError."""
        goal = self._state.changes
        while self.durable and self._recorded < goal:
            if self._error is not None:
                raise self._error
            self._wanted.set()
            self._urgent.set()
            await self._settled.wait()

    @property
    def labels(self) -> dict[str, str]:
        """The texts in its record, by name: the properties of the subscription."""
        return {each.name: each.value for each in self._record.info.cursorProperties}

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Replace the texts in its record.  Raise ManagedLedgerError."""
        await self._context.run_to_end(lambda: self._set_labels(labels))

    async def _set_labels(self, labels: Mapping[str, str]) -> None:
        async with self._busy:
            self._check()
            info = ManagedCursorInfo()
            info.CopyFrom(self._record.info)
            del info.cursorProperties[:]
            for name, value in sorted(labels.items()):
                info.cursorProperties.add(name=name, value=value)
            try:
                await self._record.store(info)
            except FencedError as error:
                self._give_up(error)
                raise
            except MetadataError as error:
                raise ManagedLedgerError(
                    f"the properties of the cursor {self.name} cannot be stored: {error}"
                ) from error

    async def reset(
        self,
        mark_delete: Position,
        properties: Mapping[str, int] = MappingProxyType({}),
        part: tuple[Position, int] | None = None,
    ) -> None:
        """Forget all acknowledgements and start behind `mark_delete`.  Return when it is durable.

        `properties` are stored in the same step, and so is `part`: an entry, and the bits of its
        messages that are pending.
        """
        self._state.reset(self._ledgers.clip(mark_delete))
        if part is not None and self._is_there(part[0]):
            self._state.ack_part(*part)
        if properties:
            self.properties = {**self.properties, **properties}
            self._new_properties = True
        self._wanted.set()
        await self.flush()

    # -- recording

    async def run(self) -> None:
        """Record changes as they come, while the log is open."""
        while self._error is None:
            with trio.move_on_at(self._snapshot_due_s):
                await self._wanted.wait()
            if self._error is None and self._wanted.is_set() and not self._urgent.is_set():
                # Changes that nobody waits for are collected into one record.
                with trio.move_on_after(self._config().flush_s):
                    await self._urgent.wait()
            if self._error is None:
                await self._record_changes()

    async def _record_changes(self) -> None:
        async with self._busy:
            if self._error is not None:
                return  # It has ended meanwhile, and what the end has taken is not stored.
            # The events are renewed first: a change from here on wants another record.
            self._wanted, self._urgent = trio.Event(), trio.Event()
            goal = self._state.changes
            change = self._state.take_change()
            due = (
                self._renewing
                or self._new_properties
                or trio.current_time() >= self._snapshot_due_s
            )
            if (change is not None or due) and not await self._guarded_write(change):
                return
            self._settle(goal)

    def _settle(self, goal: int) -> None:
        """Note that the first `goal` changes are durable, and wake the callers of `flush`."""
        assert goal <= self._state.changes
        self._recorded = max(self._recorded, goal)
        self._settled.set()
        self._settled = trio.Event()

    async def _guarded_write(self, change: Change | None) -> bool:
        """Record a change; if that fails for good, give the cursor up and return False."""
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
            self._on_lost(str(error))

    async def _write(self, change: Change | None) -> None:
        """Record a change; None means that a snapshot or a new ledger is due."""
        self._check()
        if self._renewing:
            # All cursors of a host are renewed at once, so the number of new ledgers is limited.
            async with self._context.renewals:
                await self._start_ledger()
            return
        full = self._records >= self._config().cursor_roll_records
        if self._writer is None or full:
            await self._start_ledger()
            return
        # A change of version 2 would not help in a ledger that Pulsar misreads already.
        new = self._may_write_2 and not self._old_records
        # A record of version 1 has neither properties nor parts of batches.
        more = self._new_properties or (change is not None and bool(change.parts))
        whole = change is None or (self._snapshot_is_due(change) if new else more)
        if change is None or whole:
            records = self._snapshot()
        elif new:
            holes = encode_holes(self._state.count_of_holes())
            records = [encode_change(change, encode_properties(self.properties), holes)]
            self._new_properties = False
        else:
            records = [encode_change_1(change)]
        mark_delete = self.mark_delete  # as these records have it; it may move while they are sent
        too_large = not whole and len(records[0]) > PART_BYTES_MAX
        if too_large or not await self._append(records):
            # The change was taken out of the state, but the snapshot of the new ledger has it.
            await self._start_ledger()
            return
        # Only now may the log trim up to here: a crash no longer sets the cursor back.
        self._records += len(records)
        self._stored = mark_delete
        self._old_records += sum(map(is_old, records))
        self._count_since_snapshot(0 if whole else self._since_snapshot + 1)

    @property
    def _may_write_2(self) -> bool:
        return self._context.allows(CHANGE_2)

    def _snapshot_is_due(self, change: Change) -> bool:
        """Return True if `change` has to be written as a snapshot."""
        # A seek goes back, and a Pulsar broker, which knows no resets, has to see the new position.
        if change.reset or trio.current_time() >= self._snapshot_due_s:
            return True
        # Without holes each change tells Pulsar everything, and no snapshot is needed.
        limit = self._config().cursor_snapshot_records
        return self._has_holes and self._since_snapshot + 1 >= limit

    @property
    def _has_holes(self) -> bool:
        """True if something above mark-delete is acknowledged."""
        return bool(self._state.acked or self._state.parts)

    def _snapshot(self) -> list[bytes]:
        """Return the whole state as records."""
        version = 2 if self._may_write_2 else 1
        whole_bytes_max = self._config().cursor_snapshot_bytes_max if version == 2 else None
        parts = encode_snapshot(
            self.mark_delete,
            self._state.acked,
            self.properties,
            parts=self._state.parts.sets(),
            version=version,
            whole_bytes_max=whole_bytes_max,
            holes=encode_holes(self._state.count_of_holes()),
        )
        self._state.take_change()  # The snapshot contains it.
        self._new_properties = False
        return parts

    async def _append(self, records: Sequence[bytes]) -> bool:
        """Append records; if they may not be durable, drop the writer and return False."""
        writer = self._writer
        assert writer is not None
        try:
            for record in records:
                writer.append([record])
            await writer.wait_confirmed(writer.last_add_pushed)
        except LedgerError:
            # The records may be durable or not; the next ledger begins with a whole snapshot.
            writer.abandon()
            self._writer = None  # A new ledger follows, if the log has the same owner.
            return False
        return True

    def _count_since_snapshot(self, changes: int) -> None:
        """Note how many changes follow the last snapshot, and set the time of the next one.

        A change is as good as a snapshot while no position above mark-delete is acknowledged.
        """
        if not changes or not self._has_holes or self._old_records:
            self._since_snapshot, self._snapshot_due_s = 0, math.inf
            return
        self._since_snapshot = changes
        if self._snapshot_due_s == math.inf:
            self._snapshot_due_s = trio.current_time() + self._config().cursor_snapshot_s

    async def _start_ledger(self) -> None:
        """Make a whole snapshot durable in a new ledger, and then point the record to it."""
        naming, name = self._ledgers.naming, self._owner.cursor
        while True:
            self._check()
            # The removal of orphans sees the ledger before the record names it.
            naming.add(name)
            # Each attempt takes the state anew: it may have changed while the last one waited.
            mark_delete, properties = self.mark_delete, self.properties
            parts = self._snapshot()
            writer = await self._ledger_with(parts)
            if writer is not None:
                break
            naming.discard(name)
            await self._context.pause()
        old_id, old_writer = self.ledger_id, self._writer
        try:
            # The snapshot is durable.  From here on recovery may read the new ledger.
            self._check()
            await self._point_to(writer.ledger_id, mark_delete, properties)
        except BaseException:
            writer.abandon()
            raise
        finally:
            self._new_writer = None
        assert self.ledger_id == writer.ledger_id
        # After an error the name stays: nobody knows then whether the record names the ledger.
        naming.discard(name)
        self._writer, self._records = writer, 0
        self._old_records, self._renewing = sum(map(is_old, parts)), False
        self._count_since_snapshot(0)
        self._stored = mark_delete
        if old_writer is not None:
            old_writer.abandon()
        # The old ledger is deleted last: until the record points elsewhere, recovery reads it.
        await self._delete_ledger(old_id)

    async def _ledger_with(self, parts: Sequence[bytes]) -> LedgerWriter | None:
        """Return a new ledger in which these records are durable; None if that fails now."""
        context, writer = self._context, None
        try:
            writer = await context.create_ledger(self._config().quorums, self._owner.log, self.name)
            self._new_writer = writer  # `check_stalled` and `abandon` find it here.
            if self._error is not None:  # The cursor was given up meanwhile.
                writer.abandon()
            for part in parts:
                writer.append([part])
            await writer.wait_confirmed(writer.last_add_pushed)
        except (LedgerError, MetadataError):
            if writer is not None:
                writer.abandon()
                await context.delete_ledgers([writer.ledger_id], self._owner)
            return None
        return writer

    async def _delete_ledger(self, ledger_id: int) -> None:
        if ledger_id != IN_RECORD:
            await self._context.delete_ledgers([ledger_id], self._owner)

    async def _point_to(
        self, ledger_id: int, mark_delete: Position, properties: Mapping[str, int]
    ) -> None:
        """Point the record to a ledger, and repeat that while the store refuses.

        The log has the same owner, and an operator may mend the store.  Raise FencedError, or the
        error with which the cursor is given up meanwhile.
        """
        pause_s = _REFUSED_PAUSE_S
        while True:
            pointer = pointing(self._record.info, ledger_id, mark_delete, properties)
            try:
                await self._record.store(pointer)
            except MetadataError as error:
                text = "the cursor %s of %s cannot be stored now, and is tried again: %s"
                _log.warning(text, self.name, self._owner.log, error)
            else:
                return
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _REFUSED_PAUSE_S_MAX)
            self._check()

    # -- records of version 1, which Pulsar misreads

    def check_format(self) -> None:
        """Leave a ledger with records of version 1 if version 2 is allowed.  A timer calls this."""
        if self._old_records and self._may_write_2:
            self._renewing = True
            self._wanted.set()

    async def renew(self) -> None:
        """Leave a ledger with records of version 1, if version 2 is allowed, before `run`.

        Raise ManagedLedgerError, MetadataError.
        """
        if not (self._old_records and self._may_write_2):
            return
        try:
            with trio.fail_after(self._config().stuck_s):
                await self._start_ledger()
        except trio.TooSlowError:
            raise ManagedLedgerError(
                f"the cursor {self.name} of {self._owner.log} needs a new ledger before the topic"
                " can be served, and bookies or metadata store do not answer; try again later"
            ) from None

    def check_stalled(self) -> None:
        """Stop waiting for bookies that a new ledger does not need.  A timer calls this."""
        writer = self._new_writer or self._writer
        if writer is not None and self._watch.may_leave(writer, self._config()):
            writer.abandon()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # -- the record in the metadata store

    async def create(
        self, properties: Mapping[str, str], numbers: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Create the record of a new durable cursor.  Raise FencedError, MetadataError.

        `numbers` are the first `properties` of the cursor; `properties` are texts for people.
        """
        self.properties = dict(numbers)
        info = ManagedCursorInfo(cursorsLedgerId=IN_RECORD)
        set_position(info, self.mark_delete)
        for name, number in sorted(numbers.items()):
            info.properties.add(name=name, value=number)
        for name, value in sorted(properties.items()):
            info.cursorProperties.add(name=name, value=value)
        await self._record.create(info)

    def restore(self, info: ManagedCursorInfo, version: int, old_records: int) -> None:
        """Take over the record that recovery has read.  Its ledger is closed by now."""
        self._record.info, self._record.version = info, version
        self._old_records = old_records

    # -- the end

    async def close(self) -> None:
        """Store everything: in the record if the state is small enough, else as a last snapshot."""
        async with self._busy:
            self._check()
            try:
                await self._store_last()
            finally:
                # A failure ends the cursor, too: its changes were taken out of the state, so `run`
                # would find nothing to write, and would confirm them.
                self.abandon(ClosedError(f"the cursor {self.name} was closed"))

    async def _store_last(self) -> None:
        # Acknowledgements that come while the state is stored are stored by the next round.
        while self.durable and (
            self.ledger_id != IN_RECORD or self._recorded < self._state.changes
        ):
            goal = self._state.changes
            await self._store_whole()
            self._settle(goal)
            if self._writer is not None and self._state.changes == goal:
                # If this fails, the next opening closes the ledger.
                with suppress(LedgerError, MetadataError):
                    await self._writer.close()
                break

    async def _store_whole(self) -> None:
        # Pulsar does not read partly acknowledged entries in the record.
        if (
            self._state.parts
            or self._state.acked.range_count(RANGES_IN_RECORD_MAX) > RANGES_IN_RECORD_MAX
        ):
            await self._start_ledger()
            return
        mark_delete, old_id = self.mark_delete, self.ledger_id
        runs = list(self._state.acked.ranges())
        holes = encode_holes(self._state.count_of_holes())
        whole = folded(self._record.info, mark_delete, runs, self.properties, holes)
        if whole.ByteSize() > RECORD_BYTES_MAX:  # The last record of its ledger is the state then.
            await self._start_ledger()
            return
        self._state.take_change()  # `whole` contains it.
        self._new_properties = False
        await self._record.store(whole)
        self._stored = mark_delete
        self._old_records = 0
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if old_id != IN_RECORD:
            # Nothing names it any more, and the end of a log waits for nothing that it need not.
            self._context.delete_later([old_id], self._owner)

    async def delete(self) -> None:
        """Remove the record, then the ledger.  Raise FencedError, MetadataError."""
        # `run` must write nothing more: it could point the record to a ledger again.
        self.abandon(ClosedError(f"the subscription {self.name} was deleted"))
        async with self._busy:
            await self._record.delete()
            await self._delete_ledger(self.ledger_id)

    def abandon(self, error: ManagedLedgerError) -> None:
        """Record nothing more, and end every pending `flush` with `error`."""
        if self._error is None:
            self._error = error
            for writer in (self._writer, self._new_writer):
                if writer is not None:
                    writer.abandon()
        self._wanted.set()
        self._urgent.set()
        self._settled.set()
        self._settled = trio.Event()


class Cursors:
    """The durable cursors of one log.  `by_name` has the open ones; tasks of the log run them.

    A creation or deletion that has begun continues when its caller stops waiting.
    """

    def __init__(
        self,
        context: LogContext,
        ledgers: LedgerList,
        config: Callable[[], LogConfig],
        on_lost: Callable[[str], None],
    ) -> None:
        self.by_name: dict[str, Cursor] = {}
        self._new: Cursor | None = None  # being created
        self._context = context
        self._ledgers = ledgers
        self._config = config
        self._on_lost = on_lost
        self._lock = trio.Lock()  # one creation or deletion at a time

    def held_from(self) -> list[Position]:
        """Return the position behind which each cursor needs the log."""
        # A cursor that is being created holds ledgers before it is stored: they may be trimmed now.
        new = () if self._new is None else (self._new,)
        return [cursor.held_from for cursor in (*self.by_name.values(), *new)]

    @property
    def writers(self) -> list[LedgerWriter]:
        """The writers of the cursors' ledgers."""
        writers = [cursor.writer for cursor in self.by_name.values()]
        return [writer for writer in writers if writer is not None]

    def new(
        self,
        name: str,
        mark_delete: Position,
        *,
        durable: bool,
        acked: AckSet | None = None,
        partial: Mapping[Position, int] = MappingProxyType({}),
        holes: HoleCount | None = None,
    ) -> Cursor:
        """Return a cursor at the nearest position to `mark_delete` where one may stand."""
        return Cursor(
            self._context,
            self._ledgers,
            self._config,
            self._on_lost,
            name,
            self._ledgers.clip(mark_delete),
            durable=durable,
            acked=acked,
            partial=partial,
            holes=holes,
        )

    async def open(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, str],
        numbers: Mapping[str, int] = MappingProxyType({}),
    ) -> Cursor:
        """Return the cursor of that name; a new one starts behind `initial`."""
        check_cursor_name(name)
        return await self._context.run_to_end(
            lambda: self._open(name, initial, properties, numbers)
        )

    async def _open(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, str],
        numbers: Mapping[str, int],
    ) -> Cursor:
        async with self._lock:
            cursor = self.by_name.get(name)
            if cursor is None:
                cursor = await self._create(name, initial, properties, numbers)
                self.adopt(cursor)
            return cursor

    async def _create(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, str],
        numbers: Mapping[str, int],
    ) -> Cursor:
        cursor = self._new = self.new(name, initial, durable=True)
        try:
            await cursor.create(properties, numbers)
        except FencedError as error:
            self._on_lost(str(error))
            raise
        except RecordExistsError:  # A creation whose outcome was unknown has made it.
            return await self.recover(url_encode(name))
        finally:
            self._new = None
        return cursor

    async def recover(self, encoded: str) -> Cursor:
        """Return the durable cursor whose record has the name `encoded`.

        This fences the cursor's ledger, so the log must have its list before.  Raise
        ManagedLedgerError, LedgerError.
        """
        owner = LedgerOwner(self._ledgers.owner.log, encoded)
        path = f"{self._ledgers.path}/{encoded}"
        info, version = await read_record(self._ledgers, encoded)
        try:
            name = url_decode(encoded)
        except WireError as error:
            raise LogCorruptError(f"{path}: {error}") from error
        if url_encode(name) != encoded:
            raise LogCorruptError(
                f"the record {path} is not the record of a cursor: its name is not encoded as"
                " Pulsar does"
            )
        lengths = self._ledgers.lengths
        recovered = await recover_state(self._context, owner, info, lengths)
        assert recovered.mark_delete is not None
        acked = recovered.acked
        # An entry that is appended later was not acknowledged by any client.
        acked.keep_within(lengths)
        partial = {
            position: left
            for position, left in recovered.partial.items()
            if position.entry_id < lengths.get(position.ledger_id, 0)
        }
        cursor = self.new(
            name,
            recovered.mark_delete,
            durable=True,
            acked=acked,
            partial=partial,
            holes=recovered.holes,
        )
        cursor.properties = recovered.properties
        cursor.restore(info, version, recovered.old_records)
        return cursor

    def adopt(self, cursor: Cursor) -> None:
        """Run a cursor that was created or recovered."""
        assert cursor.name not in self.by_name
        self.by_name[cursor.name] = cursor
        self._context.tasks.start_soon(cursor.run)

    async def delete(self, name: str) -> None:
        await self._context.run_to_end(lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self._lock:
            cursor = self.by_name.get(name)
            if cursor is None:
                return
            try:
                await cursor.delete()
            except FencedError as error:
                self._on_lost(str(error))
                raise
            # Only now: until its record is gone the cursor holds ledgers.
            del self.by_name[name]

    async def close(self) -> None:
        """Store the state of all cursors.  Raise the first error after all have tried."""
        errors: list[Exception] = []
        limiter = trio.CapacityLimiter(_CLOSED_AT_ONCE)

        async def close(cursor: Cursor) -> None:
            async with limiter:
                try:
                    await cursor.close()
                except (ManagedLedgerError, MetadataError) as error:
                    errors.append(error)

        async def close_all() -> None:
            async with trio.open_nursery() as nursery:
                for cursor in list(self.by_name.values()):
                    nursery.start_soon(close, cursor)

        await self._context.run_to_end(close_all)
        for error in errors:
            if isinstance(error, FencedError):
                self._on_lost(str(error))
        if errors:
            raise errors[0]

    def abandon(self, error: ManagedLedgerError) -> None:
        for cursor in self.by_name.values():
            cursor.abandon(error)
