"""Batches of which some messages are acknowledged: kept in memory until the whole entry is.

A set is the messages that are still pending, as bits.  When the broker forgets one (it stops, or
there are too many), the entry is delivered whole again: at least once, never less.
"""

from collections.abc import Iterable

from broker.protocol.dispatch.events import Place

_ALL = -1


class PartialAcks:
    """Of one subscription."""

    def __init__(self, entries_max: int) -> None:
        self._pending: dict[Place, int] = {}
        self._entries_max = entries_max

    def __bool__(self) -> bool:
        return bool(self._pending)

    def ack(self, place: Place, pending: int) -> bool:
        """Only these are pending still, of those that were; True if none is."""
        left = self._pending.get(place, _ALL) & pending
        if not left:
            self._pending.pop(place, None)
            return True
        self._pending[place] = left
        if len(self._pending) > self._entries_max:
            del self._pending[next(iter(self._pending))]
        return False

    def pending(self, place: Place) -> int | None:
        """None: all of them."""
        return self._pending.get(place)

    def done(self, places: Iterable[Place]) -> None:
        if self._pending:
            for place in places:
                self._pending.pop(place, None)

    def done_up_to(self, last: Place) -> None:
        self._pending = {place: left for place, left in self._pending.items() if place > last}

    def keep_only(self, place: Place, pending: int | None) -> None:
        """The cursor was moved to this entry."""
        self._pending = {} if not pending else {place: pending}

    def clear(self) -> None:
        self._pending.clear()
