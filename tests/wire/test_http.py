"""The HTTP port: its connections are bounded, and silent clients keep nobody out."""

import errno
import gc
import os
import random
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from daybook.wire import http
from daybook.wire.clock import SystemClock
from daybook.wire.errors import TlsError
from daybook.wire.http import GIVING_WAY, SAYS_HTTPS, CutClients, HttpPort
from daybook.wire.logging import silent_log
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import ReloadedContext, server_context
from tests.harness.certificates import Authority

PATIENCE_S = 60.0
CLOSE = b"Connection: close\r\n"
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Site:
    """An application with a path that answers, and one that waits for the test."""

    def __init__(self) -> None:
        self.waiting = 0
        self.go_on = trio.Event()

        async def ok(_: Request) -> Response:
            return PlainTextResponse("ok")

        async def wait(_: Request) -> Response:
            self.waiting += 1
            await self.go_on.wait()
            return PlainTextResponse("waited")

        async def read(request: Request) -> Response:
            return PlainTextResponse(await request.body())

        async def give_way(request: Request) -> Response:
            with request.scope["state"][GIVING_WAY]():
                return await wait(request)

        routes = [
            Route("/ok", ok),
            Route("/wait", wait),
            Route("/read", read, methods=["GET", "PUT"]),
            Route("/give-way", give_way),
        ]
        self.app = Starlette(routes=routes)

    async def wait_waiting(self, count: int) -> None:
        while self.waiting < count:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def connect(port: HttpPort) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port.port)


async def ask(port: HttpPort, path: bytes) -> bytes:
    async with await connect(port) as stream:
        await stream.send_all(GET % path)
        return await rest(stream)


async def rest(stream: trio.SocketStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def test_idle_connections_make_room_for_a_request() -> None:
    site = Site()
    port = HttpPort("127.0.0.1", 0, connections_max=3)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            idle = [await connect(port) for _ in range(20)]
            for _ in range(3):
                assert (await ask(port, b"ok")).endswith(b"ok")
            assert port.connections <= 4
            assert await idle[0].receive_some() == b""
        nursery.cancel_scope.cancel()


async def test_a_request_that_is_under_way_is_not_cut_by_newcomers() -> None:
    site = Site()
    port = HttpPort("127.0.0.1", 0, connections_max=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            busy = [await connect(port) for _ in range(2)]
            for stream in busy:
                await stream.send_all(GET % b"wait")
            await site.wait_waiting(2)
            try:
                refused = await ask(port, b"ok")
            except trio.BrokenResourceError:
                refused = b""
            assert refused == b""
            site.go_on.set()
            for stream in busy:
                assert (await rest(stream)).endswith(b"waited")
            assert (await ask(port, b"ok")).endswith(b"ok")
        nursery.cancel_scope.cancel()


async def test_a_request_that_gives_way_is_cut_for_a_newcomer_before_idle_clients() -> None:
    site = Site()
    port = HttpPort("127.0.0.1", 0, connections_max=3)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            idle = await connect(port)
            held = [await connect(port) for _ in range(2)]
            for stream in held:
                await stream.send_all(GET % b"give-way")
            await site.wait_waiting(2)
            assert (await ask(port, b"ok")).endswith(b"ok")
            assert await held[0].receive_some() == b""
            await idle.send_all(GET % b"ok")
            assert (await rest(idle)).endswith(b"ok")
            site.go_on.set()
            assert (await rest(held[1])).endswith(b"waited")
        nursery.cancel_scope.cancel()


async def test_accepts_that_fail_are_told_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, Hypercorn's own loop wrote 20 lines of traceback for each, ten times a second."""
    failures: list[tuple[int, int | None]] = []
    site = Site()
    port = HttpPort(
        "127.0.0.1",
        0,
        on_accept_failed=lambda number, error: failures.append((number, error.errno)),
    )
    kind: Any = type(trio.socket.socket())

    async def fail_twice(self: Any) -> Any:
        if len(failures) < 2:
            await trio.lowlevel.checkpoint()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await accept_of_kind(self)

    accept_of_kind = kind.accept
    monkeypatch.setattr(kind, "accept", fail_twice)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            assert (await ask(port, b"ok")).endswith(b"ok")
        nursery.cancel_scope.cancel()
    assert failures == [(port.port, errno.EMFILE)] * 2


async def test_a_bug_in_one_connection_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, bugs: list[str]
) -> None:
    site = Site()
    port = HttpPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            with monkeypatch.context() as patch:
                patch.setattr(http._Connection, "protocol_send", None)
                assert await ask(port, b"ok") == b""
            assert (await ask(port, b"ok")).endswith(b"ok")
        nursery.cancel_scope.cancel()
    assert bugs
    bugs.clear()


async def test_https_beside_http_with_one_bound(tmp_path: Path) -> None:
    authority, site = Authority(tmp_path), Site()
    build = partial(server_context, client_certificates="off")
    contexts = ReloadedContext(
        authority.files("broker"), build, clock=SystemClock(), log=silent_log()
    )
    failed: list[str] = []

    def handshake_failed(_: str, error: TlsError) -> None:
        failed.append(str(error))

    plain = HttpPort("127.0.0.1", 0, connections_max=4)
    port = HttpPort(
        "127.0.0.1",
        0,
        tls=TlsServer(contexts),
        on_handshake_failed=handshake_failed,
        beside=plain,
    )
    trusting = ssl.create_default_context(cafile=authority.trusted)

    async def secure(path: bytes) -> bytes:
        stream = trio.SSLStream(
            await connect(port), trusting, server_hostname="localhost", https_compatible=True
        )
        await stream.send_all(GET % path)
        return b"".join([chunk async for chunk in stream])

    async with trio.open_nursery() as nursery:
        await nursery.start(plain.serve, site.app)
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            assert (await ask(plain, b"ok")).endswith(b"ok")
            assert (await secure(b"ok")).endswith(b"ok")
            silent = [await connect(port) for _ in range(10)]
            assert (await secure(b"ok")).endswith(b"ok")
            assert (await ask(plain, b"ok")).endswith(b"ok")
            assert port.connections == plain.connections <= 5
            async with await connect(port) as stream:
                await stream.send_all(GET % b"ok")
                head, _, body = (await rest(stream)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 400 ")
                assert body == SAYS_HTTPS
            while not any("speaks HTTP without TLS" in each for each in failed):  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert silent
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("shown", [True, False])
async def test_an_application_sees_the_certificate_of_a_client(
    tmp_path: Path, *, shown: bool
) -> None:
    authority = Authority(tmp_path)
    build = partial(server_context, client_certificates="optional")
    files = authority.files("broker")
    contexts = ReloadedContext(files, build, clock=SystemClock(), log=silent_log())
    port = HttpPort("127.0.0.1", 0, tls=TlsServer(contexts))
    context = ssl.create_default_context(cafile=authority.trusted)
    if shown:
        alice = authority.issue("alice", hosts=())
        context.load_cert_chain(alice.certificate, alice.key)

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen = scope["state"][http.CERTIFICATE]
            name = b"nobody" if seen is None else seen.common_name.encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"you are " + name})

    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, app)
        with trio.fail_after(PATIENCE_S):
            stream = trio.SSLStream(
                await connect(port), context, server_hostname="localhost", https_compatible=True
            )
            await stream.send_all(GET % b"ok")
            answer = b"".join([chunk async for chunk in stream])
            assert (b"you are alice" if shown else b"you are nobody") in answer
        nursery.cancel_scope.cancel()


async def test_a_silent_peer_of_https_is_cut_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HANDSHAKE_S", 0.05)
    build = partial(server_context, client_certificates="off")
    files = Authority(tmp_path).files("broker")
    contexts = ReloadedContext(files, build, clock=SystemClock(), log=silent_log())
    port = HttpPort("127.0.0.1", 0, tls=TlsServer(contexts))
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, Site().app)
        with trio.fail_after(PATIENCE_S):
            assert await (await connect(port)).receive_some() == b""
        nursery.cancel_scope.cancel()


class Cuts:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, peer: str, why: str) -> None:
        assert peer.startswith("127.0.0.1:")
        self.reasons.append(why)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nauthorization: b\r\n\r\n",
        b"GET /ok HTTP/1.1\nHost: x\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_an_ambiguous_request_is_answered_with_400(request_: bytes) -> None:
    site, cuts = Site(), Cuts()
    port = HttpPort("127.0.0.1", 0, on_cut=CutClients(cuts))
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                await stream.send_all(request_ + GET % b"ok")
                answer = await rest(stream)
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1  # The request behind it is not read.
            assert len(cuts.reasons) == 1
        nursery.cancel_scope.cancel()


async def test_a_trailer_ends_the_connection_of_a_request_under_way(bugs: list[str]) -> None:
    site, port = Site(), HttpPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                head = b"GET /wait HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                await stream.send_all(head)
                await site.wait_waiting(1)
                await stream.send_all(b"0\r\nX: y\n\n" + GET % b"ok")
                answer = await rest(stream)
            site.go_on.set()
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1
            assert (await ask(port, b"ok")).endswith(b"ok")
        nursery.cancel_scope.cancel()
    assert not bugs


TRAILERS = {
    "whole": [b"1\r\na\r\n0\r\nX: y\r\n\r\n"],
    "behind the last chunk": [b"1\r\na\r\n0\r\n", b"X: y\r\n\r\n"],
    "split": [b"1\r\na\r\n", b"0", b"\r\n", b"X", b": y\r", b"\n", b"\r\n"],
    "several": [b"0\r\nX: y\r\nContent-Length: 5\r\n\r\n", GET % b"ok"],
    "no header": [b"0\r\nX\r\n\r\n"],
    "long": [b"0\r\nX: " + 300_000 * b"y"],
    "endless": [b"0\r\n", *100 * [b"X: " + 1_000 * b"y" + b"\r\n"]],
}


async def send_trailers(port: HttpPort, path: bytes, name: str) -> bytes:
    """Return the answer to a request with trailers, which the client sends to their end."""
    async with await connect(port) as stream:
        pieces = [b"GET /%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path]
        pieces[0] += TRAILERS[name][0]
        for piece in [*pieces, *TRAILERS[name][1:]]:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.002)
        return await rest(stream)


@pytest.mark.parametrize("name", TRAILERS)
async def test_trailers_are_answered_with_400_whatever_their_shape(name: str) -> None:
    site, cuts = Site(), Cuts()
    port = HttpPort("127.0.0.1", 0, on_cut=cuts)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            answer = await send_trailers(port, b"read", name)
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
            assert answer.count(b"HTTP/1.1") == 1
            assert len(cuts.reasons) <= 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", TRAILERS)
async def test_an_answer_that_has_begun_before_the_trailers_is_sent_to_its_end(name: str) -> None:
    site, port = Site(), HttpPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            answer = await send_trailers(port, b"ok", name)
            head, _, body = answer.partition(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 200"):
                assert body == b"ok"
            else:
                assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
                assert not body
        nursery.cancel_scope.cancel()


async def test_an_application_that_ends_closes_no_connection_that_is_being_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, port = Site(), HttpPort("127.0.0.1", 0)
    send = http._Connection._send

    async def send_late(self: http._Connection, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 400"):
            site.go_on.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
        await send(self, data)

    monkeypatch.setattr(http._Connection, "_send", send_late)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                head = b"GET /wait HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                await stream.send_all(head)
                await site.wait_waiting(1)
                await stream.send_all(b"0\r\nX: y\r\n\r\n")
                assert (await rest(stream)).startswith(b"HTTP/1.1 400")
        nursery.cancel_scope.cancel()


async def test_a_body_that_nobody_reads_holds_no_place() -> None:
    site, port = Site(), HttpPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            head = b"GET /ok HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            async with await connect(port) as stream:
                await stream.send_all(head + 200 * b"1\r\na\r\n")
                assert (await rest(stream)).endswith(b"ok")
            while port.connections:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


class Reads:
    """The sizes that a port asks its sockets for, and those that it reads, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.read: list[int] = []
        receive_some = trio.SocketStream.receive_some
        reads = self

        async def receive(self: trio.SocketStream, max_bytes: int | None = None) -> bytes:
            if max_bytes is None:  # the test itself
                return await receive_some(self)
            reads.asked.append(max_bytes)
            data = await receive_some(self, max_bytes)
            reads.read.append(len(data))
            return data

        patch.setattr(trio.SocketStream, "receive_some", receive)

    async def until_quiet(self) -> int:
        """Return the bytes that were read when no more are."""
        before = -1
        while before != (now := sum(self.read)):
            before = now
            await trio.testing.wait_all_tasks_blocked(0.05)
        return now


PUT = b"PUT /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n"


async def test_little_is_read_of_a_body_that_nobody_awaits_and_its_answer_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application answers late, when all that may wait for it has come."""
    calls, reads = Calls(), Reads(monkeypatch)
    async with served(calls) as port, await connect(port) as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, stream, PUT % (b"wait", 8 << 20, b"") + bytes(8 << 20))
            await calls.until(lambda: calls.begun == 1)
            assert await reads.until_quiet() <= 12 * http._READ_BYTES
            assert {*reads.asked} == {http._READ_BYTES}
            calls.go_on.set()
            assert b"waited" in await rest(stream)
            nursery.cancel_scope.cancel()
        await calls.until(lambda: not port.connections)
    assert calls.ended == 1


async def _send(stream: trio.SocketStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)


@pytest.mark.parametrize("size", [0, 100, 20_000, 1_000_000, 3_000_000])
async def test_a_body_that_is_awaited_comes_in_large_pieces(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, port, reads = Site(), HttpPort("127.0.0.1", 0), Reads(monkeypatch)
    body = random.Random(size).randbytes(size)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                nursery.start_soon(
                    _send,
                    stream,
                    PUT % (b"read", size, b"") + body + PUT % (b"read", 2, CLOSE) + b"ab",
                )
                answer = await rest(stream)
        nursery.cancel_scope.cancel()
    head, _, first = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert first.startswith(body)
    assert first.endswith(b"\r\n\r\nab")
    assert max(reads.asked) <= http._BODY_READ_BYTES
    # Not more of the second request than if there was no body.
    assert all(
        asked <= max(http._READ_BYTES, size - sum(reads.read[:place]) + 200)
        for place, asked in enumerate(reads.asked)
    )
    if size >= 1_000_000:
        assert max(reads.asked) == http._BODY_READ_BYTES
        assert max(reads.read) > http._READ_BYTES


async def test_a_wish_for_http_2_is_answered_with_http_1() -> None:
    site, port = Site(), HttpPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                await stream.send_all(
                    b"GET /ok HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
                    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
                )
                answer = await rest(stream)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"ok")
        nursery.cancel_scope.cancel()


async def test_a_head_that_drips_is_cut_in_time_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_IDLE_S", 0.5)
    cuts = Cuts()
    port = HttpPort("127.0.0.1", 0, on_cut=cuts)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, Site().app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):  # noqa: PT012
                    while True:
                        await stream.send_all(b"G")
                        await trio.sleep(0.05)
            # A client that has sent nothing is no culprit.
            assert await (await connect(port)).receive_some() == b""
        nursery.cancel_scope.cancel()
    assert cuts.reasons == ["the head of a request was not complete after 0.5 s"]


async def test_a_client_that_reads_too_slowly_is_cut_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_ANSWER_S", 0.5)
    monkeypatch.setattr(http, "_ANSWER_BYTES_PER_S", 1 << 20)
    cuts = Cuts()
    port = HttpPort("127.0.0.1", 0, on_cut=cuts)

    async def much(_: Request) -> Response:
        return Response(bytes(64 << 20))

    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, Starlette(routes=[Route("/much", much)]))
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                await stream.send_all(GET % b"much")
                while not cuts.reasons:
                    with trio.move_on_after(0.05):
                        await stream.receive_some(1)
                    await trio.sleep(0.05)
            while port.connections:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert cuts.reasons == ["the client reads its answer too slowly"]


KEPT = b"%s /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)  # The socket is closed with a reset.


class Calls:
    """An application that counts requests, and whose requests can be held."""

    def __init__(self, answer_bytes: int = 0) -> None:
        self.begun = 0
        self.cancelled = 0
        self.ended = 0
        self.go_on = trio.Event()

        async def much(_: Request) -> Response:
            self.begun += 1
            return Response(bytes(answer_bytes))

        async def wait(_: Request) -> Response:
            self.begun += 1
            try:
                await self.go_on.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            self.ended += 1
            return PlainTextResponse("waited")

        methods = ["GET", "PUT"]
        self.app = Starlette(routes=[Route("/much", much), Route("/wait", wait, methods=methods)])

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


@asynccontextmanager
async def served(calls: Calls, **options: Any) -> AsyncGenerator[HttpPort]:
    port = HttpPort("127.0.0.1", 0, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, calls.app)
        with trio.fail_after(PATIENCE_S):
            yield port
        nursery.cancel_scope.cancel()


def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    stream.socket.close()


async def test_no_request_is_served_behind_an_answer_that_cannot_be_sent() -> None:
    calls = Calls(answer_bytes=8 << 20)
    async with served(calls) as port:
        stream = await connect(port)
        await stream.send_all(KEPT % (b"GET", b"much") * 50)
        await calls.until(lambda: calls.begun == 1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        reset(stream)
        await calls.until(lambda: not port.connections)
    assert calls.begun == 1


async def test_no_request_is_served_behind_an_answer_that_is_read_too_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_ANSWER_S", 0.05)
    monkeypatch.setattr(http, "_ANSWER_BYTES_PER_S", 1 << 30)
    calls, cuts = Calls(answer_bytes=8 << 20), Cuts()
    async with served(calls, on_cut=cuts) as port, await connect(port) as stream:
        await stream.send_all(KEPT % (b"GET", b"much") * 50)
        await calls.until(lambda: bool(cuts.reasons) and not port.connections)
    assert (calls.begun, cuts.reasons) == (1, ["the client reads its answer too slowly"])


@pytest.mark.parametrize("requests", [1, 5])
async def test_a_reset_ends_a_request_that_only_reads(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LOOK_S", 0.05)
    calls = Calls()
    async with served(calls) as port:
        stream = await connect(port)
        await stream.send_all(KEPT % (b"GET", b"wait") * requests)
        await calls.until(lambda: calls.begun == 1)
        reset(stream)
        await calls.until(lambda: not port.connections)
    assert (calls.begun, calls.cancelled) == (1, 1)


@pytest.mark.parametrize("requests", [1, 5])
async def test_a_reset_ends_no_request_that_changes_something(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LOOK_S", 0.01)
    calls = Calls()
    async with served(calls) as port:
        stream = await connect(port)
        await stream.send_all(KEPT % (b"PUT", b"wait") * requests)
        await calls.until(lambda: calls.begun == 1)
        reset(stream)
        await trio.sleep(0.1)
        calls.go_on.set()
        await calls.until(lambda: not port.connections)
    assert (calls.begun, calls.cancelled, calls.ended) == (1, 0, 1)


async def test_a_client_that_has_sent_all_still_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_LOOK_S", 0.01)
    calls = Calls()
    async with served(calls) as port, await connect(port) as stream:
        await stream.send_all(KEPT % (b"GET", b"wait"))
        await stream.send_eof()
        await calls.until(lambda: calls.begun == 1)
        await trio.sleep(0.1)
        calls.go_on.set()
        assert (await rest(stream)).endswith(b"waited")


@pytest.mark.parametrize("sent", [b"", GET % b"ok", b"GET /ok HT", b"no request at all\r\n\r\n"])
async def test_a_client_that_has_gone_is_freed_at_once(sent: bytes) -> None:
    """Nothing is left for the garbage collector, which holds up everybody while it searches."""
    site = Site()
    port = HttpPort("127.0.0.1", 0)

    async def come_and_go() -> None:
        async with await connect(port) as stream:
            if sent:
                await stream.send_all(sent)
            await trio.testing.wait_all_tasks_blocked(0.01)
        while port.connections:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked(0.01)

    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, site.app)
        with trio.fail_after(PATIENCE_S):
            for _ in range(2):
                await come_and_go()
            unfreed = await _unfreed_after(come_and_go)
        nursery.cancel_scope.cancel()
    assert not [name for name in unfreed if "hypercorn" in name or "daybook" in name]


@pytest.mark.parametrize(
    "sent", [b"", GET.replace(b"Connection: close\r\n", b"") % b"ok", b"GET /"]
)
async def test_a_client_that_has_gone_takes_no_place(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_IDLE_S", 2 * PATIENCE_S)
    port = HttpPort("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(port.serve, Site().app)
        with trio.fail_after(PATIENCE_S):
            async with await connect(port) as stream:
                if sent:
                    await stream.send_all(sent)
                while not port.connections:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            while port.connections:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def _unfreed_after(step: Callable[[], Awaitable[None]]) -> list[str]:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await step()
        gc.collect()
        return [f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
