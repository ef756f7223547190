"""The surroundings of clients in a run, simulated or real (`tests/soak`): time, chance, history."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from math import inf
from random import Random

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.errors import BrokerError
from tests.history.events import Event, Fault, FaultEnd
from tests.history.recorder import Recorder, Sink
from tests.simulation.held_back import is_held_back
from tests.simulation.plan import Plan
from tests.simulation.workloads.verdicts import is_allowed

_PATIENCE_S = (0.0, 0.001, 0.003, 0.01, 0.1, 2.0)


class GivenUpError(Exception):
    """The application no longer waits for its open."""


@dataclass(slots=True)
class Stage(ABC):
    plan: Plan
    calm: trio.Event = field(default_factory=trio.Event)  # the storm is over: only receive
    end: trio.Event = field(default_factory=trio.Event)  # there was enough time to receive: leave
    calm_ns: int = 0  # when the calm began
    problems: list[str] = field(default_factory=list[str])  # errors that no client may be told
    sending: dict[str, None] = field(default_factory=dict[str, None])  # work that is not at its end
    there: dict[str, str] = field(
        default_factory=dict[str, str]
    )  # the receiver's name, by its work's name
    subscriptions: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    topics: dict[str, int] = field(default_factory=dict[str, int])  # partitions; 0: not partitioned
    # Topics of which somebody reads the latest messages.
    followed_latest: dict[str, None] = field(default_factory=dict[str, None])
    ledgers: dict[int, None] = field(default_factory=dict[int, None])  # ledgers without a broker
    # Topics that are terminated, or may be.
    terminated: dict[str, None] = field(default_factory=dict[str, None])
    marks: Counter[str] = field(default_factory=Counter[str])  # events that actors have met
    on_moment: Callable[[str, str], None] = lambda what, host: None
    spoiled: dict[str, None] = field(
        default_factory=dict[str, None]
    )  # topics with unreadable entries
    limited: dict[str, None] = field(
        default_factory=dict[str, None]
    )  # topics that may limit what is not acknowledged
    _numbers: dict[str, int] = field(default_factory=dict[str, int])

    @property
    @abstractmethod
    def sink(self) -> Sink:
        """The destination of the history."""

    @abstractmethod
    def now_ns(self) -> int:
        """Return the time of the next event; no two events have the same."""

    @abstractmethod
    def now_ms(self, host: str) -> int:
        """Return the wall clock's time at a client there."""

    def refused(self, by: str, what: str, error: BrokerError) -> None:
        """Count an error that a client was told, and keep it if no client may be told it."""
        kind = type(error).__name__
        self.marks[f"{what}: {kind}"] += 1
        calm_s = (self.now_ns() - self.calm_ns) / 1e9 if self.calm.is_set() else 0.0
        if not is_allowed(what, error, calm_s):
            self.problems.append(f"refusal: {by}: {what}: {kind}: {error}")

    def begin_calm(self) -> None:
        """Begin the calm: the storm is over."""
        self.calm_ns = self.now_ns()
        self.calm.set()

    def recorder(self, by: str) -> Recorder:
        return Recorder(by, now_ns=self.now_ns, sink=self.sink)

    def rng(self, name: str) -> Random:
        """Return an actor's generator, which does not depend on the other actors."""
        return Random(f"{self.plan.seed}/{name}")

    def number(self, name: str) -> int:
        """Count from 0, for each name."""
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        return number

    def topic_of(self, topic: str, partition: int) -> str:
        return topic if partition < 0 else f"{topic}-partition-{partition}"

    def concrete(self, topic: str) -> list[str]:
        """Return the topic, or its partitions."""
        partitions = self.topics.get(topic, 0)
        return [self.topic_of(topic, index) for index in range(partitions)] or [topic]

    def happened(self, what: str, host: str) -> None:
        """Count an event that a fault may wait for."""
        self.marks[what] += 1
        self.on_moment(what, host)

    async def wait_end(self, seconds: float) -> None:
        """Wait so long, or until everybody is to leave."""
        with trio.move_on_after(seconds):
            await self.end.wait()

    async def wait_calm(self, seconds: float) -> bool:
        """Wait so long, or until the storm is over; return True if it is."""
        with trio.move_on_after(seconds):
            await self.calm.wait()
        return self.calm.is_set()


@dataclass(slots=True)
class Actor:
    """A client that notes its actions."""

    scene: Stage
    client: Client
    recorder: Recorder

    def note(self, event: Event) -> None:
        self.recorder.note(event)

    def refused(self, what: str, error: BrokerError) -> None:
        """Count an error that a client was told."""
        self.scene.refused(self.recorder.by, what, error)

    @asynccontextmanager
    async def perhaps_given_up(self, odds: float, rng: Random) -> AsyncGenerator[None]:
        """Cancel an open now and then, as an impatient application does, and raise GivenUpError."""
        patience_s = rng.choice(_PATIENCE_S) if odds and rng.random() < odds else inf
        if is_held_back("an open is given up"):
            patience_s = inf
        with trio.move_on_after(patience_s) as scope:
            yield
        if scope.cancelled_caught:
            self.scene.marks["an open was given up"] += 1
            raise GivenUpError

    @contextmanager
    def hand_over(self, text: str) -> Generator[None]:
        """Note that messages in flight, and nothing else, may be lost meanwhile."""
        fault = f"{self.recorder.by}: {text} {self.scene.number(text)}"
        self.note(Fault(fault, text, clean=True))
        try:
            yield
        finally:
            self.note(FaultEnd(fault))
