"""The ledgers of sinks: staging ledgers and manifests.

Each names its sink and its attempt in its metadata, which are compared before the ledger is read or
deleted: with another root, its id may be that of another ledger.  A manifest has an attempt of its
own, so that it is abandoned before it is deleted as staging is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from daybook.bookie.errors import LedgerError, NoSuchLedgerError
from daybook.bookie.ledger.client import LedgerClient, LedgerReader, LedgerWriter, Quorums
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.managed_ledger.records import TREE
from daybook.managed_ledger.sinks.errors import SinkCorruptError, StagingLostError
from daybook.managed_ledger.sinks.manifest import Manifest, decode_manifest
from daybook.managed_ledger.sinks.staging import StagingEnd, decode_end
from daybook.wire.metadata.store import MetadataError

SINK = "daybook/sink"
ATTEMPT = "daybook/attempt"
QUERY = "daybook/query"
BATCH = "daybook/batch"
ROLE = "daybook/role"
_OURS = {"application": b"daybook", "component": b"sink"}
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SinkLedger:
    """The owner of a ledger of a sink, as its metadata name it."""

    sink: str
    attempt: str
    query_id: str
    batch_id: int
    role: str = ""  # the role that stages it; without authorization there is none

    def custom(self, tree: str | None) -> dict[str, bytes]:
        custom = {
            **_OURS,
            SINK: self.sink.encode(),
            ATTEMPT: self.attempt.encode(),
            QUERY: self.query_id.encode(),
            BATCH: str(self.batch_id).encode(),
        }
        if tree is not None:
            custom[TREE] = tree.encode()
        if self.role:
            custom[ROLE] = self.role.encode()
        return custom


def sink_ledger_of(custom: Mapping[str, bytes]) -> SinkLedger | None:
    """Return the owner of a ledger; None if the ledger belongs to no sink."""
    if any(custom.get(key) != value for key, value in _OURS.items()):
        return None
    try:
        return SinkLedger(
            custom[SINK].decode(),
            custom[ATTEMPT].decode(),
            custom[QUERY].decode(),
            int(custom[BATCH]),
            custom.get(ROLE, b"").decode(),
        )
    except (KeyError, ValueError):  # also a UnicodeDecodeError
        return None


class SinkLedgers:
    """`tree` returns the id of the tree of logs for which ledgers are created."""

    def __init__(self, client: LedgerClient, tree: Callable[[], str | None]) -> None:
        self.client = client
        self._tree = tree

    def path(self, ledger_id: int) -> str:
        """Return the path of the record of a ledger."""
        return self.client.context.metadata_store.paths.ledger(ledger_id)

    async def create(self, owner: SinkLedger, quorums: Quorums) -> LedgerWriter:
        """Raise LedgerError, MetadataError."""
        return await self.client.create(quorums, custom=owner.custom(self._tree()))

    async def open(self, ledger_id: int, sink: str, attempt: str | None = None) -> LedgerReader:
        """Open a closed ledger of a sink, of that attempt if one is named.

        Raise StagingLostError if there is none; LedgerError, MetadataError if it does not work now.
        """
        stored = await self._newest(ledger_id)
        if stored is None:
            raise StagingLostError(f"the ledger {ledger_id} of the sink {sink} is gone")
        owner = sink_ledger_of(stored.metadata.custom)
        if owner is None or owner.sink != sink or attempt not in (None, owner.attempt):
            raise StagingLostError(
                f"the ledger {ledger_id} is not one of the sink {sink}"
                + ("" if attempt is None else f" and its attempt {attempt}")
            )
        if not stored.metadata.closed:
            raise StagingLostError(f"the ledger {ledger_id} of the sink {sink} was never closed")
        return await self.client.open_stored(ledger_id, stored, recover=False)

    async def exists(self, ledger_id: int, sink: str, attempt: str) -> bool:
        """Return True if that attempt has the ledger.  Raise LedgerError, MetadataError."""
        stored = await self._newest(ledger_id)
        owner = None if stored is None else sink_ledger_of(stored.metadata.custom)
        return owner is not None and (owner.sink, owner.attempt) == (sink, attempt)

    async def topics_of(self, ledger_id: int, sink: str, attempt: str) -> list[str] | None:
        """Return the topics of an attempt, by its ledger.

        None: they are unknown, because the ledger was not closed in order, or is a manifest.  A
        ledger that does not exist, or is another one's, has none.  Raise LedgerError,
        MetadataError.
        """
        try:
            return list((await self.read_end(ledger_id, sink, attempt)).partitions)
        except (StagingLostError, SinkCorruptError):
            return None if await self.exists(ledger_id, sink, attempt) else []

    async def _newest(self, ledger_id: int) -> StoredMetadata | None:
        """Return the metadata of a ledger; None if it does not exist, which is certain."""
        # Another broker has just written and closed it: an older answer would be taken for a no.
        await self.client.context.metadata_store.store.sync(self.path(ledger_id))
        try:
            return await self.client.stored_metadata(ledger_id)
        except NoSuchLedgerError:
            return None

    async def read_end(self, ledger_id: int, sink: str, attempt: str) -> StagingEnd:
        """Return what a staging ledger says about itself.

        Raise StagingLostError, SinkCorruptError; LedgerError, MetadataError if it does not work
        now.
        """
        reader = await self.open(ledger_id, sink, attempt)
        last = reader.last_add_confirmed
        if last < 0:
            raise StagingLostError(f"the staging ledger {ledger_id} of the sink {sink} is empty")
        (entry,) = await reader.read(last, last, max_bytes=1)
        end = decode_end(entry.payload, ledger_id)
        if end.sink != sink or end.attempt != attempt or end.entries != last:
            raise SinkCorruptError(
                f"the staging ledger {ledger_id} says that it has {end.entries} entries of the"
                f" attempt {end.attempt}, and it has {last} of the attempt {attempt}"
            )
        return end

    async def write(self, owner: SinkLedger, quorums: Quorums, entries: list[bytes]) -> int:
        """Store entries in a new ledger, close it, and return its id.

        Raise LedgerError, MetadataError.
        """
        writer = await self.create(owner, quorums)
        try:
            last = -1
            for entry in entries:
                last = writer.append([entry])
            if entries:
                await writer.wait_confirmed(last)
            await writer.close()
        except BaseException:
            writer.abandon()
            raise
        return writer.ledger_id

    async def read_manifest(self, ledger_id: int, checksum: str, sink: str) -> Manifest:
        """Return a manifest.  Raise as `read_end` does."""
        reader = await self.open(ledger_id, sink)
        data = bytearray()
        at, last = 0, reader.last_add_confirmed
        while at <= last:
            for entry in await reader.read(at, last, max_bytes=_READ_BYTES):
                data += entry.payload
                at += 1
        return decode_manifest(bytes(data), checksum, ledger_id)

    async def delete(self, ledger_id: int, sink: str, attempt: str | None = None) -> bool:
        """Delete a ledger of a sink; return True if it is gone.

        A ledger that names another sink or attempt is never deleted, and counts as gone.
        """
        try:
            stored = await self._newest(ledger_id)
            if stored is None:
                return True
            owner = sink_ledger_of(stored.metadata.custom)
            if owner is not None and owner.sink == sink and attempt in (None, owner.attempt):
                await self.client.delete(ledger_id)
        except (LedgerError, MetadataError):
            return False
        return True
