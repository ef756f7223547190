"""Values by number: the same value has always the same one, counted in the order of appearance.

A search compares and hashes states millions of times, while each of its hosts, taken by itself,
has few states.  So a state of the whole system is a tuple of numbers, and what a host does in one
of its states is worked out once, by the real code, and then looked up.
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
