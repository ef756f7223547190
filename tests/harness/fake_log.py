"""Logs in memory with the API of managed ledgers, which tests can hold up and break.

A log confirms each append at the next turn of the loop, or, while `held`, when `release` is called.
`ledger_entries` entries make a ledger.  `fence` acts as another owner would.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, cast

import trio

from daybook.bookie.errors import NoSuchLedgerError, ReadUnknownError
from daybook.broker.dispatch.entries import delivered_head
from daybook.broker.errors import NotFoundError
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.topics.topic_log import Done, TopicCursor, TopicLog
from daybook.broker.topics.topic_properties import is_reserved, shown
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.behind import Behind, EntryStart
from daybook.managed_ledger.compacted import CompactedReader, CompactedWriter
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.errors import (
    ClosedError,
    EntryTooLargeError,
    FencedError,
    ListFullError,
    TerminatedError,
)
from daybook.managed_ledger.offsets import LedgerOffsets
from daybook.managed_ledger.partial_acks import PartialAcks
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.holes import pending_messages
from daybook.managed_ledger.protocol.room import Room
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.reading import LogEntry
from daybook.managed_ledger.sinks.progress import (
    Progress,
    encode_progress,
    progress_of,
    property_of,
)
from daybook.managed_ledger.traffic import TrafficMeter, WriteLatencies
from daybook.wire.batch import broker_entry_metadata, split_broker_metadata
from daybook.wire.clock import WallClock
from daybook.wire.entry import Entry
from daybook.wire.topics import TopicName
from daybook.wire.transport import Buffer
from daybook.wire.weakly import weak

if TYPE_CHECKING:
    from daybook.bookie.ledger.reader import LedgerReader
    from daybook.bookie.ledger.writer import LedgerWriter

FIRST_LEDGER = 5


class FakeCursor:
    def __init__(self, log: "FakeLog", name: str, mark_delete: Position) -> None:
        self.name = name
        self.mark_delete = mark_delete
        self.acked: set[Position] = set()
        self.parts = PartialAcks()
        self.flushes = 0
        self.old_records = 0
        self.properties: dict[str, int] = {}
        self.labels: dict[str, str] = {}
        self.stored: tuple[Position, dict[str, int]] = (mark_delete, {})  # as of the last flush
        self._log = weak(log)

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        await trio.lowlevel.checkpoint()
        self.labels = dict(labels)

    @property
    def read_start(self) -> Position:
        return self._log().next_position(self.mark_delete)

    @property
    def acked_above(self) -> int:
        return len(self.acked)

    def range_count(self, at_most: int) -> int:
        runs = [p for p in self.acked if self._log().previous_position(p) not in self.acked]
        return min(len(runs), at_most + 1)

    @property
    def backlog_entries(self) -> int:
        log = self._log()
        return log.entries_between(self.mark_delete, log.last_confirmed) - len(self.acked)

    @property
    def partly_acked(self) -> int:
        return len(self.parts)

    def pending_of(self, position: Position) -> int | None:
        return self.parts.pending(position)

    def ack_part(self, position: Position, pending: int) -> bool:
        return not self.is_acked(position) and self.parts.ack(position, pending)

    @property
    def holes_top(self) -> Position:
        parts = [position for position, _ in self.parts.sets()]
        return max([self.mark_delete, *self.acked, *parts])

    @property
    def holes(self) -> tuple[int, int]:
        log, at, messages, size = self._log(), self.read_start, 0, 0
        while at <= self.holes_top:
            if at not in self.acked:
                data = log.entries[log._index(at)]
                count = delivered_head(memoryview(data)).messages
                messages += pending_messages(self.parts.pending(at), count)
                size += len(data)
            at = log.next_position(at)
        return messages, size

    @property
    def uncounted(self) -> AckSet:
        return AckSet()

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def ack(self, positions: Sequence[Position]) -> None:
        self.acked |= {p for p in positions if p > self.mark_delete}
        self.parts.done(positions)
        self._fold()

    def ack_cumulative(self, position: Position) -> None:
        self.mark_delete = max(self.mark_delete, position)
        self.acked = {p for p in self.acked if p > self.mark_delete}
        self.parts.done_up_to(self.mark_delete)
        self._fold()

    def _fold(self) -> None:
        log = self._log()
        while self.acked and (following := log.next_position(self.mark_delete)) in self.acked:
            self.acked.remove(following)
            self.mark_delete = following

    def advance(self, mark_delete: Position, properties: Mapping[str, int]) -> None:
        self.ack_cumulative(mark_delete)
        self.properties = dict(properties)

    async def flush(self) -> None:
        goal = self.mark_delete, dict(self.properties)
        await self._log().before_flush(self.name)
        if self._log().fenced:
            raise FencedError("fenced")
        self.stored = goal
        self.flushes += 1

    async def reset(
        self,
        mark_delete: Position,
        properties: Mapping[str, int],
        part: tuple[Position, int] | None = None,
    ) -> None:
        await trio.lowlevel.checkpoint()
        if self._log().fenced:
            raise FencedError("fenced")
        self.mark_delete, self.acked = mark_delete, set()
        self.properties.update(properties)
        self.parts.clear()
        if part is not None:
            self.parts.ack(*part)


@dataclass
class FakeLog:
    name: TopicName
    clock: WallClock
    ledger_entries: int = 1000
    pending_bytes_max: int = 1 << 20
    entries: list[bytes] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    trimmed: int = 0  # deleted entries at the front
    next_offset: int = 0
    held: bool = False
    entry_bytes_max: int = 5 * 1024 * 1024
    fenced: bool = False
    closed: bool = False
    terminated: bool = False
    pending_bytes: int = 0
    reads: int = 0
    reads_now: int = 0  # in memory
    reads_to_fail: int = 0  # so many reads fail: their bookies are absent
    in_memory: bool = True  # new entries need no read of bookies
    lost: set[int] = field(default_factory=set)  # entries of which no copy can be read
    waiting_for: str = ""
    full: str = ""
    room: Room = field(default_factory=lambda: Room(100, 4096))
    created: int = 1
    instance: str | None = "an-instance"

    def __post_init__(self) -> None:
        # Called before a cursor is stored, with its name; it may raise, or wait.
        self.before_flush: Callable[[str], Awaitable[None]] = _no_hook
        self.by_name: dict[str, FakeCursor] = {}
        self.on_fenced = _nothing
        self.on_confirmed = _nothing
        self.on_bug: Callable[[Exception], None] = lambda bug: None
        self._pending: list[tuple[bytes, Done]] = []
        self.sizes = EntrySizes()
        self.traffic = TrafficMeter(WriteLatencies())
        self._room = trio.Event()

    def __hash__(self) -> int:
        return id(self)

    # -- positions

    def _index(self, position: Position) -> int:
        entry_id = max(position.entry_id, -1)
        return (position.ledger_id - FIRST_LEDGER) * self.ledger_entries + entry_id

    def _position(self, index: int) -> Position:
        ledger, entry = divmod(index, self.ledger_entries)
        return Position(FIRST_LEDGER + ledger, entry)

    def await_next(self) -> None:
        pass

    @property
    def last_confirmed(self) -> Position:
        if not self.entries:
            return Position(FIRST_LEDGER, -1)
        return self._position(len(self.entries) - 1)

    @property
    def confirmed_offset(self) -> int:
        if not self.entries:
            return -1
        index = split_broker_metadata(memoryview(self.entries[-1]))[1]
        assert index is not None
        return index

    @property
    def before_first(self) -> Position:
        first = self._position(self.trimmed)
        if not first.entry_id:  # as a list of ledgers has it
            return Position(first.ledger_id, -1)
        return self.previous_position(first)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.entries))

    @property
    def cursors(self) -> Mapping[str, FakeCursor]:
        return self.by_name

    def next_position(self, position: Position) -> Position:
        if position.ledger_id < FIRST_LEDGER:
            return self._position(self.trimmed)
        return self._position(max(self._index(position) + 1, self.trimmed))

    def previous_position(self, position: Position) -> Position:
        if position.entry_id > 0 or position.ledger_id <= FIRST_LEDGER:
            return Position(max(position.ledger_id, FIRST_LEDGER), max(position.entry_id - 1, -1))
        return self._position(self._index(position) - 1)

    def behind(self, position: Position) -> Behind:
        entries = self.entries_between(position, self.last_confirmed)
        data = self.entries[len(self.entries) - entries :]
        messages = sum(delivered_head(memoryview(each)).messages for each in data)
        exact = messages == entries
        # A log knows no more than the mean, and not always that.
        return Behind(entries, messages if exact else entries, sum(map(len, data)), exact)

    def bytes_after(self, start: EntryStart) -> int:
        return sum(map(len, self.entries[self._index(start.position) :]))

    def position_after(self, position: Position, entries: int) -> Position:
        for _ in range(entries):
            position = self.next_position(position)
        return position

    def entries_between(self, after: Position, through: Position) -> int:
        return max(0, self._index(through) - max(self._index(after), self.trimmed - 1))

    def holders(self, position: Position) -> str:
        return f"ledger {position.ledger_id} on the bookies b1, b2, b3"

    # -- appending

    def append(self, payload: Sequence[Buffer], messages: int, done: Done) -> None:
        if self.fenced or self.closed:
            done(None, FencedError("fenced") if self.fenced else ClosedError("closed"))
            return
        if self.terminated:
            done(None, TerminatedError("terminated"))
            return
        if self.full:
            done(None, ListFullError(self.full))
            return
        if sum(map(len, payload)) > self.entry_bytes_max:
            done(None, EntryTooLargeError("too large"))
            return
        self.next_offset += messages
        head = broker_entry_metadata(self.clock.now_ms(), self.next_offset - 1)
        data = b"".join((head, *payload))
        self.pending_bytes += len(data)
        self._pending.append((data, done))
        if not self.held:
            self.release()

    def release(self, count: int | None = None) -> None:
        """Confirm pending appends."""
        if count is None:
            self.held = False
        pending = self._pending[:count]
        del self._pending[:count]
        for data, done in pending:
            self.entries.append(data)
            self.pending_bytes -= len(data)
            done(self._position(len(self.entries) - 1), None)
        if pending:
            self.on_confirmed()
        room, self._room = self._room, trio.Event()
        room.set()

    def fence(self) -> None:
        """Take over as another owner: pending appends are in doubt."""
        self.fenced = True
        pending, self._pending, self.pending_bytes = self._pending, [], 0
        for _, done in pending:
            done(None, FencedError("fenced"))
        self._room.set()
        self.on_fenced()

    @property
    def has_room(self) -> bool:
        return self.pending_bytes <= self.pending_bytes_max or self.fenced

    async def wait_room(self) -> None:
        while not self.has_room:
            await self._room.wait()

    # -- reading

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        await trio.lowlevel.checkpoint()
        if self.fenced or self.closed:
            raise FencedError("fenced")
        self.reads += 1
        if self.reads_to_fail:
            self.reads_to_fail -= 1
            raise ReadUnknownError(start.ledger_id, start.entry_id, "its bookies are away")
        found: list[LogEntry] = []
        size = 0
        for index in range(max(self._index(start), self.trimmed), len(self.entries)):
            if len(found) >= max_entries or (found and size >= max_bytes):
                break
            position = self._position(index)
            if index in self.lost:
                if found:
                    break
                raise ReadUnknownError(position.ledger_id, position.entry_id, "it is damaged")
            if found and position.ledger_id != found[0].position.ledger_id:
                break
            found.append(LogEntry(position, memoryview(self.entries[index])))
            size += len(self.entries[index])
        return found

    def read_now(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        if self.fenced or self.closed or self.reads_to_fail or not self.in_memory:
            return []
        self.reads_now += 1
        first = max(self._index(start), self.trimmed)
        position = self._position(first)
        entries = min(max_entries, self.ledger_entries - position.entry_id)
        found: list[LogEntry] = []
        for index in range(first, min(first + entries, len(self.entries))):
            if index in self.lost or sum(len(each.data) for each in found) >= max_bytes:
                break
            found.append(LogEntry(self._position(index), memoryview(self.entries[index])))
        self.traffic.read(len(found))
        return found

    def count_read(self, entries: int) -> None:
        self.traffic.read(entries)

    # -- cursors

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Position,
        properties: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> FakeCursor:
        await trio.lowlevel.checkpoint()
        if name not in self.by_name:
            self.by_name[name] = FakeCursor(self, name, initial)
            self.by_name[name].properties = dict(numbers or {})
            self.by_name[name].labels = dict(properties or {})
        return self.by_name.setdefault(name, FakeCursor(self, name, initial))

    def new_volatile_cursor(self, name: str, initial: Position) -> FakeCursor:
        return FakeCursor(self, name, initial)

    async def delete_cursor(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        self.by_name.pop(name, None)

    def check_roll(self) -> None:
        pass

    async def trim(self) -> list[int]:
        return []

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True

    def abandon(self) -> None:
        self.closed = True
        pending, self._pending, self.pending_bytes = self._pending, [], 0
        for _, done in pending:
            done(None, FencedError("abandoned"))


class FakeLedger:
    """A compacted ledger: its writer and its reader in one."""

    def __init__(self, ledger_id: int, logs: "FakeLogs") -> None:
        self.ledger_id = ledger_id
        self._logs = logs
        self.entries: list[bytes] = []
        self.closed = False
        self.deleted = False

    @property
    def last_add_pushed(self) -> int:
        return len(self.entries) - 1

    @property
    def last_add_confirmed(self) -> int:
        return len(self.entries) - 1

    @property
    def length(self) -> int:
        return sum(map(len, self.entries))

    def append(self, payload: Sequence[Buffer]) -> int:
        assert not self.closed
        self.entries.append(b"".join(bytes(each) for each in payload))
        return self.last_add_pushed

    async def wait_confirmed(self, entry_id: int) -> None:
        await self._logs.before("confirm")
        assert entry_id < len(self.entries)

    async def close(self) -> None:
        await self._logs.before("close")
        self.closed = True

    def abandon(self) -> None:
        pass

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        if self.deleted:
            raise NoSuchLedgerError(self.ledger_id)
        found: list[Entry] = []
        size = 0
        for entry_id in range(first, min(last, self.last_add_confirmed) + 1):
            if found and size >= max_bytes:
                break
            data = self.entries[entry_id]
            found.append(Entry(self.ledger_id, entry_id, entry_id, 0, memoryview(data)))
            size += len(data)
        return found


class FakeLogs:
    """A `TopicLogs` whose entries stay when a log is closed."""

    def __init__(self, clock: WallClock) -> None:
        self.clock = clock
        self.by_name: dict[TopicName, FakeLog] = {}
        self.opened: list[TopicName] = []
        self.in_contact = True
        self.applied: list[tuple[EffectivePolicies, TopicLog]] = []
        self.open_fails: Exception | None = None
        self.gate: trio.Event | None = None  # opening waits for it
        self.reads_fail: Exception | None = None  # the error of reads for statistics
        self.terminate_gate: trio.Event | None = None  # terminating waits for it
        self.terminate_fails: Exception | None = None
        self.ledger_entries = 1000
        self.ledger_ids = count(1000)
        # Called before each operation of a compaction, with its name; it may raise, or wait.
        self.before: Callable[[str], Awaitable[None]] = _no_hook
        self.lose_unflushed = False  # as in a crash: cursors are as they were flushed last
        self.compacted: dict[int, FakeLedger] = {}  # compacted ledgers, by id
        self._transactions = count(1)

    async def exists(self, name: TopicName) -> bool:
        await trio.lowlevel.checkpoint()
        return name in self.by_name

    async def apply(self, policies: EffectivePolicies, logs: Iterable[TopicLog]) -> None:
        await trio.lowlevel.checkpoint()
        self.applied = [*((policies, log) for log in logs)]

    async def create(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        await trio.lowlevel.checkpoint()
        if name in self.by_name:
            return False
        self.by_name[name] = self._new(name)
        return True

    def _new(self, name: TopicName) -> FakeLog:
        log = FakeLog(name, self.clock, self.ledger_entries)
        log.created = next(self._transactions)
        return log

    async def stored(self, namespace: str) -> list[TopicName]:
        await trio.lowlevel.checkpoint()
        return [name for name in self.by_name if name.namespace == namespace]

    async def open(
        self, name: TopicName, *, create: bool, on_step: Callable[[str], None] = lambda _: None
    ) -> FakeLog:
        self.opened.append(name)
        on_step("opening its log")
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        if self.open_fails is not None:
            raise self.open_fails
        before = self.by_name.get(name)
        if before is None:
            if not create:
                raise NotFoundError(f"there is no topic {name}")
            log = self._new(name)
        else:
            log = self._new(name)
            log.entries, log.trimmed = before.entries, before.trimmed
            log.created = before.created
            log.properties, log.terminated = before.properties, before.terminated
            log.next_offset = before.confirmed_offset + 1
            for cursor_name, cursor in before.by_name.items():
                again = FakeCursor(log, cursor_name, cursor.mark_delete)
                again.labels = dict(cursor.labels)
                again.acked = set(cursor.acked)
                again.properties = dict(cursor.properties)
                if self.lose_unflushed:
                    again.mark_delete, properties = again.stored = cursor.stored
                    again.properties = dict(properties)
                for position, pending in cursor.parts.sets():
                    again.parts.ack(position, pending)
                log.by_name[cursor_name] = again
        self.by_name[name] = log
        return log

    async def delete(self, log: TopicLog) -> None:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        log.closed = True
        self.by_name.pop(log.name, None)

    async def position_of_offset(self, log: TopicLog, offset: int) -> Position:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        for index in range(log.trimmed, len(log.entries)):
            last = split_broker_metadata(memoryview(log.entries[index]))[1]
            if last is not None and last >= offset:
                return log._position(index)
        return log.next_position(log.last_confirmed)

    async def stored_ms(self, log: TopicLog, position: Position) -> int | None:
        found = await log.read(position, max_entries=1, max_bytes=1)
        return split_broker_metadata(found[0].data)[0] if found else None

    async def first_stored_since(self, log: TopicLog, start: Position, since_ms: int) -> Position:
        at = start
        while at <= log.last_confirmed:
            time_ms = await self.stored_ms(log, at)
            if time_ms is not None and time_ms >= since_ms:
                break
            at = log.next_position(at)
        return at

    def position_with_behind(self, log: TopicLog, start: Position, bytes_max: int) -> Position:
        at = start
        while at < log.last_confirmed and log.behind(at).bytes > bytes_max:
            at = log.next_position(at)
        return at

    async def entry_start(self, log: TopicLog, position: Position) -> EntryStart | None:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        if self.reads_fail is not None:
            raise self.reads_fail
        index = log._index(position)
        if not log.trimmed <= index < len(log.entries):
            return None
        data = memoryview(log.entries[index])
        head, last = delivered_head(data), split_broker_metadata(data)[1]
        assert last is not None
        first = last - head.messages + 1
        return EntryStart(position, first, 0, head.publish_time_ms, head.messages, len(data))

    async def recount(self, log: TopicLog, cursor: TopicCursor) -> None:
        await trio.lowlevel.checkpoint()

    async def position_of_time(self, log: TopicLog, publish_ms: int) -> Position:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        for index in range(len(log.entries) - 1, log.trimmed - 1, -1):
            head = delivered_head(memoryview(log.entries[index]))
            if head.publish_time_ms < publish_ms:
                return log._position(index + 1)
        return log._position(log.trimmed)

    async def first_offset(self, log: TopicLog) -> int:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        if log.trimmed >= len(log.entries):
            return log.confirmed_offset + 1
        data = memoryview(log.entries[log.trimmed])
        last = split_broker_metadata(data)[1]
        assert last is not None
        return last - delivered_head(data).messages + 1

    async def sealed_offsets(self, log: TopicLog) -> list[LedgerOffsets]:
        assert isinstance(log, FakeLog)
        first = await self.first_offset(log)
        found: list[LedgerOffsets] = []
        size = log.ledger_entries
        for begin in range(0, len(log.entries) - size, size):
            last = split_broker_metadata(memoryview(log.entries[begin + size - 1]))[1]
            assert last is not None
            if last >= first:
                stored = sum(map(len, log.entries[begin : begin + size]))
                ledger_id = log._position(begin).ledger_id
                found.append(
                    LedgerOffsets(SealedLedger(ledger_id, size, stored, 0), first, last + 1)
                )
                first = last + 1
        return found

    async def truncate(self, log: TopicLog) -> None:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        log.trimmed = len(log.entries)

    def internal_info(self, log: TopicLog) -> dict[str, object]:
        return {}

    def epoch_of(self, log: TopicLog) -> int | None:
        assert isinstance(log, FakeLog)
        text = log.properties.get("pulsar.topic.epoch")
        return None if text is None else int(text)

    async def store_epoch(self, log: TopicLog, epoch: int) -> None:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        log.properties["pulsar.topic.epoch"] = str(epoch)

    def properties(self, log: TopicLog) -> dict[str, str]:
        assert isinstance(log, FakeLog)
        return shown(log.properties.items())

    async def change_properties(
        self, log: TopicLog, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        reserved = {name: v for name, v in log.properties.items() if is_reserved(name)}
        log.properties = change(shown(log.properties.items())) | reserved

    def sink_progress(self, log: TopicLog) -> dict[str, Progress]:
        assert isinstance(log, FakeLog)
        return progress_of(log.properties)

    async def store_sink_progress(
        self,
        log: TopicLog,
        sink_id: str,
        make: Callable[[], Progress],
        forgotten: Iterable[str] = (),
    ) -> None:
        assert isinstance(log, FakeLog)
        await trio.lowlevel.checkpoint()
        for each in forgotten:
            log.properties.pop(property_of(each), None)
        log.properties[property_of(sink_id)] = encode_progress(make())

    def is_terminated(self, log: TopicLog) -> bool:
        assert isinstance(log, FakeLog)
        return log.terminated

    async def terminate(self, log: TopicLog) -> Position:
        assert isinstance(log, FakeLog)
        log.terminated = True  # From here on it accepts no appends, unless the termination fails.
        await trio.lowlevel.checkpoint()
        try:
            if self.terminate_gate is not None:
                await self.terminate_gate.wait()
            if self.terminate_fails is not None:
                raise self.terminate_fails
            while log.pending_bytes:
                await log._room.wait()
        except BaseException:
            log.terminated = False
            raise
        return log.last_confirmed

    async def create_compacted(self, log: TopicLog, horizon: Position) -> CompactedWriter:
        await self.before("create")
        assert isinstance(log, FakeLog)
        ledger = FakeLedger(next(self.ledger_ids), self)
        self.compacted[ledger.ledger_id] = ledger
        return CompactedWriter(cast("LedgerWriter", ledger), log.name.partition)

    async def open_compacted(self, log: TopicLog, ledger_id: int) -> CompactedReader:
        await trio.lowlevel.checkpoint()
        ledger = self.compacted.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(ledger_id)
        assert ledger.closed, "a compacted ledger is closed before anything names it"
        return CompactedReader(cast("LedgerReader", ledger))

    async def delete_compacted(self, log: TopicLog, ledger_id: int) -> None:
        await self.before("delete")
        ledger = self.compacted.pop(ledger_id, None)
        if ledger is not None:
            ledger.deleted = True

    def internal_stats(self, log: TopicLog) -> dict[str, object]:
        assert isinstance(log, FakeLog)
        return {"lastConfirmedEntry": str(log.last_confirmed)}


def _nothing() -> None:
    pass


async def _no_hook(operation: str) -> None:
    await trio.lowlevel.checkpoint()
