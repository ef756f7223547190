"""Values by number: equal values have the same number, counted in the order of appearance.

A search compares and hashes states millions of times, while each of its hosts, taken by itself,
has few states.  So a state of the whole system is a tuple of numbers, and the real code works out
each step of a host once; afterwards the step is looked up.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)


class Numbering(Generic[V]):
    def __init__(self, *first: V) -> None:
        self.values: list[V] = []
        self._numbers: dict[V, int] = {}
        for value in first:
            self.of(value)

    def of(self, value: V) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number

    def __getitem__(self, number: int) -> V:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)
