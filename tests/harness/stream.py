"""One end of a connection in the simulated network, with its data received and under way."""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import trio

from daybook.wire.errors import ConnectionLostError
from daybook.wire.transport import Buffer

if TYPE_CHECKING:
    from tests.harness.network import SimulatedNetwork

BUFFER_BYTES_MAX = 1 << 20


class SimulatedStream:
    """One end of a connection.  Segments carry the instant of their arrival; `inf` behind a blocked
    link.

    `port` is the port that was connected to, at the end that listened; 0 at the other one.
    """

    encrypted = False
    certificate = None

    def __init__(
        self,
        network: "SimulatedNetwork",
        host: str,
        peer_host: str,
        serial: int,
        peer: str,
        port: int,
    ) -> None:
        self.host = host
        self.peer_host = peer_host
        self.port = port
        self.serial = serial
        self.other: SimulatedStream | None = None
        self.orphaned = False  # the machine at the other end has vanished
        self._network = network
        self._peer = peer
        self._inbox: deque[tuple[float, bytes]] = deque()  # (arrival, data); b"" is the end
        self._inbox_bytes = 0
        self._broken = ""
        self._doomed = ""  # the reason to break, as soon as the data that has arrived is read
        self._closed = False
        self._changed = trio.Event()  # data arrived, room was made, or the stream broke
        self._awaited = False  # a task waits for that

    @property
    def peer(self) -> str:
        return self._peer

    def _notify(self) -> None:
        if self._awaited:
            self._awaited = False
            self._changed.set()
            self._changed = trio.Event()

    async def _change(self) -> None:
        self._awaited = True
        await self._changed.wait()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        if self._doomed and not self._inbox:
            self._break(self._doomed)
        if self._broken:
            raise ConnectionLostError(f"{self._peer}: {self._broken}")

    def _break(self, reason: str) -> None:
        if not self._broken:
            self._broken = reason
            self._inbox.clear()
            self._inbox_bytes = 0
            self._network.forget(self)

    # -- receiving

    def try_recv_into(self, buffer: memoryview) -> int | None:
        self._check()
        if not self._inbox or self._inbox[0][0] > trio.current_time():
            return None
        arrival, data = self._inbox[0]
        if not data:
            return 0
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        if count < len(data):
            self._inbox[0] = (arrival, data[count:])
        else:
            self._inbox.popleft()
        self._inbox_bytes -= count
        if self.other is not None:
            self.other._notify()
        return count

    async def wait_readable(self, bytes_min: int = 1) -> None:
        del bytes_min
        waited = False
        while not self._is_readable():
            waited = True
            if self._inbox and self._network.timers is None:
                with trio.move_on_at(self._inbox[0][0]):
                    await self._change()
            else:
                await self._change()
        if not waited:
            await trio.lowlevel.checkpoint()

    def _is_readable(self) -> bool:
        self._check()
        return bool(self._inbox) and self._inbox[0][0] <= trio.current_time()

    @property
    def last_arrival(self) -> float:
        """Return when all data under way will be here; the far past if none is."""
        arrival = self._inbox[-1][0] if self._inbox else -inf
        return arrival if arrival < inf else -inf

    def _arrive(self, data: bytes) -> None:
        if self._closed or self._broken or self._doomed:
            return
        cut = self._network.draw_split(len(data))
        if cut:
            self._arrive_whole(data[:cut])
            data = data[cut:]
        self._arrive_whole(data)

    def _arrive_whole(self, data: bytes) -> None:
        arrival = inf
        if not self._network.blocked(self.peer_host, self.host):
            arrival = self._draw_arrival(self._inbox[-1][0] if self._inbox else 0.0, len(data))
        self._inbox.append((arrival, data))
        self._inbox_bytes += len(data)
        self._announce(arrival)

    def _draw_arrival(self, after: float, size: int) -> float:
        delay_s = self._network.draw_delay_s(self.peer_host, self.host, size)
        return max(trio.current_time() + delay_s, after)

    def _announce(self, arrival: float) -> None:
        """Wake the waiting task at that time."""
        timers = self._network.timers
        if timers is None:
            self._notify()
        elif arrival < inf:
            timers.at(arrival, self._notify)

    def unblocked(self) -> None:
        """Let the data that was held back arrive."""
        after, moved = 0.0, deque[tuple[float, bytes]]()
        for arrival, data in self._inbox:
            after = arrival if arrival < inf else self._draw_arrival(after, len(data))
            moved.append((after, data))
        self._inbox = moved
        for arrival, _ in moved:
            self._announce(arrival)

    # -- sending

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        other = self.other
        assert other is not None
        data = data[: max(0, BUFFER_BYTES_MAX - other._inbox_bytes)]
        if data:
            self._network.trace("net", self.host, self.peer_host, self.serial, len(data))
            if self._network.tap is not None:
                self._network.tap(self, data)
            if self._network.gate is not None and not self._network.gate(self, data):
                return len(data)
            if self.orphaned:
                # The other end waits for an answer that never comes.
                other._inbox_bytes += len(data)
                if not self._network.is_down(self.peer_host):
                    self.refuse()
            else:
                other._arrive(data)
        return len(data)

    async def wait_writable(self) -> None:
        waited = False
        while not self._is_writable():
            waited = True
            await self._change()
        if not waited:
            await trio.lowlevel.checkpoint()

    def _is_writable(self) -> bool:
        self._check()
        assert self.other is not None
        return self.other._inbox_bytes < BUFFER_BYTES_MAX

    # -- ending

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self)
        self._notify()
        if self.other is not None and not self.orphaned:
            self.other._arrive(b"")

    def reset(self, kept: float = 0.0) -> None:
        """Break both ends; this share of the data under way still arrives."""
        for end in (self, self.other):
            if end is not None and not end._broken:
                end._lose(kept)

    def reset_here(self) -> None:
        self._break("reset")
        self._notify()

    def _lose(self, kept: float) -> None:
        rest = int(self._inbox_bytes * kept)
        whole = [(arrival, data) for arrival, data in self._inbox if data and arrival < inf]
        if not rest or not whole:
            self.reset_here()
            return
        self._doomed = "reset"
        self._inbox.clear()
        self._inbox_bytes = 0
        for arrival, data in whole:
            part = data[:rest]
            rest -= len(part)
            if part:
                self._inbox.append((arrival, part))
                self._inbox_bytes += len(part)
        self._announce(self._inbox[-1][0])

    def vanish(self) -> None:
        """Remove the machine at this end."""
        self._break("the machine is gone")
        self._notify()
        if self.other is not None:
            self.other.orphaned = True

    def refuse(self) -> None:
        """Reset: the machine at the other end is back and does not know this connection."""
        timers = self._network.timers
        if timers is None:
            self.reset_here()
        else:
            timers.at(trio.current_time() + self._network.draw_delay_s(), self.reset_here)
