"""Commit, abandon and finish batches of sinks: the shell of `protocol.sink` over a metadata store.

Every decision is a compare-and-swap of the sink's record on a version that was read after a sync.
A batch is committed in one transaction, which

- replaces the record by the COMMITTED one, on the version that was read *before* the staging was
  looked at: whoever abandons an attempt changes that version first
- creates a pending node for each topic partition
- checks that the manifest, the staging ledgers and the topics' lists exist

If the answer is lost, the record is read again, and the batch is recognized by its shares.  If
the outcome cannot be known now, LedgerError or MetadataError is raised, and the caller repeats the
call.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TypeAlias, TypeVar

import trio

from daybook.bookie.ledger.client import Quorums
from daybook.managed_ledger.protocol.sink import (
    BatchToCommit,
    ManifestId,
    SinkRecord,
    SinkRefusedError,
    SinkState,
    Source,
    Verdict,
    digest_of_shares,
)
from daybook.managed_ledger.records import log_path
from daybook.managed_ledger.sinks.errors import StagingLostError
from daybook.managed_ledger.sinks.ledgers import SinkLedger, SinkLedgers
from daybook.managed_ledger.sinks.manifest import Manifest, encode_manifest, make_manifest
from daybook.managed_ledger.sinks.record import (
    PENDING,
    ROOT,
    PendingBatch,
    decode_pending,
    decode_record,
    encode_pending,
    encode_record,
    of_role_path,
    pending_batches,
    pending_path,
    pending_root,
    record_path,
    sink_id_of,
)
from daybook.managed_ledger.sinks.staging import HASH_MASK, StagingEnd, check_same_partitions
from daybook.wire.metadata.shared_reads import SharedReads
from daybook.wire.metadata.store import (
    ANY,
    REQUEST_BYTES_MAX,
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
    Set,
    StoreUnavailableError,
    VersionConflictError,
    request_bytes,
)
from daybook.wire.metadata.update import update
from daybook.wire.topics import TopicName, url_decode, url_encode

_ATTEMPTS = 16  # Each lost race is a write of another host; so many in a row are a mistake.
_AT_ONCE = 16
SINKS_MAX = 20_000  # With more, the names of all would not fit into one answer of ZooKeeper.
ROLE_SINKS_MAX = SINKS_MAX // 4
_TOPICS_MAX = 8  # The record of an empty first batch names so many.
_T = TypeVar("_T")
_CONFLICTS = (VersionConflictError, NoRecordError, RecordExistsError)


@dataclass(frozen=True, slots=True)
class ShareRef:
    """The staging ledger of one task."""

    attempt: str
    ledger_id: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The entries that a batch will append to one topic partition."""

    entries: int
    bytes: int
    largest: int  # the bytes of the largest entry


Admit: TypeAlias = Callable[[Mapping[str, Demand]], Awaitable[Mapping[str, int]]]
"""Asks topic partitions if they take a batch; returns the transactions that created their lists."""


@dataclass(frozen=True, slots=True)
class StoredSink:
    name: str
    record: SinkRecord
    version: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query, as its driver names it."""

    source: Source
    batch_id: int
    partitions: Mapping[str, int]  # by topic, as the driver counted them
    shares: Sequence[ShareRef | None]  # in the order of the tasks; None: a task without entries
    once: bool = False

    @property
    def refs(self) -> list[ShareRef]:
        return [share for share in self.shares if share is not None]

    @property
    def to_commit(self) -> BatchToCommit:
        names = ["" if share is None else share.attempt for share in self.shares]
        attempts = frozenset(share.attempt for share in self.refs)
        digest = digest_of_shares(self.batch_id, names)
        return BatchToCommit(
            self.source, self.batch_id, digest, attempts, self.once, self._topics()
        )

    def _topics(self) -> list[str]:
        """Return topic partitions that stand for those of the batch: a few say whose it is."""
        counts = sorted(self.partitions.items())[:_TOPICS_MAX]
        return [f"{topic}-partition-0" if count else topic for topic, count in counts]


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a commit; see the docstring of the package."""

    outcome: str
    sink: StoredSink
    warning: str = ""


class Sinks:
    """The sinks of one metadata store.  `quorums` returns those of new ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: SinkLedgers,
        rng: Random,
        quorums: Callable[[], Awaitable[Quorums]],
    ) -> None:
        self.store = store
        self.ledgers = ledgers
        self._rng = rng
        self._quorums = quorums
        self._pending_topics = SharedReads(store.get_children)
        self._reserving = trio.Lock()  # Requests at the same time must not exceed a limit together.

    def new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    # -- reading

    async def names(self) -> list[str]:
        return [url_decode(each) for each in await self.store.get_children(ROOT) or []]

    async def find(self, name: str) -> StoredSink | None:
        """Return a sink as it is after everything that was written before this call."""
        record = await self.store.get_newest(record_path(name))
        return None if record is None else _stored(name, record)

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
                    await self.store.create(path, value, make_parents=True)

    async def _create_counted(self, path: str, value: bytes, of_role: str) -> None:
        """Create a record and the node that counts it."""
        counted = f"{of_role}/{path.rpartition('/')[2]}"
        for parent in (ROOT, of_role):
            if await self.store.get(parent) is None:
                with suppress(RecordExistsError):
                    await self.store.create(parent, b"", make_parents=True)
        # Somebody may have deleted a record by hand, and left the node that counts it.
        known = await self.store.get_newest(counted) is not None
        count: Operation = Check(counted, ANY) if known else Create(counted, b"")
        with suppress(NoRecordError):  # Somebody has just deleted the last node of the role.
            await self.store.multi([Create(path, value), count])

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
                await self._check_number(role)
                await self.find_or_create(name, role)

    async def delete_record(self, stored: StoredSink) -> None:
        """Delete a record, and the node that counts it.

        Raise VersionConflictError, NoRecordError, OutcomeUnknownError.
        """
        path, role = record_path(stored.name), stored.record.role
        delete = Delete(path, stored.version)
        if not role:
            await self.store.delete(path, stored.version)
            return
        of_role = of_role_path(role)
        counted = f"{of_role}/{url_encode(stored.name)}"
        known = await self.store.get_newest(counted) is not None
        await self.store.multi([delete, Delete(counted, ANY)] if known else [delete])
        with suppress(NoRecordError, NotEmptyError, OutcomeUnknownError):
            await self.store.delete(of_role, ANY)

    async def pending_of(self, topic: str) -> dict[str, PendingBatch]:
        """Return the pending nodes of a topic partition, by sink id; they may be a little old."""
        found: dict[str, PendingBatch] = {}
        for node in await self.store.get_children(pending_root(topic)) or []:
            path = f"{pending_root(topic)}/{node}"
            record = await self.store.get(path)
            if record is not None:
                found[sink_id_of(node)] = decode_pending(record.value, path)
        return found

    async def shared_pending_of(self, topic: str) -> dict[str, PendingBatch]:
        """Return what `pending_of` does; topics that are loaded together share a read.

        Few topics have pending nodes, and each of those has a record below one parent.
        """
        topics = await self._pending_topics.get(PENDING) or []
        encoded = pending_root(topic).rpartition("/")[2]
        at = bisect_left(topics, encoded)
        if at == len(topics) or topics[at] != encoded:
            return {}
        return await self.pending_of(topic)

    async def has_pending(self, topic: str) -> bool:
        """Return True if a batch is to be applied to the topic partition, as of now."""
        return bool(await self.store.get_newest_children(pending_root(topic)))

    async def pending(self, topic: str, sink_id: str) -> PendingBatch | None:
        """Return the pending node of a sink, as of now."""
        await self.store.sync(pending_root(topic))
        return (await self.pending_of(topic)).get(sink_id)

    async def pending_sinks(self) -> list[str]:
        """Return the names of the sinks that have pending nodes."""
        names: set[str] = set()
        for encoded in await self.store.get_children(PENDING) or []:
            topic = url_decode(encoded)
            found = await self.pending_of(topic)
            names |= {pending.sink for pending in found.values()}
            if not found:
                await self._prune([topic])
        return sorted(names)

    # -- commit

    async def commit(self, name: str, batch: Batch, admit: Admit, *, role: str = "") -> Committed:
        """Commit a batch.  A new sink counts for the role, if one is named.

        Raise SinkRefusedError, StagingLostError, SinkCorruptError, or an error of `admit`.
        """
        wanted = batch.to_commit
        for _ in range(_ATTEMPTS):
            if await self.find(name) is None:
                await self._check_new(name, batch, role)
                if role:
                    await self.reserve(name, role)
            stored = await self.find_or_create(name, role)
            match stored.record.judge(wanted):
                case Verdict.DONE:
                    return Committed("done", stored)
                case Verdict.WAIT:
                    return Committed("wait", stored)
                case Verdict.REPLAY:
                    return await self._replay(stored, batch)
                case Verdict.PROCEED:
                    # A host that deletes something that is looked at from here on has changed the
                    # version of the record before.
                    ends = await self._read_ends(name, batch)
                    if await self._commit(stored, batch, wanted, ends, admit):
                        found = await self.find_or_create(name)
                        return Committed("committed", found)
        raise StoreUnavailableError(
            f"the batch {batch.batch_id} of the sink {name} was not committed: its record, topics"
            " or ledgers change all the time; try again"
        )

    async def _check_new(self, name: str, batch: Batch, role: str) -> None:
        """Refuse the first batch of a sink before it gets a record, which would stay."""
        await self._check_number(role)
        try:
            await self._read_ends(name, batch)
        except StagingLostError:
            if await self.find(name) is None:
                raise  # Otherwise somebody has just committed, and the record tells what.

    async def _check_number(self, role: str) -> None:
        """Raise SinkRefusedError if there are too many sinks, or too many of the role."""
        if role:
            own = await self.store.get_newest(of_role_path(role))
            if own is not None and own.stat.children_count >= ROLE_SINKS_MAX:
                raise SinkRefusedError(
                    f"the role {role!r} has {ROLE_SINKS_MAX} sinks, which is the limit for one"
                    " role: use a sink that is there, or let an administrator free those that are"
                    " not needed with `daybook sinks forget`; they count for a week after that"
                )
        root = await self.store.get(ROOT)
        if root is not None and root.stat.children_count >= SINKS_MAX:
            raise SinkRefusedError(
                f"there are {SINKS_MAX} sinks, which is the limit: the sinks of batch jobs are"
                " removed a week after their batch, and others a week after `daybook sinks forget`"
            )

    async def _read_ends(self, name: str, batch: Batch) -> list[tuple[int, StagingEnd]]:
        """Return what the staging ledgers say, in the order of the tasks."""
        found: dict[int, StagingEnd] = {}

        async def read(share: ShareRef) -> None:
            found[share.ledger_id] = await self.ledgers.read_end(
                share.ledger_id, name, share.attempt
            )

        refs = batch.refs
        if len({ref.ledger_id for ref in refs}) < len(refs):
            raise SinkRefusedError("two tasks name the same staging ledger")
        await _each(refs, read)
        for end in found.values():
            check_same_partitions(end, batch.partitions)
            if (end.query_id, end.batch_id) != (batch.source.query_id, batch.batch_id):
                raise SinkRefusedError(
                    f"the attempt {end.attempt} was staged for the batch {end.batch_id} of the"
                    f" query {end.query_id}, not for the batch {batch.batch_id} of the query"
                    f" {batch.source.query_id}"
                )
        return [(ref.ledger_id, found[ref.ledger_id]) for ref in refs]

    async def _commit(
        self,
        stored: StoredSink,
        batch: Batch,
        wanted: BatchToCommit,
        ends: Sequence[tuple[int, StagingEnd]],
        admit: Admit,
    ) -> bool:
        """Write manifest and record; return False if the record has changed meanwhile."""
        name, record = stored.name, stored.record
        created = await admit(demands(end for _, end in ends))
        manifest = make_manifest(name, record, batch.batch_id, batch.source.query_id, ends)
        pieces, checksum = encode_manifest(manifest)
        entries = manifest.entries
        ledger_id, attempt = -1, f"manifest-{self.new_id()}"
        if entries:
            source = batch.source
            owner = SinkLedger(name, attempt, source.query_id, batch.batch_id, record.role)
            ledger_id = await self.ledgers.write(owner, await self._quorums(), pieces)
        following = record.commit(
            wanted,
            ManifestId(ledger_id, checksum, wanted.shares),
            entries,
            created,
            rows=sum(end.rows for _, end in ends),
            hash_=sum(end.hash for _, end in ends) & HASH_MASK,
        )
        topics = list(entries)
        await _each(topics, self._make_pending_root)
        operations: list[Operation] = [
            Set(record_path(name), encode_record(following), stored.version)
        ]
        for topic, pending in pending_batches(name, following, entries).items():
            path = pending_path(topic, record.sink_id, batch.batch_id)
            operations.append(Create(path, encode_pending(pending)))
        # Nothing that the batch needs was deleted meanwhile.
        ledger_ids = [found for found, _ in ends if ledger_id >= 0]
        ledger_ids += [ledger_id] if ledger_id >= 0 else []
        operations += [Check(self.ledgers.path(each), ANY) for each in ledger_ids]
        operations += [Check(_list_path(topic), ANY) for topic in topics]
        if request_bytes(operations) > REQUEST_BYTES_MAX:
            raise SinkRefusedError(
                f"the batch has {len(ends)} tasks and {len(topics)} topic partitions, which is too"
                " much for one transaction: use fewer tasks, or several sinks"
            )
        committed = await self._swap(stored, following, operations)
        if committed is None or committed.manifest != following.manifest:
            await self._drop_manifest(stored, ledger_id, attempt)
        return committed is not None

    async def _drop_manifest(self, stored: StoredSink, ledger_id: int, attempt: str) -> None:
        """Delete a manifest whose transaction failed.

        While the record has the version that the transaction names, a request that was never
        answered may yet be carried out.  Then the manifest is left to the cleaner.
        """
        found = await self.find(stored.name)
        if ledger_id >= 0 and found is not None and found.version > stored.version:
            await self.ledgers.delete(ledger_id, stored.name, attempt)

    async def _make_pending_root(self, topic: str) -> None:
        path = pending_root(topic)
        if await self.store.get(path) is None:
            with suppress(RecordExistsError):
                await self.store.create(path, b"", make_parents=True)

    async def _swap(
        self, stored: StoredSink, following: SinkRecord, operations: Sequence[Operation]
    ) -> SinkRecord | None:
        """Carry out a transaction that replaces the record, and return the record that it left.

        Return None if the record was changed by others, or something that the transaction checks is
        not there.  A commit of the same shares by another broker counts as this one.
        """
        in_doubt: OutcomeUnknownError | None = None
        while True:
            conflict = False
            try:
                await self.store.multi(operations)
                return following
            except _CONFLICTS:
                conflict = True
            except OutcomeUnknownError as unknown:
                in_doubt = unknown
            try:
                found = await self.find(stored.name)
            except StoreUnavailableError as error:
                raise in_doubt or error from error
            if found is None:
                return None
            if found.version == stored.version:
                if conflict:
                    return None
                continue  # It was not carried out yet, so it is asked for under the same version.
            if _is_same(found.record, following):
                return found.record
            return None

    async def _replay(self, stored: StoredSink, batch: Batch) -> Committed:
        """Throw the staging of a replay away, and return the batch that was committed before."""
        ends = [end for _, end in await self._read_ends(stored.name, batch)]
        hash_ = sum(end.hash for end in ends) & HASH_MASK
        warning = stored.record.check_replay(sum(end.rows for end in ends), hash_)
        await self.abandon(stored.name, batch.refs)
        return Committed("replay", await self.find_or_create(stored.name), warning)

    # -- abandon

    async def abandon(
        self, name: str, shares: Sequence[ShareRef], *, role: str = ""
    ) -> tuple[list[ShareRef], list[ShareRef]]:
        """Give staging up and delete it; return what was given up, and what is kept.

        A record that has to be made counts for the role that gives the staging up.

        Attempts that a committed batch names are kept.  An attempt is deleted only after its name
        is in the record, where it stays till then.  Without record and ledgers nothing is stored.
        """
        if await self.find(name) is None and not await self._any_exists(name, shares):
            return list(shares), []
        named = frozenset[str]()
        while True:
            stored = await self.find_or_create(name, role)
            if stored.record.unapplied:
                named = (await self.read_manifest(stored)).attempts
            following = stored.record.abandon([share.attempt for share in shares], named)
            if following.abandoned == stored.record.abandoned:
                break
            if await self._set(stored, following):
                break
        gone = [share for share in shares if share.attempt in following.abandoned]
        deleted: list[str] = []

        async def delete(share: ShareRef) -> None:
            if await self.ledgers.delete(share.ledger_id, name, share.attempt):
                deleted.append(share.attempt)

        await _each(gone, delete)
        await self._clear(name, deleted)
        return gone, [share for share in shares if share not in gone]

    async def _any_exists(self, name: str, shares: Sequence[ShareRef]) -> bool:
        found: list[bool] = []

        async def look(share: ShareRef) -> None:
            found.append(await self.ledgers.exists(share.ledger_id, name, share.attempt))

        await _each(shares, look)
        return any(found)

    async def _clear(self, name: str, attempts: Sequence[str]) -> None:
        await self.change(name, lambda record: record.clear(attempts))

    async def _set(self, stored: StoredSink, following: SinkRecord) -> bool:
        """Replace the record; return False if the outcome is not certain, or others were faster."""
        path = record_path(stored.name)
        try:
            await self.store.set(path, encode_record(following), stored.version)
        except (*_CONFLICTS, OutcomeUnknownError):
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
        known = await self.store.get_newest(path)
        if known is None:
            raise NoRecordError(f"there is no sink {name}")
        value, _ = await update(self.store, path, changed, known=known)
        return decode_record(value, name)

    # -- apply

    async def read_manifest(self, stored: StoredSink) -> Manifest:
        manifest = stored.record.manifest
        assert manifest is not None
        return await self.ledgers.read_manifest(manifest.ledger_id, manifest.checksum, stored.name)

    async def mark(self, topic: str, sink_id: str, applied: PendingBatch) -> None:
        """Note that the whole share of a batch is durable in a topic partition."""
        path = pending_path(topic, sink_id, applied.batch_id)

        def change(value: bytes) -> bytes | None:
            found = decode_pending(value, path)
            if found != applied:
                return None  # It is marked, or another batch has followed.
            return encode_pending(_marked(found))

        with suppress(NoRecordError):  # Somebody has finished or given up the batch.
            await update(self.store, path, change)

    async def block(self, name: str, sink_id: str, topic: str, reason: str) -> None:
        """Note that the batch cannot be applied to a topic partition any more."""

        def rule(record: SinkRecord) -> SinkRecord | None:
            return record.block(topic, reason) if record.sink_id == sink_id else None

        with suppress(NoRecordError):
            await self.change(name, rule)

    async def finish(self, name: str) -> StoredSink | None:
        """Make a batch APPLIED if all its topic partitions are, and delete its staging.

        Return the sink as it is then; None if there is none.
        """
        for _ in range(_ATTEMPTS):
            stored = await self.find(name)
            if stored is None or stored.record.state is not SinkState.COMMITTED:
                break
            nodes = await self._pending_nodes(stored)
            following = stored.record.mark_applied(
                [topic for topic, (pending, _) in nodes.items() if pending.applied]
            )
            if following is None:
                return stored
            operations: list[Operation] = [
                Set(record_path(name), encode_record(following), stored.version)
            ]
            for topic, (_, version) in nodes.items():
                path = _pending_path(topic, stored)
                operations.append(Delete(path, version))
            if await self._swap(stored, following, operations) is not None:
                await self._prune(nodes)
        else:
            raise StoreUnavailableError(f"the record of the sink {name} changes all the time")
        if stored is not None and stored.record.state is SinkState.APPLIED:
            await self.clean(stored)
        return stored

    async def _pending_nodes(self, stored: StoredSink) -> dict[str, tuple[PendingBatch, int]]:
        """Return the pending nodes of the batch, with their versions."""
        found: dict[str, tuple[PendingBatch, int]] = {}

        async def read(topic: str) -> None:
            path = _pending_path(topic, stored)
            record = await self.store.get(path)
            if record is not None:
                found[topic] = decode_pending(record.value, path), record.stat.version

        # The record was read after a sync, so these reads are not older.
        await _each(stored.record.in_batch, read)
        return found

    async def _prune(self, topics: Iterable[str]) -> None:
        """Delete the parents of pending nodes that have no children any more."""
        for topic in topics:
            with suppress(NoRecordError, NotEmptyError, OutcomeUnknownError):
                await self.store.delete(pending_root(topic), ANY)

    async def clean(self, stored: StoredSink) -> bool:
        """Delete the staging of an APPLIED batch; return True if nothing of it is left."""
        record = stored.record
        assert record.state is SinkState.APPLIED
        if record.manifest is None or record.manifest.ledger_id < 0:
            return True
        try:
            manifest = await self.read_manifest(stored)
        except StagingLostError:
            return True  # The manifest is deleted last.
        left: list[int] = []

        async def delete(share: ShareRef) -> None:
            if not await self.ledgers.delete(share.ledger_id, stored.name, share.attempt):
                left.append(share.ledger_id)

        await _each([ShareRef(each.attempt, each.ledger_id) for each in manifest.ledgers], delete)
        return not left and await self.ledgers.delete(record.manifest.ledger_id, stored.name)

    # -- decisions of an operator

    async def forget(self, name: str) -> SinkRecord:
        """Let the next commit come from any query.  Raise SinkRefusedError, NoRecordError."""
        for _ in range(_ATTEMPTS):
            stored = await self._existing(name)
            following = stored.record.forget(self.new_id())
            if stored.record.state is SinkState.APPLIED and not await self.clean(stored):
                # A driver that still has these shares could commit them once more.
                raise StoreUnavailableError(
                    f"the staging ledgers of the sink {name} cannot be deleted now: try again"
                )
            if await self._set(stored, following):
                return following
        raise StoreUnavailableError(f"the record of the sink {name} changes all the time")

    async def move(self, name: str, checkpoint: str) -> SinkRecord:
        await self._existing(name)
        return await self.change(name, lambda record: record.move(checkpoint))

    async def skip(self, name: str, topic: str) -> SinkRecord:
        """Give up the rest of a blocked batch in one topic partition."""
        return await self._resolve(name, lambda record: record.skip(topic), [topic])

    async def abandon_batch(self, name: str) -> SinkRecord:
        """Give up the rest of a blocked batch."""
        return await self._resolve(name, SinkRecord.abandon_batch, None)

    async def _resolve(
        self,
        name: str,
        rule: Callable[[SinkRecord], SinkRecord],
        topics: Sequence[str] | None,
    ) -> SinkRecord:
        """Apply a rule, and delete the pending nodes of topic partitions (None: of all)."""
        for _ in range(_ATTEMPTS):
            stored = await self._existing(name)
            following = rule(stored.record)
            nodes = await self._pending_nodes(stored)
            operations: list[Operation] = [
                Set(record_path(name), encode_record(following), stored.version)
            ]
            for topic, (_, version) in nodes.items():
                if topics is None or topic in topics:
                    path = _pending_path(topic, stored)
                    operations.append(Delete(path, version))
            done = await self._swap(stored, following, operations)
            if done is not None:
                return done
        raise StoreUnavailableError(f"the record of the sink {name} changes all the time")

    async def _existing(self, name: str) -> StoredSink:
        stored = await self.find(name)
        if stored is None:
            raise NoRecordError(f"there is no sink {name}")
        return stored


def demands(ends: Iterable[StagingEnd]) -> dict[str, Demand]:
    """Return what staged entries will append to each topic partition."""
    found: dict[str, Demand] = {}
    for end in ends:
        for run in end.runs:
            topic = end.topics[run.topic]
            before = found.get(topic, Demand(0, 0, 0))
            found[topic] = Demand(
                before.entries + run.entries,
                before.bytes + run.bytes,
                max(before.largest, end.largest),
            )
    return found


def _is_same(found: SinkRecord, following: SinkRecord) -> bool:
    """Return True if a record has the content that a transaction of this host wanted to write.

    Others may have changed it since, so only the batch, and how far it is, are compared.
    """
    if found.sink_id != following.sink_id or found.batch_id != following.batch_id:
        return False
    mine, theirs = following.manifest, found.manifest
    if mine is None or theirs is None or mine.shares != theirs.shares:
        return False
    if following.state is SinkState.APPLIED:
        return found.state is SinkState.APPLIED
    return all(
        not partition.skipped or found.partitions[topic].skipped
        for topic, partition in following.partitions.items()
        if topic in found.partitions
    )


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


def _stored(name: str, record: Record) -> StoredSink:
    found = decode_record(record.value, name)
    return StoredSink(name, found, record.stat.version, record.stat.modified_ms)


def _pending_path(topic: str, stored: StoredSink) -> str:
    """Return the path of the pending node of the last batch."""
    return pending_path(topic, stored.record.sink_id, stored.record.batch_id)


def _list_path(topic: str) -> str:
    return log_path(TopicName.parse(topic).managed_ledger_name)


async def _each(items: Iterable[_T], act: Callable[[_T], Awaitable[None]]) -> None:
    """Call `act` for all items, several at a time, and raise the first error."""
    errors: list[Exception] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def run(item: _T) -> None:
        async with limiter:
            if not errors:
                try:
                    await act(item)
                except Exception as error:
                    errors.append(error)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(run, item)
    if errors:
        raise errors[0]
