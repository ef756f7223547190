"""The places of loads: a broker loads so many topics at a time, and the other loads wait.

    await places.take(load, callers)
    ...
    places.give_back()

The next place goes to the load that most callers wait for, and among equals to the one that came
first.  When a broker takes over thousands of topics, those that many producers and consumers use
come first, so that most clients wait a short time.  Callers are counted in powers of two, because a
few more make no difference.  Every fourth place goes to the load that came first of all, so that
none waits forever.
"""

from collections.abc import Hashable
from typing import TypeAlias

import trio

_OLDEST_EVERY = 4  # places
_LEVELS = 9  # the highest is for 128 callers and more

Load: TypeAlias = Hashable


class LoadPlaces:
    """So many places.  One that becomes free is handed to a load that waits, if there is one."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._handed_on = 0
        # Both in the order in which they came.
        self._waiting: dict[Load, tuple[trio.Event, int]] = {}  # each with its level
        self._levels: list[dict[Load, None]] = [{} for _ in range(_LEVELS)]

    async def take(self, load: Load, callers: int) -> None:
        """Wait for a place for this load, for which so many callers wait."""
        await trio.lowlevel.checkpoint()
        if self._free:
            self._free -= 1
            return
        event = trio.Event()
        self._wait(load, event, callers)
        try:
            await event.wait()
        except BaseException:
            if load in self._waiting:
                self._end_wait(load)
            else:
                self.give_back()  # It was handed a place and cancelled in the same moment.
            raise

    def called(self, load: Load, callers: int) -> None:
        """Note how many callers wait for a load.  Nothing happens unless it waits for a place."""
        waiting = self._waiting.get(load)
        if waiting is not None:
            event, level = waiting
            now = _level(callers)
            if now != level:
                del self._levels[level][load]
                self._levels[now][load] = None
                self._waiting[load] = event, now  # A dictionary keeps its order then.

    def give_back(self) -> None:
        """Hand a place on, or keep it free."""
        if not self._waiting:
            self._free += 1
            return
        self._handed_on += 1
        self._end_wait(self._next()).set()

    def _next(self) -> Load:
        if not self._handed_on % _OLDEST_EVERY:
            return next(iter(self._waiting))
        return next(next(iter(level)) for level in reversed(self._levels) if level)

    def _wait(self, load: Load, event: trio.Event, callers: int) -> None:
        level = _level(callers)
        self._waiting[load] = event, level
        self._levels[level][load] = None

    def _end_wait(self, load: Load) -> trio.Event:
        event, level = self._waiting.pop(load)
        del self._levels[level][load]
        return event


def _level(callers: int) -> int:
    return min(callers.bit_length(), _LEVELS - 1)
