"""A TCP proxy that cuts connections and loses requests or answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import Enum, auto

import trio


class Mood(Enum):
    FORWARD = auto()
    REFUSE = auto()
    LOSE_REQUEST = auto()  # swallow the client's next bytes, then cut all connections
    LOSE_ANSWER = auto()  # swallow the server's next bytes, then cut all connections


class Proxy:
    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._mood = Mood.FORWARD
        self._connections: list[trio.CancelScope] = []

    def set_mood(self, mood: Mood) -> None:
        self._mood = mood
        if mood is Mood.REFUSE:
            self._cut()

    def _cut(self) -> None:
        for scope in self._connections:
            scope.cancel()

    async def serve(self, client: trio.SocketStream) -> None:
        if self._mood is Mood.REFUSE:
            return
        with trio.CancelScope() as scope:
            self._connections.append(scope)
            try:
                server = await trio.open_tcp_stream("127.0.0.1", self._target_port)
                async with server, trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, client, server, Mood.LOSE_REQUEST, scope)
                    nursery.start_soon(self._pump, server, client, Mood.LOSE_ANSWER, scope)
            except OSError:
                return
            finally:
                self._connections.remove(scope)

    async def _pump(
        self,
        source: trio.SocketStream,
        target: trio.SocketStream,
        losing: Mood,
        scope: trio.CancelScope,
    ) -> None:
        try:
            async for chunk in source:
                if self._mood is losing:
                    self._mood = Mood.FORWARD
                    self._cut()
                    return
                await target.send_all(chunk)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def open_proxy(target_port: int) -> AsyncGenerator[Proxy]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    proxy = Proxy(port, target_port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
