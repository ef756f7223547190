"""TCP behind the network seam: plain non-blocking sockets, for which trio only waits.

Calling the socket first, and waiting only when it has nothing, saves a good part of what a stream
class costs for each message.

Pacing gains nothing between processes of one machine, so such connections use CUBIC where BBR is
the default; it costs less there.
"""

import os
import socket
from collections.abc import Callable, Sequence

import trio

from daybook.wire.errors import ConnectionLostError, NobodyListensError, cannot_listen
from daybook.wire.transport import Buffer, Listener, Stream

_BACKLOG = 1024
_ACCEPT_PAUSE_S = 0.1
_THIS_MACHINE = ("127.", "::1", "::ffff:127.")


class TcpStream:
    """A connected socket, non-blocking."""

    encrypted = False
    certificate = None

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._closed = False
        try:
            host, port = sock.getpeername()[:2]
            self._peer = f"{host}:{port}"
        except OSError:
            self._peer = "gone"

    @property
    def peer(self) -> str:
        return self._peer

    def try_recv_into(self, buffer: memoryview) -> int | None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        try:
            return self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise ConnectionLostError(f"{self._peer}: {error}") from error

    async def wait_readable(self, bytes_min: int = 1) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        if bytes_min == 1:
            await trio.lowlevel.wait_readable(self._socket)
            return
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, bytes_min)
        try:
            await trio.lowlevel.wait_readable(self._socket)
        finally:
            if not self._closed:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        try:
            return self._socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionLostError(f"{self._peer}: {error}") from error

    async def wait_writable(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")
        await trio.lowlevel.wait_writable(self._socket)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TcpListener:
    """A listening socket, non-blocking."""

    def __init__(
        self, sock: socket.socket, on_accept_failed: Callable[[int, OSError], None]
    ) -> None:
        self._socket = sock
        self._on_accept_failed = on_accept_failed
        address = sock.getsockname()
        self._host, self._port = str(address[0]), int(address[1])

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> Stream:
        while True:
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                if self._socket.fileno() < 0:
                    raise trio.ClosedResourceError("the listener was closed") from error
                # Descriptors or memory are short, or the network has reported an error of a
                # connection that is gone.  The port is never given up for either.
                self._on_accept_failed(self._port, error)
                await trio.sleep(_ACCEPT_PAUSE_S)  # Present connections are served meanwhile.
            else:
                _tune(sock)
                return TcpStream(sock)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TcpNetwork:
    """The network of this machine."""

    def __init__(
        self, on_accept_failed: Callable[[int, OSError], None] = lambda _port, _error: None
    ) -> None:
        """`on_accept_failed` is called with the port and the error of each failed accept."""
        self._on_accept_failed = on_accept_failed

    async def connect(self, host: str, port: int) -> Stream:
        """Try the addresses of `host` in turn; raise ConnectionLostError if none answers."""
        try:
            addresses = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectionLostError(f"{host}: {error.strerror or error}") from error
        failure: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            try:
                attempt = trio.socket.socket(family, kind, protocol)
            except OSError as error:  # no descriptor is left, or the family is not supported
                failure = error
                continue
            try:
                await attempt.connect(address)
            except OSError as error:
                attempt.close()
                failure = error
                continue
            except BaseException:
                attempt.close()
                raise
            sock = socket.socket(family, kind, protocol, fileno=attempt.detach())
            _tune(sock)
            return TcpStream(sock)
        if isinstance(failure, ConnectionRefusedError):
            raise NobodyListensError(f"{host}:{port}: connection refused") from failure
        # trio's own message repeats the address, in another form.
        why = os.strerror(failure.errno) if failure and failure.errno else failure
        raise ConnectionLostError(f"{host}:{port}: {why}") from failure

    async def listen(self, host: str, port: int) -> Listener:
        """Listen on `host`; raise OSError, with the address in it, if the port is taken."""
        await trio.lowlevel.checkpoint()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            raise cannot_listen(host, port, error) from None
        return TcpListener(sock, self._on_accept_failed)


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if str(sock.getpeername()[0]).startswith(_THIS_MACHINE):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    except OSError:
        return  # There is no CUBIC, or the peer has gone, which the first use of the stream shows.
