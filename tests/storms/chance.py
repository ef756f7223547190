"""All random decisions of a schedule, so that a schedule is a list of numbers.

`Drawn` takes the decisions from a seed.  `Recorded` does the same and keeps them, step by step.
`Given` plays such a list, whole or with parts cut out: a missing number is 0, which stands for the
most harmless choice.  The first step is the set-up; the last one comes after the storm.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeAlias, TypeVar
from zlib import crc32

from tests.model.search import Move

T = TypeVar("T")
Schedule: TypeAlias = list[list[int]]
SEEDS_OF_A_WORLD = 20


class Chance(Protocol):
    def world(self, begins: bool) -> None:
        """Begin or end the decisions that `SEEDS_OF_A_WORLD` seeds in a row share."""
        ...

    def next_step(self) -> None:
        """Begin the next step; later decisions belong to it."""
        ...

    def more(self, steps: int) -> bool:
        """Return True if the storm continues after so many steps."""
        ...

    def below(self, end: int) -> int:
        """Return a number from 0 to end - 1."""
        ...

    def happens(self, probability: float) -> bool: ...

    def one_of(self, choices: Sequence[T]) -> T: ...

    def weighted(self, cumulative: Sequence[float]) -> int:
        """Return an index; `cumulative` holds the running sums of the weights."""
        ...

    def busy(self, busy: Sequence[int]) -> int:
        """Return one of the links, a fast one more often; each link has a speed of its own."""
        ...

    def move(self, moves: Sequence[Move], weights: Sequence[float]) -> int:
        """Return the index of a move, by its weight and the speed of its link; -1 for none."""
        ...


class Drawn:
    """Decisions from a seed.  A storm has at most `steps_max` steps; most have fewer."""

    def __init__(self, seed: int, steps_max: int) -> None:
        self._own = self._random = Random(seed).random
        self._shared = Random(f"world {seed // SEEDS_OF_A_WORLD}").random
        self._steps = int(steps_max * (0.15 + 0.85 * self._random() ** 2))
        self._speeds: dict[int, float] = {}
        self._move_speeds: dict[tuple[str, str], float] = {}

    def world(self, begins: bool) -> None:
        self._random = self._shared if begins else self._own

    def next_step(self) -> None:
        pass

    def more(self, steps: int) -> bool:
        return steps < self._steps

    def below(self, end: int) -> int:
        return int(self._random() * end)

    def happens(self, probability: float) -> bool:
        return probability > 0 and self._random() < probability

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def weighted(self, cumulative: Sequence[float]) -> int:
        at = self._random() * cumulative[-1]
        for index, limit in enumerate(cumulative):
            if at < limit:
                return index
        return len(cumulative) - 1

    def busy(self, busy: Sequence[int]) -> int:
        random, speeds = self._random, self._speeds
        while True:
            link = busy[int(random() * len(busy))]
            if link not in speeds:
                speeds[link] = random() ** 4 + 0.02
            if len(busy) == 1 or random() < speeds[link]:
                return link

    def move(self, moves: Sequence[Move], weights: Sequence[float]) -> int:
        random, speeds = self._random, self._move_speeds
        cumulative: list[float] = []
        total = 0.0
        for (source, target, *_), weight in zip(moves, weights, strict=True):
            speed = speeds.get((source, target))
            if speed is None:
                speed = speeds[source, target] = random() ** 4 + 0.02
            total += speed * weight
            cumulative.append(total)
        return self.weighted(cumulative) if total else -1


class Recorded:
    """Decisions from a seed, which are kept in `schedule`."""

    def __init__(self, drawn: Drawn) -> None:
        self._steps: Schedule = [[]]
        self._drawn = drawn
        self._over = False

    @property
    def schedule(self) -> Schedule:
        """Return the decisions so far; a failed storm gets an empty last step."""
        return self._steps if self._over else [*self._steps, []]

    def world(self, begins: bool) -> None:
        self._drawn.world(begins)

    def next_step(self) -> None:
        self._steps.append([])

    def more(self, steps: int) -> bool:
        self._over = not self._drawn.more(steps)
        return not self._over

    def below(self, end: int) -> int:
        return self._keep(self._drawn.below(end))

    def happens(self, probability: float) -> bool:
        return probability > 0 and bool(self._keep(int(self._drawn.happens(probability))))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def weighted(self, cumulative: Sequence[float]) -> int:
        return self._keep(self._drawn.weighted(cumulative))

    def busy(self, busy: Sequence[int]) -> int:
        return self._keep(self._drawn.busy(busy))

    def move(self, moves: Sequence[Move], weights: Sequence[float]) -> int:
        """Keep the move, not its index, so that `Given` finds it when other moves are missing."""
        at = self._drawn.move(moves, weights)
        if at >= 0:
            self._keep(_numbers(moves)[at])
        return at

    def _keep(self, number: int) -> int:
        self._steps[-1].append(number)
        return number


class Given:
    """Decisions from a recorded schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._steps = len(schedule) - 2
        self._at = 0
        self._numbers = iter(schedule[0])

    def world(self, begins: bool) -> None:
        pass

    def next_step(self) -> None:
        self._at += 1
        self._numbers = iter(self._schedule[self._at] if self._at < len(self._schedule) else ())

    def more(self, steps: int) -> bool:
        return steps < self._steps

    def below(self, end: int) -> int:
        return min(next(self._numbers, 0), end - 1)

    def happens(self, probability: float) -> bool:
        return probability > 0 and next(self._numbers, 0) > 0

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def weighted(self, cumulative: Sequence[float]) -> int:
        return self.below(len(cumulative))

    def busy(self, busy: Sequence[int]) -> int:
        return next(self._numbers, -1)  # The link may be idle now; `Network` checks that.

    def move(self, moves: Sequence[Move], weights: Sequence[float]) -> int:
        numbers, number = _numbers(moves), next(self._numbers, 0)
        return numbers.index(number) if number in numbers else -1


def _numbers(moves: Sequence[Move]) -> list[int]:
    """Return a number for each move: a hash of its text, counted up where texts are equal."""
    numbers: list[int] = []
    for move in moves:
        number = crc32(f"{move.source} {move.target} {move.text}".encode())
        while number in numbers:
            number += 1
        numbers.append(number)
    return numbers
