"""The garbage collector drops ledgers that are deleted from the metadata: only on proof.

A ledger is in the metadata before its first entry is on any bookie.  So:

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

from daybook.bookie.errors import MalformedMetadataError, RegistryError
from daybook.bookie.ledger.metadata import LedgerState, decode_metadata
from daybook.bookie.registry.cookies import Cookie, read_cookie
from daybook.bookie.registry.layout import read_instance_id
from daybook.bookie.registry.ledger_ids import list_ledgers
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.storage.contacts import LedgerFacts
from daybook.bookie.storage.status import StoreError
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore

_TOMBSTONES_A_ROUND = 1000


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
        # The list comes before the metadata: a ledger that arrives from now on is not in it.
        ours = self._store.ledgers()
        if not ours:
            return
        await self._metadata.sync(self._paths.root)
        await check_cluster(self._metadata, self._paths, self._cookie)
        missing, listed = set(ours), 0
        async for ledger_id in list_ledgers(self._metadata, self._paths):
            missing.discard(ledger_id)
            listed += 1
        if not listed:
            return
        for ledger_id in sorted(missing):
            if await self._is_gone(ledger_id):
                await self._drop(ledger_id)
        await self._end_tombstones()

    async def _end_tombstones(self) -> None:
        asked = await self._store.maintenance.tombstones_to_ask(_TOMBSTONES_A_ROUND)
        gone = [ledger_id for ledger_id in asked if await self._is_gone(ledger_id)]
        try:
            self.tombstones_ended += await self._store.maintenance.end_tombstones(gone)
        except (StoreError, OSError) as error:  # the tombstones stay until the next round
            self._log.warning("tombstones stay", why=str(error))

    async def _drop(self, ledger_id: int) -> None:
        try:
            await self._store.delete(ledger_id)
        except StoreError as error:  # its directory has failed; others go on
            self.drops_failed += 1
            self._log.warning("cannot drop", ledger=ledger_id, why=str(error))
        else:
            self.ledgers_dropped += 1

    async def _is_gone(self, ledger_id: int) -> bool:
        path = self._paths.ledger(ledger_id)
        await self._metadata.sync(path)
        return await self._metadata.get(path) is None
