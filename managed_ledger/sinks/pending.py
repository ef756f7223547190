"""The pending nodes of sinks: one for each topic partition that a committed batch is applied to."""

from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress

from daybook.managed_ledger.sinks.at_once import for_each
from daybook.managed_ledger.sinks.record import (
    PENDING,
    PendingBatch,
    decode_pending,
    encode_pending,
    pending_path,
    pending_root,
    sink_id_of,
)
from daybook.managed_ledger.sinks.stored import StoredSink
from daybook.wire.metadata.shared_reads import SharedReads
from daybook.wire.metadata.store import (
    ANY,
    MetadataStore,
    NoRecordError,
    NotEmptyError,
    OutcomeUnknownError,
    RecordExistsError,
)
from daybook.wire.metadata.update import update
from daybook.wire.topics import url_decode


class PendingNodes:
    """The pending nodes of one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._topics = SharedReads(store.get_children)

    async def of_topic(self, topic: str) -> dict[str, PendingBatch]:
        """Return the pending nodes of a topic partition, by sink id; they may be a little old."""
        found: dict[str, PendingBatch] = {}
        for node in await self._store.get_children(pending_root(topic)) or []:
            path = f"{pending_root(topic)}/{node}"
            record = await self._store.get(path)
            if record is not None:
                found[sink_id_of(node)] = decode_pending(record.value, path)
        return found

    async def shared_of_topic(self, topic: str) -> dict[str, PendingBatch]:
        """Return what `of_topic` does; topics that are loaded together share a read.

        Few topics have pending nodes, and each of those has a record below one parent.
        """
        topics = await self._topics.get(PENDING) or []
        encoded = pending_root(topic).rpartition("/")[2]
        at = bisect_left(topics, encoded)
        if at == len(topics) or topics[at] != encoded:
            return {}
        return await self.of_topic(topic)

    async def exist(self, topic: str) -> bool:
        """Return True if a batch is to be applied to the topic partition, as of now."""
        return bool(await self._store.get_newest_children(pending_root(topic)))

    async def find(self, topic: str, sink_id: str) -> PendingBatch | None:
        """Return the pending node of a sink, as of now."""
        await self._store.sync(pending_root(topic))
        return (await self.of_topic(topic)).get(sink_id)

    async def sinks(self) -> list[str]:
        """Return the names of the sinks that have pending nodes."""
        names: set[str] = set()
        for encoded in await self._store.get_children(PENDING) or []:
            topic = url_decode(encoded)
            found = await self.of_topic(topic)
            names |= {pending.sink for pending in found.values()}
            if not found:
                await self.prune([topic])
        return sorted(names)

    async def of_batch(self, stored: StoredSink) -> dict[str, tuple[PendingBatch, int]]:
        """Return the pending nodes of the batch, with their versions."""
        found: dict[str, tuple[PendingBatch, int]] = {}

        async def read(topic: str) -> None:
            path = path_of_last(topic, stored)
            record = await self._store.get(path)
            if record is not None:
                found[topic] = decode_pending(record.value, path), record.stat.version

        # The record was read after a sync, so these reads are not older.
        await for_each(stored.record.in_batch, read)
        return found

    async def make_root(self, topic: str) -> None:
        path = pending_root(topic)
        if await self._store.get(path) is None:
            with suppress(RecordExistsError):
                await self._store.create(path, b"", make_parents=True)

    async def mark(self, topic: str, sink_id: str, applied: PendingBatch) -> None:
        """Note that the whole share of a batch is durable in a topic partition."""
        path = pending_path(topic, sink_id, applied.batch_id)

        def change(value: bytes) -> bytes | None:
            found = decode_pending(value, path)
            if found != applied:
                return None  # It is marked, or another batch has followed.
            return encode_pending(_marked(found))

        with suppress(NoRecordError):  # Somebody has finished or given up the batch.
            await update(self._store, path, change)

    async def prune(self, topics: Iterable[str]) -> None:
        """Delete the parents of pending nodes that have no children any more."""
        for topic in topics:
            with suppress(NoRecordError, NotEmptyError, OutcomeUnknownError):
                await self._store.delete(pending_root(topic), ANY)


def _marked(pending: PendingBatch) -> PendingBatch:
    return PendingBatch(
        pending.version,
        pending.sink,
        pending.batch_id,
        pending.ledger_id,
        pending.checksum,
        pending.created,
        pending.first,
        pending.entries,
        applied=True,
    )


def path_of_last(topic: str, stored: StoredSink) -> str:
    """Return the path of the pending node of the last batch."""
    return pending_path(topic, stored.record.sink_id, stored.record.batch_id)
