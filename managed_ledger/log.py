"""A log that is open: append and read.  The shell of `protocol.log`.

Appends are synchronous and pipelined; `done` is called for each, in order, in the trio thread,
when the entry is confirmed, and `on_confirmed` when the end has moved.  In front of each payload
the log puts broker entry metadata: the time, and the offset of the entry's last message.

Once another owner may have taken the log over, everything that is not confirmed ends with
FencedError, which says *in doubt*, and `on_fenced` is told.  The handle is of no use after that.
So it is when the present ledger gets no ack quorum for long and a new one could (`stuck`).

Its ledgers are those of `rolling`, which go again by `trimming`; its cursors are in `cursors`; how
it ends is in `ending`.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.appends import Appends, Done, Pending
from daybook.managed_ledger.behind import Behind, behind
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.cursors import Cursors
from daybook.managed_ledger.ending import Ending
from daybook.managed_ledger.errors import (
    ClosedError,
    EntryTooLargeError,
    FencedError,
    ListFullError,
    ManagedLedgerError,
)
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.log import (
    Append,
    Confirmed,
    Create,
    Effect,
    Event,
    Fence,
    LogProtocol,
    Lost,
    RollDue,
    Seal,
    State,
    Submit,
    Switch,
)
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.reading import LogEntry, LogReader
from daybook.managed_ledger.records import get_property, position_of, set_property
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.managed_ledger.rolling import APPEND_ENTRIES_MAX, Rolling
from daybook.managed_ledger.stuck import Leaving
from daybook.managed_ledger.trimming import Trimming
from daybook.wire.batch import broker_entry_metadata
from daybook.wire.transport import Buffer

_MAKE_ROOM = (
    "Acknowledge what subscriptions hold back, delete subscriptions that nobody uses, or shorten"
    " the retention of the namespace (`daybook topics retention`)"
)


class ManagedLedger:
    """See `managed_ledger.open`.  `cursors` are the durable ones, by name.

    All that it runs, and all that it writes to the metadata store, runs in the nursery of its
    context, which ends with it: nothing is sent after that.
    """

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
        self.context = context
        self.config = config
        self.ledgers = ledgers
        self.owned_from = writer.ledger_id  # the ledger that our opening has put on the list
        self.next_offset = next_offset
        self.appended_entries = 0
        self.appended_bytes = 0
        self.fenced: FencedError | None = None
        self.on_fenced: Callable[[], None] = _nothing
        self.on_confirmed: Callable[[], None] = _nothing
        self.counted: dict[int, array[int]] = {}  # offsets of entries that do not say theirs
        self._cursors = Cursors(self)
        self._appends = Appends()
        self._protocol = LogProtocol()
        self._rolling = Rolling(self, writer)
        self._writer = writer  # of the present ledger
        self._reader = LogReader(context, ledgers, self._rolling.by_id)
        self._leaving = Leaving(self)
        self._trimming = Trimming(self, self._rolling, self._cursors, self._reader)
        self._ending = Ending(self, self._rolling, self._cursors, self._appends)
        self._confirmed_offset = next_offset - 1
        self._opened_behind = Position(writer.ledger_id, -1), next_offset - 1
        self._last_confirmed = ledgers.previous_position(Position(writer.ledger_id, 0))
        self._grown = trio.Event()
        self._has_room = trio.Event()
        self.room = Room(ledgers.bytes, config.list_bytes_max)  # of the list of ledgers
        self._full: ListFullError | None = None
        self._look_at_room()
        self.listen(writer)

    # -- what there is

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self._cursors.by_name

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
    def opened_behind(self) -> tuple[Position, int]:
        """The place behind which this handle appends, and the offset of the message before it."""
        return self._opened_behind

    def behind(self, position: Position) -> Behind:
        """How much lies behind `position`, up to the last confirmed entry."""
        return behind(self, position)

    @property
    def before_first(self) -> Position:
        """The position before the first retained entry: what `earliest` starts behind."""
        return self.ledgers.before_first

    @property
    def pending_bytes(self) -> int:
        """Of appends that are not confirmed."""
        return self._appends.bytes

    @property
    def size_bytes(self) -> int:
        return self.ledgers.bytes_from_row(0) + self.current_bytes

    @property
    def current_bytes(self) -> int:
        return self._writer.length

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
        refused = self._ending.refused or self._full
        if refused is not None or not self._protocol.usable:
            done(None, self.fenced or refused or ClosedError(f"{self.name} was closed"))
            return
        last_offset = self.next_offset + messages - 1
        head = broker_entry_metadata(self.context.clock.now_ms(), last_offset)
        buffers = [head, *payload]
        size = sum(map(len, buffers))
        size_max = self._writer.payload_bytes_max
        if size > size_max:
            done(None, EntryTooLargeError(f"an entry of {size} bytes; at most {size_max} fit"))
            return
        self.next_offset += messages
        self._appends.take(Pending(buffers, size, self.next_offset - 1, done))
        self._feed(Append())

    async def wait_room(self) -> None:
        """Return when little enough is pending; at once if the log is of no use any more."""
        room_bytes = self.config.pending_bytes_max
        while self._appends.held_bytes > room_bytes and self._protocol.usable:
            await self._has_room.wait()

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
                self.context.cache.put(position, b"".join(entry.buffers))
            entry.done(position, None)
        self.on_confirmed()
        self._feed(Confirmed(last - first + 1))
        self.wake()
        self._check_roll()

    def wake(self) -> None:
        """Whoever waits looks again."""
        if self._grown.statistics().tasks_waiting:
            self._grown.set()
            self._grown = trio.Event()
        if self._has_room.statistics().tasks_waiting:
            self._has_room.set()
            self._has_room = trio.Event()

    # -- the machine

    def feed(self, event: Event) -> None:
        """For those that carry out what the machine asks for."""
        self._feed(event)
        self.wake()

    def _feed(self, event: Event) -> None:
        for effect in self._protocol.step(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Submit(count):
                self._submit(count)
            case Create():
                self.context.nursery.start_soon(self._rolling.create_next)
            case Switch():
                self._rolling.switch()
                self._writer = self._rolling.present
            case Seal():
                self.context.nursery.start_soon(self._rolling.seal_previous)
            case Fence(reason):
                self.fenced = FencedError(f"{self.name}: {reason}")
                self._ending.drop(self.fenced)
                self.on_fenced()
            case _:
                assert_never(effect)

    def listen(self, writer: LedgerWriter) -> None:
        """Hear of what the writer confirms."""

        def confirmed(first: int, last: int) -> None:
            self._confirmed(writer, first, last)

        writer.set_listener(confirmed, lambda error: self.lost(str(error)))

    def lost(self, reason: str) -> None:
        """The log is somebody else's, or may be; or it has to be opened anew."""
        self._feed(Lost(reason))

    # -- rolling over

    def check_roll(self) -> None:
        """For a timer: is the present ledger old, could it be healthier, or is it, or that of a
        cursor, stuck, or in an old format?
        """
        self._look_at_room()
        self._check_roll()
        self._leaving.check(self._writer)
        for cursor in self.cursors.values():
            cursor.check_stuck()
            cursor.check_format()

    def _check_roll(self) -> None:
        if self.current_entries >= APPEND_ENTRIES_MAX:
            self._look_at_room()
        if self._protocol.state is State.OPEN and self._ending.refused is None:
            self._rolling.check()

    def unclosed(self) -> list[LedgerWriter]:
        """The present ledger, and all others that whoever opens the log next has to recover."""
        return [*self._rolling.unclosed, *self._cursors.writers]

    def roll(self) -> None:
        """Go over to a new ledger as soon as that is possible, unless the list is too full."""
        if self.room.allows_roll:
            self._feed(RollDue())

    async def update_list(
        self,
        change: Callable[[ManagedLedgerInfo], None],
        *,
        last: ManagedLedgerError | None = None,
    ) -> None:
        """Change the list.  ManagedLedgerError, MetadataError."""
        try:
            await self.ledgers.update(change, self._confirmed_offset + 1, last=last)
        except FencedError as error:
            self.lost(str(error))
            raise
        self._look_at_room()

    # -- room on the list

    @property
    def full(self) -> str:
        """Why no append is taken, in words, if the list of ledgers is full; else empty."""
        return "" if self._full is None else str(self._full)

    def _look_at_room(self) -> None:
        """The list has changed, or the settings may have."""
        room = self.room = Room(self.ledgers.bytes, self.config.list_bytes_max)
        if not room.allows_append:
            self._full = ListFullError(
                f"{self.name}: its list of {len(self.ledgers.ids)} ledgers takes {room.bytes}"
                f" bytes, of at most {room.bytes_max}: nothing is appended until ledgers leave it."
                f" {_MAKE_ROOM}"
            )
        elif self.current_entries >= APPEND_ENTRIES_MAX and not room.allows_roll:
            self._full = ListFullError(
                f"{self.name}: ledger {self._writer.ledger_id} is full, and its list of ledgers has"
                f" no room for another one ({room.bytes} bytes, of at most {room.bytes_max})."
                f" {_MAKE_ROOM}"
            )
        else:
            self._full = None

    # -- reading

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Entries from `start` on: at least one if there is one, and at most what one ledger has.

        LedgerError if it could not be read; never skips an entry that exists.
        """
        return await self._reader.read(
            self.ledgers.entry_at(start),
            self._last_confirmed,
            max_entries=max_entries,
            max_bytes=max_bytes,
            shared=len(self.cursors) > 1,
        )

    async def wait_changed(self) -> None:
        """Return when entries were confirmed, or the state may be another one."""
        await self._grown.wait()

    async def wait_appended(self, after: Position) -> None:
        """Return when there is something behind `after`.  Raises if the log has ended."""
        self._reader.expect()
        while self._last_confirmed <= after:
            self.check()
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
        """The durable cursor of that name; a new one begins behind `initial`.

        InvalidNameError for a name that no cursor can have.
        """
        return await self._cursors.open(name, initial, properties or {})

    def adopt(self, cursor: Cursor) -> None:
        """A durable cursor that was recovered belongs to the log from here on."""
        self._cursors.adopt(cursor)

    def new_volatile_cursor(self, name: str, initial: Position) -> Cursor:
        """A cursor that is never stored and does not hold back trimming."""
        return Cursor(self, name, self.clip(initial), durable=False)

    def clip(self, mark_delete: Position) -> Position:
        """The nearest position where a cursor may stand."""
        floor = self.ledgers.floor(min(mark_delete, self._last_confirmed))
        return max(floor, self.ledgers.before_first)

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
        return await self._trimming.run()

    async def set_property(self, key: str, value: str) -> None:
        """Durable when it returns.  ManagedLedgerError, MetadataError."""
        self.check()
        await self.update_list(lambda info: set_property(info, key, value))

    async def terminate(self) -> Position:
        """Take no more appends, ever; the position of the last entry.  Repeating it is fine.

        What was begun goes on if whoever asked for it stops waiting.
        """
        return await self._ending.terminate()

    async def close(self) -> None:
        """A clean hand-over: what is pending is confirmed, cursors stored, the ledger closed.

        ManagedLedgerError if bookies and metadata store do not allow that in `close_s`: the log is
        abandoned then, which is not clean, and loses nothing.
        """
        await self._ending.close()

    async def clear(self) -> list[int]:
        """Drop cursors and list, as the first part of deletion; the ids of the ledgers."""
        return await self._ending.clear()

    def abandon(self) -> None:
        """Stop at once and touch nothing: the session is lost, or the host goes down."""
        self._ending.abandon()


def _nothing() -> None:
    """Nobody wants to hear of it."""
