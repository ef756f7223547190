"""The entries of all logs of a host that came last, for readers that keep up.

The cache is bounded in bytes, and the oldest entries are dropped first.  While `run` runs, an entry
is also dropped half a minute after it has come: a reader that is further behind reads at bookies,
and a host that has nothing to do gives the memory back.
"""

from collections import OrderedDict, deque

import trio

from daybook.managed_ledger.position import Position
from daybook.wire.process import trim

CACHE_OVERHEAD_BYTES = 200  # for each entry
KEPT_S = 30.0
_TICK_S = 5.0
_AWAITED_S = 5.0  # an entry that was read ahead counts as that for so long
_DROPPED_PER_TURN = 1_000  # then other tasks run
_FEW_BYTES = 8 << 20  # With fewer entries than that, the system gets the memory of the others.


class EntryCache:
    """One instance per host.  `bytes_max` counts payloads and the cost of holding them.

    Entries are copied in, since a received payload is a view that would pin a whole arena.

    Entries that are read ahead of demand may take half of the cache: with more than that they would
    push each other out before a reader needs them.  An entry that no reader has asked for in a
    while does not count as read ahead any more.
    """

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.reads = 0  # at bookies, of entries that were not here
        # The ids of ledgers are unique in a cluster, so positions of all logs may share one map.
        self._entries: OrderedDict[Position, bytes] = OrderedDict()
        # Entries that were read ahead: size, and since when they are here.
        self._ahead: OrderedDict[Position, tuple[int, float]] = OrderedDict()
        self._ahead_bytes = 0
        # How many entries were dropped so far, and at some moments, how many had come in all.
        self._dropped = 0
        self._come: deque[tuple[float, int]] = deque()

    async def run(self) -> None:
        """Drop old entries, forever.  This belongs in the nursery of the host."""
        most = 0  # since the memory was given back
        while True:
            await trio.sleep(_TICK_S)
            most = max(most, self.bytes)
            while self.drop_old(trio.current_time()):
                await trio.lowlevel.checkpoint()
            # Under a steady load the memory is needed again at once, and giving it back takes time.
            if self.bytes < _FEW_BYTES <= most - self.bytes:
                trim()
                most = self.bytes

    def drop_old(self, now_s: float) -> bool:
        """Drop entries that are too old, but no more than some; return True if others are left."""
        come = self._come
        if not come or come[-1][0] < now_s:
            come.append((now_s, self._dropped + len(self._entries)))
        while come and come[0][0] <= now_s - KEPT_S:
            old = come[0][1] - self._dropped
            if old > 0:
                for _ in range(min(old, _DROPPED_PER_TURN)):
                    self._drop_oldest()
                return True
            come.popleft()
        return False

    def put(self, position: Position, data: bytes) -> None:
        if position in self._entries or len(data) + CACHE_OVERHEAD_BYTES > self.bytes_max:
            return
        self._entries[position] = data
        self.bytes += len(data) + CACHE_OVERHEAD_BYTES
        while self.bytes > self.bytes_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest, data = self._entries.popitem(last=False)
        self.bytes -= len(data) + CACHE_OVERHEAD_BYTES
        self._dropped += 1
        self._no_longer_ahead(oldest)

    def get(self, position: Position) -> bytes | None:
        data = self._entries.get(position)
        if data is not None:
            self.hits += 1
            if self._ahead:
                self._no_longer_ahead(position)
        return data

    # -- ahead of demand

    def has_room_ahead(self, position: Position, size: int, now_s: float) -> bool:
        """Return True if `size` bytes from `position` on may be read ahead of demand."""
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
