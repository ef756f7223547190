"""The stage of a simulated run: the cluster, virtual time, a history in memory."""

from dataclasses import dataclass, field

from clients.python.client import connect
from clients.python.limits import ClientLimits
from tests.history.recorder import Memory
from tests.simulation.cluster import Cluster, Life
from tests.simulation.settings import BROKER_PORT
from tests.simulation.workloads.stage import Stage

_LIMITS = ClientLimits(partitions_refresh_s=3.0)


@dataclass(slots=True)
class Scene(Stage):
    cluster: Cluster = field(kw_only=True)
    memory: Memory = field(default_factory=Memory)
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

    def connect(self, life: Life) -> connect:
        return connect(
            self.service_url,
            network=self.cluster.network.of(life.host),
            clock=self.cluster.clock_of(life.host),
            rng=self.rng(life.name),
            limits=_LIMITS,
        )
