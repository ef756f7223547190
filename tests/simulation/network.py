"""The network of a simulated run: streams in memory, with delay, cuts and half-open connections.

Each direction of a connection is a FIFO of segments; a segment arrives after the delay of its link.
A link (from host, to host) can be blocked, which swallows its segments and leaves both ends
connected, and connections can be reset.  Between connections nothing is ordered.

Hosts are names; `SimulatedNetwork.of(host)` is the `Network` that the host is given.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence

import trio

from wire.errors import ConnectionLostError, NobodyListensError
from wire.transport import Buffer, Listener, Stream

BUFFER_BYTES_MAX = 1 << 20


class SimulatedNetwork:
    """All hosts and links.  `delay_s` draws the delay of a segment; `trace` hears of each one."""

    def __init__(
        self,
        rng: random.Random,
        *,
        delay_s: tuple[float, float] = (0.0001, 0.001),
        trace: Callable[..., None] | None = None,
    ) -> None:
        self._rng = rng
        self._delay_s = delay_s
        self._trace = trace
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._streams: list[SimulatedStream] = []
        self._blocked: set[tuple[str, str]] = set()
        self._next_port = 40000
        self._serial = 0

    def of(self, host: str) -> "HostNetwork":
        return HostNetwork(self, host)

    def block(self, source: str, target: str) -> None:
        """Swallow all that `source` sends to `target` from now on."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        self._blocked.discard((source, target))

    def cut(self, host: str, other: str | None = None) -> None:
        """Reset the connections of `host` (those with `other` only)."""
        for stream in [s for s in self._streams if s.host == host]:
            if other is None or stream.peer_host == other:
                stream.reset()

    def crash(self, host: str) -> None:
        """The process of `host` is gone: its ports refuse, its connections are reset."""
        for address in [a for a in self._listeners if a[0] == host]:
            self._listeners.pop(address).closed = True
        self.cut(host)

    def draw_delay_s(self) -> float:
        return self._rng.uniform(*self._delay_s)

    def blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def forget(self, stream: "SimulatedStream") -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    def trace(self, *facts: object) -> None:
        if self._trace is not None:
            self._trace(*facts)

    async def connect(self, source: str, target: str, port: int) -> Stream:
        await trio.sleep(self.draw_delay_s())
        listener = self._listeners.get((target, port))
        if self.blocked(source, target) or self.blocked(target, source):
            await trio.sleep(3.0)
            raise ConnectionLostError(f"{target}:{port}: timed out")
        if listener is None:
            raise NobodyListensError(f"{target}:{port}: refused")
        self._serial += 1
        here = SimulatedStream(self, source, target, self._serial, f"{target}:{port}")
        there = SimulatedStream(self, target, source, self._serial, f"{source}:{self._serial}")
        here.other, there.other = there, here
        self._streams += [here, there]
        listener.deliver(there)
        return here

    def listen(self, host: str, port: int) -> Listener:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listeners:
            raise OSError(98, f"cannot listen on {host}:{port}: taken")
        listener = self._listeners[host, port] = SimulatedListener(self, host, port)
        return listener

    def unlisten(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)


class HostNetwork:
    """The network as one host sees it."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(self, host: str, port: int) -> Stream:
        return await self._network.connect(self._host, host, port)

    async def listen(self, host: str, port: int) -> Listener:
        await trio.lowlevel.checkpoint()
        return self._network.listen(self._host, port)


class SimulatedListener:
    def __init__(self, network: SimulatedNetwork, host: str, port: int) -> None:
        self._network = network
        self.host = host
        self.port = port
        self.closed = False
        self._waiting: deque[SimulatedStream] = deque()
        self._arrived = trio.Event()

    def deliver(self, stream: "SimulatedStream") -> None:
        self._waiting.append(stream)
        self._arrived.set()

    async def accept(self) -> Stream:
        while not self._waiting:
            if self.closed:
                raise trio.ClosedResourceError("the listener was closed")
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._network.unlisten(self.host, self.port)
            self._arrived.set()


class SimulatedStream:
    """One end.  Segments carry the instant of their arrival; a reader sleeps until then."""

    def __init__(
        self, network: SimulatedNetwork, host: str, peer_host: str, serial: int, peer: str
    ) -> None:
        self._network = network
        self.host = host
        self.peer_host = peer_host
        self._serial = serial
        self._peer = peer
        self.other: SimulatedStream | None = None
        self._inbox: deque[tuple[float, bytes]] = deque()  # (arrival, data); b"" is the end
        self._inbox_bytes = 0
        self._broken = ""
        self._closed = False
        self._changed = trio.Event()  # something arrived, room was made, or the stream broke

    @property
    def peer(self) -> str:
        return self._peer

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        if self._broken:
            raise ConnectionLostError(f"{self._peer}: {self._broken}")

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

    async def wait_readable(self) -> None:
        while True:
            self._check()
            if not self._inbox:
                await self._changed.wait()
                continue
            arrival = self._inbox[0][0]
            if arrival <= trio.current_time():
                await trio.lowlevel.checkpoint()
                return
            with trio.move_on_at(arrival):
                await self._changed.wait()

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        other = self.other
        assert other is not None
        if self._network.blocked(self.host, self.peer_host):
            return len(data)
        data = data[: max(0, BUFFER_BYTES_MAX - other._inbox_bytes)]
        if data:
            self._network.trace("net", self.host, self.peer_host, self._serial, len(data))
            other._arrive(data)
        return len(data)

    async def wait_writable(self) -> None:
        while True:
            self._check()
            assert self.other is not None
            if self.other._inbox_bytes < BUFFER_BYTES_MAX:
                await trio.lowlevel.checkpoint()
                return
            await self._changed.wait()

    def _arrive(self, data: bytes) -> None:
        if self._closed or self._broken:
            return
        arrival = trio.current_time() + self._network.draw_delay_s()
        if self._inbox:
            arrival = max(arrival, self._inbox[-1][0])
        self._inbox.append((arrival, data))
        self._inbox_bytes += len(data)
        self._notify()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self)
        self._notify()
        if self.other is not None and not self._network.blocked(self.host, self.peer_host):
            self.other._arrive(b"")

    def reset(self) -> None:
        """Break both ends; what is under way is lost."""
        for end in (self, self.other):
            if end is not None and not end._broken:
                end._broken = "reset"
                end._inbox.clear()
                end._inbox_bytes = 0
                end._network.forget(end)
                end._notify()
