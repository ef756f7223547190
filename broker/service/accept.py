"""The service port: accepts clients, within limits, with TLS or without.

A client beyond the limit gets an error and is cut; the connected clients do not notice.  An error
in one connection ends only that connection.

A TLS handshake runs in the task of its connection, so a silent peer blocks nobody.  Handshakes
count as connections.  Besides, at most a quarter of the connections may be handshakes.  Where there
is no room, the oldest handshake is cut for the newcomer, because a peer that means it needs
milliseconds: so half-open handshakes keep no client out, whatever their number.
"""

from collections.abc import Awaitable, Callable, Container
from contextlib import suppress

import trio

from daybook.wire.errors import ConnectionLostError, TlsError, WireError
from daybook.wire.logging import Log, LogLimiter
from daybook.wire.messages.registry import NO_ID, encode
from daybook.wire.process import Crowd
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tls import TlsServer
from daybook.wire.transport import Listener, Stream

_LOG_EVERY_S = 10.0
_HANDSHAKES_SHARE = 4  # a quarter of the connections


class ClientPort:
    """Accepts connections, and serves each in a task of its own."""

    def __init__(
        self,
        listener: Listener | None,
        serve: Callable[[Stream], Awaitable[None]],
        *,
        connections_max: int,
        log: Log,
        reserved: Container[str] = (),
        tls_listener: Listener | None = None,
        tls: TlsServer | None = None,
        handshake_s: float = 10.0,
    ) -> None:
        """Accept from `listener`, and from `tls_listener` with the TLS of `tls`.

        Peers in `reserved` are served even beyond `connections_max`: they are the probes by which
        the broker checks its own port.  They speak no TLS, on either port.
        """
        assert (tls_listener is None) or tls is not None
        self.connections = 0
        self.accepted = 0
        self.refused = 0
        self.bugs = 0  # connections that ended with an error that nobody expected
        self.handshakes_failed = 0
        self._listener = listener
        self._tls_listener = tls_listener
        self._tls = tls
        self._handshake_s = handshake_s
        self._serve = serve
        self._connections_max = connections_max
        self._handshakes_max = max(1, connections_max // _HANDSHAKES_SHARE)
        self._log = log
        self._limited_log = LogLimiter(log)
        self._reserved = reserved
        self._crowd = Crowd()
        self._handshakes: dict[trio.CancelScope, None] = {}  # in the order in which they began
        self._logged_at = -_LOG_EVERY_S

    @property
    def handshakes(self) -> int:
        """Return how many TLS handshakes are under way."""
        return len(self._handshakes)

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
            is_probe = stream.peer in self._reserved
            if is_probe or self._has_room(shakes=tls is not None):
                self.connections += 1
                nursery.start_soon(self._serve_one, stream, None if is_probe else tls)
            else:
                self._refuse(stream, tells=tls is None)
            # A flood of connections must not keep other tasks from running.
            await trio.lowlevel.checkpoint()

    def _has_room(self, *, shakes: bool) -> bool:
        """Return True if one more connection is allowed, if need be by cutting a handshake."""
        if self.connections < self._connections_max and not (
            shakes and len(self._handshakes) >= self._handshakes_max
        ):
            return True
        for scope in self._handshakes:
            if not scope.cancel_called:
                scope.cancel()
                return True
        return False

    def _refuse(self, stream: Stream, *, tells: bool) -> None:
        self.refused += 1
        error = pb.CommandError(
            request_id=NO_ID,
            error=pb.ServiceNotReady,
            message=f"the broker has {self._connections_max} connections and accepts no more:"
            " try again later, or raise connections_max of the broker",
        )
        with suppress(ConnectionLostError, trio.ClosedResourceError):
            if tells:
                stream.try_send([encode(error)])
        stream.close()
        now = trio.current_time()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "connections are refused because there are too many: raise connections_max or the"
                " limit of open files",
                connections_max=self._connections_max,
                refused=self.refused,
            )

    async def _serve_one(self, stream: Stream, tls: TlsServer | None) -> None:
        try:
            if tls is not None:
                stream = await self._shake(stream, tls)
            await self._serve(stream)
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
            stream.close()
            self._crowd.left(self.connections)

    async def _shake(self, stream: Stream, tls: TlsServer) -> Stream:
        """Return the stream after its TLS handshake.  Raise ConnectionLostError."""
        scope = trio.CancelScope()
        self._handshakes[scope] = None
        try:
            with scope:
                return await tls.accept(stream, self._handshake_s)
            raise TlsError("the TLS handshake was cut, because there are too many at a time")
        except ConnectionLostError as error:
            self.handshakes_failed += 1
            self._limited_log.info(
                "the TLS handshake of a client has failed",
                kind=str(error),
                peer=stream.peer,
                why=str(error),
            )
            raise
        finally:
            del self._handshakes[scope]
