"""Our own bookies on simulated disks and a simulated network, and clients of their ledgers.

    async with open_world() as world:
        async with world.client() as client: ...

Everything but the network and the disks is as in production.  Time jumps with `autojump_clock`;
without it a few milliseconds pass for each request.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

from daybook.bookie.ledger.racks import Placement
from daybook.bookie.server.config import parse
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.clients.ledgers.client import Client, open_client
from daybook.clients.ledgers.limits import Limits
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.memory import DirectLink, MemorySession, MemoryStore
from tests.harness.disk import Platter
from tests.harness.network import SimulatedNetwork

ROOT = "/ledgers"


@dataclass
class World:
    nursery: trio.Nursery
    rng: random.Random
    network: SimulatedNetwork
    metadata: MemoryStore
    platters: dict[str, Platter] = field(default_factory=dict)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    sessions: dict[str, MemorySession] = field(default_factory=dict)
    ended: dict[str, trio.Event] = field(default_factory=dict)
    running: dict[str, RunningBookie] = field(default_factory=dict)
    racks: dict[str, str] = field(default_factory=dict)
    # Used by bookies that start from now on.
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def bookies(self) -> list[str]:
        """The ids of the bookies, as ensembles name them."""
        return [f"{name}:3181" for name in self.platters]

    async def start(self, name: str, link: DirectLink | None = None) -> None:
        if name in self.ended:
            await self.ended[name].wait()
        ended = self.ended[name] = trio.Event()
        self.platters.setdefault(name, Platter(self.rng, latency_s=(0.0002, 0.002)))
        session = self.sessions[name] = self.metadata.session(name, link=link)
        scope = self.scopes[name] = trio.CancelScope()

        async def live(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            with suppress(BaseExceptionGroup), scope:
                await run_bookie(
                    parse(
                        {
                            "directories": ("d0",),
                            "host": name,
                            "rack": self.racks.get(name, ""),
                            **self.settings,
                        }
                    ),
                    network=self.network.of(name),
                    metadata=session,
                    disk=self.platters[name].mount(),
                    index=self.platters[name].indexes().open,
                    clock=SystemClock(),
                    rng=self.rng,
                    task_status=task_status,
                )
            ended.set()

        self.running[name] = await self.nursery.start(live)

    def stop(self, name: str) -> None:
        """End the bookie, and its session with it."""
        self.scopes[name].cancel()
        self.network.crash(name)
        self.metadata.expire(self.sessions[name].store_session_id)

    def lose_power(self, name: str) -> None:
        """Stop the bookie at once; unsynced data may be lost."""
        self.platters[name].lose_power()
        self.stop(name)

    @asynccontextmanager
    async def client(
        self,
        limits: Limits | None = None,
        name: str = "client",
        placement: Placement | None = None,
    ) -> AsyncGenerator[Client]:
        session = self.sessions[name] = self.metadata.session(name)
        async with open_client(
            store=session,
            root=ROOT,
            network=self.network.of(name),
            rng=self.rng,
            clock=SystemClock(),
            limits=limits,
            placement=placement,
        ) as client:
            yield client

    def link(self, name: str = "client") -> DirectLink:
        """Return the link between a client and the metadata store."""
        link = self.sessions[name].link
        assert isinstance(link, DirectLink)
        return link


@asynccontextmanager
async def open_world(
    bookies: int = 3, seed: int = 1, settings: dict[str, object] | None = None
) -> AsyncGenerator[World]:
    rng = random.Random(seed)
    async with trio.open_nursery() as nursery:
        world = World(nursery, rng, SimulatedNetwork(rng), MemoryStore(SystemClock()))
        world.settings = settings or {}
        for number in range(1, bookies + 1):
            await world.start(f"b{number}")
        yield world
        nursery.cancel_scope.cancel()


def client_of_its_own(limits: Limits | None = None) -> AbstractAsyncContextManager[Client]:
    """Open a client in a world of its own, for another thread."""

    @asynccontextmanager
    async def block() -> AsyncGenerator[Client]:
        async with open_world() as world, world.client(limits) as client:
            yield client

    return block()
