"""The write cache: the locations of entries that no checkpoint has indexed, 20 bytes an entry.

Ids nearly always arrive in order, so an add appends to arrays and a lookup is arithmetic.  Any
other order falls back to bisection.  An id that is in the cache is not replaced: the first bytes
count.

A checkpoint writes *blocks* to the index.  A block has the entries of one ledger whose ids differ
only in the low eight bits.  So one lookup finds any of them, in whatever order they were added:

    | count u16 | ids, low byte each | positions u64 each | sizes u32 each |   big-endian
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from daybook.bookie.storage.index import IndexDamagedError

BLOCK_ENTRIES = 256
_COUNT = struct.Struct(">H")
LOCATION_BYTES = 1 + 8 + 4  # low byte of the id, position, size


class WriteCache:
    """The write cache of one ledger."""

    __slots__ = ("ids", "positions", "sizes")

    def __init__(self) -> None:
        self.ids = array("q")
        self.positions = array("Q")
        self.sizes = array("I")

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, entry_id: int, position: int, size: int) -> None:
        ids = self.ids
        if not ids or entry_id > ids[-1]:
            ids.append(entry_id)
            self.positions.append(position)
            self.sizes.append(size)
            return
        at = bisect_left(ids, entry_id)
        if ids[at] != entry_id:
            ids.insert(at, entry_id)
            self.positions.insert(at, position)
            self.sizes.insert(at, size)

    def add_run(self, first: int, positions: Sequence[int], sizes: Sequence[int]) -> None:
        """Add consecutive ids, none of which is in the cache."""
        if not self.ids or first > self.ids[-1]:
            self.ids.extend(range(first, first + len(positions)))
            self.positions.extend(positions)
            self.sizes.extend(sizes)
            return
        for index, position in enumerate(positions):
            self.add(first + index, position, sizes[index])

    def add_all(self, newer: "WriteCache") -> None:
        """Add the entries of another cache; if an id is in both, the older entry stays."""
        for entry_id, position, size in zip(newer.ids, newer.positions, newer.sizes, strict=True):
            self.add(entry_id, position, size)

    def find(self, entry_id: int) -> tuple[int, int] | None:
        ids = self.ids
        at = entry_id - ids[0]
        if at < 0 or entry_id > ids[-1]:
            return None
        if at >= len(ids) or ids[at] != entry_id:  # not an unbroken run
            at = bisect_left(ids, entry_id)
            if ids[at] != entry_id:
                return None
        return self.positions[at], self.sizes[at]

    def blocks(self) -> Iterator[tuple[int, "Block"]]:
        """Yield the entries as blocks, in order of their numbers."""
        ids = self.ids
        start = 0
        while start < len(ids):
            number = ids[start] // BLOCK_ENTRIES
            end = bisect_left(ids, (number + 1) * BLOCK_ENTRIES, start)
            low = bytes([entry_id % BLOCK_ENTRIES for entry_id in ids[start:end]])
            yield number, Block(low, self.positions[start:end], self.sizes[start:end])
            start = end


class Block:
    """Up to 256 entries of one ledger, sorted by id."""

    __slots__ = ("low", "positions", "sizes")

    def __init__(self, low: bytes, positions: "array[int]", sizes: "array[int]") -> None:
        self.low = low  # the low byte of each id
        self.positions = positions
        self.sizes = sizes

    def find(self, entry_id: int) -> tuple[int, int] | None:
        at = self.low.find(entry_id % BLOCK_ENTRIES)
        return None if at < 0 else (self.positions[at], self.sizes[at])

    def merge(self, newer: "Block") -> "Block":
        """Return a block with the entries of both; if an id is in both, the older entry stays."""
        if not self.low or not newer.low or newer.low[0] > self.low[-1]:  # nearly always
            positions, sizes = self.positions + newer.positions, self.sizes + newer.sizes
            return Block(self.low + newer.low, positions, sizes)
        entries = {low: (self.positions[at], self.sizes[at]) for at, low in enumerate(self.low)}
        for at, low in enumerate(newer.low):
            entries.setdefault(low, (newer.positions[at], newer.sizes[at]))
        lows = sorted(entries)
        return Block(
            bytes(lows),
            array("Q", [entries[low][0] for low in lows]),
            array("I", [entries[low][1] for low in lows]),
        )

    def encode(self) -> bytes:
        positions, sizes = self.positions[:], self.sizes[:]
        if sys.byteorder == "little":
            positions.byteswap()
            sizes.byteswap()
        return b"".join(
            (_COUNT.pack(len(self.low)), self.low, positions.tobytes(), sizes.tobytes())
        )

    @classmethod
    def decode(cls, data: bytes) -> "Block":
        """Decode a block; raise `IndexDamagedError` if it does not parse."""
        count = int.from_bytes(data[: _COUNT.size], "big")
        if len(data) != _COUNT.size + LOCATION_BYTES * count:
            raise IndexDamagedError(f"a block of {count} entries in {len(data)} bytes")
        positions_at = _COUNT.size + count
        sizes_at = positions_at + 8 * count
        positions, sizes = array("Q"), array("I")
        positions.frombytes(data[positions_at:sizes_at])
        sizes.frombytes(data[sizes_at : sizes_at + 4 * count])
        if sys.byteorder == "little":
            positions.byteswap()
            sizes.byteswap()
        return cls(data[_COUNT.size : positions_at], positions, sizes)
