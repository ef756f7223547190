"""Requests over a connection that is kept: when it is used again, and what is never repeated."""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import h11
import pytest
import trio
from trio.testing import MockClock

from daybook.clients.python.errors import (
    ConnectionLostError,
    RequestTimedOutError,
    UnavailableError,
)
from daybook.clients.python.http import HttpConnection, http_request
from daybook.wire.errors import ConnectionLostError as StreamLostError
from daybook.wire.transport import Listener, Stream
from tests.harness.pipe import PipeStream, pipe

TIMEOUT_S = 30.0


class Server:
    """A network with one HTTP server.  The path of a request says what the server does."""

    def __init__(self, nursery: trio.Nursery, limit: Callable[[], int], capacity: int) -> None:
        self.asked: list[list[str]] = []  # the paths, by connection
        self.bodies: list[bytes] = []
        self.streams: list[PipeStream] = []
        self.connects: bool = True
        self._nursery = nursery
        self._limit = limit
        self._capacity = capacity

    async def connect(self, host: str, port: int) -> Stream:
        await trio.lowlevel.checkpoint()
        if not self.connects:
            raise StreamLostError(f"{host}:{port}: connection refused")
        here, there = pipe(self._limit, self._capacity)
        asked: list[str] = []
        self.asked.append(asked)
        self.streams.append(there)
        self._nursery.start_soon(self._serve, there, asked)
        return here

    async def listen(self, host: str, port: int) -> Listener:
        raise NotImplementedError

    async def _serve(self, stream: PipeStream, asked: list[str]) -> None:
        connection = h11.Connection(h11.SERVER)
        body = b""
        try:
            while True:
                match await self._next(connection, stream):
                    case h11.Request(target=target):
                        asked.append(target.decode())
                        body = b""
                        if asked[-1] == "/early":
                            self._answer(connection, stream, 413)
                            stream.broken = True
                            return
                    case h11.Data(data=data):
                        body += data
                    case h11.EndOfMessage():
                        self.bodies.append(body)
                        if asked[-1] in ("/lost", "/silent"):
                            await trio.sleep(0 if asked[-1] == "/lost" else 10 * TIMEOUT_S)
                            return
                        status = {"/refuse": 409, "/end": 200}.get(asked[-1], 200)
                        self._answer(connection, stream, status, ends=asked[-1] == "/end")
                        connection.start_next_cycle()
                    case _:
                        return
        except (StreamLostError, h11.ProtocolError, trio.ClosedResourceError):
            return
        finally:
            stream.close()

    async def _next(self, connection: h11.Connection, stream: PipeStream) -> object:
        buffer = memoryview(bytearray(1 << 16))
        while (event := connection.next_event()) is h11.NEED_DATA:
            while (count := stream.try_recv_into(buffer)) is None:
                await stream.wait_readable()
            connection.receive_data(bytes(buffer[:count]))
        return event

    def _answer(
        self, connection: h11.Connection, stream: PipeStream, status: int, *, ends: bool = False
    ) -> None:
        headers = [("Content-Length", "2"), *([("Connection", "close")] if ends else [])]
        parts = (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=b"ok"),
            h11.EndOfMessage(),
        )
        data = b"".join(connection.send(part) or b"" for part in parts)
        assert stream.other is not None
        stream.other.inbox += data
        stream.other.notify()


@asynccontextmanager
async def served(
    limit: Callable[[], int] = lambda: 1 << 30, capacity: int = 1 << 16
) -> AsyncGenerator[Server]:
    async with trio.open_nursery() as nursery:
        yield Server(nursery, limit, capacity)
        nursery.cancel_scope.cancel()


async def ask(connection: HttpConnection, path: str, *body: bytes) -> int:
    response = await connection.request("PUT", path, body, timeout_s=TIMEOUT_S)
    assert response.body == b"ok"
    return response.status


def closed_after(server: Server, path: str) -> bool:
    """Return True if the client has closed its end of the connection with this last request."""
    (place,) = (place for place, asked in enumerate(server.asked) if asked[-1:] == [path])
    return server.streams[place].ended


async def test_requests_share_a_connection() -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        assert [await ask(connection, f"/{number}") for number in range(3)] == [200] * 3
        assert server.asked == [["/0", "/1", "/2"]]
        connection.close()
        connection.close()
        await trio.testing.wait_all_tasks_blocked()
        assert server.streams[0].closed
        await ask(connection, "/3")
        assert server.asked == [["/0", "/1", "/2"], ["/3"]]
        connection.close()


async def test_a_request_alone_has_a_connection_of_its_own() -> None:
    async with served() as server:
        for _ in range(2):
            await http_request(server, "x", 1, "GET", "/a", None, timeout_s=TIMEOUT_S)
        assert server.asked == [["/a"], ["/a"]]


async def test_a_connection_that_was_idle_is_not_trusted(autojump_clock: MockClock) -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        await ask(connection, "/a")
        await trio.sleep(2)
        await ask(connection, "/b")
        await trio.sleep(6)  # A broker closes it after 10 s.
        await ask(connection, "/c")
        assert server.asked == [["/a", "/b"], ["/c"]]
        await trio.testing.wait_all_tasks_blocked()
        assert server.streams[0].closed, "the first one is closed"
        connection.close()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 408 Timeout\r\n\r\n"])
async def test_a_connection_that_the_server_has_ended_is_not_used(sent: bytes) -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        await ask(connection, "/a")
        other = server.streams[0].other
        assert other is not None
        other.inbox += sent
        other.ended = True
        assert await ask(connection, "/b") == 200
        assert server.asked == [["/a"], ["/b"]]
        connection.close()


async def test_a_connection_that_was_reset_is_not_used() -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        await ask(connection, "/a")
        other = server.streams[0].other
        assert other is not None
        other.broken = True
        assert await ask(connection, "/b") == 200
        assert server.asked == [["/a"], ["/b"]]
        connection.close()


@pytest.mark.parametrize("before", [[], ["/a"]])
async def test_a_request_whose_answer_is_lost_is_not_sent_again(before: list[str]) -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        for path in before:
            await ask(connection, path)
        with pytest.raises(ConnectionLostError, match="before any answer") as lost:
            await ask(connection, "/lost", b"abc")
        assert server.asked == [[*before, "/lost"]]
        # A server that has answered before is the right one.
        assert ("is that the HTTP port" in str(lost.value)) is not bool(before)
        await ask(connection, "/b")
        assert server.asked == [[*before, "/lost"], ["/b"]]
        connection.close()


async def test_a_connection_is_closed_after_a_request_without_an_answer_in_time(
    autojump_clock: MockClock,
) -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        await ask(connection, "/a")
        with pytest.raises(RequestTimedOutError):
            await ask(connection, "/silent")
        assert closed_after(server, "/silent")
        await ask(connection, "/b")
        assert server.asked == [["/a", "/silent"], ["/b"]]
        connection.close()


async def test_a_connection_is_closed_after_a_request_that_is_cancelled() -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        await ask(connection, "/a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection, "/silent")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert closed_after(server, "/silent")
        await ask(connection, "/b")
        assert server.asked == [["/a", "/silent"], ["/b"]]
        connection.close()


@pytest.mark.parametrize(("path", "status"), [("/refuse", 409), ("/end", 200)])
async def test_a_connection_that_the_server_may_end_is_not_kept(path: str, status: int) -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        assert await ask(connection, path) == status
        await ask(connection, "/b")
        assert server.asked == [[path], ["/b"]]
        connection.close()


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_a_refusal_that_comes_before_all_was_sent_is_told(size: int) -> None:
    """Its server ends the connection without reading the rest of the body."""
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        assert await ask(connection, "/early", bytes(size)) == 413
        await ask(connection, "/b")
        assert server.asked == [["/early"], ["/b"]]
        connection.close()


async def test_a_server_that_cannot_be_reached_any_more_was_sent_nothing() -> None:
    async with served() as server:
        connection = HttpConnection(server, "x", 1)
        await ask(connection, "/a")
        connection.close()
        server.connects = False
        with pytest.raises(UnavailableError):
            await ask(connection, "/b")


async def test_a_body_arrives_whatever_its_parts() -> None:
    rng = random.Random(7)
    async with served(lambda: rng.randrange(1, 3000), capacity=5000) as server:
        connection = HttpConnection(server, "x", 1)
        for parts in ([], [b""], [b"abc"], [bytes(9), b"", b"x" * 70_000] * 2, [b"ab"] * 500):
            await ask(connection, "/a", *parts)
            assert server.bodies[-1] == b"".join(parts)
        assert len(server.asked) == 1
        connection.close()
