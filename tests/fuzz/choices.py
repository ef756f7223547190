"""Decisions out of bytes: one input drives a grammar.

Every input is a sequence of decisions, and every decision has an answer, also when the bytes are
used up; so each change by a fuzzer gives another script, and mostly a similar one.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

EDGES = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    (1 << 16) - 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    -(1 << 31),
    (1 << 53) + 1,
    (1 << 63) - 1,
    -(1 << 63),
)


class Choices:
    """Reads one input from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Return True if bytes are left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, end: int) -> int:
        """Return one of 0 ... end - 1; `end` is at most 65,536."""
        if end <= 256:
            return self.byte() % end
        return (self.byte() << 8 | self.byte()) % end

    def flag(self) -> bool:
        return self.byte() & 1 == 1

    def one_in(self, count: int) -> bool:
        """Return True seldom, and never for zeros: unusual decisions need unusual bytes."""
        return self.below(count) == count - 1

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def i64(self) -> int:
        return int.from_bytes(self.take(8).ljust(8, b"\0"), "big", signed=True)

    def number(self, usual: int = 8) -> int:
        """Return mostly a number below `usual`; sometimes an edge of a type; seldom any 64 bits."""
        kind = self.byte()
        if kind < 208:
            return kind % usual
        return EDGES[kind % len(EDGES)] if kind < 248 else self.i64()

    def take(self, size: int) -> bytes:
        """Return up to `size` bytes as they are."""
        start, self._at = self._at, min(self._at + size, len(self._data))
        return self._data[start : self._at]

    def blob(self, size_max: int = 64) -> bytes:
        """Return so many bytes, of a size read first."""
        return self.take(self.below(size_max + 1))

    def rest(self) -> bytes:
        return self.take(len(self._data))
