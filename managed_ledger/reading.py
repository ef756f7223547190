"""Reads entries of one log: from the cache, from its own ledgers, or from those that are closed."""

from dataclasses import dataclass

import trio

from bookie.ledger.reader import LedgerReader
from bookie.ledger.writer import LedgerWriter
from managed_ledger.context import LogContext
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import Position

_READERS_MAX = 16
_TAILING_S = 10.0
_TAILING_ENTRIES = 1000


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
        if at > end or max_entries < 1:
            await trio.lowlevel.checkpoint()
            return []
        found = self._cached(at, end, max_entries, max_bytes)
        if found:
            await trio.lowlevel.checkpoint()
            return found
        row = self._ledgers.row(at.ledger_id)
        last = row.entries - 1 if row is not None else end.entry_id
        last = min(last, at.entry_id + max_entries - 1)
        source = self._writers.get(at.ledger_id) or await self._reader(at.ledger_id)
        entries = await source.read(at.entry_id, last, max_bytes=max_bytes)
        found = [LogEntry(Position(at.ledger_id, e.entry_id), e.payload) for e in entries]
        if shared:
            for entry in found:
                self._context.cache.put(entry.position, bytes(entry.data))
        return found

    def forget(self, ledger_id: int) -> None:
        self._readers.pop(ledger_id, None)

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

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._context.client.open(ledger_id, recover=False)
            if len(self._readers) >= _READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[ledger_id] = reader
        return reader
