"""Deletes staging that was not committed: of tasks that were lost, repeated or given up.

The pass over all ledgers of the cluster (`managed_ledger.orphans`) asks here about the ledgers that
belong to no log.  Time alone deletes only what is a week old; before that, an attempt goes only
when the record of its sink is at its batch or past it.  The record is asked first, by
compare-and-swap: see `Sinks.abandon`.  The manifest of a commit that failed goes in the same way.
"""

from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.managed_ledger.protocol.sink import SinkRefusedError, SinkState
from daybook.managed_ledger.records import tree_of
from daybook.managed_ledger.sinks.batch import ShareRef
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.errors import SinkError
from daybook.managed_ledger.sinks.ledgers import sink_ledger_of
from daybook.wire.clock import WallClock
from daybook.wire.metadata.store import NoRecordError, OutcomeUnknownError, VersionConflictError


class StagingCleaner:
    """One instance per broker."""

    def __init__(self, sinks: Sinks, clock: WallClock) -> None:
        self._sinks = sinks
        self._clock = clock

    async def remove(self, ledger_id: int, stored: StoredMetadata, tree: str) -> bool:
        """Remove a ledger of a sink if it will never be committed; return True if it is gone.

        Raise LedgerError or MetadataError if that is not known now.
        """
        metadata = stored.metadata
        owner, created_ms = sink_ledger_of(metadata.custom), metadata.created_ms
        if owner is None or tree_of(metadata.custom) != tree or created_ms is None:
            return False
        age_ms = self._clock.now_ms() - created_ms
        try:
            found = await self._sinks.records.find_or_create(owner.sink, owner.role)
            record = found.record
            # After the batch is APPLIED, what its manifest names is deleted before the manifest.
            if record.state is SinkState.APPLIED:
                await self._sinks.clean(found)
            if not record.may_be_abandoned(owner.query_id, owner.batch_id, age_ms):
                return False
            gone, _ = await self._sinks.abandon(owner.sink, [ShareRef(owner.attempt, ledger_id)])
        except (SinkError, SinkRefusedError):
            return False  # The record cannot be read, or is full: a later pass will know.
        return bool(gone)

    async def remove_record(self, name: str) -> bool:
        """Remove the record of a sink that nobody will ask for any more."""
        found = await self._sinks.records.find(name)
        if found is None:
            return False
        if not found.record.may_be_removed(self._clock.now_ms() - found.modified_ms):
            return False
        if found.record.state is SinkState.APPLIED and not await self._sinks.clean(found):
            return False
        try:
            await self._sinks.records.delete_record(found)
        except (VersionConflictError, NoRecordError, OutcomeUnknownError):
            return False  # Somebody uses it; or the next pass will know.
        return True
