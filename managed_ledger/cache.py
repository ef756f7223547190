"""Recent entries of all logs of a host, bounded in bytes; the oldest go first.

Entries are copied in: a received payload is a view that would pin a whole arena.

What is read ahead of demand may take half of it: more than that would be thrown out by itself
before anybody comes for it.  What nobody has come for in a while does not count any more.
"""

from collections import OrderedDict

from daybook.managed_ledger.position import Position

ENTRY_OVERHEAD_BYTES = 200
_AWAITED_S = 5.0


class EntryCache:
    """`bytes_max` counts payloads and what it costs to hold them."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Position, bytes] = OrderedDict()  # ledger ids are unique
        self._ahead: OrderedDict[Position, tuple[int, float]] = OrderedDict()  # size, since when
        self._ahead_bytes = 0

    def put(self, position: Position, data: bytes) -> None:
        if position in self._entries or len(data) + ENTRY_OVERHEAD_BYTES > self.bytes_max:
            return
        self._entries[position] = data
        self.bytes += len(data) + ENTRY_OVERHEAD_BYTES
        while self.bytes > self.bytes_max:
            oldest, dropped = self._entries.popitem(last=False)
            self.bytes -= len(dropped) + ENTRY_OVERHEAD_BYTES
            self._no_longer_ahead(oldest)

    def get(self, position: Position) -> bytes | None:
        data = self._entries.get(position)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
            if self._ahead:
                self._no_longer_ahead(position)
        return data

    # -- ahead of demand

    def has_room_ahead(self, position: Position, size: int, now_s: float) -> bool:
        """Whether to read `size` bytes from there, which nobody has asked for yet."""
        while self._ahead:
            oldest, (_, since_s) = next(iter(self._ahead.items()))
            if now_s - since_s < _AWAITED_S:
                break
            self._no_longer_ahead(oldest)
        return position not in self._entries and self._ahead_bytes + size <= self.bytes_max // 2

    def put_ahead(self, position: Position, data: bytes, now_s: float) -> None:
        self.put(position, data)
        if position in self._entries and position not in self._ahead:
            self._ahead[position] = (len(data), now_s)
            self._ahead_bytes += len(data)

    def _no_longer_ahead(self, position: Position) -> None:
        size, _ = self._ahead.pop(position, (0, 0.0))
        self._ahead_bytes -= size
