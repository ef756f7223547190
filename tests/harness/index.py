"""SEAM index, simulated: the index stores on the simulated disk of a host.

The batches of an index store are operations of the same platter, durable as a whole or not at all.

An index may rot, as RocksDB does under flipped bytes: a damaged block cannot be read, and the error
appears in a look-up, in a scan that reaches it, or already when the index is opened.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from daybook.bookie.storage.index import IndexDamagedError, IndexStore, MemoryIndex

if TYPE_CHECKING:
    from tests.harness.disk import Platter


class SimulatedIndexes:
    """Opens the index stores of a host; their operations are counted like those of the disk."""

    def __init__(self, platter: "Platter", generation: int) -> None:
        self._platter = platter
        self._generation = generation

    @asynccontextmanager
    async def open(self, directory: str) -> AsyncGenerator[IndexStore]:
        await self._platter.operate("open_index", self._generation)
        self._platter.index(directory).check_openable()
        yield SimulatedIndex(self._platter, self._generation, directory)


class RottenIndex(MemoryIndex):
    """The rows of an index that a platter keeps; some may be damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[bytes] = set()  # keys whose block cannot be read
        self.openable = True

    def check_openable(self) -> None:
        if not self.openable:
            raise IndexDamagedError("the files of the index are damaged")

    def stored_keys(self) -> list[bytes]:
        return list(self._keys)

    def check(self, keys: Sequence[bytes]) -> None:
        if not self.bad.isdisjoint(keys):
            raise IndexDamagedError("block checksum mismatch")

    def check_between(self, first: bytes, end: bytes) -> None:
        if any(first <= key < end for key in self.bad):
            raise IndexDamagedError("block checksum mismatch")

    def apply(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        self.bad.difference_update(puts, deletes)  # newer values are in other blocks
        super().apply(puts, deletes)


class SimulatedIndex:
    def __init__(self, platter: "Platter", generation: int, directory: str) -> None:
        self._platter = platter
        self._generation = generation
        self._values = platter.index(directory)

    async def get(self, key: bytes) -> bytes | None:
        await self._platter.operate("index_get", self._generation)
        self._values.check([key])
        return await self._values.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._platter.operate("index_get", self._generation)
        self._values.check(keys)
        return await self._values.get_many(keys)

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        await self._platter.operate("index_scan", self._generation)
        found = await self._values.scan(first, end, limit)
        # Damage behind the last requested key is not met.
        self._values.check_between(first, found[-1][0] if len(found) == limit else end)
        return found

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        await self._platter.operate("index_write", self._generation)
        self._values.apply(puts, deletes)
