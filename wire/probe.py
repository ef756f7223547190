"""A probe that sends a port of this machine a request, as a client would, to see that it serves.

    probe = PortProbe(listener.host, listener.port, request, explain)
    why = await probe.why_not_ready()     # "" if the port has answered in time

The probe uses blocking calls, so that a thread of the watchdog can probe while the event loop is
stuck; `why_not_ready` runs in a worker thread.  The probe binds a local port before it connects,
and `reserved` holds this address in the form of `Stream.peer`: the server accepts it even if all
other connections are taken.  No stranger can use that address while the probe is bound to it.

A probe that could not be sent, because this process has no descriptor or no port left, proves
nothing about the server: it raises `NotAskedError`, which is neither an answer nor silence.
"""

import socket
import ssl
import struct
from collections.abc import Callable
from time import monotonic  # noqa: TID251  these threads have no loop, and no clock of trio's

import trio

READY_S = 2.0
"""A server that is ready answers within this time."""

_FRAME_BYTES_MAX = 1 << 16
_SIZE = struct.Struct(">I")
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  how to reach a listener on all addresses


class NoAnswerError(Exception):
    """The port has not answered in time, or not with a valid answer."""


class SilentError(NoAnswerError):
    """The port has accepted the connection, and has not answered in time."""


class NotAskedError(Exception):
    """The request could not be sent, for a reason on the side of the caller."""


class PortProbe:
    """Probes one port, any number of times."""

    def __init__(
        self, host: str, port: int, request: Callable[[], bytes], explain: Callable[[bytes], str]
    ) -> None:
        """`request` returns a whole frame, made for each probe: its credentials may change.

        `explain` returns "" for a valid answer, or what is wrong with that frame.  Both may be
        called in another thread.
        """
        self.reserved: set[str] = set()
        self._host = _LOCAL.get(host, host)
        self._port = port
        self._request = request
        self._explain = explain
        self._thread = trio.CapacityLimiter(1)
        self._asking: trio.Event | None = None
        self._said: str | None = None

    def ask(self, timeout_s: float) -> None:
        """Return if the port answers in time; raise NoAnswerError or NotAskedError.  Blocks."""
        until = monotonic() + timeout_s
        with self._open() as sock:
            name = "{}:{}".format(*sock.getsockname()[:2])
            self.reserved.add(name)
            try:
                answer = ask(sock, (self._host, self._port), self._request(), until)
            finally:
                self.reserved.discard(name)
        if why := self._explain(answer):
            raise NoAnswerError(why)

    def _open(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise NotAskedError(
                f"this process cannot open a socket for the probe: {error.strerror}"
            ) from error
        try:
            sock.bind((self._host, 0))
        except OSError as error:
            sock.close()
            raise NotAskedError(
                f"this process cannot bind a local port for the probe: {error.strerror}"
            ) from error
        return sock

    async def why_not_ready(self) -> str:
        """Return "" if the port answers within `READY_S`, else why it does not count as ready.

        Callers that ask at the same time share one probe.
        """
        while (asking := self._asking) is not None:
            await asking.wait()
            if self._said is not None:
                return self._said
        done = self._asking = trio.Event()
        self._said = None
        try:
            self._said = await trio.to_thread.run_sync(
                self._try, abandon_on_cancel=True, limiter=self._thread
            )
            return self._said
        finally:
            self._asking = None
            done.set()

    def _try(self) -> str:
        try:
            self.ask(READY_S)
        except (NoAnswerError, NotAskedError) as error:
            return str(error)
        return ""


def ask_port(
    host: str,
    port: int,
    request: bytes,
    timeout_s: float,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """Return the first frame that the port answers, or raise NoAnswerError or NotAskedError.

    This function blocks.  It is for ports of other processes, whose host may be a name.  With a
    `context` it asks over TLS.
    """
    until = monotonic() + timeout_s
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, _, _, address = addresses[0]
        sock = socket.socket(family, kind)
    except OSError as error:
        raise NotAskedError(f"{host}:{port}: {error.strerror or error}") from error
    with sock:
        if context is None:
            return ask(sock, address, request, until)
        with context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False) as tls:
            return ask(tls, address, request, until)


def ask(sock: socket.socket, address: tuple[object, ...], request: bytes, until: float) -> bytes:
    """Connect, send `request`, and return the first frame that comes before `until`."""
    where = "{}:{}".format(*address[:2])

    def patience_s() -> float:
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def receive(size: int) -> bytes:
        received = b""
        while len(received) < size:
            sock.settimeout(patience_s())
            chunk = sock.recv(size - len(received))
            if not chunk:
                raise NoAnswerError(f"{where} closed the connection without an answer")
            received += chunk
        return received

    connected = False
    try:
        sock.settimeout(patience_s())
        sock.connect(address)
        connected = True
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(patience_s())
            sock.do_handshake()
        sock.settimeout(patience_s())
        sock.sendall(request)
        (size,) = _SIZE.unpack(receive(_SIZE.size))
        if size > _FRAME_BYTES_MAX:
            raise NoAnswerError(f"{where} answered with a frame of {size} bytes")
        return receive(size)
    except TimeoutError:
        kind = SilentError if connected else NoAnswerError
        raise kind(f"{where} did not answer in time") from None
    except OSError as error:
        raise NoAnswerError(f"{where}: {error.strerror or error}") from error
