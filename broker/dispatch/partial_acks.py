"""Batches of which some messages are acknowledged: kept in memory until the whole entry is.

A set has one bit for each message that is still pending.  When the broker loses a set (it stops, or
there are too many sets), the whole entry is delivered again: at least once, never less.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from daybook.broker.protocol.dispatch.interface import Place

_ALL = -1
_FORGOTTEN_MIN = 1_000  # places that were dropped before it is worth while to sort them out
_ENTRY_BYTES = 300


class PartialAcks:
    """One instance per subscription."""

    def __init__(self, bytes_max: int) -> None:
        self._pending: OrderedDict[Place, int] = OrderedDict()
        self._lowest: list[Place] = []  # a heap of the places, and of some that are forgotten
        self._bytes = 0
        self._bytes_max = bytes_max

    def __bool__(self) -> bool:
        return bool(self._pending)

    def ack(self, place: Place, pending: int) -> bool:
        """Leave only those messages pending that are in both sets.

        Return True if none is left.
        """
        before = self._pending.get(place)
        left = (_ALL if before is None else before) & pending
        self._drop(place)
        if not left:
            return True
        self._pending[place] = left
        if before is None:
            self._note(place)
        self._bytes += _cost(left)
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._pending)))  # the set that has not changed for longest
        assert self._bytes >= 0
        return False

    def _note(self, place: Place) -> None:
        """Remember the place: `done_up_to` finds the lowest ones, and looks at no others."""
        heappush(self._lowest, place)
        if len(self._lowest) > 2 * len(self._pending) + _FORGOTTEN_MIN:
            self._lowest = list(self._pending)
            heapify(self._lowest)

    def _drop(self, place: Place) -> None:
        left = self._pending.pop(place, None)
        if left is not None:
            self._bytes -= _cost(left)

    def pending(self, place: Place) -> int | None:
        """Return the pending messages of an entry, or None for all of them."""
        return self._pending.get(place)

    def done(self, places: Iterable[Place]) -> None:
        if self._pending:
            for place in places:
                self._drop(place)

    def done_up_to(self, last: Place) -> None:
        while self._lowest and self._lowest[0] <= last:
            self._drop(heappop(self._lowest))

    def keep_only(self, place: Place, pending: int | None) -> None:
        """Forget all sets, because the cursor was moved to this entry with these messages."""
        self.done(list(self._pending))
        if pending:
            self.ack(place, pending)


def _cost(left: int) -> int:
    return _ENTRY_BYTES + left.bit_length() // 8
