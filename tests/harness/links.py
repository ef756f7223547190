"""A proxy for the connections to one port, which has the weather that it is told to have.

    async with open_links([Link("bookie-1", ("127.0.0.2", 3181), ("127.0.0.1", 3181))]) as links:
        links[0].weather = Weather(back_s=NEVER)   # the bytes that the bookie sends do not arrive
        links[0].cut()                             # reset the open connections
        links[0].lose_next(there=True)             # swallow the next request, then cut

A byte is never lost *within* a connection: bytes that do not pass wait, as they do in TCP, and
arrive when the weather is fine again, unless the connection was cut.
"""

import math
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

NEVER = math.inf
_CHUNK_BYTES = 64 << 10
_AT_ONCE = struct.pack("ii", 1, 0)  # linger for no time: closing resets

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Weather:
    """How long a chunk takes each way; `NEVER`: it does not pass."""

    there_s: float = 0.0  # to where the link leads
    back_s: float = 0.0
    refuse: bool = False  # new connections are reset


FINE = Weather()


class Link:
    """A proxy between two addresses; with port 0 it listens on a free one."""

    def __init__(self, name: str, listens: Address, leads_to: Address) -> None:
        self.name = name
        self.listens = listens
        self.leads_to = leads_to
        self._weather = FINE
        self._changed = trio.Event()
        self._losing: bool | None = None  # the direction whose next chunk is lost; True: there
        self._open: dict[trio.CancelScope, tuple[trio.SocketStream, trio.SocketStream]] = {}

    @property
    def weather(self) -> Weather:
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = trio.Event()

    @property
    def connections(self) -> int:
        return len(self._open)

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        for scope, streams in self._open.items():
            for stream in streams:
                _reset(stream)
            scope.cancel()

    def refuse(self) -> None:
        """Cut all connections, and reset new ones until the weather changes."""
        self.weather = Weather(refuse=True)
        self.cut()

    def lose_next(self, *, there: bool) -> None:
        """Swallow the next chunk in one direction, then cut all connections."""
        self._losing = there

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry connections until cancelled."""
        host, port = self.listens
        listeners = await trio.open_tcp_listeners(port, host=host)
        self.listens = (host, listeners[0].socket.getsockname()[1])
        task_status.started()
        await trio.serve_listeners(self._carry, listeners)

    async def _carry(self, near: trio.SocketStream) -> None:
        if self._weather.refuse:
            _reset(near)
            return
        try:
            far = await trio.open_tcp_stream(*self.leads_to)
        except OSError:
            _reset(near)
            return
        async with far, near, trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            self._open[scope] = (near, far)
            nursery.start_soon(self._pump, near, far, scope, True)
            nursery.start_soon(self._pump, far, near, scope, False)
        del self._open[scope]

    async def _pump(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        scope: trio.CancelScope,
        there: bool,
    ) -> None:
        """Carry bytes until one side ends the connection, then end the other side, too."""
        try:
            while chunk := await source.receive_some(_CHUNK_BYTES):
                if self._losing is there:
                    self._losing = None
                    self.cut()
                    return
                await self._wait_passage(there)
                await sink.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    async def _wait_passage(self, there: bool) -> None:
        while True:
            delay_s = self._weather.there_s if there else self._weather.back_s
            if delay_s < NEVER:
                break
            await self._changed.wait()
        if delay_s:
            await trio.sleep(delay_s)


def _reset(stream: trio.SocketStream) -> None:
    with suppress(OSError):  # Its peer may have closed it already.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    stream.socket.close()


@asynccontextmanager
async def open_links(links: Sequence[Link]) -> AsyncGenerator[Sequence[Link]]:
    async with trio.open_nursery() as nursery:
        for link in links:
            await nursery.start(link.serve)
        yield links
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_link_to(port: int) -> AsyncGenerator[Link]:
    """Open one to a port of the loopback interface; it listens on a free port."""
    link = Link(f"to {port}", ("127.0.0.1", 0), ("127.0.0.1", port))
    async with open_links([link]):
        yield link
