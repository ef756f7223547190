"""A storm over a world of the model checker: a random walk instead of a search.

A world lists the moves that are possible in a state, and a walk makes one move after the other.
Each schedule draws the speeds of links and the weight of faults.  In each state the world works out
all possible moves, and the walk fails if any of them breaks a rule, not only the one that it takes.
A walk does not have to exhaust its world, so worlds are larger than those that are searched.

When the storm is over, all faults end: everything arrives, and each wish (`is_wish`) is granted.
"""

import re
from abc import abstractmethod
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

from tests.model.search import BrokenRuleError, Move, State
from tests.storms.chance import Chance
from tests.storms.storm import Storm, ViolationError

S = TypeVar("S", bound=Hashable)

FAULTS = (0.01, 0.03, 0.1, 0.3, 1.0)  # weights of a fault; a message has 1
MOVES_AT_END = 3000


class Walk(Storm, Generic[S]):
    """A walk; `faults`, and `signs` of marks, are patterns of the text of a move.

    Faults no longer happen when the storm is over.
    """

    tested = 300
    faults: ClassVar[str]
    signs: ClassVar[dict[str, str]]
    rounds_at_end: ClassVar[int] = 1

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        chance.world(True)
        self.settings = self.draw()
        chance.world(False)
        self._fault = chance.one_of(FAULTS)

    @abstractmethod
    def draw(self) -> S:
        """Draw the settings of the world, which `SEEDS_OF_A_WORLD` seeds in a row share."""

    @abstractmethod
    def build(self, settings: S) -> Any:
        """Build the world, a system of `tests.model`."""

    @abstractmethod
    def wrong(self, system: Any, state: State) -> str:
        """Say how the state is wrong when everything is calm; empty if it is right."""

    def may(self, move: Move) -> bool:
        """Return False if this schedule excludes the move now."""
        return True

    def is_wish(self, move: Move) -> bool:
        """Return True if the move waits, at the end, until everything before has arrived."""
        return False

    def settings_now(self) -> S:
        return self.settings

    def run(self) -> None:
        chance = self.chance
        settings = self.settings_now()
        self.say(str(settings))
        system = self.worlds.of(settings, self.build)
        state = system.initial()
        steps = 0
        try:
            while chance.more(steps):
                steps += 1
                chance.next_step()
                state = self._step(system, state)
            chance.next_step()
            self.say("-- the storm is over")
            self.calm(system, state)
        except BrokenRuleError as error:
            raise ViolationError(error.rule, str(error).partition(": ")[2]) from error

    def _expand(self, system: Any, state: State) -> tuple[list[State], list[Move]]:
        moves: list[Move] = []
        try:
            return system.expand(state, moves), moves
        except BrokenRuleError:
            self._note(moves[-1])
            raise

    def _step(self, system: Any, state: State) -> State:
        states, moves = self._expand(system, state)
        if not moves:
            return state
        at = self.chance.move(moves, [self._weight(move) for move in moves])
        if at < 0:
            return state
        self._note(moves[at])
        return states[at]

    def _weight(self, move: Move) -> float:
        if not self.may(move):
            return 0.0
        return self._fault if _matches(self.faults, move.text) else 1.0

    def _note(self, move: Move) -> None:
        for mark, sign in self.signs.items():
            if _matches(sign, move.text):
                self.mark(mark)
        if self.trace is not None:
            self.say(f"{move.source} -> {move.target}: {move.text}")

    # -- the end

    def calm(self, system: Any, state: State) -> State:
        wrong = ""
        for _ in range(self.rounds_at_end):
            state = self._arrived(system, state)
            for name in system.columns:
                state = self._arrived(system, self._wished(system, state, name))
            wrong = self.wrong(system, state)
            if not wrong:
                return state
        raise ViolationError("L", wrong)

    def _arrived(self, system: Any, state: State) -> State:
        """Deliver everything, and what is sent because of it; moves take turns."""
        for turn in range(MOVES_AT_END):
            states, moves = self._expand(system, state)
            due = [
                at
                for at, move in enumerate(moves)
                if self.may(move)
                and not _matches(self.faults, move.text)
                and not self.is_wish(move)
            ]
            if not due:
                return state
            at = due[turn % len(due)]
            self._note(moves[at])
            state = states[at]
        raise ViolationError("L", f"no end after {MOVES_AT_END} moves")

    def _wished(self, system: Any, state: State, name: str) -> State:
        states, moves = self._expand(system, state)
        for after, move in zip(states, moves, strict=True):
            if move.target == name and self.may(move) and self.is_wish(move):
                self._note(move)
                return after
        return state


@lru_cache(maxsize=100_000)
def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
