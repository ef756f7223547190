"""The stage of a simulated run: the cluster, virtual time, a history in memory."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from daybook.clients import ledgers
from daybook.clients.ledgers.client import open_client
from daybook.clients.python.admin import Admin
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.limits import ClientLimits
from tests.history.recorder import Memory
from tests.simulation.cluster import Cluster, Life
from tests.simulation.http import HTTP_PORT
from tests.simulation.settings import BROKER_PORT
from tests.simulation.workloads.stage import Stage

_REST_S = 20.0
_LEDGERS_ROOT = "/ledgers"
_LIMITS = ClientLimits(partitions_refresh_s=3.0)


@dataclass(slots=True)
class Scene(Stage):
    cluster: Cluster = field(kw_only=True)
    memory: Memory = field(default_factory=Memory)
    # Topics that nobody has looked at to the end, and how a client does that: their own may die.
    unread: dict[str, Callable[[Client], Awaitable[None]]] = field(
        default_factory=dict[str, Callable[[Client], Awaitable[None]]]
    )
    _last_ns: int = -1

    @property
    def sink(self) -> Memory:
        return self.memory

    def now_ns(self) -> int:
        self._last_ns = max(self._last_ns + 1, round(self.cluster.run.clock.now * 1e9))
        return self._last_ns

    def now_ms(self, host: str) -> int:
        return self.cluster.clock_of(host).now_ms()

    @property
    def service_url(self) -> str:
        hosts = [f"{name}:{BROKER_PORT}" for name in self.plan.shape.broker_names()]
        return f"pulsar://{','.join(hosts)}"

    def admin(self, host: str, name: str) -> Admin:
        """Return the admin client of an administrator at that host."""
        urls = [f"{each}:{HTTP_PORT}" for each in self.plan.shape.broker_names()]
        return Admin(
            f"http://{','.join(urls)}",
            network=self.cluster.network.of(host),
            rng=self.rng(f"{name}/admin"),
            timeout_s=_REST_S,
        )

    def connect(self, life: Life) -> connect:
        return connect(
            self.service_url,
            timeout_s=None,
            network=self.cluster.network.of(life.host),
            clock=self.cluster.clock_of(life.host),
            rng=self.rng(life.name),
            limits=_LIMITS,
        )

    @asynccontextmanager
    async def connect_ledgers(self, life: Life) -> AsyncGenerator[ledgers.Client]:
        """Open a client of ledgers, one for each process."""
        async with (
            self.cluster.metadata.open(life.host) as store,
            open_client(
                store=store,
                root=_LEDGERS_ROOT,
                network=self.cluster.network.of(life.host),
                rng=self.rng(f"{life.name}/ledgers"),
                clock=self.cluster.clock_of(life.host),
            ) as client,
        ):
            yield client
