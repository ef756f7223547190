"""Reads entries of one log: from the cache, or from its ledgers.

A reader that reads on finds the next entries in the cache: while entries travel to their consumer,
those behind them are read ahead.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from daybook.bookie.errors import LedgerError, ReadUnknownError
from daybook.bookie.ledger.protocol.placement import fragment_at
from daybook.bookie.ledger.reader import LedgerReader
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.ack_set import ENTRIES_MAX
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.wire.entry import Entry
from daybook.wire.metadata.store import MetadataError

_log = logging.getLogger(__name__)
_READERS_MAX = 16
_TAILING_S = 10.0
_TAILING_ENTRIES = 1000
_STREAMS_MAX = 256
_AHEAD_BYTES = 8 << 20  # chunks of one stream
_CHUNK_BYTES = 1 << 20
_CHUNKS_AT_ONCE = 4  # so that one is sent while others wait for the disk


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry as it was stored: broker entry metadata, then the payload."""

    position: Position
    data: memoryview


@dataclass(slots=True)
class _Stream:
    """One reader that reads on.  Everything before `frontier` was read, or is being read ahead."""

    frontier: Position
    entry_bytes: int = 1  # average size of an entry in the last read
    ahead_bytes: int = 0  # read ahead, and not asked for yet
    fetching: int = 0  # chunks on their way


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Entries of one ledger that are read ahead together; both ends are included."""

    first: Position
    last: Position


class LogReader:
    """The reader of one log.

    `writers` has the ledgers that this host writes: their writers know the end before anyone else.
    """

    def __init__(
        self, context: LogContext, ledgers: LedgerList, writers: dict[int, LedgerWriter]
    ) -> None:
        self._context = context
        self._ledgers = ledgers
        self._writers = writers
        self._readers: dict[int, LedgerReader] = {}
        self._foreign: set[int] = set()  # ledgers of another owner, which were logged once
        self._tailing_until_s = 0.0
        self._awaited = False  # a reader has read everything, and waits for the next entry
        self._streams: OrderedDict[Position, _Stream] = OrderedDict()  # by their next position
        self._under_way: dict[Position, trio.Event] = {}  # chunks on their way, by first position

    @property
    def tailing(self) -> bool:
        """True while a reader reads at the end, so that appended entries are worth caching."""
        return self._awaited or trio.current_time() < self._tailing_until_s

    def expect(self) -> None:
        """Note that a reader is at the end of the log."""
        self._tailing_until_s = trio.current_time() + _TAILING_S

    def await_next(self) -> None:
        """Note that a reader waits for the next entry, however long that takes."""
        self._awaited = True

    def has_grown(self) -> None:
        """Note that there are new entries: those who waited read them now."""
        if self._awaited:
            self._awaited = False
            self.expect()

    async def read(
        self, at: Position, end: Position, *, max_entries: int, max_bytes: int, shared: bool
    ) -> list[LogEntry]:
        """Return consecutive entries, the first one at `at`, none behind `end`.

        `shared` says that other readers will read the same entries.  One read at the bookies then
        serves all that ask for the same entries meanwhile.  Raise LedgerError.
        """
        if at.ledger_id == end.ledger_id and at.entry_id >= end.entry_id - _TAILING_ENTRIES:
            self.expect()
        stream = self._streams.pop(at, None)
        if (arrival := self._under_way.get(at)) is not None:
            await arrival.wait()
            at = self._ledgers.entry_at(at)  # The entry may have been trimmed meanwhile.
        if at > end or max_entries < 1:
            await trio.lowlevel.checkpoint()
            return []
        found = self._cached(at, end, max_entries, max_bytes)
        if found:
            await trio.lowlevel.checkpoint()
        elif (shared or self._streams) and at not in self._under_way:
            found = await self._fetch_for_all(at, end, at.entry_id + max_entries - 1, max_bytes)
        else:
            found = await self._fetch(at, end, at.entry_id + max_entries - 1, max_bytes)
        self._has_read(stream, found, end)
        return found

    def read_now(
        self, at: Position, end: Position, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Return what `read` would return if it is in memory, else nothing."""
        return self._cached(at, end, max_entries, max_bytes)

    async def _fetch_for_all(
        self, at: Position, end: Position, last: int, max_bytes: int
    ) -> list[LogEntry]:
        """Read entries into the cache, while others that want them wait."""
        self._under_way[at] = trio.Event()
        try:
            found = await self._fetch(at, end, last, max_bytes)
            for entry in found:
                self._context.cache.put(entry.position, bytes(entry.data))
        finally:
            self._under_way.pop(at).set()
        return found

    async def read_one(self, at: Position, end: Position) -> Entry | None:
        """Read an entry with its header from the bookies; None if its ledger was trimmed.

        The header has the length of the ledger, which the cache does not keep.  Raise LedgerError.
        """
        try:
            found = await self._fetch_whole(at, end, at.entry_id, 1)
        except LedgerError:
            if self._ledgers.lists(at.ledger_id):
                raise
            return None
        return found[0]

    def holders(self, position: Position) -> str:
        """Return where an entry is, in words: its ledger, and bookies that are slow or away."""
        ledger = f"ledger {position.ledger_id}"
        source = self._writers.get(position.ledger_id) or self._readers.get(position.ledger_id)
        if source is None:
            return f"{ledger}, whose metadata are being read"
        bookies = fragment_at(source.metadata.fragments, max(0, position.entry_id)).ensemble
        silent = self._context.client.context.directory.doubtful(bookies)
        away = f"; {', '.join(sorted(silent))} did not answer lately" if silent else ""
        return f"{ledger} on the bookies {', '.join(bookies)}{away}"

    def forget(self, ledger_id: int) -> None:
        """Drop the reader of a ledger that was trimmed."""
        self._readers.pop(ledger_id, None)

    async def _fetch(
        self, at: Position, end: Position, last: int, max_bytes: int
    ) -> list[LogEntry]:
        """Read entries of one ledger, up to the entry `last`."""
        entries = await self._fetch_whole(at, end, last, max_bytes)
        return [LogEntry(Position(at.ledger_id, e.entry_id), e.payload) for e in entries]

    async def _fetch_whole(
        self, at: Position, end: Position, last: int, max_bytes: int
    ) -> list[Entry]:
        last = min(last, self._last_in(at.ledger_id, end))
        try:
            source = self._writers.get(at.ledger_id) or await self._reader(at.ledger_id, last)
            self._context.cache.reads += 1
            entries: list[Entry] = await source.read(at.entry_id, last, max_bytes=max_bytes)
        except MetadataError as error:
            raise ReadUnknownError(at.ledger_id, at.entry_id, f"no metadata: {error}") from error
        except LogCorruptError as error:
            # The ledger belongs to another topic: none of its entries is returned, and none is
            # skipped, so the position stays unread.
            if at.ledger_id not in self._foreign:
                self._foreign.add(at.ledger_id)
                _log.error("%s cannot be read: %s", self._ledgers.owner, error)
            raise ReadUnknownError(at.ledger_id, at.entry_id, str(error)) from error
        return entries

    def _last_in(self, ledger_id: int, end: Position) -> int:
        """Return the last entry of a ledger that may be read."""
        sealed = self._ledgers.find_sealed(ledger_id)
        return end.entry_id if sealed is None else sealed.entries - 1

    # -- ahead of demand

    def _has_read(self, stream: _Stream | None, found: Sequence[LogEntry], end: Position) -> None:
        """Note what a reader has read, and read ahead if it also read the entries before that."""
        assert found  # A read returns at least one entry, or raises.
        behind = self._ledgers.next_position(found[-1].position)
        reads_on = stream is not None
        if stream is None:
            stream = _Stream(behind)
        size = sum(len(entry.data) for entry in found)
        stream.entry_bytes = max(1, size // len(found))
        stream.ahead_bytes -= size
        if stream.frontier <= behind:
            stream.frontier, stream.ahead_bytes = behind, 0
        self._streams[behind] = stream
        while len(self._streams) > _STREAMS_MAX:
            self._streams.popitem(last=False)
        if reads_on and not self._context.stopped:
            while stream.fetching < _CHUNKS_AT_ONCE and (chunk := self._next_chunk(stream, end)):
                stream.fetching += 1
                self._context.tasks.start_soon(self._read_ahead, stream, chunk, end)

    def _next_chunk(self, stream: _Stream, end: Position) -> _Chunk | None:
        """Return the chunk at the frontier, about a megabyte of one ledger, and count it as on its
        way; None if nothing is to be read ahead now.
        """
        at = stream.frontier
        has_room = self._context.cache.has_room_ahead
        if (
            at > end
            or at in self._under_way
            or stream.ahead_bytes + _CHUNK_BYTES > _AHEAD_BYTES
            or not has_room(at, _CHUNK_BYTES, trio.current_time())
        ):
            return None
        last = at.entry_id + max(1, _CHUNK_BYTES // stream.entry_bytes) - 1
        last = min(last, self._last_in(at.ledger_id, end))
        chunk = _Chunk(at, Position(at.ledger_id, last))
        stream.frontier = self._ledgers.next_position(chunk.last)
        stream.ahead_bytes += _CHUNK_BYTES
        self._under_way[at] = trio.Event()
        return chunk

    async def _read_ahead(self, stream: _Stream, chunk: _Chunk | None, end: Position) -> None:
        try:
            # The reader that needs these entries reads them again, and then gets the error.
            with suppress(LedgerError):
                while chunk is not None:
                    await self._read_chunk(stream, chunk)
                    chunk = self._next_chunk(stream, end)
        finally:
            stream.fetching -= 1

    async def _read_chunk(self, stream: _Stream, chunk: _Chunk) -> None:
        at = first = chunk.first
        size = 0
        try:
            while first <= chunk.last and size < 2 * _CHUNK_BYTES:
                found = await self._fetch(first, chunk.last, ENTRIES_MAX, _CHUNK_BYTES)
                now_s = trio.current_time()
                for entry in found:
                    self._context.cache.put_ahead(entry.position, bytes(entry.data), now_s)
                    size += len(entry.data)
                first = Position(at.ledger_id, found[-1].position.entry_id + 1)
        finally:
            stream.ahead_bytes += size - _CHUNK_BYTES  # `_next_chunk` has counted an estimate.
            self._under_way.pop(at).set()

    # -- sources of entries

    def _cached(
        self, at: Position, end: Position, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        found: list[LogEntry] = []
        size, cache = 0, self._context.cache
        while at <= end and len(found) < max_entries and size < max_bytes:
            data = cache.get(at)
            if data is None:
                break
            found.append(LogEntry(at, memoryview(data)))
            size += len(data)
            at = self._ledgers.next_position(at)
        return found

    async def _reader(self, ledger_id: int, last: int) -> LedgerReader:
        """Return a reader that knows of the entry `last`, which is confirmed."""
        reader = self._readers.get(ledger_id)
        if reader is None:
            owner = self._ledgers.owner
            reader = await self._context.open_ledger(ledger_id, owner, recover=False)
            if len(self._readers) >= _READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[ledger_id] = reader
        if reader.last_add_confirmed < last:  # The metadata that it read are outdated.
            await self._context.store.sync(self._ledgers.path)
            await reader.refresh()
        return reader
