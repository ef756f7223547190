"""Ledgers that are gone from the metadata are dropped here: on proof, never on silence.

A ledger is in the metadata before its first entry is anywhere.  So:

1. which ledgers are here is written down *before* the metadata are asked, so that none that comes
   meanwhile is taken for gone;
2. the metadata store has to be that of our cluster (its instance id, and our cookie in it), and is
   asked for its newest state;
3. all of the list has to come; a part of it, an error, or a list without any ledger says nothing;
4. each ledger that is not in it is looked up once more by itself; only "there is no such record"
   counts, and any error ends the round.

What is dropped leaves a tombstone: nothing that comes late makes it again.  At the end of a round
that has come that far, those of which nothing is left are looked up once more, each by itself; if
they are gone still they are forgotten (`storage.tombstones`).  From then on whoever brings such a
ledger is let in only if the metadata have it: `facts_of`.
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


async def facts_of(
    metadata: MetadataStore, paths: LedgerPaths, ledger_id: int
) -> LedgerFacts | None:
    """What the metadata say of the ledger by now; None if they cannot say."""
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
        return LedgerFacts(there=True)  # whoever mends it says what it is
    return LedgerFacts(True, state is LedgerState.OPEN, record.stat.created_txid)


async def check_cluster(metadata: MetadataStore, paths: LedgerPaths, cookie: Cookie) -> None:
    """Raise ForeignMetadataError unless it is the cluster of this cookie, and knows the bookie."""
    instance_id = await read_instance_id(metadata, paths)
    if instance_id != cookie.instance_id:
        raise ForeignMetadataError(f"these are the metadata of another cluster: {instance_id}")
    if await read_cookie(metadata, paths, cookie.bookie_id) is None:
        raise ForeignMetadataError(f"the metadata do not know bookie {cookie.bookie_id}")


class Collector:
    """One round is `collect`."""

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
        """Drop what is provably gone; whatever fails, nothing else is dropped."""
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
        except (StoreError, OSError) as error:  # then they stay
            self._log.warning("tombstones stay", why=str(error))

    async def _drop(self, ledger_id: int) -> None:
        try:
            await self._store.delete(ledger_id)
        except StoreError as error:  # its directory has failed; those in others go on
            self.drops_failed += 1
            self._log.warning("cannot drop", ledger=ledger_id, why=str(error))
        else:
            self.ledgers_dropped += 1

    async def _is_gone(self, ledger_id: int) -> bool:
        path = self._paths.ledger(ledger_id)
        await self._metadata.sync(path)
        return await self._metadata.get(path) is None
