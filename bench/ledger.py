"""The ledger client alone, on the three bookies of a running cluster."""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from bench import limit
from bench.cases import MEASURE_S, WARM_UP_S, Figure
from daybook.bookie.ledger.client import LedgerClient, Quorums, open_ledger_client
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork

ENTRY_BYTES = 64 << 10
OUTSTANDING_BYTES_MAX = 16 << 20
UNCONFIRMED = 10_000
RECOVERIES = 3


@asynccontextmanager
async def _client(cluster: StandaloneProcess) -> AsyncGenerator[LedgerClient]:
    flusher = Flusher()
    async with (
        open_zookeeper(cluster.zookeeper, session_timeout_s=10) as store,
        trio.open_nursery() as nursery,
        open_ledger_client(
            store=store,
            network=TcpNetwork(),
            rng=random.Random(2),
            clock=SystemClock(),
            arenas=ArenaPool(),
            flusher=flusher,
        ) as client,
    ):
        nursery.start_soon(flusher.run)
        yield client
        nursery.cancel_scope.cancel()


async def append_64kb(cluster: StandaloneProcess) -> list[Figure]:
    """Measure confirmed MB/s with E=3 WQ=3 AQ=2; compare with the relay that writes three files."""
    data = random.Random(1).randbytes(ENTRY_BYTES)
    async with _client(cluster) as client:
        writer = await client.create(Quorums(3, 3, 2))
        started = trio.current_time()
        counted_from, counted = started + WARM_UP_S, -1
        while (now := trio.current_time()) < started + WARM_UP_S + MEASURE_S:
            if counted < 0 and now >= counted_from:
                counted, counted_from = writer.last_add_confirmed, now
            if writer.pending_bytes < OUTSTANDING_BYTES_MAX:
                writer.append([data])
            else:
                await writer.wait_confirmed(writer.last_add_confirmed + 1)
        elapsed = trio.current_time() - counted_from
        mb_s = (writer.last_add_confirmed - counted) * ENTRY_BYTES / elapsed / 1e6
        await writer.wait_confirmed(writer.last_add_pushed)
        await writer.close()
        await client.delete(writer.ledger_id)
    most = await trio.to_thread.run_sync(limit.writing_mb_s, ENTRY_BYTES, 1 << 29)
    ratio = mb_s / most
    note = f"limit {most:.0f} MB/s"
    return [
        Figure("ledger client, 64 KB entries", mb_s, "MB/s", "", True, note),
        Figure("  of the relay limit", ratio, "", ">= 0.5", ratio >= 0.5),
    ]


async def recover_unconfirmed(cluster: StandaloneProcess) -> list[Figure]:
    """Measure the recovery of a ledger whose entries all carry a LAC of -1."""
    data = random.Random(1).randbytes(100)
    seconds: list[float] = []
    async with _client(cluster) as writing, _client(cluster) as recovering:
        for _ in range(RECOVERIES):
            writer = await writing.create(Quorums(3, 3, 2))
            for _ in range(UNCONFIRMED):
                writer.append([data])
            await writer.wait_confirmed(UNCONFIRMED - 1)
            writer.abandon()
            started = trio.current_time()
            reader = await recovering.open(writer.ledger_id, recover=True)
            seconds.append(trio.current_time() - started)
            assert reader.last_add_confirmed == UNCONFIRMED - 1
            await writing.delete(writer.ledger_id)
    median = sorted(seconds)[RECOVERIES // 2]
    name = f"recovery of {UNCONFIRMED:,} unconfirmed entries"
    note = f"of {RECOVERIES}: {min(seconds):.2f}-{max(seconds):.2f} s"
    return [Figure(name, median, "s", "<= 2", median <= 2, note)]


CASES = {"ledger": append_64kb, "recovery": recover_unconfirmed}
