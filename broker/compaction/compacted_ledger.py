"""The compacted ledger of a topic, read by the original positions of its entries.

Positions ascend, so an entry is found by bisection.  A reader that reads on needs none: the entry
behind each of the latest reads is remembered.
"""

from collections import OrderedDict

import trio

from daybook.broker.compaction.slices import in_slices
from daybook.broker.protocol.compaction import last_index
from daybook.managed_ledger.compacted import CompactedReader
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry

_REMEMBERED_MAX = 1_000


class CompactedLedger:
    """One instance per compacted ledger that is open."""

    def __init__(self, reader: CompactedReader) -> None:
        self.reader = reader
        self._looking = trio.Lock()
        self._last: tuple[int, tuple[Position, int]] | None = None  # the latest that was looked at
        self._following: OrderedDict[Position, int] = OrderedDict()  # entry ids, by position

    async def read(
        self, start: Position, through: Position, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Return entries from `start` on, up to `through`; none if there is none in between.

        Raise LedgerError.
        """
        entry_id = self._following.get(start)
        if entry_id is None:
            entry_id = await self._find(start)
        found = await self.reader.read(entry_id, max_entries=max_entries, max_bytes=max_bytes)
        if found:
            self._remember(found[-1].position.next_in_ledger(), entry_id + len(found))
        return [entry for entry in found if entry.position <= through]

    async def last_message(self, through: Position) -> tuple[Position, int] | None:
        """Return the last entry up to `through`, and the index of its last message that is left.

        The index is -1 if the entry is no batch.
        """
        behind = await self._find(through.next_in_ledger())
        if not behind:
            return None
        # Clients may ask without end, and a few bytes can hold hundreds of thousands of messages.
        async with self._looking:
            if self._last is None or self._last[0] != behind:
                entry = await self._entry(behind - 1)
                index = await in_slices(last_index(entry.data))
                self._last = (behind, (entry.position, index))
            return self._last[1]

    async def _find(self, position: Position) -> int:
        """Return the id of the first entry at or behind a position."""
        low, high = 0, self.reader.entries
        while low < high:
            middle = (low + high) // 2
            if (await self._entry(middle)).position < position:
                low = middle + 1
            else:
                high = middle
        return low

    async def _entry(self, entry_id: int) -> LogEntry:
        found = await self.reader.read(entry_id, max_entries=1, max_bytes=1)
        return found[0]

    def _remember(self, position: Position, entry_id: int) -> None:
        self._following[position] = entry_id
        self._following.move_to_end(position)
        if len(self._following) > _REMEMBERED_MAX:
            self._following.popitem(last=False)
