"""The HTTP port of a broker: Hypercorn on trio, with limits.

Who connects and says nothing, or half of something, is cut off; so is who never reads the answer,
by the kernel (Hypercorn shields its sending, and would wait for ever, also at the end).
"""

import socket
from typing import Self

import trio
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]
from starlette.types import ASGIApp

_BACKLOG = 128
_GRACE_S = 0.5
_IDLE_S = 10
_UNREAD_MS = 5_000
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux


class HttpPort:
    """A port that is taken, and not served yet."""

    def __init__(self, host: str, port: int) -> None:
        """OSError, with the address in it, if the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
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
            message = f"cannot listen on {host}:{port}: {error.strerror}"
            raise OSError(error.errno, message) from None
        self.port = int(sock.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the port up, if it was not served.  Idempotent."""
        self._socket.close()

    async def serve(
        self, app: ASGIApp, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled."""
        config = Config()
        config.bind = [f"fd://{self._socket.detach()}"]
        config.accesslog = None
        config.errorlog = None
        config.graceful_timeout = _GRACE_S
        config.keep_alive_timeout = _IDLE_S  # also for one who connects and says nothing
        async with trio.open_nursery() as nursery:
            await nursery.start(
                serve,  # pyright: ignore[reportUnknownArgumentType]
                app,
                config,
            )
            task_status.started()
