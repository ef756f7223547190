"""A log that is open: append, read, roll over, trim.  The shell of `protocol.log`.

Appends are synchronous and pipelined; `done` is called for each, in order, in the trio thread,
when the entry is confirmed.  In front of each payload the log puts broker entry metadata: the time,
and the offset of the entry's last message.

Once another owner may have taken the log over, everything that is not confirmed ends with
FencedError, which says *in doubt*, and `on_fenced` is told.  The handle is of no use after that.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import assert_never

import trio

from bookie.errors import LedgerError
from bookie.ledger.writer import LedgerWriter
from managed_ledger.appends import Appends, Done, Pending
from managed_ledger.context import LogConfig, LogContext
from managed_ledger.cursor import Cursor
from managed_ledger.cursors import Cursors
from managed_ledger.errors import ClosedError, FencedError, ManagedLedgerError, TerminatedError
from managed_ledger.ledger_list import LedgerList, Row, set_sealed
from managed_ledger.position import Position
from managed_ledger.protocol import trim
from managed_ledger.protocol.log import (
    Append,
    Confirmed,
    Create,
    CreateFailed,
    Effect,
    Event,
    Fence,
    Listed,
    LogProtocol,
    Lost,
    RollDue,
    Seal,
    Sealed,
    State,
    Stop,
    Submit,
    Switch,
)
from managed_ledger.reading import LogEntry, LogReader
from managed_ledger.records import (
    custom_metadata,
    get_property,
    nested,
    position_of,
    set_property,
)
from managed_ledger.records_pb2 import ManagedLedgerInfo
from wire.batch import broker_entry_metadata
from wire.metadata.store import MetadataError
from wire.transport import Buffer

__all__ = ["Done", "LogEntry", "ManagedLedger", "create_ledger"]

_CREATE_RETRY_S = 1.0


class ManagedLedger:
    """See `managed_ledger.open`.  `cursors` are the durable ones, by name."""

    def __init__(
        self,
        name: str,
        context: LogContext,
        config: LogConfig,
        ledgers: LedgerList,
        writer: LedgerWriter,
        next_offset: int,
    ) -> None:
        self.name = name
        self.config = config
        self.ledgers = ledgers
        self.owned_from = writer.ledger_id  # the ledger that our opening has put on the list
        self.next_offset = next_offset
        self.appended_entries = 0
        self.appended_bytes = 0
        self.fenced: FencedError | None = None
        self.on_fenced: Callable[[], None] = _nothing
        self.counted: dict[int, array[int]] = {}  # offsets of entries that do not say theirs
        self._context = context
        self._cursors = Cursors(self)
        self._appends = Appends()
        self._protocol = LogProtocol()
        self._refused: ManagedLedgerError | None = None  # why no appends are taken
        self._writer = writer
        self._opened_s = trio.current_time()
        self._healed_s = -config.heal_interval_s
        self._next: LedgerWriter | None = None
        self._previous: tuple[LedgerWriter, Row] | None = None
        self._writers = {writer.ledger_id: writer}  # of ledgers that are not closed
        self._reader = LogReader(context, ledgers, self._writers)
        self._confirmed_offset = next_offset - 1
        self._last_confirmed = ledgers.previous_position(Position(writer.ledger_id, 0))
        self._grown = trio.Event()
        self._room = trio.Event()
        if ledgers.info.HasField("terminatedPosition"):
            self._refused = TerminatedError(f"{name} was terminated")
        self._listen(writer)

    # -- what there is

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self._cursors.by_name

    @property
    def context(self) -> LogContext:
        return self._context

    @property
    def state(self) -> State:
        return self._protocol.state

    @property
    def usable(self) -> bool:
        """Neither closed nor given up nor fenced."""
        return self._protocol.usable

    @property
    def terminated(self) -> Position | None:
        """The last position of a terminated log, else None."""
        info = self.ledgers.info
        return position_of(info.terminatedPosition) if info.HasField("terminatedPosition") else None

    def get_property(self, key: str) -> str | None:
        """A property of the list; it outlives this handle."""
        return get_property(self.ledgers.info.properties, key)

    @property
    def last_confirmed(self) -> Position:
        """The last entry that readers see; (first ledger, -1) of an empty log."""
        return self._last_confirmed

    @property
    def confirmed_offset(self) -> int:
        """The offset of the last confirmed message; -1 if there never was one."""
        return self._confirmed_offset

    @property
    def before_first(self) -> Position:
        """The position before the first retained entry: what `earliest` starts behind."""
        return Position(self.ledgers.ids[0], -1)

    @property
    def pending_bytes(self) -> int:
        """Of appends that are not confirmed."""
        return self._appends.bytes

    @property
    def size_bytes(self) -> int:
        return sum(row.bytes for row in self.ledgers.rows) + self._writer.length

    @property
    def current_ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def current_entries(self) -> int:
        return self._writer.last_add_confirmed + 1

    @property
    def waiting_for(self) -> str:
        """Why nothing is confirmed, in words; empty while all is well."""
        return self._writer.waiting_for

    # -- appending

    def append(self, payload: Sequence[Buffer], messages: int, done: Done) -> None:
        """Append one entry that holds `messages` messages.  Never waits; see `wait_room`.

        The buffers must not change until `done` was called.
        """
        if self._refused is not None or not self._protocol.usable:
            done(None, self.fenced or self._refused or ClosedError(f"{self.name} was closed"))
            return
        self.next_offset += messages
        head = broker_entry_metadata(self._context.clock.now_ms(), self.next_offset - 1)
        buffers = [head, *payload]
        size = sum(map(len, buffers))
        self._appends.take(Pending(buffers, size, self.next_offset - 1, done))
        self._feed(Append())

    async def wait_room(self) -> None:
        """Return when little enough is pending; at once if the log is of no use any more."""
        while self.pending_bytes > self.config.pending_bytes_max and self._protocol.usable:
            await self._room.wait()

    def _submit(self, count: int) -> None:
        for _ in range(count):
            entry = self._appends.submit()
            if entry is None:
                return
            try:
                self._writer.append(entry.buffers)
            except LedgerError as error:
                self.lost(str(error))
                return

    def _confirmed(self, writer: LedgerWriter, first: int, last: int) -> None:
        if writer is not self._writer:
            return
        cached = self._reader.tailing
        for entry_id in range(first, last + 1):
            if not self._protocol.usable:  # Whoever was told of the one before has given up.
                return
            entry = self._appends.confirm()
            self.appended_entries += 1
            self.appended_bytes += entry.bytes
            self._confirmed_offset = entry.last_offset
            position = self._last_confirmed = Position(writer.ledger_id, entry_id)
            if cached:
                self._context.cache.put(position, b"".join(entry.buffers))
            entry.done(position, None)
        self._feed(Confirmed(last - first + 1))
        self._wake()
        self._check_roll()

    def _wake(self) -> None:
        if self._grown.statistics().tasks_waiting:
            self._grown.set()
            self._grown = trio.Event()
        if self._room.statistics().tasks_waiting:
            self._room.set()
            self._room = trio.Event()

    # -- the machine

    def _feed(self, event: Event) -> None:
        for effect in self._protocol.step(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Submit(count):
                self._submit(count)
            case Create():
                self._context.nursery.start_soon(self._create_next)
            case Switch():
                self._switch()
            case Seal():
                self._context.nursery.start_soon(self._seal_previous)
            case Fence(reason):
                self._fail(FencedError(f"{self.name}: {reason}"))
            case _:
                assert_never(effect)

    def _listen(self, writer: LedgerWriter) -> None:
        def confirmed(first: int, last: int) -> None:
            self._confirmed(writer, first, last)

        writer.set_listener(confirmed, lambda error: self.lost(str(error)))

    def lost(self, reason: str) -> None:
        """The log is somebody else's, or may be."""
        self._feed(Lost(reason))

    def _fail(self, error: FencedError) -> None:
        """The end: nothing that waits will be confirmed by this handle."""
        self.fenced = error
        self.ledgers.stop(error)
        self._drop(error)
        self.on_fenced()

    def _drop(self, error: ManagedLedgerError) -> None:
        previous = None if self._previous is None else self._previous[0]
        for writer in (self._writer, self._next, previous):
            if writer is not None:
                writer.abandon()
        self._cursors.abandon(error)
        self._appends.fail(error)
        self._wake()

    # -- rolling over

    def check_roll(self) -> None:
        """For a timer: is the present ledger old, or could it be healthier?"""
        self._check_roll()

    def _check_roll(self) -> None:
        if self._protocol.state is not State.OPEN or self._refused is not None:
            return
        now, config, writer = trio.current_time(), self.config, self._writer
        entries = writer.last_add_confirmed + 1
        full = entries >= config.roll_entries or writer.length >= config.roll_bytes
        old = entries > 0 and now - self._opened_s >= config.roll_age_s
        if not full and not old:
            rested = now - self._healed_s >= config.heal_interval_s
            if not (writer.under_replicated and rested and writer.replaceable):
                return
            self._healed_s = now
        self._feed(RollDue())

    def roll(self) -> None:
        """Go over to a new ledger as soon as that is possible."""
        self._feed(RollDue())

    async def _create_next(self) -> None:
        try:
            writer = await create_ledger(self._context, self.name, self.config)
        except (LedgerError, MetadataError):
            await self._create_failed()
            return

        def add(info: ManagedLedgerInfo) -> None:
            info.ledgerInfo.add(ledgerId=writer.ledger_id, timestamp=0)

        try:
            await self._update(add)
        except ManagedLedgerError:
            writer.abandon()
            if not self.ledgers.doubtful:
                await self._context.forget([writer.ledger_id])
            return
        except MetadataError:
            writer.abandon()
            await self._context.forget([writer.ledger_id])
            await self._create_failed()
            return
        if not self._protocol.usable:
            writer.abandon()
            return
        self._next = writer
        self._listen(writer)
        self._feed(Listed())

    async def _create_failed(self) -> None:
        await trio.sleep(_CREATE_RETRY_S)
        self._feed(CreateFailed())
        self._wake()

    async def _update(self, change: Callable[[ManagedLedgerInfo], None]) -> None:
        """Change the list.  ManagedLedgerError, MetadataError."""
        try:
            await self.ledgers.update(change, self._confirmed_offset + 1)
        except FencedError as error:
            self.lost(str(error))
            raise

    def _switch(self) -> None:
        assert self._next is not None
        old = self._writer
        row = Row(
            old.ledger_id,
            old.last_add_confirmed + 1,
            old.length,
            self._context.clock.now_ms(),
            self._confirmed_offset if old.last_add_confirmed >= 0 else None,
        )
        self.ledgers.seal(row)
        self._previous = (old, row)
        self._writer, self._next = self._next, None
        self._writers[self._writer.ledger_id] = self._writer
        self._opened_s = trio.current_time()

    async def _seal_previous(self) -> None:
        assert self._previous is not None
        writer, row = self._previous
        while True:
            try:
                await writer.close()
                await self._update(lambda info: set_sealed(info, row))
                break
            except MetadataError:
                await self._context.pause()
            except ManagedLedgerError:
                return
            except LedgerError as error:
                self.lost(str(error))
                return
            if not self._protocol.usable:
                return
        self._previous = None
        del self._writers[row.ledger_id]
        self._feed(Sealed())
        self._wake()
        if not row.entries:
            await self._context.forget([row.ledger_id])
        with suppress(ManagedLedgerError, MetadataError):  # It is tried again, after the next roll.
            await self.trim()

    # -- reading

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Entries from `start` on: at least one if there is one, and at most what one ledger has.

        Raises LedgerError if a bookie could not be read from; never skips an entry that exists.
        """
        return await self._reader.read(
            self.ledgers.entry_at(start),
            self._last_confirmed,
            max_entries=max_entries,
            max_bytes=max_bytes,
            shared=len(self.cursors) > 1,
        )

    async def wait_appended(self, after: Position) -> None:
        """Return when there is something behind `after`.  Raises if the log has ended."""
        self._reader.expect()
        while self._last_confirmed <= after:
            if not self._protocol.usable:
                raise self.fenced or ClosedError(f"{self.name} was closed")
            await self._grown.wait()

    # -- positions

    def next_position(self, position: Position) -> Position:
        return self.ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        return self.ledgers.previous_position(position)

    def entries_between(self, after: Position, through: Position) -> int:
        return self.ledgers.entries_between(max(after, self.before_first), through)

    # -- cursors

    async def open_cursor(
        self, name: str, *, initial: Position, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        """The durable cursor of that name; a new one begins behind `initial`."""
        return await self._cursors.open(name, initial, properties or {})

    def adopt(self, cursor: Cursor) -> None:
        """A durable cursor that was recovered belongs to the log from here on."""
        self._cursors.adopt(cursor)

    def new_volatile_cursor(self, name: str, initial: Position) -> Cursor:
        """A cursor that is never stored and does not hold back trimming."""
        return Cursor(self, name, self._cursors.clip(initial), durable=False)

    async def delete_cursor(self, name: str) -> None:
        await self._cursors.delete(name)

    def check(self) -> None:
        """Raise if the log is of no use any more."""
        if not self._protocol.usable:
            raise self.fenced or ClosedError(f"{self.name} was closed")

    # -- trimming, and the end

    async def trim(self) -> list[int]:
        """Drop the ledgers that nobody needs; return their ids.  The list first, the data after."""
        self.check()
        rows = [r for r in self.ledgers.rows if r.ledger_id < self._writer.ledger_id]
        if self._previous is not None:
            rows = [r for r in rows if r.ledger_id != self._previous[1].ledger_id]
        sealed = [trim.Sealed(r.ledger_id, r.entries, r.bytes, r.closed_ms) for r in rows]
        held = [cursor.held_from for cursor in self.cursors.values()]
        gone = trim.trimmable(sealed, held, self.config.retention, self._context.clock.now_ms())
        if gone:

            def cut(info: ManagedLedgerInfo) -> None:
                kept = [ledger for ledger in info.ledgerInfo if ledger.ledgerId not in gone]
                del info.ledgerInfo[:]
                info.ledgerInfo.extend(kept)

            await self._update(cut)
            for ledger_id in gone:
                self._reader.forget(ledger_id)
            await self._context.forget(gone)
        return gone

    async def set_property(self, key: str, value: str) -> None:
        """Durable when it returns.  ManagedLedgerError, MetadataError."""
        self.check()
        await self._update(lambda info: set_property(info, key, value))

    async def terminate(self) -> Position:
        """Take no more appends, ever; the position of the last entry.  Repeating it is fine."""
        self.check()
        if self.terminated is None:
            before, self._refused = self._refused, TerminatedError(f"{self.name} was terminated")
            await self._drained()
            end = nested(self._last_confirmed)
            try:
                await self._update(lambda info: info.terminatedPosition.CopyFrom(end))
            except MetadataError:
                self._refused = before
                raise
        assert self.terminated is not None
        return self.terminated

    async def close(self) -> None:
        """A clean hand-over: what is pending is confirmed, cursors stored, the ledger closed.

        It waits for bookies and metadata store as long as it takes.  Whoever stops waiting, or gets
        an error, abandons the log: that is not clean, and loses nothing.
        """
        self._refused = self._refused or ClosedError(f"{self.name} is being closed")
        await self._drained()
        error = await self._cursors.close()
        self.check()
        self._feed(Stop())
        self.ledgers.stop(ClosedError(f"{self.name} was closed"))
        self._wake()
        with suppress(LedgerError, MetadataError):  # Whoever opens the log next closes it then.
            await self._writer.close()
        self._drop(ClosedError(f"{self.name} was closed"))
        if error is not None:
            raise error

    async def clear(self) -> list[int]:
        """Drop cursors and list, as the first part of deletion; the ids of the ledgers."""
        self.check()
        self._refused = self._refused or ClosedError(f"{self.name} is being deleted")
        for name in list(self.cursors):
            await self.delete_cursor(name)
        doomed = list(self.ledgers.ids)
        await self._update(lambda info: info.ClearField("ledgerInfo"))
        self.abandon()
        return doomed

    async def _drained(self) -> None:
        """Nothing is pending, and no roll goes on."""
        while self._protocol.usable and (
            self.pending_bytes or self._protocol.state is not State.OPEN
        ):
            await self._grown.wait()
        self.check()

    def abandon(self) -> None:
        """Stop at once and touch nothing: the session is lost, or the host goes down."""
        if self._protocol.usable:
            error = FencedError(f"{self.name} was given up by its owner")
            self._feed(Stop())
            self.ledgers.stop(error)
            self._drop(error)


async def create_ledger(context: LogContext, name: str, config: LogConfig) -> LedgerWriter:
    """A ledger for the data of a log."""
    return await context.client.create(config.quorums, custom=custom_metadata(name))


def _nothing() -> None:
    """Nobody wants to hear of it."""
