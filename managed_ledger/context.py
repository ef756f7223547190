"""What all logs of a host share, and how one of them is set up."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import trio

from bookie.errors import LedgerError
from bookie.ledger.client import LedgerClient, Quorums
from managed_ledger.ack_set import ENTRIES_MAX
from managed_ledger.cache import EntryCache
from managed_ledger.protocol.trim import Retention
from wire.clock import WallClock
from wire.metadata.store import MetadataError, MetadataStore, Record, StoreUnavailableError

T = TypeVar("T")
_RETRY_S = (0.05, 0.3)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One log.  A ledger is full at `roll_entries` or `roll_bytes`, and old after `roll_age_s`."""

    quorums: Quorums = field(default_factory=Quorums)
    retention: Retention = field(default_factory=Retention)
    roll_entries: int = 50_000
    roll_bytes: int = 2 << 30
    roll_age_s: float = 4 * 3600.0
    heal_interval_s: float = 60.0  # roll this often at most to get a missing copy back
    flush_s: float = 1.0  # acknowledgements without a receipt are durable after this
    cursor_roll_records: int = 5_000
    pending_bytes_max: int = 64 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.roll_entries < ENTRIES_MAX:
            raise ValueError(f"roll_entries: 1 to {ENTRIES_MAX - 1}, not {self.roll_entries}")


@dataclass(frozen=True, slots=True)
class LogContext:
    client: LedgerClient
    store: MetadataStore
    clock: WallClock
    rng: Random
    cache: EntryCache
    nursery: trio.Nursery

    async def answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read of the metadata store until it answers."""
        while True:
            with suppress(StoreUnavailableError):
                return await ask()
            await self.pause()

    async def newest(self, path: str) -> Record | None:
        """The record, at least as new as everything that was written before; with patience."""

        async def ask() -> Record | None:
            await self.store.sync(path)
            return await self.store.get(path)

        return await self.answered(ask)

    async def forget(self, ledger_ids: Iterable[int]) -> None:
        """Delete ledgers that nothing names any more.

        What cannot be deleted now is an orphan, and goes when orphans are looked for.
        """
        for ledger_id in ledger_ids:
            with suppress(LedgerError, MetadataError):
                await self.client.delete(ledger_id)

    async def pause(self) -> None:
        await trio.sleep(self.rng.uniform(*_RETRY_S))
