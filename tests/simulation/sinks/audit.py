"""The audit of sinks: every change of the metadata, every append, and every message that is read.

The checks, each at the moment of the change:

X1  an entry is appended only if the record names its batch, as the next one of its topic partition,
    and never at two positions; when the record says APPLIED, every entry of the batch is durable;
    a reader finds the entries of a sink one after the other, from the first one on
X2  each entry has the text that the committed shares have at its sequence id, in the order of the
    tasks; a batch follows the one before, and only when that is APPLIED
X3  a staging ledger that a COMMITTED batch names is not deleted, and a manifest only after its
    staging ledgers
X4  a batch keeps its shares, and belongs to the query and checkpoint that own the sink; a driver
    is told `committed` or `done` of shares that were committed, and `replay` of others
X5  staging of a batch that was not committed is deleted only while the record names its attempt as
    abandoned, and no batch with an abandoned attempt is committed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from daybook.bookie.ledger.metadata import decode_metadata
from daybook.bookie.registry.paths import LedgerPaths
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.sink import SinkRecord, SinkState, Source, digest_of_shares
from daybook.managed_ledger.sinks.ledgers import SinkLedger, sink_ledger_of
from daybook.managed_ledger.sinks.progress import property_of
from daybook.managed_ledger.sinks.record import decode_record, record_path
from daybook.wire.metadata.store import Record

SINK = "sink"
_MANIFEST = "manifest-"
_PATHS = LedgerPaths()

Rows: TypeAlias = Sequence[tuple[str, str]]  # (topic partition, text)


@dataclass(slots=True)
class _Share:
    """The entries of one sink id for one topic partition."""

    texts: list[str] = field(default_factory=list[str])  # by sequence id
    durable: int = -1  # the highest sequence id that a broker has confirmed or counted
    positions: dict[int, Position] = field(default_factory=dict[int, Position])
    read: int = 0  # the sequence id that the tailing reader has to find next
    first: int = 0  # the first sequence id that the topic has, if it was made anew


@dataclass
class SinkAudit:
    owners: set[Source] = field(default_factory=set[Source])  # may commit; empty: everybody
    may_block: bool = False  # the run deletes or terminates topics
    problems: list[str] = field(default_factory=list[str])
    record: SinkRecord | None = None
    committed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    replays: int = 0
    ledgers: dict[str, SinkLedger] = field(default_factory=dict[str, SinkLedger])  # by path
    _shares: dict[tuple[str, str], _Share] = field(default_factory=dict[tuple[str, str], _Share])
    # By digest of shares: the attempts, and the rows of each task.
    _staged: dict[str, tuple[frozenset[str], list[Rows]]] = field(
        default_factory=dict[str, tuple[frozenset[str], list[Rows]]]
    )
    _digests: dict[str, int] = field(default_factory=dict[str, int])  # committed: batch ids
    _applied: set[str] = field(default_factory=set[str])  # attempts of APPLIED batches

    # -- drivers

    def staged(self, batch_id: int, attempts: Sequence[str], tasks: list[Rows]) -> str:
        """Note the shares that a driver will commit; return their digest."""
        digest = digest_of_shares(batch_id, attempts)
        self._staged[digest] = frozenset(attempts) - {""}, tasks
        return digest

    def answered(self, batch_id: int, digest: str, outcome: str) -> None:
        """Check the answer to a commit."""
        known = digest in self._digests
        if outcome in ("committed", "done") and not known:
            self.problems.append(f"X4: the answer is {outcome}, and batch {batch_id} has others")
        if outcome == "replay":
            self.replays += 1
            if known or batch_id not in self._digests.values():
                self.problems.append(f"X4: batch {batch_id} is no replay, and is said to be one")

    # -- metadata

    def changed(self, _writer: str, path: str, stored: Record | None) -> None:
        if path == record_path(SINK):
            if stored is not None:
                self.record_changed(decode_record(stored.value, SINK))
        elif stored is None:
            if path in self.ledgers:
                self._ledger_deleted(path, self.ledgers.pop(path))
        elif path.startswith("/ledgers/") and b"daybook/sink" in stored.value:
            owner = sink_ledger_of(decode_metadata(stored.value).custom)
            if owner is not None:
                self.ledgers[path] = owner

    def record_changed(self, record: SinkRecord) -> None:
        before, self.record = self.record, record
        if record.state is SinkState.BLOCKED and not self.may_block:
            self.problems.append("the batch is blocked, and no topic was deleted or terminated")
        if before is not None and record.sink_id != before.sink_id:
            self._forgotten(before)
            before = None
        if before is None or record.batch_id != before.batch_id:
            if record.manifest is not None:
                self._batch_committed(before, record)
        elif record.manifest != before.manifest:
            self.problems.append(f"X4: the batch {record.batch_id} has another manifest now")
        elif record.unapplied and not before.unapplied:
            self.problems.append(f"X1: the batch {record.batch_id} is {record.state} again")
        if record.state is SinkState.APPLIED and (before is None or before.state != record.state):
            self._batch_applied(record)

    def _forgotten(self, before: SinkRecord) -> None:
        if before.unapplied:
            self.problems.append(f"X1: the sink was forgotten while it was {before.state}")
        left = {each.attempt for each in self.ledgers.values()} & self._named(before)
        if left:
            self.problems.append(f"X1: the sink was forgotten, and {left} may be committed again")

    def _batch_committed(self, before: SinkRecord | None, record: SinkRecord) -> None:
        assert record.manifest is not None
        number = record.batch_id
        if before is not None and before.unapplied:
            self.problems.append(f"X2: {number} is committed before {before.batch_id} is applied")
        if before is not None and number <= before.batch_id:
            self.problems.append(f"X2: {number} follows {before.batch_id}")
        if self.owners and record.source not in self.owners:
            self.problems.append(f"X4: the batch {number} belongs to {record.source}")
        used = self._named(record) & (
            record.abandoned | (frozenset() if before is None else before.abandoned)
        )
        if used:
            self.problems.append(f"X5: {number} has the abandoned attempts {sorted(used)}")
        if record.manifest.shares in self._digests:
            self.problems.append(f"X1: the shares of {number} are committed for the second time")
        self._digests[record.manifest.shares] = number
        self.committed.append((record.sink_id, number))
        _, tasks = self._staged.get(record.manifest.shares, (None, []))
        for rows in tasks:
            for topic, text in rows:
                self._share(topic, record.sink_id).texts.append(text)
        for topic, partition in record.partitions.items():
            if partition.following != len(self._share(topic, record.sink_id).texts):
                self.problems.append(
                    f"X2: {topic} has {partition.following} entries in the record, and"
                    f" {len(self._share(topic, record.sink_id).texts)} were staged"
                )

    def _batch_applied(self, record: SinkRecord) -> None:
        self._applied |= self._named(record)
        for topic in record.in_batch:
            share = self._share(topic, record.sink_id)
            if share.durable < len(share.texts) - 1:
                self.problems.append(
                    f"X1: the batch {record.batch_id} is APPLIED, and {topic} has"
                    f" {share.durable + 1} of {len(share.texts)} entries"
                )

    def _ledger_deleted(self, path: str, owner: SinkLedger) -> None:
        record, attempt = self.record, owner.attempt
        if record is None:
            self.problems.append(f"X5: {attempt} was deleted, and there is no record")
            return
        mine = record.manifest is not None and path == _PATHS.ledger(record.manifest.ledger_id)
        if record.unapplied and (mine or attempt in self._named(record)):
            self.problems.append(f"X3: {attempt} was deleted, and its batch is {record.state}")
        if attempt.startswith(_MANIFEST):
            left = {each.attempt for each in self.ledgers.values()} & self._named(record)
            if mine and left:
                self.problems.append(f"X3: the manifest was deleted before {sorted(left)}")
        elif attempt not in record.abandoned and attempt not in self._applied:
            self.problems.append(f"X5: {attempt} was deleted, and nobody has abandoned it")

    def _named(self, record: SinkRecord) -> frozenset[str]:
        """Return the attempts that the record's manifest names."""
        if record.manifest is None:
            return frozenset()
        return self._staged.get(record.manifest.shares, (frozenset[str](), []))[0]

    # -- brokers

    def appended(self, topic: str, sink_id: str, sequence: int, text: str) -> None:
        """Check an entry that a broker gives to the log of a topic partition."""
        texts = self._share(topic, sink_id).texts
        if sequence >= len(texts):
            self.problems.append(
                f"X1: {topic} is given {sequence} ({text}), which nobody committed"
            )
        elif texts[sequence] != text:
            self.problems.append(f"X2: {topic} is given {text} as {sequence}: {texts[sequence]}")

    def confirmed(self, topic: str, sink_id: str, sequence: int, position: Position) -> None:
        """Check an entry that is durable in a topic partition now."""
        share = self._share(topic, sink_id)
        if sequence > share.durable + 1:
            self.problems.append(f"X1: {topic} has {sequence}, and lacks {share.durable + 1}")
        elsewhere = share.positions.setdefault(sequence, position)
        if elsewhere != position:
            self.problems.append(f"X1: {topic} has {sequence} at {elsewhere} and at {position}")
        below = share.positions.get(sequence - 1)
        if below is not None and below >= position:
            self.problems.append(f"X2: {topic} has {sequence} before {sequence - 1}")
        share.durable = max(share.durable, sequence)

    def counted(self, topic: str, sink_id: str, highest: int) -> None:
        """Note that a new owner has found the entries up to this sequence id in the log."""
        share = self._share(topic, sink_id)
        if highest >= len(share.texts):
            self.problems.append(f"X1: {topic} has {highest}, which nobody committed")
        share.durable = max(share.durable, highest)

    # -- readers

    def found(self, topic: str, producer: str, sequence: int, text: str) -> None:
        """Check the next message of a sink that a reader gets, in the order of the log."""
        for (name, sink_id), share in self._shares.items():
            if name == topic and producer == property_of(sink_id):
                if sequence != share.read or share.texts[sequence : sequence + 1] != [text]:
                    self.problems.append(
                        f"X1: a reader of {topic} finds {sequence} ({text}) behind"
                        f" {share.read - 1}: {share.texts[share.read : share.read + 1]}"
                    )
                share.read = sequence + 1
                return
        self.problems.append(f"X1: {topic} has {text}, which nobody committed")

    def check_end(self, found: Mapping[str, list[tuple[str, int, str]]]) -> None:
        """Compare all entries of sinks by topic partition, as (producer, sequence id, text)."""
        for (topic, sink_id), share in self._shares.items():
            wanted = list(enumerate(share.texts))[share.first :]
            mine = [(n, text) for who, n, text in found[topic] if who == property_of(sink_id)]
            if mine != wanted:
                self.problems.append(f"X1: {topic} has {mine}, and {wanted} is committed")
        producers = {who for entries in found.values() for who, _, _ in entries}
        strange = producers - {property_of(sink_id) for _, sink_id in self._shares}
        if strange:
            self.problems.append(f"X1: nobody knows the producers {strange}")

    def topics_are_new(self) -> None:
        """Note that all topics were deleted and made anew: nothing of before is there."""
        for share in self._shares.values():
            share.first = share.read = len(share.texts)
            share.durable = share.first - 1

    def left(self) -> list[str]:
        """Return the attempts whose ledgers have to go.

        Staging that nobody has abandoned stays for a week if another query has written it, or if
        the record is not at its batch.
        """
        record = self.record
        return [
            owner.attempt
            for owner in self.ledgers.values()
            if record is None
            or record.source is None
            or (owner.query_id == record.source.query_id and owner.batch_id <= record.batch_id)
        ]

    def _share(self, topic: str, sink_id: str) -> _Share:
        return self._shares.setdefault((topic, sink_id), _Share())
