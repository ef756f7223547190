"""What all kinds of storms have in common.

A storm is a schedule of steps.  In each of them one actor does something: mostly the network, which
lets a message arrive.  How often each actor has its turn, and which of them take part at all, every
schedule draws for itself, and so it does with the set-up, of which it prefers the small ones.  When
the storm is over everything is healed, and has to come to a good end.

Rules are checked by `rule` against what the storm itself has seen, after each step that could break
them.  `mark` notes that a state was met that matters.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

from tests.storms.chance import Chance

SOME = (0.0, 0.0, 0.003, 0.01, 0.03, 0.1)  # how often a fault, in steps
OFTEN = (0.02, 0.05, 0.1, 0.2, 0.4)  # how often work

S = TypeVar("S", bound=Hashable)


class ViolationError(AssertionError):
    """A rule was broken."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class Worlds:
    """The latest world of the model checker: what one walk works out the next ones look up.

    It contains the code as it was, so it goes with the mutant that there was.
    """

    def __init__(self) -> None:
        self._settings: Hashable = None
        self._world: Any = None

    def of(self, settings: S, build: Callable[[S], Any]) -> Any:
        if settings != self._settings:
            self._settings, self._world = settings, build(settings)
        return self._world


class Storm:
    """One schedule.  `trace` takes what happens, line by line, if anybody wants to know."""

    kind: ClassVar[str]
    steps_max: ClassVar[int] = 150
    tested: ClassVar[int] = 4000  # schedules that a run of the tests plays
    wanted: ClassVar[dict[str, float]] = {}  # marks, and in which part of the schedules, at least

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        self.chance = chance
        self.trace = trace
        self.worlds = Worlds()
        self.white_box = True  # rules about how it is done, not what comes of it: those named W
        self.marks: set[str] = set()
        self._actors: list[Callable[[], None]] = []
        self._weights: list[float] = []
        self._cumulative: list[float] = []

    def actor(self, act: Callable[[], None], weights: Sequence[float]) -> None:
        """Somebody who has a turn now and then; how often is drawn from `weights`."""
        self._actors.append(act)
        self._weights.append(self.chance.one_of(weights))

    def run(self) -> None:
        chance, actors = self.chance, self._actors
        self._cumulative = list(accumulate(self._weights))
        steps = 0
        while chance.more(steps):
            steps += 1
            chance.next_step()
            actors[chance.weighted(self._cumulative)]()
        chance.next_step()
        self.say("-- the storm is over")
        self.finish()

    def finish(self) -> None:
        """Everything is healed: what must become of it, becomes of it."""
        raise NotImplementedError

    def rule(self, name: str, holds: bool, detail: object = "") -> None:
        if not holds and (self.white_box or not name.startswith("W")):
            raise ViolationError(name, str(detail))

    def mark(self, name: str) -> None:
        self.marks.add(name)

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(what)
