"""The service port: accepts clients, within limits, with TLS or without.

A client beyond the limits (`broker.service.places`) gets an error and is cut; the connected clients
do not notice.  An error in one connection ends only that connection.  A TLS handshake runs in the
task of its connection, so a silent peer blocks nobody.
"""

import re
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import trio

from daybook.broker.errors import AuthenticationError
from daybook.broker.security.audit import Audit
from daybook.broker.service.places import Place, Places
from daybook.wire.errors import ConnectionLostError, TlsError, WireError
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.messages.registry import NO_ID, encode
from daybook.wire.process import Crowd
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tls import TlsServer
from daybook.wire.transport import Listener, Stream

_LOG_EVERY_S = 10.0

Prove: TypeAlias = Callable[[str], str]
"""Notes that the client of a connection has proven this role, "" for one that is not counted.
Returns why the role may not have one more connection, or ""."""


def no_limits(_role: str) -> str:
    """Let every role have a connection."""
    return ""


_PLAIN = "this port of the broker speaks TLS only: begin the service URL with pulsar+ssl://"
_HTTP_REQUEST = re.compile(rb"[A-Z]+ [/*]")


def _answer_plain(first: bytes) -> bytes:
    """Return the answer to a client that speaks no TLS on a port that demands it."""
    if _HTTP_REQUEST.match(first):
        body = f"{_PLAIN}; the administration has other ports\n".encode()
        head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    # Pulsar's clients give up on this error, and show the text.
    error = pb.CommandError(request_id=NO_ID, error=pb.NotAllowedError, message=_PLAIN)
    return encode(error)


class ClientPort:
    """Accepts connections, and serves each in a task of its own."""

    def __init__(
        self,
        listener: Listener | None,
        serve: Callable[[Stream, Prove], Awaitable[None]],
        *,
        places: Places,
        log: Log,
        audit: Audit | None = None,
        reserved: Container[str] = (),
        tls_listener: Listener | None = None,
        tls: TlsServer | None = None,
        handshake_s: float = 10.0,
    ) -> None:
        """Accept from `listener`, and from `tls_listener` with the TLS of `tls`.

        Peers in `reserved` are served even without a place: they are the probes by which the broker
        checks its own port.  They speak no TLS, on either port.
        """
        assert (tls_listener is None) or tls is not None
        self.connections = 0
        self.accepted = 0
        self.refused = 0
        self.bugs = 0  # connections that ended with an error that nobody expected
        self.handshakes_failed = 0
        self.cut = 0  # newcomers that have made room for others
        self._listener = listener
        self._tls_listener = tls_listener
        self._tls = tls
        self._handshake_s = handshake_s
        self._serve = serve
        self._places = places
        self._log = log
        self._audit = audit
        self._limited_log = LogLimiter(log)
        self._reserved = reserved
        self._crowd = Crowd()
        self._logged_at = -_LOG_EVERY_S

    @property
    def handshakes(self) -> int:
        """Return how many TLS handshakes are under way."""
        return self._places.handshakes

    async def run(self) -> None:
        """Accept until cancelled, or until the listeners are closed; then serve to the end."""
        async with trio.open_nursery() as nursery:
            if self._listener is not None:
                nursery.start_soon(self._accept, self._listener, None, nursery)
            if self._tls_listener is not None:
                nursery.start_soon(self._accept, self._tls_listener, self._tls, nursery)

    async def _accept(
        self, listener: Listener, tls: TlsServer | None, nursery: trio.Nursery
    ) -> None:
        while True:
            try:
                stream = await listener.accept()
            except trio.ClosedResourceError:
                return
            self.accepted += 1
            if stream.peer in self._reserved:
                self.connections += 1
                nursery.start_soon(self._serve_one, stream, None, None, trio.CancelScope())
            elif why := self._places.why_not(stream.peer, shakes=tls is not None):
                self._refuse(stream, why, tells=tls is None)
            else:
                self.connections += 1
                scope = trio.CancelScope()
                place = self._places.add(
                    stream.peer, partial(self._cut, stream, scope), shakes=tls is not None
                )
                nursery.start_soon(self._serve_one, stream, tls, place, scope)
            # A flood of connections must not keep other tasks from running.
            await trio.lowlevel.checkpoint()

    def _cut(self, stream: Stream, scope: trio.CancelScope, why: str) -> None:
        """Cut a newcomer, because another client gets its place."""
        self.cut += 1
        scope.cancel()
        self._limited_log.warning(
            "newcomers are cut to make room for others: there may be a flood",
            peer=stream.peer,
            why=why,
        )
        if self._audit is not None:
            refused = AuthenticationError(why)
            self._audit.note("CONNECT", stream.peer, None, refused=refused, with_credentials=False)

    def _refuse(self, stream: Stream, why: str, *, tells: bool) -> None:
        self.refused += 1
        error = pb.CommandError(request_id=NO_ID, error=pb.ServiceNotReady, message=why)
        with suppress(ConnectionLostError, trio.ClosedResourceError):
            if tells:
                stream.try_send([encode(error)])
        stream.close()
        now = trio.current_time()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "connections are refused because there are too many: raise the limit that is named,"
                " or the limit of open files",
                why=why,
                peer=stream.peer,
                connections_max=self._places.connections_max,
                refused=self.refused,
            )

    async def _serve_one(
        self, stream: Stream, tls: TlsServer | None, place: Place | None, scope: trio.CancelScope
    ) -> None:
        prove = no_limits if place is None else partial(self._places.prove, place)
        try:
            with scope:
                if tls is not None:
                    assert place is not None
                    stream = await self._shake(stream, tls, place)
                await self._serve(stream, prove)
        except (ConnectionLostError, WireError, trio.ClosedResourceError):
            pass  # This connection has ended.
        except Exception as error:
            self.bugs += 1
            self._log.error(
                "a connection failed because of a bug: please report it",
                peer=stream.peer,
                exc_info=error,
            )
        finally:
            self.connections -= 1
            assert self.connections >= 0
            if place is not None:
                self._places.leave(place)
            stream.close()
            self._crowd.left(self.connections)

    async def _shake(self, stream: Stream, tls: TlsServer, place: Place) -> Stream:
        """Return the stream after its TLS handshake.  Raise ConnectionLostError."""
        try:
            encrypted = await tls.accept(stream, self._handshake_s, _answer_plain)
        except ConnectionLostError as error:
            self.handshakes_failed += 1
            self._limited_log.info(
                "the TLS handshake of a client has failed",
                kind=str(error),
                peer=stream.peer,
                why=str(error),
            )
            if self._audit is not None and isinstance(error, TlsError):
                refused = AuthenticationError(str(error))
                self._audit.note(
                    "CONNECT", stream.peer, None, refused=refused, with_credentials=False
                )
            raise
        self._places.shaken(place)
        return encrypted
