"""A server of a bookie on a real port, over a real store in a temporary directory."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
import trio

from daybook.bookie.server.port import BookieServer
from daybook.bookie.server.reception import Reception
from daybook.bookie.server.session import ServerLimits
from daybook.bookie.server.v3 import DiskSpace
from daybook.bookie.storage.disk import Disk, FileDisk
from daybook.bookie.storage.index import MemoryIndexes
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.wire.clock import SystemClock
from daybook.wire.logging import silent_log
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork
from tests.bookie.server.peer import Peer, connect


@dataclass(frozen=True, slots=True)
class Running:
    server: BookieServer
    store: LedgerStore
    port: int

    def connect(self) -> AbstractAsyncContextManager[Peer]:
        return connect(self.port)


DEFAULT_LIMITS = ServerLimits()


class Start(Protocol):
    def __call__(
        self,
        limits: ServerLimits = ...,
        *,
        disk: Disk | None = None,
        reception: Reception | None = None,
    ) -> AbstractAsyncContextManager[Running]: ...


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that starts a server: `async with start() as running`."""
    indexes = MemoryIndexes()

    async def disk_space() -> DiskSpace:
        await trio.lowlevel.checkpoint()
        return DiskSpace(total_bytes=1000, free_bytes=400)

    @asynccontextmanager
    async def running(
        limits: ServerLimits = DEFAULT_LIMITS,
        *,
        disk: Disk | None = None,
        reception: Reception | None = None,
    ) -> AsyncIterator[Running]:
        clock = SystemClock()
        async with (
            open_store(
                disk=disk or FileDisk(),
                directories=[str(tmp_path / "d0")],
                index=indexes.open,
                clock=clock,
            ) as store,
            trio.open_nursery() as nursery,
        ):
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            server = BookieServer(
                store,
                limits=limits,
                clock=clock,
                flusher=flusher,
                log=silent_log(),
                disk_space=disk_space,
                reception=reception,
            )
            listener = await TcpNetwork().listen("127.0.0.1", 0)
            nursery.start_soon(server.serve, listener)
            yield Running(server, store, listener.port)
            nursery.cancel_scope.cancel()

    return running
