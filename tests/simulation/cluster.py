"""A whole cluster in one trio program: bookies, brokers and clients as hosts on simulated seams.

A host is a nursery whose tasks carry its name; killing it holds them back for ever and shuts its
seams, so that no `finally` of it runs before the whole run is over.  Its disk stays, less what a
loss of power takes.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from bookie.server.config import BookieConfig
from bookie.server.host import run_bookie
from bookie.storage.store import StoreLimits
from broker.config import BrokerConfig
from broker.server import run_broker
from tests.simulation.disk import HostCrashedError, Platter
from tests.simulation.metadata import Odds, SimulatedMetadata
from tests.simulation.network import SimulatedNetwork
from tests.simulation.scheduler import HOST, Scheduler

BOOKIE_PORT = 3181
BROKER_PORT = 6650
EPOCH_MS = 1_700_000_000_000

Main = Callable[[trio.TaskStatus[object]], Awaitable[None]]


class VirtualClock:
    """The wall clock of all hosts: virtual time since a day in 2023."""

    def now_ms(self) -> int:
        return EPOCH_MS + round(trio.current_time() * 1000)


class Cluster:
    """All hosts of one run.  Names: `bookie-1`, `broker-2`, and those of clients."""

    def __init__(self, run: Scheduler, seed: int, nursery: trio.Nursery) -> None:
        self.run = run
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.network = SimulatedNetwork(random.Random(self.rng.random()), trace=run.record)
        self.metadata = SimulatedMetadata(
            random.Random(self.rng.random()),
            self.clock,
            session_timeout_s=2.0,
            odds=Odds(),
            trace=run.record,
        )
        self.platters: dict[str, Platter] = {}
        self._nursery = nursery
        self._lives: dict[str, tuple[str, trio.CancelScope]] = {}
        self._dead: list[tuple[str, trio.CancelScope]] = []
        self._count = 0
        nursery.start_soon(self.metadata.run)

    # -- hosts

    async def start(self, name: str) -> None:
        """Start `bookie-N` or `broker-N`, with the disk that it had."""
        if name.startswith("bookie"):
            await self._live(name, lambda status: self._bookie(name, status))
        else:
            await self._live(name, lambda status: self._broker(name, status))

    async def _live(self, name: str, main: Main) -> None:
        assert name not in self._lives, f"{name} is running"
        self._count += 1
        life, scope = f"{name}#{self._count}", trio.CancelScope()
        self._lives[name] = (life, scope)

        async def live(*, task_status: trio.TaskStatus[object]) -> None:
            HOST.set(life)
            try:
                with scope:
                    await main(task_status)
            except (HostCrashedError, BaseExceptionGroup, Exception):
                if self._lives.get(name) == (life, scope):
                    raise  # It died by itself.

        await self._nursery.start(live)

    async def _bookie(self, name: str, status: trio.TaskStatus[object]) -> None:
        platter = self.platters.get(name)
        if platter is None:
            rng = random.Random(self.rng.random())
            platter = self.platters[name] = Platter(rng, latency_s=(0.0002, 0.002))
        async with self.metadata.open(name) as session:
            await run_bookie(
                BookieConfig(directories=("d0",), port=BOOKIE_PORT, host=name),
                network=self.network.of(name),
                metadata=session,
                disk=platter.mount(),
                index=platter.indexes().open,
                clock=self.clock,
                rng=random.Random(self.rng.random()),
                store_limits=StoreLimits(checkpoint_entries=200),
                task_status=status,
            )

    async def _broker(self, name: str, status: trio.TaskStatus[object]) -> None:
        async with self.metadata.open(name) as session:
            await run_broker(
                BrokerConfig(name=name, host=name, port=BROKER_PORT),
                store=session,
                network=self.network.of(name),
                clock=self.clock,
                rng=random.Random(self.rng.random()),
                task_status=status,
            )

    def kill(self, name: str, *, power: bool = False) -> None:
        """The process is gone; with `power` so is what its disk had not synced."""
        life = self._lives.pop(name)
        self._dead.append(life)
        self.run.hold(life[0])
        self.network.crash(name)
        self.metadata.crash(name)
        platter = self.platters.get(name)
        if platter is not None:
            if power:
                platter.lose_power()
            else:
                platter.kill()

    def end(self) -> None:
        """The run is over: the corpses may unwind; their seams are shut."""
        lives, self._lives = list(self._lives.values()), {}
        for life, scope in [*self._dead, *lives]:
            self.run.release(life)
            scope.cancel()

    @property
    def service_url(self) -> str:
        return f"pulsar://broker-1:{BROKER_PORT},broker-2:{BROKER_PORT}"


async def start_cluster(
    run: Scheduler, seed: int, nursery: trio.Nursery, *, bookies: int = 3, brokers: int = 2
) -> Cluster:
    """A cluster that serves."""
    cluster = Cluster(run, seed, nursery)
    for i in range(bookies):
        await cluster.start(f"bookie-{i + 1}")
    for i in range(brokers):
        await cluster.start(f"broker-{i + 1}")
    return cluster


async def eventually(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Virtual time passes until the condition holds."""
    with trio.fail_after(timeout_s):
        while not condition():
            with suppress(trio.TooSlowError):
                await trio.sleep(0.05)
