"""The flusher of a host: one task that sends for all its connections.

A connection that has something to send marks itself.  Once per turn of the loop the flusher sends
all queued buffers, with one gathering system call for each connection, so all sends of a turn share
wake-ups and system calls.  A task that is about to wait for its peer calls `flush` first: its
buffers leave one turn earlier then.

Code that handles what has come, and sends answers to several connections or in several pieces, does
so `together`: the answers leave at the end of the block, and the flusher's task is not woken.
"""

from collections import deque
from types import TracebackType
from typing import Protocol

import trio

from daybook.wire.parking import Parking


class Flushable(Protocol):
    def flush(self) -> bool:
        """Send what fits now; return False if the rest has to wait for the peer."""
        ...

    async def drain(self) -> None:
        """Send until nothing is left."""
        ...


class Flusher:
    """One instance per host.  `run` belongs in the nursery of the host."""

    def __init__(self) -> None:
        self._dirty: deque[Flushable] = deque()
        self._held = 0  # blocks and calls of `flush` under way, which send at their end
        self._parking = Parking()
        self._nursery: trio.Nursery | None = None

    def mark(self, connection: Flushable) -> None:
        """Note that `connection` has something to send.  It marks itself once between flushes."""
        self._dirty.append(connection)
        if not self._held:
            self._parking.wake()

    def together(self) -> "Flusher":
        """Return a context manager: all sends of its block share one flush, at its end.

        The block must not wait: it has no `await`, nor `async for` or `async with`.  Other tasks
        would run meanwhile, and nobody would flush what they send.  Blocks may be nested.
        """
        return self

    def __enter__(self) -> None:
        self._held += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error as well: what the block has sent before it is whole.
        try:
            if self._held == 1:
                self.flush()
        finally:
            self._release()

    def flush(self) -> None:
        """Send all queued buffers now; a `drain` task sends what a peer does not take at once."""
        nursery = self._nursery
        if not self._dirty or nursery is None:
            return
        self._held += 1
        try:
            while self._dirty:
                connection = self._dirty.popleft()
                if not connection.flush():
                    nursery.start_soon(connection.drain)
        finally:
            self._release()

    def _release(self) -> None:
        self._held -= 1
        if self._dirty and not self._held:  # after an error, or before `run`
            self._parking.wake()

    async def run(self) -> None:
        """Flush forever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                while True:
                    self.flush()
                    await self._parking.park()
            finally:
                self._nursery = None
