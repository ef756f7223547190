"""What all logs of a host share, and how one of them is set up."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.client import LedgerClient, Quorums
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.reader import LedgerReader
from daybook.managed_ledger.ack_set import ENTRIES_MAX
from daybook.managed_ledger.cache import EntryCache
from daybook.managed_ledger.errors import FencedError, LogCorruptError
from daybook.managed_ledger.protocol.stuck import Pauses
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import Owner
from daybook.wire.clock import WallClock
from daybook.wire.metadata.store import (
    VALUE_BYTES_MAX,
    MetadataError,
    MetadataStore,
    Record,
    StoreUnavailableError,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
LIST_BYTES_MIN = 512
_RETRY_S = (0.05, 0.3)
_DELETIONS_AT_ONCE = 16
_RENEWALS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One log.  A ledger is full at `roll_entries` or `roll_bytes`, and old after `roll_age_s`.

    The fuller the list of ledgers is, the larger and older is a ledger before it is rolled.
    """

    quorums: Quorums = field(default_factory=Quorums)
    retention: Retention = field(default_factory=Retention)
    roll_entries: int = 50_000
    roll_bytes: int = 2 << 30
    roll_age_s: float = 4 * 3600.0
    roll_age_min_s: float = 0.0  # a full ledger that is younger is not rolled
    list_bytes_max: int = VALUE_BYTES_MAX  # of the list of ledgers, see `protocol.room`
    heal_interval_s: float = 60.0  # roll this often at most to get missing copies back
    stuck_s: float = 30.0  # without an ack quorum for so long, a ledger is left for a new one
    flush_s: float = 1.0  # acknowledgements without a receipt are durable after this
    cursor_roll_records: int = 5_000
    # A cursor with acknowledgements above mark-delete writes a snapshot after so many changes, or
    # so long after the first of them; it is one record up to so many bytes, which a bookie takes.
    cursor_snapshot_records: int = 1_000
    cursor_snapshot_s: float = 30.0
    cursor_snapshot_bytes_max: int = 4 << 20
    pending_bytes_max: int = 64 << 20
    close_s: float = 10.0  # a clean close that takes longer is given up

    def __post_init__(self) -> None:
        if not 1 <= self.roll_entries < ENTRIES_MAX:
            raise ValueError(f"roll_entries: 1 to {ENTRIES_MAX - 1}, not {self.roll_entries}")
        if not LIST_BYTES_MIN <= self.list_bytes_max <= VALUE_BYTES_MAX:
            raise ValueError(
                f"list_bytes_max: {LIST_BYTES_MIN} to {VALUE_BYTES_MAX}, not {self.list_bytes_max}"
            )


@dataclass(frozen=True, slots=True)
class LogContext:
    """`nursery`: of the host, or of one log (see `open_home`).

    `allows`: may a new format of that name be written now?  False if that is not known.
    """

    client: LedgerClient
    store: MetadataStore
    clock: WallClock
    rng: Random
    cache: EntryCache
    nursery: trio.Nursery
    allows: Callable[[str], bool]
    pauses: Pauses = field(default_factory=Pauses)
    instance: str | None = None  # the INSTANCEID of the ledgers, if brokers have bound it
    tree: str | None = None  # of which this host's logs are, see `tree`
    # At the end of a rolling upgrade all cursors want a new ledger within one tick of the timer.
    renewals: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(_RENEWALS_AT_ONCE)
    )

    # -- asking the metadata store

    async def answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read of the metadata store until it answers."""
        while True:
            with suppress(StoreUnavailableError):
                return await ask()
            await self.pause()

    async def newest(self, path: str) -> Record | None:
        """The record, at least as new as everything that was written before; with patience."""
        return await self._synced(path, lambda: self.store.get(path))

    async def newest_children(self, path: str) -> list[str]:
        return await self._synced(path, lambda: self.store.get_children(path)) or []

    async def _synced(self, path: str, ask: Callable[[], Awaitable[T]]) -> T:
        async def attempt() -> T:
            while True:
                session_id = self.store.session_id
                await self.store.sync(path)
                answer = await ask()
                if self.store.session_id == session_id:
                    return answer  # Another session might be with a server that is behind.

        return await self.answered(attempt)

    async def pause(self) -> None:
        await trio.sleep(self.rng.uniform(*_RETRY_S))

    # -- ledgers that prove whose they are

    async def proven(self, ledger_id: int, owner: Owner) -> StoredMetadata:
        """The metadata of a ledger that is the owner's.  LogCorruptError if it says another's.

        This comes before anything is fenced, read or deleted: with another root, or after a mixed
        restore, the id may be that of another topic's ledger.
        """
        stored = await self.client.stored_metadata(ledger_id)
        other = owner.contradicted_by(stored.metadata.custom)
        if other is not None:
            root = self.client.context.metadata_store.paths.root
            raise LogCorruptError(
                f"ledger {ledger_id} below {root} belongs to {other}, and the metadata store names"
                f" it as a ledger of {owner}. The ledger was left as it is. Probably `ledgers_root`"
                " of this process is not that of the process which wrote the list: compare the"
                " settings of all brokers with `daybook cluster show`"
            )
        return stored

    async def open_ledger(self, ledger_id: int, owner: Owner, *, recover: bool) -> LedgerReader:
        """Open a ledger of the owner.  LogCorruptError, LedgerError, MetadataError."""
        stored = await self.proven(ledger_id, owner)
        return await self.client.open_stored(ledger_id, stored, recover=recover)

    # -- what must not depend on who waits for it

    @property
    def stopped(self) -> bool:
        """Everything that the nursery runs was stopped: nothing can be begun there any more."""
        return self.nursery.cancel_scope.cancel_called

    async def to_the_end(self, act: Callable[[], Awaitable[T]]) -> T:
        """Have `act` carried out; it goes on if the caller stops waiting.

        FencedError if everything that the nursery runs was stopped meanwhile, or before.
        """
        if self.stopped:
            raise FencedError("the log was given up before")
        done = trio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        async def run() -> None:
            try:
                results.append(await act())
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self.nursery.start_soon(run)
        await done.wait()
        if errors:
            raise errors[0]
        if not results:
            raise FencedError("the log was given up meanwhile: the outcome is not known")
        return results[0]

    async def forget(self, ledger_ids: Iterable[int], owner: Owner) -> None:
        """Delete ledgers of the owner that nothing names any more.

        What cannot be deleted now is an orphan, and goes when orphans are looked for.  A ledger
        that says it is somebody else's is never deleted.
        """
        ids = list(ledger_ids)
        for i in range(0, len(ids), _DELETIONS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for ledger_id in ids[i : i + _DELETIONS_AT_ONCE]:
                    nursery.start_soon(self.delete, ledger_id, owner)

    async def delete(self, ledger_id: int, owner: Owner) -> bool:
        """Delete a ledger of the owner; False if that did not work now."""
        try:
            await self.proven(ledger_id, owner)
            await self.client.delete(ledger_id)
        except LogCorruptError as error:
            _log.warning("a ledger is not deleted: %s", error)
            return False
        except (LedgerError, MetadataError):
            return False  # It is gone, or nobody can tell whose it is, or the store is away.
        return True


async def open_home(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """A nursery for all that one log runs.  To be started; ends when its scope is cancelled."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()
