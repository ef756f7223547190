"""What a host has to send, flushed by one task for all its connections.

A connection that has something to send marks itself; once a turn of the loop the flusher sends
what has gathered, one gathered system call for each connection.  So wake-ups and system calls are
shared by everything that happened in that turn.  A task that is about to wait for its peer calls
`flush` first: what it caused leaves a turn earlier then.
"""

from typing import Protocol

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task


class Flushable(Protocol):
    def flush(self) -> bool:
        """Send what fits now; False if something is left that has to wait for the peer."""
        ...

    async def drain(self) -> None:
        """Go on sending until nothing is left."""
        ...


class Flusher:
    """One for each host.  `run` belongs into the nursery of the host."""

    def __init__(self) -> None:
        self._dirty: list[Flushable] = []
        self._parked: Task | None = None
        self._nursery: trio.Nursery | None = None

    def mark(self, connection: Flushable) -> None:
        """`connection` has something to send.  It must not mark itself twice between flushes."""
        self._dirty.append(connection)
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def flush(self) -> None:
        """Send what has gathered now; what does not fit leaves as the peers take it."""
        nursery = self._nursery
        while self._dirty and nursery is not None:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                if not connection.flush():
                    nursery.start_soon(connection.drain)

    async def run(self) -> None:
        """Flush for ever."""
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
