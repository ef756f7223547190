"""What the actors of a run share."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import trio

from clients.python.client import Client, connect
from tests.history.events import Event, Fault, FaultEnd
from tests.history.recorder import Memory, Recorder
from tests.simulation.cluster import BROKER_PORT, Cluster, Life
from tests.simulation.plan import Plan


@dataclass(slots=True)
class Scene:
    cluster: Cluster
    plan: Plan
    memory: Memory = field(default_factory=Memory)
    calm: trio.Event = field(default_factory=trio.Event)  # the storm is over: come to an end
    subscriptions: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    topics: dict[str, int] = field(default_factory=dict[str, int])  # partitions; 0: has none
    working: int = 0  # actors that have not come to their end
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    _last_ns: int = -1

    def now_ns(self) -> int:
        """Virtual time; no two events have the same."""
        self._last_ns = max(self._last_ns + 1, round(self.cluster.run.clock.now * 1e9))
        return self._last_ns

    def recorder(self, by: str) -> Recorder:
        return Recorder(by, now_ns=self.now_ns, sink=self.memory)

    def rng(self, name: str) -> Random:
        """Of one actor: what it draws does not depend on the others."""
        return Random(f"{self.plan.seed}/{name}")

    def number(self, name: str) -> int:
        """Counts from 0, for each name."""
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        return number

    def topic_of(self, topic: str, partition: int) -> str:
        return topic if partition < 0 else f"{topic}-partition-{partition}"

    def concrete(self, topic: str) -> list[str]:
        """The topic, or its partitions."""
        partitions = self.topics.get(topic, 0)
        return [self.topic_of(topic, index) for index in range(partitions)] or [topic]

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
        )

    async def wait_calm(self, seconds: float) -> bool:
        """Wait so long, or until the storm is over; True if it is."""
        with trio.move_on_after(seconds):
            await self.calm.wait()
        return self.calm.is_set()


@dataclass(slots=True)
class Actor:
    """Whoever does something, and notes it."""

    scene: Scene
    client: Client
    recorder: Recorder

    def note(self, event: Event) -> None:
        self.recorder.note(event)

    @contextmanager
    def hand_over(self, text: str) -> Generator[None]:
        """What was in flight may be lost meanwhile; nothing else."""
        fault = f"{self.recorder.by}: {text} {self.scene.number(text)}"
        self.note(Fault(fault, text, clean=True))
        try:
            yield
        finally:
            self.note(FaultEnd(fault))
