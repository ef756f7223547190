"""Which ports the parts of a standalone cluster use.

The ports that a user types (service, admin, ZooKeeper) are exactly those asked for, or an error;
those of the other parts are the usual ones if they are free.  Bookies are known by their ports, so
these must not change once they have data.

A chosen port is let go before its part binds it.  Any port is therefore one from below the range
that kernels give to outgoing connections (from 32768 on Linux, higher elsewhere): those would take
it meanwhile; and by chance, as another cluster that starts at the same time chooses too.  On Linux
a choice is claimed besides, for as long as the cluster is there: no other cluster chooses the port
of a part that has not started yet, or is down.
"""

import socket
import sys
from contextlib import ExitStack
from random import Random
from types import TracebackType
from typing import Self

from daybook.clients.cli.errors import UserError

HOST = "127.0.0.1"
ANY_PORT_MIN, ANY_PORT_MAX = 15_000, 31_999
_TRIES = 100  # Then next to all of them are taken, and the kernel may look for one.


class PortChooser:
    """What it has chosen nobody else who chooses gets, until the end of the block.

    Nobody can listen there either, before `let_go`.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._bound = ExitStack()
        self._claims = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bound.close()
        self._claims.close()

    def release(self) -> None:
        """All are chosen: their parts may bind them now."""
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
            if port := self._bind(self._rng.randint(ANY_PORT_MIN, ANY_PORT_MAX)):
                return port
        for _ in range(_TRIES):
            if port := self._bind(0):
                return port
        raise UserError("No port is free: stop what has so many open.")

    def _bind(self, port: int) -> int:
        """The port bound, 0 if it is taken."""
        with ExitStack() as kept:
            sock = kept.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # As servers do it: connections that linger from the last run do not matter.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, port))
                # Two sockets with that option may share a port until one of them listens.
                sock.listen(1)
                port = int(sock.getsockname()[1])
                self._claim(port)
            except OSError:
                return 0
            self._bound.push(kept.pop_all())
        return port

    def _claim(self, port: int) -> None:
        """A name that only one process can have, and that ends with it; `OSError` if one has it."""
        if sys.platform != "linux":
            return
        with ExitStack() as kept:
            claim = kept.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            claim.bind(f"\0daybook-port-{port}")
            self._claims.push(kept.pop_all())
