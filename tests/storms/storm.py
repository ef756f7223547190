"""The base class of all kinds of storms.

A storm is a schedule of steps.  In each step one actor acts: mostly the network, which delivers a
message.  Every schedule draws how often each actor acts, and which of them take part; it also draws
the set-up, and prefers small ones.  When the storm is over, all faults end and the system has to
recover.

`rule` checks a rule against what the storm itself has seen, after each step that could break it.
`mark` notes that the schedule has met a state that matters.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

from tests.storms.chance import Chance

SOME = (0.0, 0.0, 0.003, 0.01, 0.03, 0.1)  # weights of a fault; the network has 1
OFTEN = (0.02, 0.05, 0.1, 0.2, 0.4)  # weights of work

S = TypeVar("S", bound=Hashable)


class ViolationError(AssertionError):
    """A rule was broken."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class Worlds:
    """The latest world of the model checker: later walks look up what one has worked out.

    The world contains results of the code, so it must not outlive the mutant that was applied.
    """

    def __init__(self) -> None:
        self._settings: Hashable = None
        self._world: Any = None

    def of(self, settings: S, build: Callable[[S], Any]) -> Any:
        if settings != self._settings:
            self._settings, self._world = settings, build(settings)
        return self._world


class Storm:
    """One schedule.  `trace`, if there is one, gets a line for each event."""

    kind: ClassVar[str]
    steps_max: ClassVar[int] = 150
    tested: ClassVar[int] = 4000  # schedules that a run of the tests plays
    wanted: ClassVar[dict[str, float]] = {}  # marks, and the least share of schedules with each

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        self.chance = chance
        self.trace = trace
        self.worlds = Worlds()
        self.white_box = True  # also check the W rules, which look inside
        self.marks: set[str] = set()
        self.steps = 0
        self._actors: list[Callable[[], None]] = []
        self._weights: list[float] = []
        self._cumulative: list[float] = []

    def actor(self, act: Callable[[], None], weights: Sequence[float]) -> None:
        """Add an actor; how often it acts is drawn from `weights`."""
        self._actors.append(act)
        self._weights.append(self.chance.one_of(weights))

    def run(self) -> None:
        chance, actors = self.chance, self._actors
        self._cumulative = list(accumulate(self._weights))
        while chance.more(self.steps):
            self.steps += 1
            chance.next_step()
            actors[chance.weighted(self._cumulative)]()
        chance.next_step()
        self.say("-- the storm is over")
        self.finish()

    def finish(self) -> None:
        """End all faults, and check that the system recovers."""
        raise NotImplementedError

    def rule(self, name: str, holds: bool, detail: object = "") -> None:
        if not holds and (self.white_box or not name.startswith("W")):
            raise ViolationError(name, str(detail))

    def mark(self, name: str) -> None:
        self.marks.add(name)

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(what)
