"""Shared by the commands that talk to bookies directly: a ledger client for one command."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random, SystemRandom

import trio

from daybook.bookie.ledger.client import LedgerClient, open_ledger_client
from daybook.bookie.ledger.security import BookieSecurity, open_bookie_security
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import bookie_access
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.logging import std_log
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork
from daybook.wire.tls_files import TlsFilesError


def new_rng() -> Random:
    return Random(SystemRandom().getrandbits(64))  # noqa: S311  nothing secret


def _security() -> BookieSecurity | None:
    try:
        return open_bookie_security(
            bookie_access(), clock=SystemClock(), log=std_log(logging.getLogger(__name__))
        )
    except (ConfigError, TlsFilesError) as error:
        raise UserError(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


@asynccontextmanager
async def open_client(store: MetadataStore, root: str) -> AsyncGenerator[LedgerClient]:
    """Open a ledger client for one command, as the options about bookies say.

    Its exceptions are not wrapped in a group.
    """
    security = _security()
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
                security=security,
            ) as client:
                yield client
        except Exception as caught:
            error = caught
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
