"""Shared by the commands that talk to bookies directly: a ledger client for one command."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random, SystemRandom

import trio

from daybook.bookie.ledger.client import LedgerClient, open_ledger_client
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork


def new_rng() -> Random:
    return Random(SystemRandom().getrandbits(64))  # noqa: S311  nothing secret


@asynccontextmanager
async def open_client(store: MetadataStore, root: str) -> AsyncGenerator[LedgerClient]:
    """Open a ledger client for one command.  Its exceptions are not wrapped in a group."""
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        try:
            async with open_ledger_client(
                store=store,
                network=TcpNetwork(),
                rng=new_rng(),
                clock=SystemClock(),
                arenas=ArenaPool(),
                flusher=flusher,
                root=root,
            ) as client:
                yield client
        except Exception as caught:
            error = caught
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
