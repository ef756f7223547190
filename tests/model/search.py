"""Breadth-first search over all states that a small system can reach.

A *system* has an initial state and, for each state, all the states that one step leads to, in an
order that never changes.  States are tuples of small numbers (see `numbering`).  The search visits
each state once and stops at the first step that breaks a rule; since it is breadth-first, no
counter-example has fewer steps.

The search keeps 64 bits of hash of each visited state, with its parent and the number of the step
that led to it.  Among n states a collision, which would hide a part of the space, has a probability
of n^2 / 2^65: one in a million for six million states.  The steps to a state are found by repeating
them from the beginning.

A search that ran out of time or memory is *partial*: it proves nothing about states it did not see.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import NamedTuple, Protocol, TypeAlias

State: TypeAlias = tuple[int, ...]

STATES_MAX = 60_000_000
_LOOK_AT_THE_TIME = 1024  # states


class BrokenRuleError(Exception):
    """The step with this number breaks a rule."""

    def __init__(self, rule: str, detail: object = "") -> None:
        super().__init__(f"{rule}: {detail}" if detail != "" else rule)
        self.rule = rule


class Move(NamedTuple):
    """A step, as a chart shows it: a message from one column to another, or an event in one.

    `exchanged` are two hosts that are alike and have changed places in the state after this step.
    """

    source: str
    target: str
    text: str
    exchanged: tuple[str, str] | None = None


class System(Protocol):
    @property
    def columns(self) -> Sequence[str]: ...

    def initial(self) -> State: ...

    def expand(self, state: State, moves: list[Move] | None = None) -> list[State]:
        """Return the states that one step leads to; append a move for each to `moves`, if given.

        Raise BrokenRuleError for the first step that breaks a rule; `moves` then ends with it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """The result; `violation` says which rule was broken and how; empty if none was found.

    `seconds` is processor time, which is the same on a busy machine.
    """

    name: str
    states: int
    transitions: int
    depth: int
    seconds: float
    finished: bool
    violation: str = ""
    moves: tuple[Move, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        return self.violation.partition(":")[0]

    @property
    def steps(self) -> int:
        return len(self.moves)

    @property
    def verdict(self) -> str:
        if self.violation:
            return f"VIOLATION {self.violation}"
        return "verified" if self.finished else "partial"

    @property
    def chart(self) -> str:
        from tests.model.chart import draw

        return draw(self.columns, self.moves, self.violation) if self.violation else ""


@dataclass(slots=True)
class _Visited:
    """The hashes, parents and steps of visited states; number 0 is the initial state."""

    hashes: set[int]
    parents: "array[int]"
    steps: "array[int]"

    def path(self, number: int) -> list[int]:
        steps: list[int] = []
        while number:
            steps.append(self.steps[number])
            number = self.parents[number]
        return steps[::-1]


def search(
    system: System,
    name: str = "",
    *,
    seconds_max: float = float("inf"),
    states_max: int = STATES_MAX,
    watch: Callable[[int, int, int], None] | None = None,
) -> Result:
    """Search all reachable states; call `watch(states, transitions, depth)` from time to time."""
    began = process_time()
    first = system.initial()
    visited = _Visited({hash(first)}, array("L", [0]), array("H", [0]))
    frontier, base = [first], 0
    transitions = depth = expanded = 0
    seen, note, by = visited.hashes, visited.parents.append, visited.steps.append
    while frontier:
        following: list[State] = []
        for number, state in enumerate(frontier, base):
            try:
                states = system.expand(state)
            except BrokenRuleError as error:
                moves = _walk(system, visited.path(number))
                seconds = process_time() - began
                return Result(
                    name,
                    len(seen),
                    transitions,
                    depth + 1,
                    seconds,
                    finished=False,
                    violation=str(error),
                    moves=tuple(moves),
                    columns=tuple(system.columns),
                )
            transitions += len(states)
            for step, after in enumerate(states):
                key = hash(after)
                if key not in seen:
                    seen.add(key)
                    note(number)
                    by(step)
                    following.append(after)
            expanded += 1
            if expanded % _LOOK_AT_THE_TIME == 0:
                spent = process_time() - began
                if watch is not None:
                    watch(len(seen), transitions, depth)
                if spent > seconds_max or len(seen) > states_max:
                    return Result(name, len(seen), transitions, depth, spent, finished=False)
        base += len(frontier)
        frontier = following
        depth += bool(following)
    return Result(name, len(seen), transitions, depth, process_time() - began, finished=True)


def _walk(system: System, steps: list[int]) -> list[Move]:
    """Return the moves of these steps and, after them, the one that breaks a rule."""
    state = system.initial()
    taken: list[Move] = []
    # A host that has changed places in the state keeps its column in the chart.
    names = {name: name for name in system.columns}

    def take(move: Move) -> None:
        taken.append(Move(names[move.source], names[move.target], move.text))
        if move.exchanged is not None:
            one, other = move.exchanged
            names[one], names[other] = names[other], names[one]

    for step in steps:
        moves: list[Move] = []
        states = system.expand(state, moves)
        take(moves[step])
        state = states[step]
    moves = []
    try:
        system.expand(state, moves)
    except BrokenRuleError:
        take(moves[-1])
        return taken
    raise AssertionError("the same steps have not led to the same state")
