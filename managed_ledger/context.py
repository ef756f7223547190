"""The context that all logs of a host share, and the settings of one log."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.client import LedgerClient, Quorums
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.reader import LedgerReader
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.ack_set import ENTRIES_MAX
from daybook.managed_ledger.entry_cache import EntryCache
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.errors import FencedError, LogCorruptError
from daybook.managed_ledger.log_tasks import LogTasks
from daybook.managed_ledger.protocol.stalled import Backoffs
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import LedgerOwner, compacted_metadata, custom_metadata
from daybook.managed_ledger.traffic import WriteLatencies
from daybook.wire.clock import WallClock
from daybook.wire.digest import DigestType
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
_RECOUNTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log.

    A ledger is full at `roll_entries` or `roll_bytes`, and old after `roll_age_s`.  The fuller the
    list of ledgers is, the larger and older a ledger has to be before it is rolled.
    """

    quorums: Quorums = field(default_factory=Quorums)
    retention: Retention = field(default_factory=Retention)
    roll_entries: int = 50_000
    roll_bytes: int = 2 << 30
    roll_age_s: float = 4 * 3600.0
    roll_age_min_s: float = 0.0  # a younger ledger is not rolled, even if it is full
    list_bytes_max: int = VALUE_BYTES_MAX  # the largest list of ledgers, see `protocol.room`
    heal_interval_s: float = 60.0  # the least time between rollovers that restore missing copies
    stuck_s: float = 30.0  # a ledger is left after this time without an ack quorum
    flush_s: float = 1.0  # acknowledgements without a receipt are durable after this time
    cursor_roll_records: int = 5_000
    # A cursor with acknowledgements above mark-delete writes a snapshot after this many changes, or
    # this long after the first of them.  A snapshot up to this size is one record, which must not
    # be larger than an entry that a bookie takes.
    cursor_snapshot_records: int = 1_000
    cursor_snapshot_s: float = 30.0
    cursor_snapshot_bytes_max: int = 4 << 20
    pending_bytes_max: int = 64 << 20
    # Per cursor, for the pending messages of batches that are acknowledged in part.
    partial_bytes_max: int = 16 << 20
    close_s: float = 10.0  # a close that takes longer is not clean: the log is abandoned

    def __post_init__(self) -> None:
        if not 1 <= self.roll_entries < ENTRIES_MAX:
            raise ValueError(
                f"roll_entries must be from 1 to {ENTRIES_MAX - 1}, not {self.roll_entries}"
            )
        if not LIST_BYTES_MIN <= self.list_bytes_max <= VALUE_BYTES_MAX:
            raise ValueError(
                f"list_bytes_max must be from {LIST_BYTES_MIN} to {VALUE_BYTES_MAX}, not"
                f" {self.list_bytes_max}"
            )


@dataclass(frozen=True, slots=True)
class LogContext:
    """One instance per host, and a copy for each log.

    `nursery` belongs to the host, and `tasks`, in the copy, to the log.  `allows` returns True if
    all brokers understand a new format, and False if that is not known.
    """

    client: LedgerClient
    store: MetadataStore
    clock: WallClock
    rng: Random
    cache: EntryCache
    nursery: trio.Nursery
    allows: Callable[[str], bool]
    tasks: LogTasks
    sizes: EntrySizes = field(default_factory=EntrySizes)
    write_latencies: WriteLatencies = field(default_factory=WriteLatencies)
    backoffs: Backoffs = field(default_factory=Backoffs)
    instance: str | None = None  # the INSTANCEID of the ledgers, if brokers have bound it
    tree: str | None = None  # the id of the tree of logs; see `tree`
    # Cursors whose holes are counted at a time.
    recounts: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(_RECOUNTS_AT_ONCE)
    )
    # At the end of a rolling upgrade all cursors need a new ledger within one tick of the timer.
    renewals: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(_RENEWALS_AT_ONCE)
    )

    # -- reading the metadata store

    async def retry_read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read of the metadata store until the store answers."""
        while True:
            with suppress(StoreUnavailableError):
                return await read()
            await self.pause()

    async def read_newest(self, path: str) -> Record | None:
        """Return the record with everything that was written before this call; None if none is.

        This waits until the store answers.
        """
        return await self.retry_read(lambda: self.store.get_newest(path))

    async def read_newest_children(self, path: str) -> list[str]:
        """Return the names below `path`, with everything that was written before this call."""
        return await self.retry_read(lambda: self.store.get_newest_children(path)) or []

    async def pause(self) -> None:
        """Sleep for a moment between two attempts."""
        await trio.sleep(self.rng.uniform(*_RETRY_S))

    # -- ledgers, which prove their owner

    async def create_ledger(
        self, quorums: Quorums, log_name: str, cursor: str | None = None
    ) -> LedgerWriter:
        """Create a ledger for a log, or for one of its cursors.

        The metadata of the ledger name its owner.
        """
        custom = custom_metadata(log_name, cursor, self.tree)
        return await self.client.create(quorums, custom=custom)

    async def create_compacted_ledger(
        self, quorums: Quorums, topic: str, compacted_to: bytes
    ) -> LedgerWriter:
        """Create a ledger for what a compaction of the topic keeps.

        Pulsar's brokers open it with this digest, whatever its metadata say.
        """
        custom = compacted_metadata(topic, compacted_to, self.tree)
        return await self.client.create(quorums, custom=custom, digest_type=DigestType.CRC32)

    async def verified_metadata(self, ledger_id: int, owner: LedgerOwner) -> StoredMetadata:
        """Return the metadata of a ledger.  Raise LogCorruptError if they name another owner.

        This comes before the ledger is fenced, read or deleted.  With another root, or after a
        mixed restore, the id may be that of another topic's ledger.
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

    async def open_ledger(
        self, ledger_id: int, owner: LedgerOwner, *, recover: bool
    ) -> LedgerReader:
        """Open a ledger of the owner.  Raise LogCorruptError, LedgerError, MetadataError."""
        stored = await self.verified_metadata(ledger_id, owner)
        return await self.client.open_stored(ledger_id, stored, recover=recover)

    async def delete_ledgers(self, ledger_ids: Iterable[int], owner: LedgerOwner) -> None:
        """Delete ledgers of the owner that nothing names any more.

        A ledger that cannot be deleted now is an orphan, and the next removal of orphans deletes
        it.  A ledger that names another owner is never deleted.
        """
        ids = list(ledger_ids)
        for i in range(0, len(ids), _DELETIONS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for ledger_id in ids[i : i + _DELETIONS_AT_ONCE]:
                    nursery.start_soon(self.delete_ledger, ledger_id, owner)

    def delete_later(self, ledger_ids: Sequence[int], owner: LedgerOwner) -> None:
        """Delete ledgers as above, without waiting, also if the log is closed meanwhile."""
        if not self.nursery.cancel_scope.cancel_called:
            self.nursery.start_soon(self._delete_behind, ledger_ids, owner)

    async def _delete_behind(self, ledger_ids: Sequence[int], owner: LedgerOwner) -> None:
        try:
            await self.delete_ledgers(ledger_ids, owner)
        except Exception:  # This task may belong to the host, and all other logs go on.
            _log.exception("ledgers of %s were not deleted, which is a bug", owner)

    async def delete_ledger(self, ledger_id: int, owner: LedgerOwner) -> bool:
        """Delete a ledger of the owner; return False if that does not work now."""
        try:
            await self.verified_metadata(ledger_id, owner)
            await self.client.delete(ledger_id)
        except LogCorruptError as error:
            _log.warning("ledger %d is kept, because it may not be ours: %s", ledger_id, error)
            return False
        except (LedgerError, MetadataError):
            return False  # The ledger is gone, its owner is not known, or the store is away.
        return True

    # -- calls that outlive their callers

    @property
    def stopped(self) -> bool:
        """True if the tasks were cancelled: nothing can be started any more."""
        return self.tasks.cancelled

    async def run_to_end(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run `act` in a task and return its result.  It continues if the caller is cancelled.

        Raise FencedError if the task is cancelled before the end.
        """
        if self.stopped:
            raise FencedError("the log was closed or lost before this call, so nothing was done")
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

        self.tasks.start_soon(run)
        await done.wait()
        if errors:
            raise errors[0]
        if not results:
            raise FencedError(
                "the log was closed or lost during this call, so the outcome is unknown"
            )
        return results[0]
