"""The service port: accepts clients, within limits.

A client beyond the limit gets an error and is cut; the connected clients do not notice.  An error
in one connection ends only that connection.
"""

from collections.abc import Awaitable, Callable, Container
from contextlib import suppress

import trio

from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.logging import Log
from daybook.wire.messages.registry import NO_ID, encode
from daybook.wire.process import Crowd
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Listener, Stream

_LOG_EVERY_S = 10.0


class ClientPort:
    """Accepts connections, and serves each in a task of its own."""

    def __init__(
        self,
        listener: Listener,
        serve: Callable[[Stream], Awaitable[None]],
        *,
        connections_max: int,
        log: Log,
        reserved: Container[str] = (),
    ) -> None:
        """Accept from `listener`.

        Peers in `reserved` are served even beyond `connections_max`: they are the probes by which
        the broker checks its own port.
        """
        self.connections = 0
        self.accepted = 0
        self.refused = 0
        self.bugs = 0  # connections that ended with an error that nobody expected
        self._listener = listener
        self._serve = serve
        self._connections_max = connections_max
        self._log = log
        self._reserved = reserved
        self._crowd = Crowd()
        self._logged_at = -_LOG_EVERY_S

    async def run(self) -> None:
        """Accept until cancelled, or until the listener is closed; then serve to the end."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await self._listener.accept()
                except trio.ClosedResourceError:
                    return
                self.accepted += 1
                full = self.connections >= self._connections_max
                if full and stream.peer not in self._reserved:
                    self._refuse(stream)
                else:
                    self.connections += 1
                    nursery.start_soon(self._serve_one, stream)
                # A flood of connections must not keep other tasks from running.
                await trio.lowlevel.checkpoint()

    def _refuse(self, stream: Stream) -> None:
        self.refused += 1
        error = pb.CommandError(
            request_id=NO_ID,
            error=pb.ServiceNotReady,
            message=f"the broker has {self._connections_max} connections and accepts no more:"
            " try again later, or raise connections_max of the broker",
        )
        with suppress(ConnectionLostError, trio.ClosedResourceError):
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

    async def _serve_one(self, stream: Stream) -> None:
        try:
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
