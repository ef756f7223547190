"""Choose the ports for the parts of a standalone cluster.

The ports that a user types (service, admin, ZooKeeper) are used exactly, or refused with an error.
The other parts get the usual ports if these are free.  The id of a bookie contains its port, so the
port of a bookie must not change once it has data.

The chooser releases a port before the part binds it.  A free port is therefore taken from below the
range that kernels use for outgoing connections (from 32768 on Linux, higher elsewhere), which could
take it in between.  It is chosen at random, since another cluster may choose at the same time.  On
Linux each choice is also claimed for as long as the cluster runs: no other cluster chooses the port
of a part that has not started yet, or is down.
"""

import socket
import sys
from contextlib import ExitStack
from random import Random
from types import TracebackType
from typing import Self

from daybook.clients.cli.directory import LOOPBACK
from daybook.clients.cli.errors import UserError

HOST = LOOPBACK
ANY_PORT_MIN, ANY_PORT_MAX = 15_000, 31_999
_TRIES = 100  # after that nearly all are taken, and the kernel chooses one


class PortChooser:
    """Chooses ports that no other chooser gets until the end of the `with` block.

    Until `release`, no other process can listen on them either.
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
        """Close the listening sockets, so that the parts can bind the ports."""
        self._bound.close()

    def exactly(self, port: int, part: str, remedy: str, host: str = HOST) -> int:
        """Return `port`, or any free one if it is 0.  Raise `UserError` if it is taken."""
        if port and not self._bind(port, host):
            raise UserError(f"Port {port} for {part} is taken: {remedy}.")
        return port or self.any(host)

    def preferably(self, port: int, host: str = HOST) -> int:
        return port if port and self._bind(port, host) else self.any(host)

    def any(self, host: str = HOST) -> int:
        for _ in range(_TRIES):
            if port := self._bind(self._rng.randint(ANY_PORT_MIN, ANY_PORT_MAX), host):
                return port
        for _ in range(_TRIES):
            if port := self._bind(0, host):
                return port
        raise UserError("No port is free: stop the programs that use so many.")

    def _bind(self, port: int, host: str) -> int:
        """Listen on `port` (0: any) and claim it; return the port, or 0 if it is taken."""
        with ExitStack() as kept:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
            # As in servers: old connections in TIME_WAIT do not make a port taken.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
                # Two sockets with this option can share a port until one of them listens.
                sock.listen(1)
                port = int(sock.getsockname()[1])
                self._claim(port)
            except OSError:
                return 0
            self._bound.push(kept.pop_all())
        return port

    def _claim(self, port: int) -> None:
        """Bind an abstract socket name, which ends with this process; `OSError` if it is taken."""
        if sys.platform != "linux":
            return
        with ExitStack() as kept:
            claim = kept.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            claim.bind(f"\0daybook-port-{port}")
            self._claims.push(kept.pop_all())
