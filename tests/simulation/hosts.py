"""The processes of a simulated cluster: the product, on the seams of its host."""

from dataclasses import dataclass
from random import Random

import trio

from daybook.bookie.replication.host import run_autorecovery
from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.broker.formats import READABLE
from daybook.broker.server import RunningBroker, run_broker
from tests.harness.clocks import VirtualClock
from tests.harness.disk import Platter
from tests.harness.network import HostNetwork
from tests.simulation.host_log import HostLog
from tests.simulation.http import SimulatedHttp
from tests.simulation.metadata import SimulatedMetadata
from tests.simulation.settings import BOOKIE_PORT, Settings


@dataclass(frozen=True, slots=True)
class Seams:
    """The seams of one process.  `chance` returns a generator for a part of it, by name."""

    host: str
    seed: str
    network: HostNetwork
    metadata: SimulatedMetadata
    clock: VirtualClock
    log: HostLog

    def chance(self, part: str = "") -> Random:
        return Random(f"{self.seed}/{part}" if part else self.seed)


UNSYNCED = "bookie-1"  # the other bookies have what it loses


async def serve_bookie(
    seams: Seams,
    platter: Platter,
    settings: Settings,
    status: trio.TaskStatus[RunningBookie],
    *,
    forgiven: bool = False,
) -> None:
    """Run a bookie, with auto-recovery beside it if that is on.

    `forgiven`: the bookie may start without its earlier data.
    """
    config = BookieConfig(
        directories=tuple(f"d{index}" for index in range(settings.directories)),
        port=BOOKIE_PORT,
        host=seams.host,
        reclaim_interval_s=settings.reclaim_interval_s,
        scrub_interval_s=settings.scrub_interval_s,
        position_interval_s=settings.position_interval_s,
        rack=_rack(seams.host, settings.racks),
        sync="deferred" if settings.unsynced and seams.host == UNSYNCED else "always",
        cookie_repair="auto" if forgiven else "off",
    )
    async with seams.metadata.open(seams.host) as session, trio.open_nursery() as nursery:

        async def bookie(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            await run_bookie(
                config,
                network=seams.network,
                metadata=session,
                disk=platter.mount(),
                index=platter.indexes().open,
                clock=seams.clock,
                rng=seams.chance(),
                log=seams.log.structured(),
                store_limits=settings.store_limits,
                task_status=task_status,
            )

        running: RunningBookie = await nursery.start(bookie)
        status.started(running)
        if settings.recovery is not None:
            await run_autorecovery(
                store=session,
                network=seams.network,
                rng=seams.chance("recovery"),
                clock=seams.clock,
                root=config.ledgers_root,
                name=running.bookie_id,
                limits=settings.recovery.limits,
            )


def _rack(host: str, racks: int) -> str:
    return f"/rack-{int(host.rpartition('-')[2]) % racks}" if racks else ""


async def serve_broker(
    seams: Seams, settings: Settings, status: trio.TaskStatus[RunningBroker]
) -> None:
    async with seams.metadata.open(seams.host) as session:
        # A rolling upgrade or rollback: some starts are of a release without the new formats.
        old = seams.chance("formats").random() < settings.old_brokers
        await run_broker(
            settings.broker(seams.host),
            readable=() if old else READABLE,
            limits=settings.limits.broker,
            http=SimulatedHttp(seams.network, seams.host) if settings.http else None,
            store=session,
            network=seams.network,
            clock=seams.clock,
            rng=seams.chance(),
            log=seams.log.structured(),
            task_status=status,
        )
