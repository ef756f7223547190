"""The HTTP port of a broker or a bookie: Hypercorn's connections behind Daybook's accept loop.

Hypercorn's own loop has no bound on connections and logs a traceback for each accept that fails.
Here the connections are bounded apart from those of the service port.  When the bound is reached,
the oldest idle connection is cut, so that clients that connect and send nothing cannot keep a probe
of the orchestrator out.  A connection whose request only waits, because the application delays its
refusal (`GIVING_WAY`), is cut before idle ones.  If each connection has another request under way,
the newcomer is cut.

With TLS, the handshake comes first, in the task of its connection and in limited time.

A client that sends nothing, or half the head of a request, is cut after `_IDLE_S`, however slowly
it goes on.  A client that reads its answer more slowly than `_ANSWER_BYTES_PER_S` is cut, too; the
kernel cuts one that never reads.  Bodies have their limits in the applications.  Only HTTP/1 is
served, and strictly: see `wire.http_framing`.

A client that has its answer may still send the rest of its request.  That is read and dropped, for
`_LINGER_S` at most: a connection that is closed before it would be reset, and the client might
lose the answer.

The requests of one connection are handled one at a time, and at most `_READ_BYTES` of them are read
ahead.  While the application waits for a body whose length is known, `_BODY_READ_BYTES` are read at
a time.  At most `PIECES_MAX` pieces of `_READ_BYTES` wait for an application that does not read
(`wire.http_body`).  So a connection holds 0.4 MiB at most, and `CONNECTIONS_MAX` of them 0.1 GiB,
in addition to what applications keep of their bodies.

When an answer cannot be sent, the connection ends at once with all that is left of its requests.
The end of what a client sends is no sign that it has gone: it may wait for its answer.  A
connection that is reset is one, and ends a request under way that only reads.
"""

import logging
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, Self

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app  # pyright: ignore[reportUnknownVariableType]
from starlette.types import ASGIApp

from daybook.wire.errors import TlsError, cannot_listen
from daybook.wire.http_body import RequestBody, Requests
from daybook.wire.http_framing import StrictConnection
from daybook.wire.tls import HANDSHAKE_S, TlsServer, explain, parse_certificate
from daybook.wire.transport import PeerCertificate

_log = logging.getLogger(__name__)
CONNECTIONS_MAX = 256
CERTIFICATE = "certificate"
"""The key in the state of a request: the `PeerCertificate` of its client, or None."""
GIVING_WAY = "giving way"
"""The key in the state of a request: a function that returns a context manager.  Inside its block,
the request only waits, and its connection is the first to be cut for a newcomer."""
SAYS_HTTPS = b'{"reason": "this port speaks HTTP with TLS only: begin the URL with https://"}'
"""The body of the answer to a request without TLS on a port that demands it."""
_BACKLOG = 128
_IDLE_S = 10
_ACCEPT_PAUSE_S = 0.1
_READ_BYTES = 16 << 10
_BODY_READ_BYTES = 256 << 10
_LOOK_S = 1.0  # between two looks for clients that have gone while a request is under way
_READING = ("GET", "HEAD")
_UNREAD_MS = 5_000
_ANSWER_S = 10.0  # in addition to what an answer takes at this rate
_ANSWER_BYTES_PER_S = 16 << 10
_SEND_BYTES = 256 << 10  # one part of an answer, which has its own time
_LINGER_S = 1.0
_LINGER_BYTES = 1 << 20
_PLAIN_ANSWER = b"".join(
    (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n",
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(SAYS_HTTPS),
        SAYS_HTTPS,
    )
)
_PLAIN = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")  # OpenSSL's reasons
_PLAIN_ANSWER_S = 1.0
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux


def _nobody_is_told(_why: str) -> None:
    """Do nothing about a client that was cut."""


def _nothing_ends() -> None:
    """Do nothing for a connection that no port serves."""


class _Connection(TCPServer):
    """A connection that knows whether a request is under way, and that is read strictly."""

    idle = True
    gives_way = False
    _drops = False  # The request has its answer, and what comes is dropped.
    _reader: trio.lowlevel.Task | None = None
    on_cut: Callable[[str], None] = staticmethod(_nobody_is_told)
    end: Callable[[], None] = staticmethod(_nothing_ends)
    """Ends the connection at once."""
    _wrapper: Any = None
    _body: RequestBody | None = None  # the body of the latest request

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401  those of Hypercorn
        super().__init__(*arguments)
        self._read_all = trio.Event()  # The client has sent everything.

    @property
    def protocol(self) -> Any:  # noqa: ANN401
        return self._wrapper

    @protocol.setter
    def protocol(self, wrapper: Any) -> None:  # noqa: ANN401  # pyright: ignore[reportIncompatibleVariableOverride]
        # Hypercorn makes the protocol when the connection runs.
        most = self.config.h11_max_incomplete_size
        wrapper.protocol.connection = StrictConnection(most, lambda why: self.on_cut(why))
        wrapper.protocol.task_group = Requests(wrapper.protocol.task_group, self._begin)
        self._wrapper = wrapper

    def _begin(self, body: RequestBody) -> None:
        self._body = body

    def forget(self) -> None:
        """Drop the protocol, which refers to this connection, so that both are freed at once.

        The garbage collector would stop the whole process to find those of a few hundred clients.
        """
        self._wrapper = self._reader = self._body = None
        self.state.clear()

    @contextmanager
    def giving_way(self) -> Generator[None]:
        """Let newcomers have the place of this connection inside the block, which only waits."""
        self.gives_way = True
        try:
            yield
        finally:
            self.gives_way = False

    async def protocol_send(self, event: Any) -> None:  # noqa: ANN401  one of Hypercorn's events
        if isinstance(event, RawData):
            await self._send(event.data)
            return
        if isinstance(event, Updated):
            self.idle = event.idle
        if isinstance(event, Closed) and isinstance(http := self._http, StrictConnection):
            if trio.lowlevel.current_task() is self._reader:
                await self._linger(self._read_rest)
            elif http.refused:
                return  # The task that reads is still sending the refusal, and will close.
            elif http.has_more:
                self._drops = True
                await self._linger(self._read_all.wait)
        await super().protocol_send(event)

    @property
    def _http(self) -> object:
        return None if self._wrapper is None else self._wrapper.protocol.connection

    async def _linger(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Let a client that has its answer send the rest of its request, so that it reads it."""
        with suppress(
            trio.BrokenResourceError,
            trio.BusyResourceError,
            trio.ClosedResourceError,
            AttributeError,  # A stream with TLS cannot do that.
        ):
            await self.stream.send_eof()
        with self.giving_way(), trio.move_on_after(_LINGER_S):
            await wait()

    async def _read_rest(self) -> None:
        """Read and drop what comes; only for the task that reads."""
        left = _LINGER_BYTES
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while left > 0 and (data := await self.stream.receive_some(_READ_BYTES)):
                left -= len(data)

    async def _send(self, data: bytes) -> None:
        """Send a part of an answer, in limited time; end the connection if that fails.

        An exception would not end it: Hypercorn catches it, and serves the next request.
        """
        view = memoryview(data)
        async with self.send_lock:
            while view:
                piece, view = view[:_SEND_BYTES], view[_SEND_BYTES:]
                limit_s = _ANSWER_S + len(piece) / _ANSWER_BYTES_PER_S
                # A shutdown lets an answer be sent to its end.
                with trio.CancelScope(deadline=trio.current_time() + limit_s, shield=True) as scope:
                    try:
                        await self.stream.send_all(piece)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        self.end()
                        return
                if scope.cancelled_caught:
                    self.on_cut("the client reads its answer too slowly")
                    self.end()
                    return

    @property
    def only_reads(self) -> bool:
        """True while a request is under way that changes nothing."""
        stream = None if self.idle or self._wrapper is None else self._wrapper.protocol.stream
        scope: Any = getattr(stream, "scope", None)
        return scope is not None and scope["method"] in _READING

    @property
    def _read_bytes(self) -> int:
        """The size of the next read: large only inside a body that the application waits for."""
        if self._body is None or not self._body.is_awaited:
            return _READ_BYTES
        http = self._http
        left = http.body_bytes_left if isinstance(http, StrictConnection) else 0
        return max(_READ_BYTES, min(left, _BODY_READ_BYTES))

    async def _read_data(self) -> None:
        self._reader = trio.lowlevel.current_task()
        data = None
        while data != b"" and not self._drops:
            try:
                data = bytes(await self.stream.receive_some(self._read_bytes))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if self.only_reads:
                    self.end()
                break
            if not self._drops:
                await self.protocol.handle(RawData(data))
        if self._drops:
            await self._read_rest()
        self._read_all.set()
        await self.protocol.handle(Closed())
        # The client sends nothing more.  Without this its place would be taken for `_IDLE_S`.
        await self.idle_task.stop()

    async def _idle_timeout(self) -> None:
        with trio.move_on_after(self.config.keep_alive_timeout):
            await self.context.terminated.wait()
        connection = self.protocol.protocol.connection
        if isinstance(connection, StrictConnection) and connection.waits_for_rest:
            self.on_cut(f"the head of a request was not complete after {_IDLE_S:g} s")
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


class CutClients:
    """The HTTP clients that were cut: a function to call for each, with the peer and the reason."""

    def __init__(self, *listeners: Callable[[str, str], None]) -> None:
        self.listeners = list(listeners)

    def __call__(self, peer: str, why: str) -> None:
        for listener in self.listeners:
            listener(peer, why)


class _Bound:
    """The connections of one port, or of several together."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        # in the order in which they were accepted
        self.connections: dict[_Connection, trio.CancelScope] = {}

    def has_room(self) -> bool:
        """Return True if one more connection is allowed, if need be by cutting another one."""
        if len(self.connections) < self.connections_max:
            return True
        stay = [item for item in self.connections.items() if not item[1].cancel_called]
        given = (scope for connection, scope in stay if connection.gives_way)
        idle = (scope for connection, scope in stay if connection.idle)
        scope = next(chain(given, idle), None)
        if scope is None:
            return False
        scope.cancel()
        return True


class HttpPort:
    """A port that is bound, and served after `serve` is called."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connections_max: int = CONNECTIONS_MAX,
        on_accept_failed: Callable[[int, OSError], None] = lambda _port, _error: None,
        tls: TlsServer | None = None,
        on_handshake_failed: Callable[[str, TlsError], None] = lambda _peer, _error: None,
        on_cut: Callable[[str, str], None] = lambda _peer, _why: None,
        beside: "HttpPort | None" = None,
    ) -> None:
        """Bind the port; raise OSError, with the address in it, if it is taken.

        Ports that stand `beside` each other share one bound, that of the first.
        `on_handshake_failed` is called with the peer and the reason of each failed handshake, and
        `on_cut` with those of each client that is cut: it is too slow, or breaks the protocol.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._bound = _Bound(connections_max) if beside is None else beside.bound
        self._on_accept_failed = on_accept_failed
        self._tls = tls
        self._on_handshake_failed = on_handshake_failed
        self._on_cut = on_cut
        self._socket = sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _TCP_USER_TIMEOUT is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, _UNREAD_MS)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise cannot_listen(host, port, error) from None
        self.port = int(sock.getsockname()[1])

    @property
    def connections(self) -> int:
        """Return the number of connections, with those of the ports beside this one."""
        return len(self._bound.connections)

    @property
    def bound(self) -> _Bound:
        """The connections that count together with those of this port."""
        return self._bound

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close a port that was not served.  Idempotent."""
        self._socket.close()

    async def serve(
        self, app: ASGIApp, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled."""
        config = Config()
        config.accesslog = None
        config.errorlog = None
        config.keep_alive_timeout = _IDLE_S  # also for a client that connects and sends nothing
        context = WorkerContext(None)
        wrapped: Any = wrap_app(app, config.wsgi_max_body_size, None)  # type: ignore[arg-type]
        with trio.socket.from_stdlib_socket(self._socket) as listening:
            async with trio.open_nursery() as nursery:
                task_status.started()
                nursery.start_soon(self._look_for_the_gone)
                while True:
                    accepted = await self._accept(listening)
                    stream: Any = self._stream(accepted)
                    connection = _Connection(wrapped, config, context, ConnectionState({}), stream)
                    connection.state[GIVING_WAY] = connection.giving_way
                    connection.on_cut = partial(self._cut, stream)
                    if self._bound.has_room():
                        scope = self._bound.connections[connection] = trio.CancelScope()
                        connection.end = scope.cancel
                        nursery.start_soon(self._serve_one, connection, scope, stream)
                    else:
                        accepted.close()

    async def _look_for_the_gone(self) -> None:
        """End connections that were reset while a request that only reads is under way.

        A connection with more requests behind that one is not read, so it does not find that out.
        """
        while True:
            await trio.sleep(_LOOK_S)
            for connection in [*self._bound.connections]:
                if connection.only_reads and _is_reset(connection.stream):
                    connection.end()

    def _cut(self, stream: trio.abc.Stream, why: str) -> None:
        self._on_cut(_peer(stream), why)

    async def _accept(self, listening: trio.socket.SocketType) -> trio.socket.SocketType:
        while True:
            try:
                accepted, _ = await listening.accept()
            except OSError as error:
                # Neither a lack of descriptors nor a connection that is gone may end the port.
                self._on_accept_failed(self.port, error)
                await trio.sleep(_ACCEPT_PAUSE_S)
            else:
                return accepted

    def _stream(self, accepted: trio.socket.SocketType) -> trio.abc.Stream:
        stream = trio.SocketStream(accepted)
        if self._tls is None:
            return stream
        return trio.SSLStream(
            stream, self._tls.contexts.get(), server_side=True, https_compatible=True
        )

    async def _shake(self, stream: trio.abc.Stream, connection: _Connection) -> bool:
        """Return True after the TLS handshake, and at once without TLS."""
        if not isinstance(stream, trio.SSLStream):
            return True
        try:
            with trio.move_on_after(HANDSHAKE_S):
                await stream.do_handshake()
                connection.state[CERTIFICATE] = _certificate(stream)
                return True
            error = TlsError(f"the TLS handshake was not complete after {HANDSHAKE_S:g} s")
        except TlsError as refused:
            error = refused
        except trio.BrokenResourceError as broken:
            cause = broken.__cause__
            if isinstance(cause, ssl.SSLError):
                error = explain(cause, host=None, peer="")
                if cause.reason in _PLAIN:
                    await _answer_plain(stream)
            else:
                error = TlsError("the client ended the connection in the TLS handshake")
        self._on_handshake_failed(_peer(stream), error)
        return False

    async def _serve_one(
        self, connection: _Connection, scope: trio.CancelScope, stream: trio.abc.Stream
    ) -> None:
        try:
            with scope:
                if await self._shake(stream, connection):
                    await connection.run()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The error ends this connection, and no other.
        except* Exception as bugs:
            _log.error(
                "an HTTP connection failed because of a bug: please report it", exc_info=bugs
            )
        finally:
            del self._bound.connections[connection]
            connection.forget()
            with suppress(OSError):
                await trio.aclose_forcefully(stream)


async def _answer_plain(stream: Any) -> None:  # noqa: ANN401  a stream with TLS
    """Tell a client that speaks no TLS which URL to use."""
    with trio.move_on_after(_PLAIN_ANSWER_S), suppress(trio.BrokenResourceError):
        await stream.transport_stream.send_all(_PLAIN_ANSWER)


def _certificate(stream: Any) -> PeerCertificate | None:  # noqa: ANN401  a stream with TLS
    der = stream.getpeercert(binary_form=True)
    return None if der is None else parse_certificate(der)


def _is_reset(stream: Any) -> bool:  # noqa: ANN401  a stream with a socket below
    poll = select.poll()
    try:
        poll.register(getattr(stream, "transport_stream", stream).socket.fileno(), 0)
    except (OSError, ValueError):
        return True  # It is closed already.
    return bool(poll.poll(0))


def _peer(stream: Any) -> str:  # noqa: ANN401  a stream with a socket below
    with suppress(OSError):
        host, port = getattr(stream, "transport_stream", stream).socket.getpeername()[:2]
        return f"{host}:{port}"
    return "gone"
