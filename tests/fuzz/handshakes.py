"""Targets: what reaches a port before anybody is known: TLS, heads of HTTP, and credentials.

A TLS server gets a script of bytes: real handshakes of a client, cut, mixed and changed.  A broken
one ends with a `ConnectionLostError`, whatever came; memory and time have their bounds.  The same
bytes may come behind a complete handshake, in place of records.

HTTP heads go to the strict reader of requests, in pieces.  A request that passes has one meaning.
"""

import re
import ssl
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import h11
import trio
from trio.testing import MockClock

from daybook.broker.errors import AuthenticationError
from daybook.broker.security.authentication import Authentication, by_token, of_header
from daybook.broker.security.token_trust import KeyPlace, TokenTrust
from daybook.broker.security.tokens import ClaimRules
from daybook.wire.clock import SystemClock
from daybook.wire.errors import ConnectionLostError
from daybook.wire.http_framing import StrictConnection
from daybook.wire.logging import silent_log
from daybook.wire.tls import TlsServer
from daybook.wire.tls_files import ReloadedContext, server_context
from daybook.wire.transport import Buffer
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, require
from tests.harness.certificates import Authority
from tests.harness.clocks import FixedClock

_RECORD = b"\x16\x03\x01"
_PIECES_MAX = 40


# -- TLS


class _Peer:
    """A stream whose other end is a real client of TLS until the script takes its place."""

    peer = "peer:1"
    encrypted = False
    certificate = None

    def __init__(self, script: Sequence[tuple[str, bytes]], context: ssl.SSLContext) -> None:
        self._script = list(script)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._waiting = b""
        self._closed = False
        self.taken = 0

    def try_recv_into(self, buffer: memoryview) -> int | None:
        if self._closed:
            raise trio.ClosedResourceError
        if not self._waiting and not self._next():
            return 0
        if not self._waiting:
            return None
        size = min(len(self._waiting), len(buffer))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        self.taken += size
        return size

    def _next(self) -> bool:
        """Carry out the next step of the script; return False at its end."""
        if not self._script:
            return False
        kind, data = self._script.pop(0)
        if kind == "shake":
            try:
                self._client.do_handshake()
                self._client.write(data or b"x")
            except (ssl.SSLWantReadError, ssl.SSLError):
                pass
            self._waiting = self._outgoing.read()
        elif kind == "changed":
            real = bytearray(self._outgoing.read())
            for index, byte in enumerate(data):
                if real:
                    real[(index * 7 + byte) % len(real)] ^= byte
            self._waiting = bytes(real)
        else:
            self._waiting = data
        return True

    async def wait_readable(self, bytes_min: int = 1) -> None:
        del bytes_min
        await trio.lowlevel.checkpoint()

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        size = 0
        for each in buffers:
            self._incoming.write(each)
            size += len(each)
        return size

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self._closed = True


@cache
def _contexts() -> tuple[TlsServer, ssl.SSLContext]:
    with TemporaryDirectory() as text:
        authority = Authority(Path(text))
        build = partial(server_context, client_certificates="optional")
        contexts = ReloadedContext(
            authority.files("broker"), build, clock=SystemClock(), log=silent_log()
        )
        contexts.get()
        return TlsServer(contexts), ssl.create_default_context(cafile=authority.trusted)


def run_tls(data: bytes) -> None:
    choices = Choices(data)
    script: list[tuple[str, bytes]] = []
    while choices and len(script) < _PIECES_MAX:
        match choices.below(8):
            case 0 | 1 | 2:
                script.append(("shake", choices.blob(40)))
            case 3:
                script.append(("changed", choices.blob(8)))
            case 4:
                body = choices.blob(200)
                script.append(("raw", _RECORD + len(body).to_bytes(2, "big") + body))
            case 5:
                script.append(("raw", b"\x17\x03\x03\x00\x20" + choices.blob(32)))
            case 6:
                script.append(("raw", choices.blob(64) * choices.below(200)))
            case _:
                script.append(("raw", choices.blob()))
    trio.run(_serve_tls, script, clock=MockClock(autojump_threshold=0))


async def _serve_tls(script: list[tuple[str, bytes]]) -> None:
    server, context = _contexts()
    peer = _Peer(script, context)
    buffer = memoryview(bytearray(1 << 14))
    received = 0
    try:
        stream = await server.accept(peer, 10.0)
        try:
            while (count := stream.try_recv_into(buffer)) != 0:
                received += count or 0
                if count is None:
                    await stream.wait_readable()
        finally:
            stream.close()
    except ConnectionLostError:
        pass
    require(received <= peer.taken, "more bytes came out than went in")


def tls_seeds() -> Mapping[str, bytes]:
    shake = b"\0\x05hello"
    return {
        "whole": shake * 6,
        "changed": b"\0\0\3\4\1\2\3\4" + shake * 3,
        "silent": b"",
        "http": b"\7" + b"\x12GET / HTTP/1.1\r\n\r\n",
        "garbage behind": shake * 4 + b"\5\x20" + bytes(32),
        "much": b"\6\x40" + bytes(range(64)) + b"\xc7",
        "again": shake * 4 + b"\4\x20" + b"\x01" + bytes(31),
    }


# -- HTTP

_HEADS = (
    b"GET /x HTTP/1.1\r\n",
    b"POST /x HTTP/1.1\r\n",
    b"Host: x\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: 03\r\n",
    b"content-length:\t3 \r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:\tChunked\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"\r\n",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"0\r\nX: y\r\n\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\0",
    b"abc",
)
_FRAMING = re.compile(rb"^(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)


def run_http(data: bytes) -> None:
    choices = Choices(data)
    connection, sent = StrictConnection(16 << 10), b""
    step = 1 + choices.below(30)
    while choices:
        sent += choices.blob(20) if choices.one_in(5) else choices.pick(_HEADS)
    read = 0
    try:
        for start in range(0, len(sent), step):
            connection.receive_data(sent[start : start + step])
            while (event := _next_event(connection)) is not None:
                if isinstance(event, h11.Request):
                    end = min(start + step, len(sent)) - len(connection.trailing_data[0])
                    _check_head(sent[read:end])
                if isinstance(event, h11.EndOfMessage):
                    read = min(start + step, len(sent)) - len(connection.trailing_data[0])
                    require(not list(event.headers), "a trailer")
                    _answer(connection)
    except h11.RemoteProtocolError:
        require(connection.their_state is h11.ERROR, "it would read on after a refusal")


def _next_event(connection: StrictConnection) -> object:
    event = connection.next_event()
    return None if event in (h11.NEED_DATA, h11.PAUSED) else event


def _answer(connection: StrictConnection) -> None:
    connection.send(h11.Response(status_code=204, headers=[]))
    connection.send(h11.EndOfMessage())
    if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
        connection.start_next_cycle()


def _check_head(head: bytes) -> None:
    require(head.endswith(b"\r\n\r\n"), "a head without its end")
    require(head.count(b"\n") == head.count(b"\r\n"), "a bare line feed")
    require(len(_FRAMING.findall(head)) <= 1, "two lines that say how long the body is")


def http_seeds() -> Mapping[str, bytes]:
    def made(*lines: int) -> bytes:
        return b"\x1d" + b"".join(bytes([1, line]) for line in lines)

    return {
        "get": made(0, 2, 10),
        "length": made(1, 2, 3, 10, 18),
        "chunks": made(1, 2, 6, 10, 11, 12, 0, 2, 10),
        "both": made(1, 2, 3, 6, 10),
        "trailer": made(1, 2, 6, 10, 13),
        "bare": made(0, 2, 14),
    }


# -- credentials


def run_credentials(data: bytes) -> None:
    """Tokens and headers of any form prove nothing, and raise nothing else."""
    key = KeyPlace("token_secret_key", "data:,0123456789abcdef0123456789abcdef", True)
    trust = TokenTrust([key], "", ClaimRules("sub", ""), silent_log())
    authentication = Authentication({"token": by_token(trust, None, FixedClock())})
    choices = Choices(data)
    text = data.decode("latin-1")

    async def prove() -> None:
        header = f"{choices.pick(('Bearer', 'Basic', 'Digest', '', 'bearer'))} {text}"
        identity = await authentication.identify(of_header(header, "", None))
        require(identity.role == "", "made-up credentials prove a role")  # pragma: no cover

    trio.run(prove)


def credential_seeds() -> Mapping[str, bytes]:
    return {
        "token": b"\0eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyb290In0.xxxx",
        "none": b"\0eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
        "basic": b"\x01YWxpY2U6cGFzc3dvcmQ=",
        "dots": b"\0....",
        "empty": b"",
    }


TARGETS = (
    Target(
        name="handshake.tls",
        run=run_tls,
        errors=(),
        seeds=tls_seeds,
        input_bytes_max=600,
        steps_max=100_000,
        steps_a_byte=500,
        memory_bytes_max=8 << 20,
        examples=60,
    ),
    Target(
        name="handshake.http",
        run=run_http,
        errors=(),
        seeds=http_seeds,
        input_bytes_max=600,
        steps_a_byte=2_000,
    ),
    Target(
        name="handshake.credentials",
        run=run_credentials,
        errors=(AuthenticationError,),
        seeds=credential_seeds,
        input_bytes_max=600,
        steps_a_byte=500,
    ),
)
