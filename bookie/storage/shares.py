"""How much of each segment still counts: the bytes of records to which the index points.

Kept with the blocks: each checkpoint changes both in one batch, so what is here is exactly what the
blocks say.  It tells where there is something to gain; whether a segment may go is looked up again,
record by record (`compaction`).

One value in the index, under `shares_key`, good for the checkpoint whose position it names only:

    | position u64 | segments: first position u64, bytes i64 |

If it is missing, or belongs to another checkpoint, the blocks are counted again.
"""

import struct
from bisect import bisect_right, insort

from daybook.bookie.storage.records import RECORD_HEADER_BYTES
from daybook.bookie.storage.write_cache import Block

_POSITION = struct.Struct(">Q")
_SHARE = struct.Struct(">Qq")


class SegmentUsage:
    """Live bytes by the first position of a segment."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._bytes: dict[int, int] = {}

    def begin(self, first: int) -> None:
        """There is a segment that begins there."""
        if first not in self._bytes:
            insort(self._firsts, first)
            self._bytes[first] = 0

    def end(self, first: int) -> None:
        """The segment is gone."""
        if self._bytes.pop(first, None) is not None:
            self._firsts.remove(first)

    def of(self, first: int) -> int:
        return self._bytes.get(first, 0)

    @property
    def total(self) -> int:
        return sum(self._bytes.values())

    def change(self, changes: dict[int, int]) -> None:
        for first, delta in changes.items():
            if first in self._bytes:
                self._bytes[first] += delta

    def beyond(self, counted: dict[int, int]) -> int:
        """Bytes that are in these shares and not in what was counted."""
        return sum(max(0, live - counted.get(first, 0)) for first, live in self._bytes.items())

    def count(self, changes: dict[int, int], block: Block, sign: int) -> None:
        """Add the entries of the block to `changes`, or take them away."""
        if not block.low:
            return
        positions, sizes = block.positions, block.sizes
        first = self.first_of(min(positions))
        if first == self.first_of(max(positions)):  # nearly always
            live = sum(sizes) + RECORD_HEADER_BYTES * len(sizes)
            changes[first] = changes.get(first, 0) + sign * live
            return
        for position, size in zip(positions, sizes, strict=True):
            self.count_one(changes, position, size, sign)

    def count_one(self, changes: dict[int, int], position: int, size: int, sign: int) -> None:
        first = self.first_of(position)
        changes[first] = changes.get(first, 0) + sign * (RECORD_HEADER_BYTES + size)

    def first_of(self, position: int) -> int:
        """Where the segment begins that holds this position; -1 if none does."""
        at = bisect_right(self._firsts, position) - 1
        return -1 if at < 0 else self._firsts[at]

    def encode(self, position: int, changes: dict[int, int]) -> bytes:
        """All of them, as they are after the changes, for the checkpoint at this position."""
        shares = [
            _SHARE.pack(first, live + changes.get(first, 0)) for first, live in self._bytes.items()
        ]
        return _POSITION.pack(position) + b"".join(shares)

    def load(self, data: bytes, position: int) -> bool:
        """Take what was encoded; False if it is not of the checkpoint at this position."""
        stored = decode_shares(data, position)
        for first, live in stored or ():
            if first in self._bytes:
                self._bytes[first] = live
        return stored is not None


def decode_shares(data: bytes, position: int) -> list[tuple[int, int]] | None:
    """First positions and live bytes; None if they are not of the checkpoint at this position."""
    if len(data) % _SHARE.size != _POSITION.size or _POSITION.unpack_from(data)[0] != position:
        return None
    return list(_SHARE.iter_unpack(data[_POSITION.size :]))
