"""Auto-recovery as a function of its seams, for the process and for each bookie that embeds it.

    election --- auditor --.
                           +--> marks --> worker --> copies of entries, ledger metadata
    writers ---------------'

There is one auditor in the whole cluster, and one worker in each process that runs auto-recovery.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import trio

from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.client import LedgerClient, open_ledger_client
from daybook.bookie.ledger.security import BookieSecurity
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.auditor import Auditor, Election
from daybook.bookie.replication.bookie_watcher import BookieWatcher
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.status_records import StatusRecords
from daybook.bookie.replication.worker import Worker
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Network

_log = logging.getLogger(__name__)
_RESTART_S = 30.0


@dataclass(frozen=True, slots=True)
class AutoRecovery:
    """The running parts, for callers that inspect them."""

    election: Election
    auditor: Auditor
    worker: Worker
    watcher: BookieWatcher
    underreplication: Underreplication
    status_records: StatusRecords


@asynccontextmanager
async def open_autorecovery(
    client: LedgerClient, *, name: str, limits: ReplicationLimits | None = None
) -> AsyncGenerator[AutoRecovery]:
    """Audit (when elected) and repair while the block runs; `name` is unique in the cluster."""
    limits = limits or ReplicationLimits()
    context = client.context
    store, paths = context.metadata_store.store, LedgerPaths(context.metadata_store.paths.root)
    underreplication = Underreplication(store, paths, name)
    status_records = StatusRecords(store, paths)
    watcher = BookieWatcher(
        underreplication, AdminStates(store, paths), delay_s=limits.lost_delay_s
    )
    election = Election(store, paths, name)
    auditor = Auditor(context, underreplication, watcher, limits)
    worker = Worker(context, underreplication, watcher, status_records, limits, name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        nursery.start_soon(election.run, auditor.run)
        nursery.start_soon(worker.run)
        yield AutoRecovery(election, auditor, worker, watcher, underreplication, status_records)
        nursery.cancel_scope.cancel()


async def run_autorecovery(
    *,
    store: MetadataStore,
    network: Network,
    rng: Random,
    clock: WallClock,
    root: str,
    name: str,
    limits: ReplicationLimits,
    security: BookieSecurity | None = None,
) -> None:
    """Run forever.  An error in here ends neither the process nor the bookie in it."""
    while True:
        try:
            async with trio.open_nursery() as nursery:
                flusher = Flusher()
                nursery.start_soon(flusher.run)
                async with (
                    open_ledger_client(
                        store=store,
                        network=network,
                        rng=rng,
                        clock=clock,
                        arenas=ArenaPool(),
                        flusher=flusher,
                        root=root,
                        security=security,
                    ) as client,
                    open_autorecovery(client, name=name, limits=limits),
                ):
                    await trio.sleep_forever()
        except* Exception as errors:
            _log.error("auto-recovery has failed and will restart", exc_info=errors)
        await trio.sleep(_RESTART_S)
