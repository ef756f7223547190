"""Connections to brokers, one per address, and the choice of a broker of the service URL.

A service URL names one broker or several: `pulsar://host1:6650,host2:6650`.  Any of them can tell
which broker serves a topic.  The client asks the broker that answered last; if it fails, it asks
the next one.  This choice is shared by all users of the client: none of them sends the others back
to a broker that failed, and they do not wait for it one after the other.
"""

import trio

from daybook.clients.python.connection import BrokerConnection
from daybook.clients.python.credentials import NOBODY, Credentials
from daybook.clients.python.errors import (
    BrokerError,
    ClosedError,
    Remedy,
    TlsError,
    UnavailableError,
    WrongProtocolError,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.tls import is_encrypted
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, NotTlsError, TlsRefusedError
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Network, Stream

SCHEME = "pulsar://"
_TLS_SCHEME = "pulsar+ssl://"
_PORT, _TLS_PORT = 6650, 6651


def parse_service_url(url: str) -> list[tuple[str, int]]:
    """Return the addresses in a service URL.  Raise ValueError."""
    scheme = _TLS_SCHEME if url.startswith(_TLS_SCHEME) else SCHEME
    if not url.startswith(scheme):
        raise ValueError(
            f"a service URL must begin with {SCHEME} or {_TLS_SCHEME}, as {SCHEME}localhost:6650;"
            f" this one is {url!r}"
        )
    usual_port = _TLS_PORT if scheme == _TLS_SCHEME else _PORT
    addresses: list[tuple[str, int]] = []
    for part in url.removeprefix(scheme).rstrip("/").split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part.strip(), str(usual_port)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{part!r} in the service URL {url!r} is not HOST:PORT")
        addresses.append((host, int(port)))
    return addresses


class ConnectionPool:
    """One instance per client."""

    def __init__(
        self,
        service_url: str,
        *,
        network: Network,
        limits: ClientLimits,
        nursery: trio.Nursery,
        first: int,
        credentials: Credentials = NOBODY,
    ) -> None:
        self._credentials = credentials
        self._addresses = parse_service_url(service_url)
        self.encrypted = is_encrypted(service_url)
        """True if all connections have TLS, which `network` adds."""
        self._current = first % len(self._addresses)
        self._network = network
        self._limits = limits
        self._nursery = nursery
        self._arenas = ArenaPool(total_bytes_max=limits.arenas_bytes_max)
        self._flusher = Flusher()
        self._connections: dict[tuple[str, int, str], BrokerConnection] = {}
        self._opening: dict[tuple[str, int, str], trio.Lock] = {}
        self._failed: dict[tuple[str, int, str], BrokerError] = {}  # how the last attempt ended
        self.closed = False
        self._forked: ClosedError | None = None

    async def run(self) -> None:
        """Flush the connections, and give back memory that none of them needs, forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._arenas.run)
            await self._flusher.run()

    async def service(self) -> BrokerConnection:
        """Return a connection to one of the brokers of the service URL."""
        failures: list[BrokerError] = []
        connection = self._last_service()
        # If the connection was lost, its broker is asked last.
        first = self._current + (connection is not None and connection.closed)
        for index in range(first, first + len(self._addresses)):
            index %= len(self._addresses)
            try:
                connection = await self._get(*self._addresses[index], "")
            except BrokerError as error:
                failures.append(error)
                continue
            self._current = index
            return connection
        reasons = "; ".join(map(str, failures))
        # One broker that may get well is worth another attempt.
        passing = [each for each in failures if each.remedy is not Remedy.GIVE_UP]
        if all(isinstance(each, TlsError) for each in failures):
            raise TlsError(f"no broker can be reached: {reasons}") from failures[0]
        if passing:
            raise UnavailableError(f"no broker can be reached: {reasons}") from passing[0]
        if all(isinstance(each, WrongProtocolError) for each in failures):
            raise WrongProtocolError(reasons) from failures[0]
        raise failures[0]

    def reasons(self) -> str:
        """Return why no broker of the service URL is connected, for each of their addresses."""
        return "; ".join(
            str(self._failed.get((host, port, ""), f"{host}:{port} has not answered"))
            for host, port in self._addresses
        )

    def next_service(self, asked: BrokerConnection) -> None:
        """Ask another broker from now on: this one could not answer."""
        if self._last_service() is asked:
            self._current = (self._current + 1) % len(self._addresses)

    def _last_service(self) -> BrokerConnection | None:
        return self._connections.get((*self._addresses[self._current], ""))

    async def broker(self, url: str, *, through_service: bool) -> BrokerConnection:
        """Return a connection to the broker at `url`, or to it through a proxy.

        Raise ValueError for a URL that is not valid here: a client with TLS uses no other.
        """
        if is_encrypted(url) != self.encrypted:
            raise ValueError(f"{url!r} is {'without' if self.encrypted else 'with'} TLS")
        ((logical_host, logical_port),) = parse_service_url(url)[:1]
        if not through_service:
            return await self._get(logical_host, logical_port, "")
        host, port = self._addresses[self._current]
        return await self._get(host, port, f"{logical_host}:{logical_port}")

    async def _get(self, host: str, port: int, proxy_to: str) -> BrokerConnection:
        if self._forked is not None:
            raise self._forked
        if self.closed:
            raise ClosedError("the client is closed")
        key = (host, port, proxy_to)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed:
            return connection
        lock = self._opening.setdefault(key, trio.Lock())
        failed_before = self._failed.get(key)
        async with lock:  # One task opens the connection; the others wait for it.
            connection = self._connections.get(key)
            if connection is not None and not connection.closed:
                return connection
            # The attempt for which this task waited has failed: do not make the next one in turn.
            failure = self._failed.get(key)
            if failure is not None and failure is not failed_before:
                raise failure
            try:
                connection = await self._open(host, port, proxy_to)
            except BrokerError as error:
                self._failed[key] = error
                raise
            self._connections[key] = connection
            return connection

    async def _open(self, host: str, port: int, proxy_to: str) -> BrokerConnection:
        stream: Stream | None = None
        with trio.move_on_after(self._limits.connect_timeout_s):
            try:
                stream = await self._network.connect(host, port)
            except NotTlsError as error:
                raise TlsError(
                    f"{host}:{port} does not speak TLS: connect to its TLS port, or begin the URL"
                    " with pulsar://"
                ) from error
            except TlsRefusedError as error:
                raise TlsError(str(error)) from error
            except ConnectionLostError as error:
                raise UnavailableError(str(error)) from error
            frames = FrameConnection(
                stream,
                arenas=self._arenas,
                flusher=self._flusher,
                frame_bytes_max=self._limits.frame_bytes_max,
            )
            connection = BrokerConnection(frames, self._limits, self._credentials)
            self._nursery.start_soon(connection.run)
            try:
                await connection.greet(proxy_to or None)
            except BaseException:
                connection.close("the broker did not greet")
                raise
            return connection
        patience = f"within {self._limits.connect_timeout_s:g} s"
        if stream is None:
            raise UnavailableError(
                f"{host}:{port}: no connection {patience} (is a firewall in between, or is the"
                " address wrong?)"
            )
        raise UnavailableError(
            f"{host}:{port} accepted the connection, but did not answer as a broker {patience}"
            " (is it the port of a broker, and is the broker overloaded?)"
        )

    @property
    def open_connections(self) -> int:
        return sum(not each.closed for each in self._connections.values())

    def on_forked(self, error: ClosedError) -> None:
        """Refuse everything: the sockets belong to the parent of this process."""
        self._forked = error
        self._connections.clear()

    def close(self) -> None:
        """Close all connections."""
        self.closed = True
        for connection in self._connections.values():
            connection.close("the client was closed")
