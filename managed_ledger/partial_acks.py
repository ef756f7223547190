"""Batches of which some messages are acknowledged: the pending messages of each such entry.

A set is an integer with one bit for each message that is still pending, as in Pulsar's records.  If
the sets take too much memory, the one that has not changed for longest is forgotten.  The whole
entry is then delivered again: at least once, never less.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from daybook.managed_ledger.position import Position

BYTES_MAX = 16 << 20
_ALL = -1
_FORGOTTEN_MIN = 1_000  # positions that were dropped before it is worth while to sort them out
_ENTRY_BYTES = 300


class PartialAcks:
    """One instance per cursor."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._pending: OrderedDict[Position, int] = OrderedDict()
        self._lowest: list[Position] = []  # a heap of the positions, and of some that are forgotten
        self._bytes = 0
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._pending)

    def ack(self, position: Position, pending: int) -> bool:
        """Leave only those messages pending that are in both sets.

        Return True if none is left; the entry is then forgotten here.
        """
        before = self._pending.get(position)
        left = (_ALL if before is None else before) & pending
        self._drop(position)
        if not left:
            return True
        self._pending[position] = left
        if before is None:
            self._note(position)
        self._bytes += _cost(left)
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._pending)))  # the set that has not changed for longest
        assert self._bytes >= 0
        return False

    def _note(self, position: Position) -> None:
        """Remember the position: `done_up_to` finds the lowest ones, and looks at no others."""
        heappush(self._lowest, position)
        if len(self._lowest) > 2 * len(self._pending) + _FORGOTTEN_MIN:
            self._lowest = list(self._pending)
            heapify(self._lowest)

    def _drop(self, position: Position) -> None:
        left = self._pending.pop(position, None)
        if left is not None:
            self._bytes -= _cost(left)

    def pending(self, position: Position) -> int | None:
        """Return the pending messages of an entry, or None for all of them."""
        return self._pending.get(position)

    def sets(self) -> list[tuple[Position, int]]:
        """Return the entries and their pending messages, in the order of the entries."""
        return sorted(self._pending.items())

    def done(self, positions: Iterable[Position]) -> None:
        if self._pending:
            for position in positions:
                self._drop(position)

    def done_up_to(self, last: Position) -> None:
        while self._lowest and self._lowest[0] <= last:
            self._drop(heappop(self._lowest))

    def clear(self) -> None:
        self._pending.clear()
        self._lowest.clear()
        self._bytes = 0


def _cost(left: int) -> int:
    return _ENTRY_BYTES + left.bit_length() // 8
