"""The HTTP port of a simulated broker: the real application, over the simulated network.

A connection carries one request after the other, as in production, until the client asks for its
end or is silent for `_IDLE_S`.  A request that is refused ends it, too.
"""

from collections.abc import MutableMapping
from typing import Any

import h11
import trio
from starlette.types import ASGIApp

from daybook.wire.errors import ConnectionLostError
from daybook.wire.transport import Stream
from tests.harness.network import HostNetwork

HTTP_PORT = 8080
_CHUNK_BYTES = 1 << 14
_IDLE_S = 10.0  # as in production
_REFUSED = 400

Message = MutableMapping[str, Any]


class SimulatedHttp:
    """The HTTP server that `run_broker` is given."""

    port = HTTP_PORT

    def __init__(self, network: HostNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def serve(
        self, app: ASGIApp, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        listener = await self._network.listen(self._host, self.port)
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    stream = await listener.accept()
                    nursery.start_soon(_serve_one, app, stream)
        finally:
            listener.close()


async def _serve_one(app: ASGIApp, stream: Stream) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        while await _serve_request(app, connection, stream):
            connection.start_next_cycle()
    except (ConnectionLostError, trio.TooSlowError, h11.RemoteProtocolError):
        return
    finally:
        stream.close()


async def _serve_request(app: ASGIApp, connection: h11.Connection, stream: Stream) -> bool:
    """Return True if another request may follow."""
    request, body = h11.Request(method="GET", target="/", headers=[("Host", "")]), b""
    with trio.fail_after(_IDLE_S):
        while not isinstance(event := await _next(connection, stream), h11.EndOfMessage):
            match event:
                case h11.Request():
                    request = event
                case h11.Data(data=data):
                    body += data
                case _:
                    return False
    await app(_scope(request), _Received(body).receive, _Answer(connection, stream).send)
    return connection.our_state is connection.their_state is h11.DONE


async def _next(connection: h11.Connection, stream: Stream) -> object:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        while (count := stream.try_recv_into(buffer)) is None:
            await stream.wait_readable()
        connection.receive_data(bytes(buffer[:count]))


def _scope(request: h11.Request) -> Message:
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method.decode(),
        "scheme": "http",
        "path": path.decode(),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
        "client": ("client", 0),
        "server": ("broker", HTTP_PORT),
    }


class _Received:
    """The body of a request; after it, its sender waits for the answer."""

    def __init__(self, body: bytes) -> None:
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Message:
        if not self._messages:
            await trio.sleep_forever()
        return self._messages.pop()


class _Answer:
    def __init__(self, connection: h11.Connection, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            if message["status"] >= _REFUSED:
                headers.append((b"connection", b"close"))
            await self._put(h11.Response(status_code=message["status"], headers=headers))
            return
        if message.get("body"):
            await self._put(h11.Data(message["body"]))
        if not message.get("more_body"):
            await self._put(h11.EndOfMessage())

    async def _put(self, event: h11.Event) -> None:
        data = memoryview(self._connection.send(event) or b"")
        while data:
            data = data[self._stream.try_send([data]) :]
            if data:
                await self._stream.wait_writable()
