"""The registry of schemas over ledgers in memory."""

from contextlib import suppress

import trio

from daybook.broker.schemas.ledgers import SchemaLedgers
from daybook.broker.schemas.records import StoredVersion
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.wire.clock import WallClock
from daybook.wire.metadata.memory import MemorySession
from daybook.wire.metadata.store import ANY, NoRecordError
from daybook.wire.topics import TopicName


class FakeSchemaLedgers(SchemaLedgers):
    """The ledgers of schemas in memory; each has a record in the store, as real ones have."""

    def __init__(self, store: MemorySession) -> None:
        self.entries: dict[int, bytes] = {}
        self.written = 0
        self.reads = 0
        self._store = store

    def path(self, ledger_id: int) -> str:
        return f"/ledgers/{ledger_id}"

    async def write(self, topic: TopicName, entry: bytes) -> int:
        self.written += 1
        ledger_id = 1000 + self.written
        await self._store.create(self.path(ledger_id), b"", make_parents=True)
        self.entries[ledger_id] = entry
        return ledger_id

    async def read(self, topic: TopicName, stored: StoredVersion) -> bytes:
        self.reads += 1
        await trio.lowlevel.checkpoint()
        return self.entries[stored.ledger_id]

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        with suppress(NoRecordError):
            await self._store.delete(self.path(ledger_id), ANY)
        self.entries.pop(ledger_id, None)


def registry(store: MemorySession, clock: WallClock) -> SchemaRegistry:
    """Return a registry with ledgers of its own."""
    return SchemaRegistry(
        store, FakeSchemaLedgers(store), clock, versions_max=100, schema_bytes_max=1 << 20
    )
