"""Recent entries of all logs of a host, bounded in bytes; the oldest go first.

Entries are copied in: a received payload is a view that would pin a whole arena.
"""

from collections import OrderedDict

from managed_ledger.position import Position

ENTRY_OVERHEAD_BYTES = 200


class EntryCache:
    """`bytes_max` counts payloads and what it costs to hold them."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Position, bytes] = OrderedDict()  # ledger ids are unique

    def put(self, position: Position, data: bytes) -> None:
        if position in self._entries or len(data) + ENTRY_OVERHEAD_BYTES > self.bytes_max:
            return
        self._entries[position] = data
        self.bytes += len(data) + ENTRY_OVERHEAD_BYTES
        while self.bytes > self.bytes_max:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES

    def get(self, position: Position) -> bytes | None:
        data = self._entries.get(position)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data
