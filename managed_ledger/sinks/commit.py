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

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from daybook.bookie.ledger.client import Quorums
from daybook.managed_ledger.protocol.sink import (
    BatchToCommit,
    ManifestId,
    SinkRecord,
    SinkRefusedError,
    SinkState,
    Verdict,
)
from daybook.managed_ledger.records import log_path
from daybook.managed_ledger.sinks.at_once import for_each
from daybook.managed_ledger.sinks.batch import Admit, Batch, ShareRef, demands
from daybook.managed_ledger.sinks.errors import StagingLostError
from daybook.managed_ledger.sinks.ledgers import SinkLedger, SinkLedgers
from daybook.managed_ledger.sinks.manifest import Manifest, encode_manifest, make_manifest
from daybook.managed_ledger.sinks.pending import PendingNodes, path_of_last
from daybook.managed_ledger.sinks.record import (
    encode_pending,
    encode_record,
    pending_batches,
    pending_path,
    record_path,
)
from daybook.managed_ledger.sinks.staging import HASH_MASK, StagingEnd, check_same_partitions
from daybook.managed_ledger.sinks.stored import CONFLICTS, StoredSink, StoredSinks
from daybook.wire.metadata.store import (
    ANY,
    REQUEST_BYTES_MAX,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    Set,
    StoreUnavailableError,
    request_bytes,
)
from daybook.wire.topics import TopicName

_ATTEMPTS = 16  # Each lost race is a write of another host; so many in a row are a mistake.


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a commit; see the docstring of the package."""

    outcome: str
    sink: StoredSink
    warning: str = ""


class Sinks:
    """The batches of the sinks of one metadata store.  `quorums` returns those of new ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: SinkLedgers,
        rng: Random,
        quorums: Callable[[], Awaitable[Quorums]],
    ) -> None:
        self.store = store
        self.ledgers = ledgers
        self.records = StoredSinks(store, rng)
        self.pending = PendingNodes(store)
        self._quorums = quorums

    # -- commit

    async def commit(self, name: str, batch: Batch, admit: Admit, *, role: str = "") -> Committed:
        """Commit a batch.  A new sink counts for the role, if one is named.

        Raise SinkRefusedError, StagingLostError, SinkCorruptError, or an error of `admit`.
        """
        wanted = batch.to_commit
        for _ in range(_ATTEMPTS):
            if await self.records.find(name) is None:
                await self._check_new(name, batch, role)
                if role:
                    await self.records.reserve(name, role)
            stored = await self.records.find_or_create(name, role)
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
                        found = await self.records.find_or_create(name)
                        return Committed("committed", found)
        raise StoreUnavailableError(
            f"the batch {batch.batch_id} of the sink {name} was not committed: its record, topics"
            " or ledgers change all the time; try again"
        )

    async def _check_new(self, name: str, batch: Batch, role: str) -> None:
        """Refuse the first batch of a sink before it gets a record, which would stay."""
        await self.records.check_number(role)
        try:
            await self._read_ends(name, batch)
        except StagingLostError:
            if await self.records.find(name) is None:
                raise  # Otherwise somebody has just committed, and the record tells what.

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
        await for_each(refs, read)
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
        ledger_id, attempt = -1, f"manifest-{self.records.new_id()}"
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
        await for_each(topics, self.pending.make_root)
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
        found = await self.records.find(stored.name)
        if ledger_id >= 0 and found is not None and found.version > stored.version:
            await self.ledgers.delete(ledger_id, stored.name, attempt)

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
            except CONFLICTS:
                conflict = True
            except OutcomeUnknownError as unknown:
                in_doubt = unknown
            try:
                found = await self.records.find(stored.name)
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
        return Committed("replay", await self.records.find_or_create(stored.name), warning)

    # -- abandon

    async def abandon(
        self, name: str, shares: Sequence[ShareRef], *, role: str = ""
    ) -> tuple[list[ShareRef], list[ShareRef]]:
        """Give staging up and delete it; return what was given up, and what is kept.

        A record that has to be made counts for the role that gives the staging up.

        Attempts that a committed batch names are kept.  An attempt is deleted only after its name
        is in the record, where it stays till then.  Without record and ledgers nothing is stored.
        """
        if await self.records.find(name) is None and not await self._any_exists(name, shares):
            return list(shares), []
        named = frozenset[str]()
        while True:
            stored = await self.records.find_or_create(name, role)
            if stored.record.unapplied:
                named = (await self.read_manifest(stored)).attempts
            following = stored.record.abandon([share.attempt for share in shares], named)
            if following.abandoned == stored.record.abandoned:
                break
            if await self.records.replace(stored, following):
                break
        gone = [share for share in shares if share.attempt in following.abandoned]
        deleted: list[str] = []

        async def delete(share: ShareRef) -> None:
            if await self.ledgers.delete(share.ledger_id, name, share.attempt):
                deleted.append(share.attempt)

        await for_each(gone, delete)
        await self.records.change(name, lambda record: record.clear(deleted))
        return gone, [share for share in shares if share not in gone]

    async def _any_exists(self, name: str, shares: Sequence[ShareRef]) -> bool:
        found: list[bool] = []

        async def look(share: ShareRef) -> None:
            found.append(await self.ledgers.exists(share.ledger_id, name, share.attempt))

        await for_each(shares, look)
        return any(found)

    # -- apply

    async def read_manifest(self, stored: StoredSink) -> Manifest:
        manifest = stored.record.manifest
        assert manifest is not None
        return await self.ledgers.read_manifest(manifest.ledger_id, manifest.checksum, stored.name)

    async def block(self, name: str, sink_id: str, topic: str, reason: str) -> None:
        """Note that the batch cannot be applied to a topic partition any more."""

        def rule(record: SinkRecord) -> SinkRecord | None:
            return record.block(topic, reason) if record.sink_id == sink_id else None

        with suppress(NoRecordError):
            await self.records.change(name, rule)

    async def finish(self, name: str) -> StoredSink | None:
        """Make a batch APPLIED if all its topic partitions are, and delete its staging.

        Return the sink as it is then; None if there is none.
        """
        for _ in range(_ATTEMPTS):
            stored = await self.records.find(name)
            if stored is None or stored.record.state is not SinkState.COMMITTED:
                break
            nodes = await self.pending.of_batch(stored)
            following = stored.record.mark_applied(
                [topic for topic, (pending, _) in nodes.items() if pending.applied]
            )
            if following is None:
                return stored
            operations: list[Operation] = [
                Set(record_path(name), encode_record(following), stored.version)
            ]
            for topic, (_, version) in nodes.items():
                path = path_of_last(topic, stored)
                operations.append(Delete(path, version))
            if await self._swap(stored, following, operations) is not None:
                await self.pending.prune(nodes)
        else:
            raise StoreUnavailableError(f"the record of the sink {name} changes all the time")
        if stored is not None and stored.record.state is SinkState.APPLIED:
            await self.clean(stored)
        return stored

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

        shares = [ShareRef(each.attempt, each.ledger_id) for each in manifest.ledgers]
        await for_each(shares, delete)
        return not left and await self.ledgers.delete(record.manifest.ledger_id, stored.name)

    # -- decisions of an operator

    async def forget(self, name: str) -> SinkRecord:
        """Let the next commit come from any query.  Raise SinkRefusedError, NoRecordError."""
        for _ in range(_ATTEMPTS):
            stored = await self.records.existing(name)
            following = stored.record.forget(self.records.new_id())
            if stored.record.state is SinkState.APPLIED and not await self.clean(stored):
                # A driver that still has these shares could commit them once more.
                raise StoreUnavailableError(
                    f"the staging ledgers of the sink {name} cannot be deleted now: try again"
                )
            if await self.records.replace(stored, following):
                return following
        raise StoreUnavailableError(f"the record of the sink {name} changes all the time")

    async def move(self, name: str, checkpoint: str) -> SinkRecord:
        await self.records.existing(name)
        return await self.records.change(name, lambda record: record.move(checkpoint))

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
            stored = await self.records.existing(name)
            following = rule(stored.record)
            nodes = await self.pending.of_batch(stored)
            operations: list[Operation] = [
                Set(record_path(name), encode_record(following), stored.version)
            ]
            for topic, (_, version) in nodes.items():
                if topics is None or topic in topics:
                    path = path_of_last(topic, stored)
                    operations.append(Delete(path, version))
            done = await self._swap(stored, following, operations)
            if done is not None:
                return done
        raise StoreUnavailableError(f"the record of the sink {name} changes all the time")


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


def _list_path(topic: str) -> str:
    return log_path(TopicName.parse(topic).managed_ledger_name)
