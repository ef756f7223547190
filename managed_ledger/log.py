"""A managed ledger that is open: append, read, roll over, trim, close.  The shell of
`protocol.log`.

Appends are synchronous and pipelined.  `done` is called for each append, in order and in the trio
thread, when its entry is confirmed; `on_confirmed` is called when the last confirmed entry has
moved.  The log puts broker entry metadata in front of each payload: the time, and the offset of
the entry's last message.

Once another owner may have taken the log over, every append that is not confirmed ends with
FencedError, which means *in doubt*, and `on_fenced` is called.  The handle cannot be used any more.
The same happens when the present ledger gets no ack quorum for long and a new ledger could get one
(`leaving`).

`protocol.log` decides the order of a rollover; this module creates ledgers and lists them, closes
full ones, and asks for a rollover when `leaving` says that one is due.  `cursor` has the cursors,
`reading` the reads, `ledger_list` the list of ledgers and all arithmetic on positions.
"""

import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import assert_never

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import ALWAYS_TAKEN_BYTES, LedgerWriter
from daybook.managed_ledger.ack_set import ENTRIES_MAX
from daybook.managed_ledger.behind import Behind, EntryStart, LogEnd, behind
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursor import Cursor, Cursors
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.errors import (
    ClosedError,
    EntryTooLargeError,
    FencedError,
    ListFullError,
    ManagedLedgerError,
    TerminatedError,
)
from daybook.managed_ledger.leaving import Leaving
from daybook.managed_ledger.ledger_list import LedgerList, drop, put_on_list, set_sealed
from daybook.managed_ledger.no_ledger import NoLedger
from daybook.managed_ledger.pending_adds import Done, PendingAdd, PendingAdds
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.log import (
    Create,
    Effect,
    Fence,
    LogProtocol,
    LogState,
    Seal,
    Submit,
    Switch,
)
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.protocol.trim import Retention, SealedLedger, trimmable
from daybook.managed_ledger.reading import LogEntry, LogReader
from daybook.managed_ledger.records import (
    get_property,
    nested,
    position_of,
    properties_of,
    set_properties,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.managed_ledger.sinks.progress import held_by_sinks
from daybook.managed_ledger.traffic import TrafficMeter
from daybook.wire.batch import broker_entry_metadata
from daybook.wire.entry import Entry
from daybook.wire.metadata.store import MetadataError
from daybook.wire.transport import Buffer
from daybook.wire.weakly import weakly

_log = logging.getLogger(__name__)
# Beyond this a ledger takes no new appends; what is pending still has room.
APPEND_ENTRIES_MAX = ENTRIES_MAX // 8 * 7
# An entry takes so many more bytes in a compacted ledger: a head, and a longer digest.
COMPACTED_MORE_BYTES = 64
_CREATE_RETRY_S = 1.0
_MAKE_ROOM = (
    "Acknowledge what subscriptions hold back, delete subscriptions that nobody uses, or shorten"
    " the retention of the namespace (`daybook topics retention`)"
)


class ManagedLedger:
    """One open log; `managed_ledger.open` makes it.  `cursors` are the durable ones, by name.

    A log that is made without a `writer` is idle: the first append creates its ledger.

    Everything that the log runs, and everything that it writes to the metadata store, runs in the
    tasks of its context.  These end with the log, so nothing is sent after that.
    """

    def __init__(
        self,
        name: str,
        context: LogContext,
        config: LogConfig,
        ledgers: LedgerList,
        writer: LedgerWriter | None,
        next_offset: int,
    ) -> None:
        self.name = name
        self.context = context
        self.config = config  # the broker replaces it when policies change
        self.ledgers = ledgers
        present = NoLedger(ledgers.sealed[-1]) if writer is None else writer
        # The ledger that this opening put on the list, or the last one before it.
        self.owned_from = present.ledger_id
        self.next_offset = next_offset
        self.appended_entries = 0
        self.fenced: FencedError | None = None
        self.on_fenced: Callable[[], None] = _nothing
        self.on_confirmed: Callable[[], None] = _nothing
        self.on_bug: Callable[[Exception], None] = _ignore  # called before `on_fenced`
        self.counted_offsets: dict[int, array[int]] = {}  # by ledger; see `offsets`
        self._stored_ms = 0  # the time of the last append
        self._protocol = LogProtocol(idle=writer is None)
        self._adds = PendingAdds()
        self.traffic = TrafficMeter(context.write_latencies)
        self._marked_batch = 0  # The meter has the time of this batch.
        lost = weakly(self.lost)
        self._cursors = Cursors(context, ledgers, weakly(self._present_config), lost)
        self._confirmed_offset = next_offset - 1
        if writer is None:
            opened_behind = ledgers.last_confirmed = ledgers.sealed[-1].last
        else:
            opened_behind = Position(writer.ledger_id, -1)
            ledgers.last_confirmed = ledgers.previous_position(Position(writer.ledger_id, 0))
        self._opened_behind = opened_behind, next_offset - 1
        self._grown = trio.lowlevel.ParkingLot()  # tasks that wait for entries
        self._room_made = trio.lowlevel.ParkingLot()  # tasks that wait for room
        # The ledgers that this log writes: the present one, the next one and the one before.
        self._writer: LedgerWriter | NoLedger = present
        self._next_writer: LedgerWriter | None = None  # listed, and takes no entries yet
        self._previous: tuple[LedgerWriter, SealedLedger] | None = None  # being closed
        # For reads; no ledger is closed.
        self._writers = {} if writer is None else {writer.ledger_id: writer}
        self.rolled_ms = context.clock.now_ms()  # when the present ledger became that
        self._reader = LogReader(context, ledgers, self._writers)
        self._leaving = Leaving(context, name, weakly(self._unclosed), lost)
        self._refused: ManagedLedgerError | None = None  # the reason why no append is taken
        self._closing = False  # A rollover must not begin any more.
        self._full: ListFullError | None = None
        self.room = Room(ledgers.bytes, config.list_bytes_max)  # the room in the list of ledgers
        self._trimming = trio.Lock()  # one trim at a time
        self._terminating = trio.Lock()
        if self.terminated is not None:
            self._refused = TerminatedError(
                f"the log {name} was terminated: nothing can be appended"
            )
        self._check_room()
        if writer is not None:
            self._listen(writer)

    # -- properties

    @property
    def created(self) -> int:
        """The transaction that created the list: higher for a log that was created again."""
        return self.ledgers.created

    @property
    def instance(self) -> str | None:
        """The INSTANCEID of the ledgers; None if brokers have not bound it."""
        return self.context.instance

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self._cursors.by_name

    @property
    def state(self) -> LogState:
        return self._protocol.state

    @property
    def idle(self) -> bool:
        """True if all ledgers are closed, and the next append creates another one."""
        return isinstance(self._writer, NoLedger)

    @property
    def usable(self) -> bool:
        """True while the log is neither closed nor given up nor fenced."""
        return self._protocol.usable

    def check(self) -> None:
        """Raise FencedError or ClosedError if the log cannot be used any more."""
        if not self._protocol.usable:
            raise self.fenced or ClosedError(f"{self.name} was closed")

    @property
    def terminated(self) -> Position | None:
        """The last position of a terminated log; None if the log is not terminated."""
        info = self.ledgers.info
        return position_of(info.terminatedPosition) if info.HasField("terminatedPosition") else None

    @property
    def last_confirmed(self) -> Position:
        """The last entry that readers see; (first ledger, -1) of an empty log."""
        return self.ledgers.last_confirmed

    @property
    def confirmed_offset(self) -> int:
        """The offset of the last confirmed message; -1 if there never was one."""
        return self._confirmed_offset

    def behind(self, position: Position) -> Behind:
        """Return how much lies behind `position`, up to the last confirmed entry."""
        end = LogEnd(self.ledgers, self._confirmed_offset, self.current_bytes, *self._opened_behind)
        return behind(end, position)

    def bytes_after(self, start: EntryStart) -> int:
        """Return the bytes of the confirmed entries from `start` on."""
        ledgers = self.ledgers
        first = ledgers.first_sealed(start.position.ledger_id)
        return max(0, ledgers.bytes_from(first) + self.current_bytes - start.ledger_bytes)

    @property
    def before_first(self) -> Position:
        """The position before the first retained entry; `earliest` means this one."""
        return self.ledgers.before_first

    @property
    def pending_bytes(self) -> int:
        """The bytes of all appends that are not confirmed."""
        return self._adds.bytes

    @property
    def pending_entries(self) -> int:
        """The number of appends that are not confirmed."""
        return len(self._adds)

    @property
    def size_bytes(self) -> int:
        return self.ledgers.bytes_from(0) + self.current_bytes

    @property
    def current_bytes(self) -> int:
        return self._writer.length

    @property
    def current_ledger_id(self) -> int:
        """The present ledger; for an idle log the last one, which is closed."""
        return self._writer.ledger_id

    @property
    def current_entries(self) -> int:
        return self._writer.last_add_confirmed + 1

    @property
    def waiting_for(self) -> str:
        """The reason why nothing is confirmed, in words; empty while all is well."""
        if self.idle and not self._protocol.waiting:
            return ""  # A ledger that was wanted for a trim is not there, and nobody waits for it.
        return self._writer.waiting_for

    @property
    def full(self) -> str:
        """The reason why no append is taken, in words, if the list is full; else empty."""
        return "" if self._full is None else str(self._full)

    def _present_config(self) -> LogConfig:
        return self.config

    def holders(self, position: Position) -> str:
        """Return where an entry is, in words: its ledger, and bookies that are slow or away."""
        return self._reader.holders(position)

    def get_property(self, key: str) -> str | None:
        """Return a property of the list, which outlives this handle."""
        return get_property(self.ledgers.info.properties, key)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the list, those of brokers, too."""
        return properties_of(self.ledgers.info)

    async def set_property(self, key: str, value: str) -> None:
        """Store a property of the list durably.  Raise ManagedLedgerError, MetadataError."""
        self.check()
        await self.update_list(lambda info: set_property(info, key, value))

    async def change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replace the properties of the list durably by what `change` makes of them.

        Raise ManagedLedgerError, MetadataError, or an error of `change`: nothing is changed then.
        """
        self.check()
        await self.update_list(lambda info: set_properties(info, change(properties_of(info))))

    # -- appending

    def append(self, payload: Sequence[Buffer], messages: int, done: Done) -> None:
        """Append one entry that holds `messages` messages, without waiting; see `wait_room`.

        The caller must not change the buffers until `done` is called.
        """
        refused = self._refused or self._full
        if refused is not None or not self._protocol.usable:
            # A fence comes first: a refusal would be final, but the next owner may take the entry.
            done(None, self.fenced or refused or ClosedError(f"{self.name} was closed"))
            return
        last_offset = self.next_offset + messages - 1
        # The times in a ledger never fall, also if the clock does: `stored_times` relies on it.
        self._stored_ms = max(self._stored_ms, self.context.clock.now_ms())
        head = broker_entry_metadata(self._stored_ms, last_offset)
        buffers = [head, *payload]
        size = sum(map(len, buffers))
        if size > ALWAYS_TAKEN_BYTES and size > (size_max := self.entry_bytes_max):
            # The offsets of a refused entry are not used up.
            done(
                None,
                EntryTooLargeError(
                    f"the entry has {size} bytes, and bookies take at most {size_max}"
                ),
            )
            return
        self.next_offset += messages
        self._adds.add(PendingAdd(buffers, size, last_offset, done))
        self._perform(self._protocol.append())
        # One mark for each batch; an entry that waits for the next ledger belongs to none.
        batch = self._writer.batches
        if batch != self._marked_batch or self._protocol.waiting:
            self._marked_batch = batch
            self.traffic.mark(self.appended_entries + len(self._adds) - 1)

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that the log takes: bookies take it in a compacted ledger, too."""
        return self.context.client.payload_bytes_max() - COMPACTED_MORE_BYTES

    @property
    def has_room(self) -> bool:
        """True if few enough bytes are pending, or the log has ended."""
        return self._adds.held_bytes <= self.config.pending_bytes_max or not self._protocol.usable

    async def wait_room(self) -> None:
        """Wait until few enough bytes are pending; return at once if the log has ended."""
        while not self.has_room:
            await self._room_made.park()

    def _submit(self, count: int) -> None:
        writer = self._writer
        assert not isinstance(writer, NoLedger)  # The appends of an idle log wait for its ledger.
        for _ in range(count):
            entry = self._adds.submit()
            if entry is None:  # An append that failed has ended the log, and with it all others.
                return
            try:
                writer.append(entry.buffers)
            except LedgerError as error:
                self.lost(str(error))
                return

    def _listen(self, writer: LedgerWriter) -> None:
        # The writer is called by tasks that serve all logs of the host.  No error of this log may
        # end them.
        def confirmed(first: int, last: int) -> None:
            try:
                self._confirmed(writer, first, last)
            except Exception as bug:
                self.failed(bug)

        def withdrawn(error: LedgerError) -> None:
            try:
                self.lost(str(error))
            except Exception as bug:
                self.failed(bug)

        writer.set_listener(confirmed, withdrawn)

    def _confirmed(self, writer: LedgerWriter, first: int, last: int) -> None:
        """Handle that the ledger of `writer` has confirmed the entries first to last."""
        if writer is not self._writer:
            return  # Only the present ledger has appends under way: a switch waits for the last.
        cached = self._reader.tailing
        sizes: list[int] = []
        for entry_id in range(first, last + 1):
            if not self._protocol.usable:  # The `done` of the entry before has closed the log.
                return
            entry = self._adds.confirm()
            # Offsets ascend without gaps, as entries are confirmed in the order of their appends.
            assert entry.last_offset >= self._confirmed_offset
            self.appended_entries += 1
            sizes.append(entry.bytes)
            self._confirmed_offset = entry.last_offset
            position = self.ledgers.last_confirmed = Position(writer.ledger_id, entry_id)
            if cached:
                self.context.cache.put(position, b"".join(entry.buffers))
            entry.done(position, None)
        self.traffic.confirmed(self.appended_entries, sizes)
        self._reader.has_grown()
        self.on_confirmed()
        self._perform(self._protocol.confirmed(last - first + 1))
        self._wake()
        self._roll_if_due()

    def _wake(self) -> None:
        """Wake the tasks that wait for entries, for room, or for another state."""
        if self._grown:
            self._grown.unpark_all()
        if self._room_made:
            self._room_made.unpark_all()  # `wait_room` looks at the bytes itself

    # -- the machine

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Submit(count):
                    self._submit(count)
                case Create():
                    self.context.tasks.start_soon(self._create_next)
                case Switch():
                    self._switch()
                case Seal():
                    self.context.tasks.start_soon(self._seal_previous)
                case Fence(reason):
                    # Set first: a `done` that `_drop` calls may append again.
                    self.fenced = FencedError(f"{self.name}: {reason}")
                    self._drop(self.fenced)
                    self.on_fenced()
                case _:
                    assert_never(effect)

    def _perform_and_wake(self, effects: Iterable[Effect]) -> None:
        self._perform(effects)
        self._wake()

    def failed(self, bug: Exception) -> None:
        """End the log after an error that nobody expected; appends under way are in doubt.

        The state in memory may differ from what is stored.  The next opening reads what is stored.
        """
        _log.error("%s failed because of a bug: please report it", self.name, exc_info=bug)
        self.on_bug(bug)
        try:
            self.lost("it failed because of a bug; the log of the broker has the reason")
        except Exception:
            _log.exception("%s could not be ended after a bug: please report it", self.name)
            self.context.tasks.cancel()

    def lost(self, reason: str) -> None:
        """End the log: another owner has it, or may have it, or it has to be opened again."""
        self._perform(self._protocol.lost(reason))

    # -- rolling over

    def check_roll(self) -> None:
        """Look after the present ledger and those of the cursors.  A timer calls this.

        A ledger is left if it is old, could be healthier, has stalled, or has an old format.
        """
        self._check_room()
        self._roll_if_due()
        if self.usable and not isinstance(self._writer, NoLedger):
            self._leaving.check_stalled(self._writer, self.config)
        for cursor in self.cursors.values():
            cursor.check_stalled()
            cursor.check_format()

    def roll(self) -> None:
        """Roll over as soon as that is possible, unless the list is too full."""
        if self.room.allows_roll:
            self._perform(self._protocol.roll_due())

    def _roll_if_due(self) -> None:
        if self.current_entries >= APPEND_ENTRIES_MAX:
            self._check_room()
        if self._protocol.state is not LogState.OPEN or self._refused is not None:
            return
        writer = self._writer
        assert not isinstance(writer, NoLedger)
        room = self.room
        if room.allows_roll and self._leaving.roll_is_due(writer, self.config, room.stretch):
            self._perform_and_wake(self._protocol.roll_due())

    async def _create_next(self) -> None:
        """Create the next ledger and put it on the list."""
        # The list may have grown since the rollover was asked for.  An idle log needs the ledger.
        if not self.room.allows_roll and self.state is LogState.ROLLING:
            self._perform_and_wake(self._protocol.create_failed())
            return
        context, was_idle = self.context, self.idle
        # An idle log may have kept an empty ledger, which the new one replaces.
        empty = [e.ledger_id for e in self.ledgers.sealed[-1:] if was_idle and not e.entries]

        async def update(add: Callable[[ManagedLedgerInfo], None]) -> None:
            def replace(info: ManagedLedgerInfo) -> None:
                add(info)
                drop(info, empty)

            await self.update_list(replace)

        # The removal of orphans sees a ledger before the list names it.
        self.ledgers.naming.add(None)
        try:
            writer = await context.create_ledger(self.config.quorums, self.name)
            # The list names the ledger before its first entry: a new owner must find that entry.
            await put_on_list(context, self.ledgers, writer, update)
        except ManagedLedgerError:
            return  # The log has ended.
        except (LedgerError, MetadataError) as error:
            if isinstance(self._writer, NoLedger):
                self._writer.waiting_for = f"no ledger could be created: {error}"
            await trio.sleep(_CREATE_RETRY_S)
            self._perform_and_wake(self._protocol.create_failed())
            return
        finally:
            # If the list may name the ledger after all, the list says so (`doubtful`).
            self.ledgers.naming.discard(None)
        if not self.usable:
            writer.abandon()
            return
        assert self._next_writer is None  # One rollover at a time.
        self._next_writer = writer
        self._listen(writer)
        self._perform_and_wake(self._protocol.listed())
        if empty:
            context.delete_later(empty, self.ledgers.owner)
        if was_idle:
            await self._trim_soon()

    def _switch(self) -> None:
        """Make the next ledger the present one.  The old ledger has confirmed all its entries."""
        assert self._next_writer is not None
        assert self._previous is None  # One rollover at a time.
        old, now_ms = self._writer, self.context.clock.now_ms()
        if not isinstance(old, NoLedger):
            last_offset = self._confirmed_offset if old.last_add_confirmed >= 0 else None
            entries = old.last_add_confirmed + 1
            sealed = SealedLedger(old.ledger_id, entries, old.length, now_ms, last_offset)
            self.ledgers.seal(sealed)
            self._previous = (old, sealed)
        writer = self._writer = self._next_writer
        self._next_writer = None
        self._marked_batch = 0
        self._writers[writer.ledger_id] = writer
        self._leaving.begin()
        self.rolled_ms = now_ms

    async def _seal_previous(self) -> None:
        """Close the previous ledger, write its length to the list, and trim."""
        assert self._previous is not None
        writer, sealed = self._previous
        while True:
            try:
                # The ledger is closed first: a length on the list is a promise.
                await writer.close()
                await self.update_list(lambda info: set_sealed(info, sealed))
                break
            except MetadataError:
                await self.context.pause()
            except ManagedLedgerError:
                return  # The log has ended.
            except LedgerError as error:
                self.lost(str(error))
                return
        self._previous = None
        del self._writers[sealed.ledger_id]
        self._perform_and_wake(self._protocol.sealed())
        if not sealed.entries:  # `set_sealed` has taken it off the list.
            await self.context.delete_ledgers([sealed.ledger_id], self.ledgers.owner)
        await self._trim_soon()

    def _writing(self) -> list[LedgerWriter]:
        """Return the writers of the log's ledgers that are not closed, the present one first."""
        present = None if isinstance(self._writer, NoLedger) else self._writer
        previous = None if self._previous is None else self._previous[0]
        return [w for w in (present, self._next_writer, previous) if w is not None]

    def _unclosed(self) -> list[LedgerWriter]:
        """Return the writers of all ledgers that the next opening has to recover."""
        return [*self._writing(), *self._cursors.writers]

    # -- the list of ledgers

    async def update_list(
        self,
        change: Callable[[ManagedLedgerInfo], None],
        *,
        last: ManagedLedgerError | None = None,
    ) -> None:
        """Change the list; see `LedgerList.update`.  Raise ManagedLedgerError, MetadataError."""
        try:
            await self.ledgers.update(change, self._confirmed_offset + 1, last=last)
        except FencedError as error:
            self.lost(str(error))
            raise
        self._check_room()

    def _check_room(self) -> None:
        """Look how full the list is, after a change of the list or of the settings."""
        room = self.room = Room(self.ledgers.bytes, self.config.list_bytes_max)
        if not room.allows_append:
            self._full = ListFullError(
                f"{self.name} takes no messages: its list of {len(self.ledgers.ids)} ledgers takes"
                f" {room.bytes} of at most {room.bytes_max} bytes. {_MAKE_ROOM}"
            )
        elif self.current_entries >= APPEND_ENTRIES_MAX and not room.allows_roll:
            self._full = ListFullError(
                f"{self.name} takes no messages: its ledger {self._writer.ledger_id} is full, and"
                f" its list of ledgers has no room for another one ({room.bytes} of at most"
                f" {room.bytes_max} bytes). {_MAKE_ROOM}"
            )
        else:
            self._full = None

    # -- reading

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Return entries from `start` on: at least one if there is one, all of one ledger.

        Raise LedgerError if an entry could not be read.  An entry that exists is never skipped.
        """
        found = await self._reader.read(
            self.ledgers.entry_at(start),
            self.last_confirmed,
            max_entries=max_entries,
            max_bytes=max_bytes,
            shared=len(self.cursors) > 1,
        )
        self.traffic.read(len(found))
        return found

    def read_now(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Return what `read` would return if it is in memory, else nothing."""
        found = self._reader.read_now(
            self.ledgers.entry_at(start),
            self.last_confirmed,
            max_entries=max_entries,
            max_bytes=max_bytes,
        )
        self.traffic.read(len(found))
        return found

    def count_read(self, entries: int) -> None:
        """Count entries that a reader got from another one, which has read them in memory."""
        self.traffic.read(entries)
        self.context.cache.hits += entries

    async def read_one(self, position: Position) -> Entry | None:
        """Return an entry with its header; None if there is none, or no longer."""
        if not self.ledgers.lists(position.ledger_id) or position > self.last_confirmed:
            return None
        return await self._reader.read_one(position, self.last_confirmed)

    @property
    def sizes(self) -> EntrySizes:
        """The sizes of recent entries, of all logs of this host."""
        return self.context.sizes

    async def wait_changed(self) -> None:
        """Wait until entries are confirmed, or the state may have changed."""
        await self._grown.park()

    def await_next(self) -> None:
        """Note that a reader waits for the next entry: it is worth caching when it comes."""
        self._reader.await_next()

    async def wait_appended(self, after: Position) -> None:
        """Wait until there is an entry behind `after`.  Raise if the log has ended."""
        self._reader.expect()
        while self.last_confirmed <= after:
            self.check()
            self._reader.await_next()
            await self._grown.park()

    # -- positions

    def next_position(self, position: Position) -> Position:
        return self.ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        return self.ledgers.previous_position(position)

    def entries_between(self, after: Position, through: Position) -> int:
        return self.ledgers.entries_between(max(after, self.before_first), through)

    def position_after(self, position: Position, entries: int) -> Position:
        """Return the position of the entry that is so many entries behind `position`."""
        for ledger_id, first, last in self.ledgers.spans(position, self.last_confirmed):
            if entries <= last - first + 1:
                return Position(ledger_id, first + entries - 1)
            entries -= last - first + 1
        return self.next_position(self.last_confirmed)

    # -- cursors

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Position,
        properties: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> Cursor:
        """Return the durable cursor of that name; a new one starts behind `initial`.

        A new one has `numbers` as its `properties`.

        Raise InvalidNameError for a name that no cursor can have.
        """
        self.check()
        return await self._cursors.open(name, initial, properties or {}, numbers or {})

    async def recover_cursor(self, encoded: str) -> Cursor:
        """Return the durable cursor of a record; see `Cursors.recover`."""
        return await self._cursors.recover(encoded)

    def adopt(self, cursor: Cursor) -> None:
        """Run a durable cursor that was recovered."""
        self._cursors.adopt(cursor)

    def new_volatile_cursor(self, name: str, initial: Position) -> Cursor:
        """Return a cursor that is never stored and does not hold back trimming."""
        return self._cursors.new(name, initial, durable=False)

    async def delete_cursor(self, name: str) -> None:
        self.check()
        await self._cursors.delete(name)

    # -- trimming

    async def truncate(self) -> list[int]:
        """Drop all ledgers that no cursor needs, even those that retention would keep.

        The present ledger is rolled over first, so what it has can be dropped, too.  That includes
        the last ledger of a terminated log, which gets an empty one behind it, as at an opening.
        """
        self.check()
        may_roll = self._refused is None or self.terminated is not None
        retention = Retention(time_ms=0)
        if may_roll and not self._closing:
            # Nothing happens if the list is too full; then the other ledgers are dropped all the
            # more.
            if self.current_entries:
                self.roll()
            self._free_last(retention)
            while self.usable and not self._protocol.at_rest:
                await self.wait_changed()
        return await self.trim(retention)

    async def _trim_soon(self) -> None:
        """Trim behind a new ledger; if that fails, the next one trims again."""
        with suppress(ManagedLedgerError, MetadataError):
            await self.trim()

    async def trim(self, retention: Retention | None = None) -> list[int]:
        """Drop the ledgers that neither a cursor nor retention needs, and return their ids."""
        self.check()
        retention = retention or self.config.retention
        self._free_last(retention)
        gone: list[int] = []

        def cut(info: ManagedLedgerInfo) -> None:
            # A cursor may have been set back while the write waited, so this decides again.
            gone[:] = self._trimmable(retention)
            drop(info, gone)

        async with self._trimming:
            if self._trimmable(retention):
                await self.update_list(cut)
        for ledger_id in gone:
            self._reader.forget(ledger_id)
        # The ledgers are off the list before they are deleted.  If the process ends in between,
        # they are orphans (`orphans`); in the other order the list would name lost ledgers.
        await self.context.delete_ledgers(gone, self.ledgers.owner)
        return gone

    def _trimmable(self, retention: Retention) -> list[int]:
        # A ledger that is being closed is sealed in memory, but the list has no length of it yet.
        end = self._writer if self._previous is None else self._previous[0]
        closed = [each for each in self.ledgers.sealed if each.ledger_id < end.ledger_id]
        return self._unneeded(closed, retention)

    def _free_last(self, retention: Retention) -> None:
        """Have a ledger created if the last one of an idle log can be dropped.

        The last ledger of a list stays, because positions need it.
        """
        if not self.idle or self._closing:
            return
        last = self.ledgers.sealed[-1]
        if last.entries and last.ledger_id in self._unneeded(self.ledgers.sealed, retention):
            self._perform(self._protocol.want_ledger())

    def _unneeded(self, ledgers: Sequence[SealedLedger], retention: Retention) -> list[int]:
        now_ms = self.context.clock.now_ms()
        held = [*self._cursors.held_from(), *held_by_sinks(self.ledgers.info.properties)]
        return trimmable(ledgers, held, retention, now_ms)

    # -- the end

    async def terminate(self) -> Position:
        """Refuse all further appends forever, and return the position of the last entry.

        A second call returns the same.  A termination that has begun continues when the caller
        stops waiting.
        """
        self.check()
        return await self.context.run_to_end(self._terminate)

    async def _terminate(self) -> Position:
        async with self._terminating:
            if self.terminated is None:
                before = self._refused
                self._refused = TerminatedError(f"{self.name} was terminated")
                await self._drained()
                end = nested(self.last_confirmed)
                try:
                    await self.update_list(lambda info: info.terminatedPosition.CopyFrom(end))
                except MetadataError:
                    self._refused = before  # The list is unchanged, so the log takes appends again.
                    raise
        assert self.terminated is not None
        return self.terminated

    async def _drained(self) -> None:
        """Wait until no append is pending and no rollover is under way."""
        while self.usable and (self._adds.bytes or not self._protocol.at_rest):
            await self.wait_changed()
        self.check()

    async def close(self) -> None:
        """Hand the log over cleanly: confirm all appends, store all cursors, close the ledger.

        Raise ManagedLedgerError if bookies and metadata store do not allow that in `close_s`.  The
        log is abandoned then, which loses nothing but is not clean.
        """
        self._closing = True
        self._refused = self._refused or ClosedError(f"{self.name} is being closed")
        closed = ClosedError(f"{self.name} was closed")
        deadline_s = trio.current_time() + self.config.close_s
        try:
            with trio.move_on_at(deadline_s) as scope:
                await self._drained()
                await self._cursors.close()
                await self.ledgers.stop_behind_writes(closed)
            self.check()
            if scope.cancelled_caught:
                why = self.waiting_for or "bookies or metadata store do not answer"
                raise ManagedLedgerError(
                    f"{self.name} could not be closed in {self.config.close_s} s: {why}"
                )
            self._perform_and_wake(self._protocol.stop())
            try:
                # If this fails, the next opening closes the ledger.
                with trio.move_on_at(deadline_s), suppress(LedgerError, MetadataError):
                    await self._writer.close()
            finally:
                self._drop(closed)
        finally:
            self.abandon()

    async def clear(self) -> list[int]:
        """Delete all cursors and empty the list; return the ids of the ledgers.

        This is the first part of a deletion.
        """
        self.check()
        self._closing = True
        error = ClosedError(f"{self.name} is being deleted")
        self._refused = self._refused or error
        for name in list(self.cursors):
            await self.delete_cursor(name)
        # A new ledger may be about to be listed.
        while self.state in (LogState.ROLLING, LogState.CREATING):
            await self.wait_changed()
        doomed: list[int] = []

        def empty(info: ManagedLedgerInfo) -> None:
            doomed.extend(ledger.ledgerId for ledger in info.ledgerInfo)
            info.ClearField("ledgerInfo")

        await self.update_list(empty, last=error)
        self.abandon()
        return doomed

    def abandon(self) -> None:
        """Stop at once and write nothing: the session is lost, or the host shuts down.

        The next opening decides about the appends that are in doubt.
        """
        if self.usable:
            self._perform_and_wake(self._protocol.stop())
            self._drop(
                FencedError(
                    f"this broker gave up {self.name}, so appends that are not confirmed are in"
                    " doubt"
                )
            )

    def _drop(self, error: ManagedLedgerError) -> None:
        """Stop everything that the log runs, and end every pending call with `error`."""
        assert not self.usable
        self.ledgers.stop(error)
        for writer in self._writing():
            writer.abandon()
        self._cursors.abandon(error)
        self.context.tasks.cancel()
        # Last, since `done` runs code of the caller.
        self._adds.fail(error)
        self._wake()


def _ignore(bug: Exception) -> None:
    """Ignore the error, which is logged: the caller has set no handler."""


def _nothing() -> None:
    """Ignore the event: the caller has set no handler."""
