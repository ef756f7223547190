"""The periodic work of a bookie: garbage collection, compaction and the scrub.

    every `reclaim_interval_s`   drop the deleted ledgers, then compact
    every `scrub_interval_s`     read everything that is written, slowly

Bookies that are started together do this at different times.  If a disk has too little room,
garbage collection begins at once, and again every few seconds until there is more.

The garbage collector drops ledgers that are deleted from the metadata, but only on proof.  A ledger
is in the metadata before its first entry is on any bookie.  So:

1. the ledgers on this bookie are listed *before* the metadata are asked, so that a ledger that
   arrives meanwhile is not taken for deleted;
2. the metadata store must be that of this cluster (its instance id, and this bookie's cookie in
   it), and is asked for its newest state;
3. the whole list must arrive; a part of it, an error, or a list without any ledger proves nothing;
4. each ledger that the list lacks is looked up once more by itself; only "there is no such record"
   counts, and any error ends the round.

A dropped ledger leaves a tombstone, so that no late request creates it again.  At the end of a
round without an error, the ledgers of tombstones of which nothing is left are looked up once more,
each by itself; if the ledger is still deleted, its tombstone is removed (`storage.tombstones`).
From then on an add to such a ledger is accepted only if the metadata have
the ledger (`read_ledger_facts`).
"""

from dataclasses import dataclass
from random import Random

import trio

from daybook.bookie.errors import MalformedMetadataError, RegistryError
from daybook.bookie.ledger.metadata import LedgerState, decode_metadata
from daybook.bookie.registry.cookies import Cookie, read_cookie
from daybook.bookie.registry.layout import read_instance_id
from daybook.bookie.registry.ledger_ids import list_ledgers
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.storage.scrub import Finding
from daybook.bookie.storage.status import StoreError
from daybook.bookie.storage.store import LedgerStore
from daybook.bookie.storage.unknown_ledgers import LedgerFacts
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore

_TOMBSTONES_PER_ROUND = 1000
_NO_ROOM_INTERVAL_S = 10.0
_FIRST_SCRUB_S = 3600.0


class ForeignMetadataError(Exception):
    """The metadata store does not know this bookie, or is that of another cluster."""


async def read_ledger_facts(
    metadata: MetadataStore, paths: LedgerPaths, ledger_id: int
) -> LedgerFacts | None:
    """Return what the metadata say of the ledger now, or None if they cannot be read."""
    path = paths.ledger(ledger_id)
    try:
        await metadata.sync(path)
        record = await metadata.get(path)
    except MetadataError:
        return None
    if record is None:
        return LedgerFacts(there=False)
    try:
        state = decode_metadata(record.value, record.stat.created_ms).state
    except MalformedMetadataError:
        return LedgerFacts(there=True)  # its state is unknown until the record is repaired
    return LedgerFacts(True, state is LedgerState.OPEN, record.stat.created_txid)


async def check_cluster(metadata: MetadataStore, paths: LedgerPaths, cookie: Cookie) -> None:
    """Raise ForeignMetadataError unless the metadata are those of this cookie, and have it."""
    instance_id = await read_instance_id(metadata, paths)
    if instance_id != cookie.instance_id:
        raise ForeignMetadataError(f"these are the metadata of another cluster: {instance_id}")
    if await read_cookie(metadata, paths, cookie.bookie_id) is None:
        raise ForeignMetadataError(f"the metadata do not know bookie {cookie.bookie_id}")


@dataclass(frozen=True, slots=True)
class GarbageCollectorStatistics:
    collections: int  # rounds that succeeded
    collections_failed: int
    ledgers_dropped: int
    drops_failed: int
    tombstones_ended: int


class GarbageCollector:
    """The garbage collector of one bookie; each call of `collect` is one round."""

    def __init__(
        self,
        store: LedgerStore,
        metadata: MetadataStore,
        paths: LedgerPaths,
        cookie: Cookie,
        log: Log,
    ) -> None:
        self.collections = 0
        self.collections_failed = 0
        self.ledgers_dropped = 0
        self.drops_failed = 0
        self.tombstones_ended = 0
        self._store = store
        self._metadata = metadata
        self._paths = paths
        self._cookie = cookie
        self._log = log

    def statistics(self) -> GarbageCollectorStatistics:
        return GarbageCollectorStatistics(
            collections=self.collections,
            collections_failed=self.collections_failed,
            ledgers_dropped=self.ledgers_dropped,
            drops_failed=self.drops_failed,
            tombstones_ended=self.tombstones_ended,
        )

    async def collect(self) -> None:
        """Drop ledgers that are provably deleted; an error of the metadata ends the round."""
        before = self.ledgers_dropped
        try:
            await self._collect()
        except (MetadataError, RegistryError, ForeignMetadataError) as error:
            self.collections_failed += 1
            self._log.warning("nothing more is dropped for now", why=str(error) or repr(error))
        else:
            self.collections += 1
        if dropped := self.ledgers_dropped - before:
            self._log.info("dropped ledgers that were deleted", count=dropped)

    async def _collect(self) -> None:
        # The ledgers here are listed before the metadata: one that arrives later is not in `ours`.
        ours = self._store.ledgers()
        if not ours:
            return
        await self._metadata.sync(self._paths.root)
        await check_cluster(self._metadata, self._paths, self._cookie)
        # An error of the list ends the round (`collect`), so `missing` is read only if all came.
        missing, listed = set(ours), 0
        async for ledger_id in list_ledgers(self._metadata, self._paths):
            missing.discard(ledger_id)
            listed += 1
        if not listed:  # An empty list is more likely a mistake than a cluster without ledgers.
            return
        for ledger_id in sorted(missing):  # Each is looked up once more: the list may be stale.
            if await self._is_gone(ledger_id):
                await self._drop(ledger_id)
        await self._end_tombstones()

    async def _end_tombstones(self) -> None:
        """Remove tombstones whose ledgers are still deleted: now no segment has their records."""
        asked = await self._store.maintenance.tombstones_to_ask(_TOMBSTONES_PER_ROUND)
        gone = [ledger_id for ledger_id in asked if await self._is_gone(ledger_id)]
        try:
            self.tombstones_ended += await self._store.maintenance.end_tombstones(gone)
        except (StoreError, OSError) as error:  # They stay until the next round.
            self._log.warning("tombstones stay", why=str(error))

    async def _drop(self, ledger_id: int) -> None:
        try:
            await self._store.delete(ledger_id)
        except StoreError as error:  # Its directory has failed; other directories go on.
            self.drops_failed += 1
            self._log.warning("cannot drop", ledger=ledger_id, why=str(error))
        else:
            self.ledgers_dropped += 1

    async def _is_gone(self, ledger_id: int) -> bool:
        """Return True if the metadata have no such ledger.  Raise if they cannot be read."""
        path = self._paths.ledger(ledger_id)
        await self._metadata.sync(path)
        return await self._metadata.get(path) is None


class Housekeeping:
    """`run` does the periodic work; an interval of 0 leaves only work on request."""

    def __init__(
        self,
        store: LedgerStore,
        collector: GarbageCollector,
        *,
        reclaim_interval_s: float,
        scrub_interval_s: float,
        rng: Random,
        log: Log,
    ) -> None:
        self.busy = False
        self._store = store
        self._collector = collector
        self._reclaim_interval_s = reclaim_interval_s
        self._scrub_interval_s = scrub_interval_s
        self._rng = rng
        self._log = log
        self._wanted = trio.Event()
        store.add_writable_listener(self._writable_changed)
        store.maintenance.add_finding_listener(self._found)

    def want_room(self) -> None:
        """Begin garbage collection and compaction soon, before the interval is over."""
        self._wanted.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_room_now_and_then)
            if self._scrub_interval_s:
                nursery.start_soon(self._scrub_now_and_then)

    async def make_room(self) -> None:
        """Drop the deleted ledgers, then compact."""
        self.busy = True
        try:
            await self._collector.collect()
            await self._store.maintenance.reclaim()
        finally:
            self.busy = False

    async def _make_room_now_and_then(self) -> None:
        while True:
            await self._pause()
            # Renewed before the work: a request that comes meanwhile causes another round.
            self._wanted = trio.Event()
            await self.make_room()

    async def _pause(self) -> None:
        interval_s = self._reclaim_interval_s
        if interval_s and self._store.out_of_space:
            interval_s = min(interval_s, _NO_ROOM_INTERVAL_S)
        if not interval_s:
            await self._wanted.wait()
            return
        with trio.move_on_after(interval_s * self._rng.uniform(0.5, 1.5)):
            await self._wanted.wait()

    async def _scrub_now_and_then(self) -> None:
        interval_s = self._scrub_interval_s
        await trio.sleep(self._rng.uniform(0, min(interval_s, _FIRST_SCRUB_S)))
        while True:
            await self._store.maintenance.scrub()
            await trio.sleep(interval_s * self._rng.uniform(0.5, 1.5))

    def _writable_changed(self) -> None:
        if self._reclaim_interval_s and self._store.out_of_space:
            self.want_room()

    def _found(self, finding: Finding) -> None:
        self._log.warning(
            "damaged",
            path=finding.path,
            positions=f"{finding.start}-{finding.end}",
            why=finding.why,
            entries=len(finding.entries),
        )
