"""The records of sinks in the metadata store, and how many there may be.

A record is read after a sync, and changed by compare-and-swap on the version that was read.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import trio

from daybook.managed_ledger.protocol.sink import SinkRecord, SinkRefusedError
from daybook.managed_ledger.sinks.record import (
    ROOT,
    decode_record,
    encode_record,
    of_role_path,
    record_path,
)
from daybook.wire.metadata.store import (
    ANY,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    VersionConflictError,
)
from daybook.wire.metadata.update import update
from daybook.wire.topics import url_decode, url_encode

SINKS_MAX = 20_000  # With more, the names of all would not fit into one answer of ZooKeeper.
ROLE_SINKS_MAX = SINKS_MAX // 4
CONFLICTS = (VersionConflictError, NoRecordError, RecordExistsError)


@dataclass(frozen=True, slots=True)
class StoredSink:
    name: str
    record: SinkRecord
    version: int
    modified_ms: int


class StoredSinks:
    """The records of one metadata store, by the names of their sinks."""

    def __init__(self, store: MetadataStore, rng: Random) -> None:
        self._store = store
        self._rng = rng
        self._reserving = trio.Lock()  # Requests at the same time must not exceed a limit together.

    def new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    async def names(self) -> list[str]:
        return [url_decode(each) for each in await self._store.get_children(ROOT) or []]

    async def find(self, name: str) -> StoredSink | None:
        """Return a sink as it is after everything that was written before this call."""
        record = await self._store.get_newest(record_path(name))
        return None if record is None else _stored(name, record)

    async def existing(self, name: str) -> StoredSink:
        """Return a sink as `find` does.  Raise NoRecordError."""
        stored = await self.find(name)
        if stored is None:
            raise NoRecordError(f"there is no sink {name}")
        return stored

    async def find_or_create(self, name: str, role: str = "") -> StoredSink:
        """Return a sink.  A new one counts for the role, if one is named."""
        path = record_path(name)
        while True:
            found = await self.find(name)
            if found is not None:
                return found
            # The record of a sink that nobody has: a commit always replaces a record.
            value = encode_record(SinkRecord(self.new_id(), role=role))
            with suppress(RecordExistsError, OutcomeUnknownError):  # The next look decides.
                if role:
                    await self._create_counted(path, value, of_role_path(role))
                else:
                    await self._store.create(path, value, make_parents=True)

    async def _create_counted(self, path: str, value: bytes, of_role: str) -> None:
        """Create a record and the node that counts it."""
        counted = f"{of_role}/{path.rpartition('/')[2]}"
        for parent in (ROOT, of_role):
            if await self._store.get(parent) is None:
                with suppress(RecordExistsError):
                    await self._store.create(parent, b"", make_parents=True)
        # Somebody may have deleted a record by hand, and left the node that counts it.
        known = await self._store.get_newest(counted) is not None
        count: Operation = Check(counted, ANY) if known else Create(counted, b"")
        with suppress(NoRecordError):  # Somebody has just deleted the last node of the role.
            await self._store.multi([Create(path, value), count])

    async def reserve(self, name: str, role: str) -> None:
        """Create the record of a sink that has none, if the role may have one more.

        This is done before a first batch is staged.  Otherwise a role could take any number of
        names by staging that it gives up, because the cleaner needs a record for each of them.
        Raise SinkRefusedError, MetadataError.
        """
        if await self.find(name) is not None:
            return  # So tasks of a sink that is there do not wait for each other.
        async with self._reserving:
            if await self.find(name) is None:
                await self.check_number(role)
                await self.find_or_create(name, role)

    async def check_number(self, role: str) -> None:
        """Raise SinkRefusedError if there are too many sinks, or too many of the role."""
        if role:
            own = await self._store.get_newest(of_role_path(role))
            if own is not None and own.stat.children_count >= ROLE_SINKS_MAX:
                raise SinkRefusedError(
                    f"the role {role!r} has {ROLE_SINKS_MAX} sinks, which is the limit for one"
                    " role: use a sink that is there, or let an administrator free those that are"
                    " not needed with `daybook sinks forget`; they count for a week after that"
                )
        root = await self._store.get(ROOT)
        if root is not None and root.stat.children_count >= SINKS_MAX:
            raise SinkRefusedError(
                f"there are {SINKS_MAX} sinks, which is the limit: the sinks of batch jobs are"
                " removed a week after their batch, and others a week after `daybook sinks forget`"
            )

    async def delete_record(self, stored: StoredSink) -> None:
        """Delete a record, and the node that counts it.

        Raise VersionConflictError, NoRecordError, OutcomeUnknownError.
        """
        path, role = record_path(stored.name), stored.record.role
        delete = Delete(path, stored.version)
        if not role:
            await self._store.delete(path, stored.version)
            return
        of_role = of_role_path(role)
        counted = f"{of_role}/{url_encode(stored.name)}"
        known = await self._store.get_newest(counted) is not None
        await self._store.multi([delete, Delete(counted, ANY)] if known else [delete])
        with suppress(NoRecordError, NotEmptyError, OutcomeUnknownError):
            await self._store.delete(of_role, ANY)

    async def replace(self, stored: StoredSink, following: SinkRecord) -> bool:
        """Replace the record; return False if the outcome is not certain, or others were faster."""
        path = record_path(stored.name)
        try:
            await self._store.set(path, encode_record(following), stored.version)
        except (*CONFLICTS, OutcomeUnknownError):
            return False
        return True

    async def change(
        self, name: str, rule: Callable[[SinkRecord], SinkRecord | None]
    ) -> SinkRecord:
        """Apply a rule to the record until its outcome is known; return the record.

        The rule must do nothing when it finds its own work.  Raise NoRecordError.
        """

        def changed(value: bytes) -> bytes | None:
            before = decode_record(value, name)
            after = rule(before)
            return None if after is None or after == before else encode_record(after)

        path = record_path(name)
        known = await self._store.get_newest(path)
        if known is None:
            raise NoRecordError(f"there is no sink {name}")
        value, _ = await update(self._store, path, changed, known=known)
        return decode_record(value, name)


def _stored(name: str, record: Record) -> StoredSink:
    found = decode_record(record.value, name)
    return StoredSink(name, found, record.stat.version, record.stat.modified_ms)
