"""Which ports the parts of a standalone cluster use.

The ports that a user types (service, admin, ZooKeeper) are exactly those asked for, or an error;
those of the other parts are the usual ones if they are free.  Bookies are known by their ports, so
these must not change once they have data.

A chosen port is let go before its part binds it.  Any port is therefore one from below the range
that kernels give to outgoing connections (from 32768 on Linux, higher elsewhere): those would take
it meanwhile; and by chance, as another cluster that starts at the same time chooses too.  While
the cluster is there its ports are held, so that a part that is down finds its own free again.
"""

import socket
import sys
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from random import Random
from types import TracebackType
from typing import Self

from clients.cli.errors import UserError

HOST = "127.0.0.1"
ANY_PORT_MIN, ANY_PORT_MAX = 15_000, 31_999
_TRIES = 100  # Then next to all of them are taken, and the kernel may look for one.


class PortChooser:
    """Keeps what it has chosen bound until the end of the block, so nothing is chosen twice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._bound = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bound.close()

    def exactly(self, port: int, part: str, remedy: str) -> int:
        """That port, or a `UserError`; 0 is any."""
        if port and not self._bind(port):
            raise UserError(f"Port {port} for {part} is taken: {remedy}.")
        return port or self.any()

    def preferably(self, port: int) -> int:
        return port if port and self._bind(port) else self.any()

    def any(self) -> int:
        for _ in range(_TRIES):
            if port := self._bind(self._rng.randint(ANY_PORT_MIN, ANY_PORT_MAX), alone=True):
                return port
        return self._bind(0)

    def _bind(self, port: int, *, alone: bool = False) -> int:
        """The port bound, 0 if it is taken; `alone`: or held, or has connections that linger."""
        sock = self._bound.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        if not alone:  # As servers do it: connections that linger from the last run do not matter.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
            # Two sockets with that option may share a port until one of them listens.
            sock.listen(1)
        except OSError:
            return 0
        return int(sock.getsockname()[1])


@contextmanager
def held(ports: Iterable[int]) -> Generator[None]:
    """Nobody else chooses one of these by chance; whoever is meant to can listen there.

    Linux lets two sockets share a port as long as at most one of them listens; elsewhere nothing is
    held.
    """
    with ExitStack() as stack:
        for port in ports if sys.platform == "linux" else ():
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, port))
            except OSError:
                continue  # It is taken: the part that wants it says so.
        yield
