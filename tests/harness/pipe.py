"""Two ends of a stream in memory, which move as many bytes at a time as the test says."""

from collections.abc import Callable, Sequence

import trio

from daybook.wire.errors import ConnectionLostError
from daybook.wire.transport import Buffer

_CAPACITY_BYTES = 1 << 16


class PipeStream:
    """One end.  `inbox` holds what has arrived; a test may look at it and change it."""

    encrypted = False
    certificate = None

    def __init__(self, peer: str, limit: Callable[[], int], capacity: int) -> None:
        """`limit` returns how many bytes the next call moves at most."""
        self.peer = peer
        self.other: PipeStream | None = None
        self.inbox = bytearray()
        self.received = 0  # bytes that this end was given, for tests that cut after some
        self.ended = False  # the other end sends no more
        self.broken = False
        self.closed = False
        self._limit = limit
        self._capacity = capacity
        self._changed = trio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("this end was closed")
        if self.broken:
            raise ConnectionLostError(f"{self.peer}: reset")

    def try_recv_into(self, buffer: memoryview) -> int | None:
        self._check()
        if not self.inbox:
            return 0 if self.ended else None
        count = min(len(buffer), len(self.inbox), self._limit())
        buffer[:count] = self.inbox[:count]
        del self.inbox[:count]
        assert self.other is not None
        self.other.notify()
        return count

    async def wait_readable(self, bytes_min: int = 1) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self._check()
            if len(self.inbox) >= bytes_min or self.ended:
                return
            await self._changed.wait()

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        other = self.other
        assert other is not None
        if other.closed:
            raise ConnectionLostError(f"{self.peer}: broken pipe")
        room = min(self._capacity - len(other.inbox), self._limit())
        data = b"".join(buffers)[: max(0, room)]
        other.inbox += data
        other.received += len(data)
        other.notify()
        return len(data)

    async def wait_writable(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self._check()
            assert self.other is not None
            if len(self.other.inbox) < self._capacity or self.other.closed:
                return
            await self._changed.wait()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.notify()
            assert self.other is not None
            self.other.ended = True
            self.other.notify()


def pipe(
    limit: Callable[[], int] = lambda: 1 << 30, capacity: int = _CAPACITY_BYTES
) -> tuple[PipeStream, PipeStream]:
    """Return both ends."""
    here, there = PipeStream("there:1", limit, capacity), PipeStream("here:1", limit, capacity)
    here.other, there.other = there, here
    return here, there
