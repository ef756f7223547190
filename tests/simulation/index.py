"""SEAM index, simulated: goes with the simulated disk of a host.

The batches of an index store are operations of the same platter, durable as a whole or not at all.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from bookie.storage.index import IndexStore

if TYPE_CHECKING:
    from tests.simulation.disk import Platter


class SimulatedIndexes:
    """Opens the index stores of a host; their operations are counted like those of the disk."""

    def __init__(self, platter: "Platter", generation: int) -> None:
        self._platter = platter
        self._generation = generation

    @asynccontextmanager
    async def open(self, directory: str) -> AsyncGenerator[IndexStore]:
        await self._platter.operate("open_index", self._generation)
        yield SimulatedIndex(self._platter, self._generation, directory)


class SimulatedIndex:
    def __init__(self, platter: "Platter", generation: int, directory: str) -> None:
        self._platter = platter
        self._generation = generation
        self._values = platter.index(directory)

    async def get(self, key: bytes) -> bytes | None:
        await self._platter.operate("index_get", self._generation)
        return await self._values.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._platter.operate("index_get", self._generation)
        return await self._values.get_many(keys)

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        await self._platter.operate("index_scan", self._generation)
        return await self._values.scan(first, end, limit)

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        await self._platter.operate("index_write", self._generation)
        self._values.apply(puts, deletes)
