"""The network of a simulated run: streams in memory, with delay, cuts and half-open connections.

Each direction of a connection is a FIFO of segments; a segment arrives after the delay of its link.
Between connections nothing is ordered.  A link (from host, to host) may suffer this:

    block           its segments wait, and both ends stay connected; once it is unblocked they
                    arrive, unless the connection was reset meanwhile.  Nobody connects over it.
    slow            more delay, and a limit of bytes per second
    cut, reset      connections break; data under way is lost, or the first part of it arrives

Faults of a host:

    crash           its process is gone: its ports refuse, its connections are reset
    vanish, appear  the machine is gone: its peers notice when they send something and it is back
                    to refuse that

Hosts are names; `SimulatedNetwork.of(host)` is the `Network` that the host is given.  Without
`timers` it works on any clock of trio.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from daybook.wire.errors import ConnectionLostError, NobodyListensError
from daybook.wire.transport import Listener, Stream
from tests.harness.stream import SimulatedStream
from tests.simulation.scheduler import Timers

_CONNECT_TIMEOUT_S = 3.0  # then the operating system gives up; callers may be less patient


@dataclass(frozen=True, slots=True)
class Slow:
    """A link with more delay and a limited rate."""

    factor: float
    bytes_per_s: float


class SimulatedNetwork:
    """All hosts and links.  `delay_s` draws the delay of a segment; `trace` is called with each
    one.

    `split`: the share of segments that arrive in two parts.  `tap` sees all data sent, for
    observers.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        delay_s: tuple[float, float] = (0.0001, 0.001),
        split: float = 0.0,
        trace: Callable[..., None] | None = None,
        timers: Timers | None = None,
    ) -> None:
        self.timers = timers
        self.tap: Callable[[SimulatedStream, bytes], None] | None = None
        # Decides about each piece of data as it is sent: False loses it.
        self.gate: Callable[[SimulatedStream, bytes], bool] | None = None
        self._rng = rng
        self._delay_s = delay_s
        self._split = split
        self._trace = trace
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self.connected: set[tuple[str, str, int]] = set()  # source, target and port, once each
        self._streams: list[SimulatedStream] = []
        self._blocked: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], Slow] = {}
        self._down: set[str] = set()
        self._deaf: set[str] = set()
        self._next_port = 40000
        self._serial = 0

    def of(self, host: str) -> "HostNetwork":
        return HostNetwork(self, host)

    # -- faults

    def block(self, source: str, target: str) -> None:
        """Hold back everything from `source` to `target` from now on."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        if (source, target) in self._blocked:
            self._blocked.remove((source, target))
            for stream in self._between(target, source):
                stream.unblocked()

    def slow(self, source: str, target: str, how: Slow | None) -> None:
        """Change the link; None restores it."""
        self._slow.pop((source, target), None)
        if how is not None:
            self._slow[source, target] = how

    def cut(self, host: str, other: str | None = None, *, torn: bool = False) -> None:
        """Reset the connections of `host` (those with `other` only).

        With `torn`, a part of the data under way arrives first.
        """
        for stream in [s for s in self._streams if s.host == host]:
            if other is None or stream.peer_host == other:
                stream.reset(self._rng.random() if torn else 0.0)

    def crash(self, host: str, *, torn: bool = False) -> None:
        """Kill the process of `host`: its ports refuse, its connections are reset."""
        self._unlisten_all(host)
        own = [each for each in self._streams if each.host == host]
        self.cut(host, torn=torn)
        for stream in own:
            stream.reset_here()  # Data that still arrives there is never read.

    def vanish(self, host: str) -> None:
        """Remove the machine without telling anybody."""
        self._down.add(host)
        self._unlisten_all(host)
        for stream in [s for s in self._streams if s.host == host]:
            stream.vanish()

    def appear(self, host: str) -> None:
        """Bring the machine back; it knows nothing of old connections."""
        self._down.discard(host)
        for stream in [s for s in self._streams if s.peer_host == host and s.orphaned]:
            stream.refuse()

    def deafen(self, host: str, *, deaf: bool) -> None:
        """Refuse new connections to the host; its connections stay."""
        (self._deaf.add if deaf else self._deaf.discard)(host)

    def _unlisten_all(self, host: str) -> None:
        for address in [a for a in self._listeners if a[0] == host]:
            self._listeners.pop(address).closed = True

    def _between(self, host: str, peer: str) -> "list[SimulatedStream]":
        return [s for s in self._streams if s.host == host and s.peer_host == peer]

    # -- used by streams

    @property
    def open_streams(self) -> "list[SimulatedStream]":
        return list(self._streams)

    @property
    def last_arrival(self) -> float:
        """Return the time at which all data that is under way has arrived."""
        return max((each.last_arrival for each in self._streams), default=0.0)

    def draw_delay_s(self, source: str = "", target: str = "", size: int = 0) -> float:
        delay = self._rng.uniform(*self._delay_s)
        slow = self._slow.get((source, target)) if self._slow else None
        return delay if slow is None else delay * slow.factor + size / slow.bytes_per_s

    def draw_split(self, size: int) -> int:
        """Return where to cut a segment in two; 0: nowhere."""
        if self._split and size > 1 and self._rng.random() < self._split:
            return self._rng.randrange(1, size)
        return 0

    def blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def is_down(self, host: str) -> bool:
        return host in self._down

    def forget(self, stream: "SimulatedStream") -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    def trace(self, *facts: object) -> None:
        if self._trace is not None:
            self._trace(*facts)

    # -- connecting

    async def connect(self, source: str, target: str, port: int) -> Stream:
        await trio.sleep(self.draw_delay_s(source, target))
        if (
            self.blocked(source, target)
            or self.blocked(target, source)
            or self.is_down(target)
            or self.is_down(source)
        ):
            await trio.sleep(_CONNECT_TIMEOUT_S)
            raise ConnectionLostError(f"{target}:{port}: timed out")
        listener = self._listeners.get((target, port))
        if listener is None or target in self._deaf:
            raise NobodyListensError(f"{target}:{port}: refused")
        self._serial += 1
        here = SimulatedStream(self, source, target, self._serial, f"{target}:{port}", 0)
        there = SimulatedStream(
            self, target, source, self._serial, f"{source}:{self._serial}", port
        )
        here.other, there.other = there, here
        self._streams += [here, there]
        listener.deliver(there)
        self.connected.add((source, target, port))
        return here

    def listen(self, host: str, port: int) -> Listener:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listeners:
            raise OSError(98, f"cannot listen on {host}:{port}: taken")
        listener = self._listeners[host, port] = SimulatedListener(self, host, port)
        return listener

    def unlisten(self, listener: "SimulatedListener") -> None:
        """Remove the listener, unless its address belongs to another one by now."""
        address = listener.host, listener.port
        if self._listeners.get(address) is listener:
            del self._listeners[address]


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
            self._network.unlisten(self)
            self._arrived.set()
            for stream in self._waiting:
                stream.reset()
