"""Which entries of a ledger a bookie has: runs of entries at equal distances.

    offset  size
         0     4  version, 0
         4     4  number of groups
         8    56  zero
    64+24k     8  start of the group's first run
               8  start of its last run
               4  entries of each run
               4  distance between the starts of runs; 0 if there is only one

With striping a bookie holds, say, 0 1, 3 4, 6 7: one group of size 2 and period 3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct

from daybook.wire.errors import MalformedError, TruncatedError

_HEADER = Struct(">ii56x")
_GROUP = Struct(">qqii")
assert (_HEADER.size, _GROUP.size) == (64, 24)
_I32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Group:
    first: int  # the start of the first run
    last: int  # the start of the last run
    size: int
    period: int

    def __contains__(self, entry_id: int) -> bool:
        distance = entry_id - self.first
        if not 0 <= distance < self.last - self.first + self.size:
            return False
        return distance < self.size if self.period == 0 else distance % self.period < self.size


def group_entries(entry_ids: Iterable[int]) -> list[Group]:
    """Return `entry_ids`, which ascend without repetition, as groups."""
    groups: list[Group] = []
    for start, size in _runs(entry_ids):
        if groups:
            group = groups[-1]
            distance = start - group.last
            if size == group.size and group.period in (0, distance) and distance <= _I32_MAX:
                groups[-1] = Group(group.first, start, size, distance)
                continue
        groups.append(Group(start, start, size, 0))
    return groups


def _runs(entry_ids: Iterable[int]) -> Iterable[tuple[int, int]]:
    start = size = 0
    for entry_id in entry_ids:
        if size and entry_id == start + size and size < _I32_MAX:
            size += 1
            continue
        if size:
            yield start, size
        start, size = entry_id, 1
    if size:
        yield start, size


def encode_entry_list(groups: list[Group]) -> bytes:
    return _HEADER.pack(0, len(groups)) + b"".join(
        _GROUP.pack(group.first, group.last, group.size, group.period) for group in groups
    )


def decode_entry_list(data: bytes) -> list[Group]:
    if len(data) < _HEADER.size:
        raise TruncatedError(f"a list of entries has {len(data)} bytes, too few for its header")
    version, count = _HEADER.unpack_from(data)
    if version != 0:
        raise MalformedError(f"a list of entries has the unknown version {version}")
    if count < 0 or len(data) < _HEADER.size + count * _GROUP.size:
        raise TruncatedError(
            f"a list of entries announces {count} groups and has only {len(data)} bytes"
        )
    groups: list[Group] = []
    for first, last, size, period in _GROUP.iter_unpack(
        data[_HEADER.size : _HEADER.size + count * _GROUP.size]
    ):
        if size < 1 or last < first or period < 0 or (period == 0 and last > first):
            raise MalformedError("a list of entries has a group that names no entries")
        groups.append(Group(first, last, size, period))
    return groups
