"""The bundles of a namespace, split by the hash of the full topic name.  The module is pure.

Boundaries are sorted numbers from 0x00000000 to 0xffffffff.  Bundle i is [b_i, b_i+1); the last
bundle includes its end.  A range is written `0x00000000_0x40000000`, a bundle
`public/default/0x..._0x...`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NewType, Self

BundleName = NewType("BundleName", str)

HASH_MAX = 0xFFFFFFFF
BUNDLES_MAX = 4096  # per namespace


@dataclass(frozen=True, slots=True)
class Bundles:
    """The bundles of one namespace."""

    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        ends = (self.boundaries[0], self.boundaries[-1]) if self.boundaries else ()
        if ends != (0, HASH_MAX) or any(low >= high for low, high in pairwise(self.boundaries)):
            raise ValueError("boundaries must rise from 0x00000000 to 0xffffffff")

    @classmethod
    def equal(cls, count: int) -> Self:
        """Return `count` bundles of the same width."""
        if not 1 <= count <= BUNDLES_MAX:
            raise ValueError(f"a namespace has 1 to {BUNDLES_MAX} bundles, not {count}")
        step = (HASH_MAX + 1) // count
        return cls((*(step * index for index in range(count)), HASH_MAX))

    @classmethod
    def parse(cls, boundaries: Sequence[str]) -> Self:
        """Parse boundaries in hexadecimal.  Raise ValueError if they are not valid."""
        return cls(tuple(int(boundary, 16) for boundary in boundaries))

    def texts(self) -> list[str]:
        return [f"0x{boundary:08x}" for boundary in self.boundaries]

    @property
    def count(self) -> int:
        return len(self.boundaries) - 1

    def ranges(self) -> list[str]:
        return [f"0x{low:08x}_0x{high:08x}" for low, high in pairwise(self.boundaries)]

    def range_of(self, hash_: int) -> str:
        """Return the range that contains this hash of a topic."""
        assert 0 <= hash_ <= HASH_MAX
        index = min(bisect_right(self.boundaries, hash_) - 1, self.count - 1)
        low, high = self.boundaries[index : index + 2]
        return f"0x{low:08x}_0x{high:08x}"


def bundle_name(namespace: str, range_: str) -> BundleName:
    return BundleName(f"{namespace}/{range_}")
