"""Reads entries of one log: from the cache, from its own ledgers, or from those that are closed.

Who reads on finds what comes next in the cache: while entries are on their way to their consumer,
the ones behind them are on their way here.
"""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

import trio

from bookie.errors import LedgerError, ReadUnknownError
from bookie.ledger.reader import LedgerReader
from bookie.ledger.writer import LedgerWriter
from managed_ledger.ack_set import ENTRIES_MAX
from managed_ledger.context import LogContext
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import Position
from wire.metadata.store import MetadataError

_READERS_MAX = 16
_TAILING_S = 10.0
_TAILING_ENTRIES = 1000
_STREAMS_MAX = 256
_AHEAD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry as it was stored: broker entry metadata, then the payload."""

    position: Position
    data: memoryview


class LogReader:
    """`writers`: the ledgers of which this host knows the end better than anybody."""

    def __init__(
        self, context: LogContext, ledgers: LedgerList, writers: dict[int, LedgerWriter]
    ) -> None:
        self._context = context
        self._ledgers = ledgers
        self._writers = writers
        self._readers: dict[int, LedgerReader] = {}
        self._tailing_until_s = 0.0
        self._ends: OrderedDict[Position, None] = OrderedDict()  # behind what was read lately
        self._under_way: dict[Position, trio.Event] = {}  # reading ahead from there

    @property
    def tailing(self) -> bool:
        """Somebody reads what is appended: appended entries are worth caching."""
        return trio.current_time() < self._tailing_until_s

    def expect(self) -> None:
        """Somebody waits at the end."""
        self._tailing_until_s = trio.current_time() + _TAILING_S

    async def read(
        self, at: Position, end: Position, *, max_entries: int, max_bytes: int, shared: bool
    ) -> list[LogEntry]:
        """A run of entries, the first one at `at`, none behind `end`.  Raises LedgerError.

        `shared`: others are going to read the same.
        """
        if at.ledger_id == end.ledger_id and at.entry_id >= end.entry_id - _TAILING_ENTRIES:
            self.expect()
        if (arrival := self._under_way.get(at)) is not None:
            await arrival.wait()
            at = self._ledgers.entry_at(at)  # It may have been trimmed meanwhile.
        if at > end or max_entries < 1:
            await trio.lowlevel.checkpoint()
            return []
        found = self._cached(at, end, max_entries, max_bytes)
        if found:
            await trio.lowlevel.checkpoint()
        else:
            found = await self._fetch(at, end, at.entry_id + max_entries - 1, max_bytes)
            if shared:
                for entry in found:
                    self._context.cache.put(entry.position, bytes(entry.data))
        self._go_ahead(at, self._ledgers.next_position(found[-1].position), end)
        return found

    def forget(self, ledger_id: int) -> None:
        self._readers.pop(ledger_id, None)

    async def _fetch(
        self, at: Position, end: Position, last: int, max_bytes: int
    ) -> list[LogEntry]:
        """Of one ledger, up to the entry `last` at most."""
        row = self._ledgers.row(at.ledger_id)
        last = min(last, end.entry_id if row is None else row.entries - 1)
        try:
            source = self._writers.get(at.ledger_id) or await self._reader(at.ledger_id, last)
            entries = await source.read(at.entry_id, last, max_bytes=max_bytes)
        except MetadataError as error:
            raise ReadUnknownError(at.ledger_id, at.entry_id, f"metadata: {error}") from error
        return [LogEntry(Position(at.ledger_id, e.entry_id), e.payload) for e in entries]

    # -- ahead of demand

    def _go_ahead(self, at: Position, behind: Position, end: Position) -> None:
        """Somebody has read from `at`; if they have read what is before that, they read on."""
        reads_on = at in self._ends
        self._ends.pop(at, None)
        self._ends[behind] = None
        while len(self._ends) > _STREAMS_MAX:
            self._ends.popitem(last=False)
        if not reads_on or behind > end or behind in self._under_way:
            return
        if self._context.cache.has_room_ahead(behind, _AHEAD_BYTES, trio.current_time()):
            self._under_way[behind] = trio.Event()
            self._context.nursery.start_soon(self._read_ahead, behind, end)

    async def _read_ahead(self, at: Position, end: Position) -> None:
        try:
            # Who wants to have it reads it again, and is told what is wrong.
            with suppress(LedgerError):
                found = await self._fetch(at, end, ENTRIES_MAX, _AHEAD_BYTES)
                now_s = trio.current_time()
                for entry in found:
                    self._context.cache.put_ahead(entry.position, bytes(entry.data), now_s)
        finally:
            self._under_way.pop(at).set()

    # -- where entries come from

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
        """A reader that knows of the entry `last`, which is confirmed."""
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._context.client.open(ledger_id, recover=False)
            if len(self._readers) >= _READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[ledger_id] = reader
        if reader.last_add_confirmed < last:  # What we were told of the ledger is old.
            await self._context.store.sync(self._ledgers.path)
            await reader.refresh()
        return reader
