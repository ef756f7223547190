"""The bundles of a namespace, split by the hash of the full topic name.  The module is pure.

Boundaries are sorted numbers from 0x00000000 to 0xffffffff.  Bundle i is [b_i, b_i+1); the last
bundle includes its end.  A range is written `0x00000000_0x40000000`, a bundle
`public/default/0x..._0x...`.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
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
        return [_range(low, high) for low, high in pairwise(self.boundaries)]

    def range_of(self, hash_: int) -> str:
        """Return the range that contains this hash of a topic."""
        assert 0 <= hash_ <= HASH_MAX
        index = min(bisect_right(self.boundaries, hash_) - 1, self.count - 1)
        low, high = self.boundaries[index : index + 2]
        return _range(low, high)

    def parts_of(self, range_: str) -> list[str]:
        """Return the bundles inside a range: itself, or those into which it was split."""
        low, high = ends(range_)
        return [
            _range(first, last)
            for first, last in pairwise(self.boundaries)
            if low <= first and last <= high
        ]

    def split(self, range_: str, points: Collection[int]) -> Self:
        """Return the bundles with more boundaries inside one range.  Raise ValueError."""
        low, high = ends(range_)
        if range_ not in self.ranges():
            raise ValueError(f"there is no bundle {range_}")
        outside = [point for point in points if not low < point < high]
        if outside or not points:
            raise ValueError(f"{range_} can only be split between its ends")
        if self.count + len(set(points)) > BUNDLES_MAX:
            raise ValueError(f"a namespace has at most {BUNDLES_MAX} bundles")
        return type(self)(tuple(sorted({*self.boundaries, *points})))


def bundle_name(namespace: str, range_: str) -> BundleName:
    return BundleName(f"{namespace}/{range_}")


def namespace_of(bundle: BundleName) -> str:
    return bundle.rpartition("/")[0]


def range_of(bundle: BundleName) -> str:
    return bundle.rpartition("/")[2]


def ends(range_: str) -> tuple[int, int]:
    """Return both boundaries of a range.  Raise ValueError if it is not one."""
    low, _, high = range_.partition("_")
    return int(low, 16), int(high, 16)


def contains(bundle: BundleName, namespace: str, hash_: int) -> bool:
    """Return True if a topic of this namespace, with this hash, belongs to the bundle."""
    own, _, range_ = bundle.rpartition("/")
    if own != namespace:
        return False
    low, high = ends(range_)
    return low <= hash_ < high or hash_ == high == HASH_MAX


def parts_of(range_: str, points: Iterable[int]) -> list[str]:
    """Return the ranges into which these points split a range."""
    return [_range(low, high) for low, high in pairwise(sorted({*ends(range_), *points}))]


def middle(range_: str) -> list[int]:
    """Return the point that splits a range into halves; none if it is too narrow."""
    low, high = ends(range_)
    return [low + (high - low) // 2] if high - low >= 2 else []


def median(range_: str, hashes: Iterable[int]) -> list[int]:
    """Return the point that leaves half of the topics on each side; none if there is none."""
    low, high = ends(range_)
    ordered = sorted(hashes)
    if len(ordered) < 2:
        return []
    point = ordered[len(ordered) // 2]  # The lower range excludes its end.
    if point == ordered[0]:  # Topics of one hash cannot be split.
        return []
    return [point] if low < point < high else []


def _range(low: int, high: int) -> str:
    return f"0x{low:08x}_0x{high:08x}"
