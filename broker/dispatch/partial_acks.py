"""Batches of which some messages are acknowledged: kept in memory until the whole entry is.

A set is the messages that are still pending, as bits.  When the broker forgets one (it stops, or
there are too many), the entry is delivered whole again: at least once, never less.
"""

from collections.abc import Iterable

from daybook.broker.protocol.dispatch.events import Place

_ALL = -1
_ENTRY_BYTES = 200


class PartialAcks:
    """Of one subscription."""

    def __init__(self, bytes_max: int) -> None:
        self._pending: dict[Place, int] = {}
        self._bytes = 0
        self._bytes_max = bytes_max

    def __bool__(self) -> bool:
        return bool(self._pending)

    def ack(self, place: Place, pending: int) -> bool:
        """Only these are pending still, of those that were; True if none is."""
        left = self._pending.get(place, _ALL) & pending
        self._drop(place)
        if not left:
            return True
        self._pending[place] = left
        self._bytes += _cost(left)
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._pending)))
        return False

    def _drop(self, place: Place) -> None:
        left = self._pending.pop(place, None)
        if left is not None:
            self._bytes -= _cost(left)

    def pending(self, place: Place) -> int | None:
        """None: all of them."""
        return self._pending.get(place)

    def done(self, places: Iterable[Place]) -> None:
        if self._pending:
            for place in places:
                self._drop(place)

    def done_up_to(self, last: Place) -> None:
        if self._pending:
            self.done([place for place in self._pending if place <= last])

    def keep_only(self, place: Place, pending: int | None) -> None:
        """The cursor was moved to this entry."""
        self.done(list(self._pending))
        if pending:
            self.ack(place, pending)


def _cost(left: int) -> int:
    return _ENTRY_BYTES + left.bit_length() // 8
