"""A broker of ours for tests of the client: its data plane over logs in memory."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from daybook.broker.service.lookup import LookupResult
from daybook.clients.python.connect import connect
from daybook.clients.python.limits import ClientLimits
from tests.harness.broker import HOST, PORT, Cluster, open_broker

URL = f"pulsar://{HOST}:{PORT}"


@asynccontextmanager
async def real_broker() -> AsyncGenerator[Cluster]:
    """Run a broker that serves all topics, and answers lookups with itself."""
    async with open_broker() as cluster:
        found = LookupResult(URL, None, redirect=False, authoritative=True)
        cluster.broker.lookups.result = found
        yield cluster


def client_of(cluster: Cluster, name: str, limits: ClientLimits | None = None) -> connect:
    """Return a client on a host of that name, to be entered."""
    broker = cluster.broker
    return connect(
        URL,
        limits=limits,
        network=broker.network.of(name),
        clock=broker.clock,
        rng=random.Random(3),
    )
