"""Every decision of a schedule, so that a schedule is a list of numbers.

`Drawn` takes them from a seed.  `Recorded` does the same and keeps them, step by step; `Given`
plays such a list, whole or with parts cut out of it: what is missing is 0, which means the least of
what might happen.  The first step is the set-up, the last one what comes after the storm.
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
        """Some seeds in a row share all decisions from here to the next call."""
        ...

    def next_step(self) -> None:
        """What is decided from here on belongs to another step."""
        ...

    def more(self, steps: int) -> bool:
        """Does the storm go on?  `steps` is how many there were."""
        ...

    def below(self, end: int) -> int:
        """One of 0 .. end - 1."""
        ...

    def happens(self, probability: float) -> bool: ...

    def one_of(self, choices: Sequence[T]) -> T: ...

    def weighted(self, cumulative: Sequence[float]) -> int:
        """An index, by weights that are summed up."""
        ...

    def busy(self, busy: Sequence[int]) -> int:
        """One of the links, the fast ones more often; each has a speed of its own."""
        ...

    def move(self, moves: Sequence[Move], weights: Sequence[float]) -> int:
        """The index of one of these moves, by weight and speed of its link; -1 for none of them."""
        ...


class Drawn:
    """From a seed.  A storm has `steps_max` steps at most, most have less."""

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
    """As `Drawn`, and `schedule` is what was decided."""

    def __init__(self, drawn: Drawn) -> None:
        self._steps: Schedule = [[]]
        self._drawn = drawn
        self._over = False

    @property
    def schedule(self) -> Schedule:
        """With a last step also if it did not come to that."""
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
        """Keep the move, not its index: it is found again where others are left out."""
        at = self._drawn.move(moves, weights)
        if at >= 0:
            self._keep(_numbers(moves)[at])
        return at

    def _keep(self, number: int) -> int:
        self._steps[-1].append(number)
        return number


class Given:
    """From a schedule."""

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
        return next(self._numbers, -1)  # It may have nothing to carry any more.

    def move(self, moves: Sequence[Move], weights: Sequence[float]) -> int:
        numbers, number = _numbers(moves), next(self._numbers, 0)
        return numbers.index(number) if number in numbers else -1


def _numbers(moves: Sequence[Move]) -> list[int]:
    """Return a number for each move, made of its text, and counted on where texts are equal."""
    numbers: list[int] = []
    for move in moves:
        number = crc32(f"{move.source} {move.target} {move.text}".encode())
        while number in numbers:
            number += 1
        numbers.append(number)
    return numbers
