"""When the commands of clients are carried out: a bounded amount between two passes of the loop.

The event loop runs each connection that has something to read once in a pass, so a client with many
connections would have as many shares of it.  Here all connections together carry out commands at
once up to `COST_MAX`.  A connection that comes later in the pass waits for its turn.  The sources
take turns: a role, or an address whose clients prove no role, is one source, whatever number of
connections it has.  So a flood from one source delays others by a few turns, not by all of it.

The cost of a frame is 1, and 1 more for each 16 KiB.  While connections wait, each turn is short.
A client that has gone is noticed when something is sent to it, and the rest of its commands is
dropped then.
"""

from collections import deque
from collections.abc import Callable

import trio

COST_MAX = 256
_TURNS_PER_PASS = 8
FRAMES_PER_TURN = 128
FRAMES_PER_SHORT_TURN = 32  # if connections wait
_COST_SHIFT = 14


class FrameTurns:
    """One instance per broker.  `run` belongs in the broker's nursery."""

    def __init__(self) -> None:
        self._spent = 0
        self._waiting: dict[str, deque[trio.Event]] = {}  # by source; the first has the next turn
        self._wake = trio.Event()

    def __len__(self) -> int:
        """Return how many connections wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def frames_max(self) -> int:
        """The number of frames that a connection may carry out in its turn."""
        return FRAMES_PER_SHORT_TURN if self._waiting else FRAMES_PER_TURN

    def may_begin(self, source: str) -> bool:
        """Return True if a connection of the source need not wait."""
        return self._spent < COST_MAX and source not in self._waiting

    async def wait(self, source: str, late_s: float, late: Callable[[], None]) -> None:
        """Wait for the turn of a connection of the source; call `late` every `late_s` meanwhile."""
        turn = trio.Event()
        self._waiting.setdefault(source, deque()).append(turn)
        self._wake.set()
        try:
            while not turn.is_set():
                with trio.move_on_after(late_s) as limit:
                    await turn.wait()
                if limit.cancelled_caught:
                    late()
        finally:
            if not turn.is_set():
                self._withdraw(source, turn)

    def _withdraw(self, source: str, turn: trio.Event) -> None:
        turns = self._waiting[source]
        turns.remove(turn)
        if not turns:
            del self._waiting[source]

    def spend(self, frames: int, size_bytes: int) -> None:
        """Note what a connection has carried out."""
        self._spent += frames + (size_bytes >> _COST_SHIFT)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._waiting:
                self._spent = 0
                self._grant()
                await trio.lowlevel.checkpoint()

    def _grant(self) -> None:
        for _ in range(_TURNS_PER_PASS):
            if not self._waiting:
                return
            source = next(iter(self._waiting))
            turns = self._waiting.pop(source)
            turns.popleft().set()
            if turns:
                self._waiting[source] = turns  # behind all others
