"""Removes orphans among the ledgers of schemas: of additions that were cut short.

A version is added in two steps: its ledger is written, then the record of the topic names it.  A
broker that dies between them leaves a ledger that nothing names.  The pass over all ledgers of the
cluster (`managed_ledger.orphans`) asks here about the ledgers that belong to no log.

A ledger of a schema is removed in one transaction with a proof: the record of the topic is still
the one that does not name the ledger, or there is still none.  A broker that adds a version
requires the ledger to exist in the write that names it (`registry`), so either the removal fails or
the addition does.  Only ledgers of this tree of logs are judged, and only when they are old.
"""

from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.broker.errors import StorageFailedError
from daybook.broker.schemas.records import ROOT, decode_locator, schema_of
from daybook.managed_ledger.records import tree_of
from daybook.wire.clock import WallClock
from daybook.wire.metadata.paths import ancestors_of
from daybook.wire.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    NoRecordError,
    Operation,
    RecordExistsError,
    VersionConflictError,
)

_ID_PARTS = 3  # tenant, namespace, topic


class SchemaOrphans:
    """Judges and removes ledgers of schemas.  One instance per broker."""

    def __init__(self, store: MetadataStore, client: LedgerClient, clock: WallClock) -> None:
        self._store = store
        self._client = client
        self._clock = clock

    async def remove(self, ledger_id: int, stored: StoredMetadata, tree: str, age_ms: int) -> bool:
        """Remove the ledger if it is an orphan; return True if it was removed."""
        metadata = stored.metadata
        id_, created_ms = schema_of(metadata.custom), metadata.created_ms
        if id_ is None or tree_of(metadata.custom) != tree or created_ms is None:
            return False
        if self._clock.now_ms() - created_ms < age_ms or not _is_id(id_):
            return False
        path = f"{ROOT}/{id_}"
        try:
            await self._store.sync(path)
            record = await self._store.get(path)
            if record is None:
                proof = await self._absence(path)
            elif any(v.ledger_id == ledger_id for v in decode_locator(record.value, id_).all):
                return False
            else:
                proof = [Check(path, record.stat.version)]
            ledger = self._client.context.metadata_store.paths.ledger(ledger_id)
            await self._store.multi([*proof, Delete(ledger, stored.version)])
        except (VersionConflictError, RecordExistsError, NoRecordError, StorageFailedError):
            return False  # Somebody has changed one of them, or the record cannot be read.
        return True

    async def _absence(self, path: str) -> list[Operation]:
        """Return operations that change nothing, and fail if there is a record at the path.

        They create the record, with the parents that it lacks, and delete all of them again.
        """
        missing = [path]
        for ancestor in reversed(ancestors_of(path)):
            if await self._store.get(ancestor) is not None:
                break
            missing.insert(0, ancestor)
        made: list[Operation] = [Create(each, b"") for each in missing]
        return made + [Delete(each, 0) for each in reversed(missing)]


def _is_id(id_: str) -> bool:
    parts = id_.split("/")
    return len(parts) == _ID_PARTS and not any(part in ("", ".", "..") for part in parts)
