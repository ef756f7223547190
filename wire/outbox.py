"""The flusher of a host: one task that sends for all its connections.

A connection that has something to send marks itself.  Once per turn of the loop the flusher sends
all queued buffers, with one gathering system call for each connection, so all sends of a turn share
wake-ups and system calls.  A task that is about to wait for its peer calls `flush` first: its
buffers leave one turn earlier then.
"""

from typing import Protocol

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task


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
        self._dirty: list[Flushable] = []
        self._parked: Task | None = None
        self._nursery: trio.Nursery | None = None

    def mark(self, connection: Flushable) -> None:
        """Note that `connection` has something to send.  It marks itself once between flushes."""
        self._dirty.append(connection)
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def flush(self) -> None:
        """Send all queued buffers now; a `drain` task sends what a peer does not take at once."""
        nursery = self._nursery
        while self._dirty and nursery is not None:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                if not connection.flush():
                    nursery.start_soon(connection.drain)

    async def run(self) -> None:
        """Flush forever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                while True:
                    self.flush()
                    await self._park()
            finally:
                self._nursery = None

    async def _park(self) -> None:
        def abort(_: RaiseCancelT) -> Abort:
            self._parked = None
            return Abort.SUCCEEDED

        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
