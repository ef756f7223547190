"""The rules of a sink: which batch its record names, and what may become of staged entries.

    NEW --commit--> COMMITTED --applied--> APPLIED --commit--> COMMITTED ...
                     |    ^                   ^
                  blocked skip (the last one) |
                     v    |                   |
                    BLOCKED -----abandon------+

`SinkRecord` is the record of one sink.  Each rule is a method that returns the next record, or
raises `SinkRefusedError` with the remedy.  The shell writes what is returned by compare-and-swap on
the version that it has read, and calls the rule again if somebody else was faster.  So the write of
a COMMITTED record is the only point of commit.

- A commit is known by its shares, not by its batch id.  The digest of the shares names the attempts
  in the order of the tasks, and no two attempts have the same id.  Equal shares are this very
  batch; the same batch id with other shares is a replay, and its staging is thrown away.
- A batch is committed only when the one before it is APPLIED, and only if none of its attempts is
  abandoned.
- Staged entries that were not committed are deleted only after their attempts were abandoned in the
  record.  Attempts that a committed batch names are never abandoned before it is APPLIED.
- A sink id is never used twice: a sink that was forgotten gets another one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import sha256

NO_BATCH = -1
PARTITIONS_MAX = 1_000  # at most, in one batch
KNOWN_PARTITIONS_MAX = 4_000  # at most, in all batches of one sink
ABANDONED_MAX = 5_000
WEEK_MS = 7 * 24 * 3600 * 1000


class SinkRefusedError(Exception):
    """The record does not allow the request; asking again gives the same answer."""


class SinkState(Enum):
    NEW = "NEW"  # no query has the sink
    COMMITTED = "COMMITTED"  # the batch is in the topics, or will be
    APPLIED = "APPLIED"  # the whole batch is in the topics
    BLOCKED = "BLOCKED"  # COMMITTED, and a partition cannot be applied any more


@dataclass(frozen=True, slots=True)
class ManifestId:
    """The manifest of a batch; `ledger_id` is -1 for a batch without entries."""

    ledger_id: int
    checksum: str  # the SHA-256 of its bytes
    shares: str  # `digest_of_shares`


@dataclass(frozen=True, slots=True)
class SinkPartition:
    """One topic partition to which the sink has written, or which its empty first batch named."""

    created: int  # the transaction that created the topic's list of ledgers; -1: unknown
    following: int  # the sequence id of the first entry of the next batch
    batch: int  # the last batch that has entries for it; NO_BATCH: none
    blocked: str = ""  # the reason why that batch cannot be applied here
    skipped: bool = False  # an operator gave the rest of that batch up


_NOTHING_WRITTEN = SinkPartition(-1, 0, NO_BATCH)


@dataclass(frozen=True, slots=True)
class Source:
    """The writer of a sink: one streaming query with its checkpoint, or one batch job."""

    query_id: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class BatchToCommit:
    """A commit that a driver asks for."""

    source: Source
    batch_id: int
    shares: str  # `digest_of_shares`
    attempts: frozenset[str]
    once: bool = False
    topics: Sequence[str] = ()  # topic partitions that stand for those of the batch


class Verdict(Enum):
    PROCEED = auto()  # write the manifest and the record
    DONE = auto()  # the record names these very shares
    REPLAY = auto()  # the record names other shares of that batch
    WAIT = auto()  # the batch before is not APPLIED


@dataclass(frozen=True, slots=True)
class SinkRecord:
    sink_id: str
    state: SinkState = SinkState.NEW
    source: Source | None = None
    batch_id: int = NO_BATCH
    manifest: ManifestId | None = None
    rows: int = 0
    hash: int = 0
    once: bool = False  # the name is used for one batch
    partitions: Mapping[str, SinkPartition] = field(default_factory=dict[str, SinkPartition])
    abandoned: frozenset[str] = frozenset()
    role: str = ""  # the role that used the name first; its number of sinks is limited

    @property
    def unapplied(self) -> bool:
        """True while the staged entries of the batch are needed."""
        return self.state in (SinkState.COMMITTED, SinkState.BLOCKED)

    @property
    def in_batch(self) -> list[str]:
        """The topic partitions that have a pending node while the batch is not APPLIED."""
        return [
            topic
            for topic, partition in self.partitions.items()
            if partition.batch == self.batch_id and not partition.skipped
        ]

    # -- commit

    def judge(self, batch: BatchToCommit) -> Verdict:
        """Return what a commit of the batch has to do.  Raise SinkRefusedError."""
        if self.source is None:
            self._check_attempts(batch)
            return Verdict.PROCEED
        self.check_source(batch.source)
        same_shares = self.manifest is not None and self.manifest.shares == batch.shares
        if batch.batch_id == self.batch_id:
            # The driver may ask again: its answer was lost, or it was started again.
            return Verdict.DONE if same_shares else Verdict.REPLAY
        if batch.batch_id < self.batch_id:
            raise SinkRefusedError(
                f"the batch {batch.batch_id} is lower than the batch {self.batch_id}, which the"
                " sink has: this driver is not the newest one of its query, or its checkpoint was"
                " restored from an old copy; start the query from its newest checkpoint"
            )
        if self.unapplied:
            return Verdict.WAIT
        self._check_attempts(batch)
        return Verdict.PROCEED

    def check_source(self, source: Source) -> None:
        """Raise SinkRefusedError if the sink belongs to another query, or another checkpoint."""
        if self.source is None:
            return
        if source.query_id != self.source.query_id:
            raise SinkRefusedError(
                f"the sink belongs to the query {self.source.query_id}, and this is the query"
                f" {source.query_id}: use another sink name, or, if the other query will never run"
                " again, `daybook sinks forget`. A checkpoint that was wiped makes another query"
            )
        if source.checkpoint != self.source.checkpoint:
            raise SinkRefusedError(
                f"the sink belongs to the checkpoint {self.source.checkpoint}, and this query runs"
                f" from {source.checkpoint}: if the checkpoint was moved, and no query runs from"
                " its old place, use `daybook sinks move`; a copy needs another sink name"
            )

    def _check_attempts(self, batch: BatchToCommit) -> None:
        gone = sorted(batch.attempts & self.abandoned)
        if gone:
            raise SinkRefusedError(
                f"the attempt {gone[0]} of the batch {batch.batch_id} was abandoned, so the batch"
                " cannot be committed: write it again"
            )

    def commit(
        self,
        batch: BatchToCommit,
        manifest: ManifestId,
        entries: Mapping[str, int],
        created: Mapping[str, int],
        *,
        rows: int,
        hash_: int,
    ) -> "SinkRecord":
        """Return the record that names the batch; `entries` are the numbers by topic partition.

        A batch without entries is APPLIED at once.  If no batch had entries yet, the record names
        the topics of the batch, so that it is known who may decide about the sink.
        """
        assert self.judge(batch) is Verdict.PROCEED
        partitions = dict(self.partitions)
        for topic, count in entries.items():
            partitions[topic] = SinkPartition(
                created[topic], self.first_sequence(topic) + count, batch.batch_id
            )
        if not partitions:
            partitions = dict.fromkeys(batch.topics, _NOTHING_WRITTEN)
        if len(entries) > PARTITIONS_MAX or len(partitions) > KNOWN_PARTITIONS_MAX:
            raise SinkRefusedError(
                f"the batch has entries for {len(entries)} topic partitions, and the sink has"
                f" written to {len(partitions)}: a batch may have at most {PARTITIONS_MAX}, and a"
                f" sink {KNOWN_PARTITIONS_MAX}. Use several sinks"
            )
        return replace(
            self,
            state=SinkState.COMMITTED if entries else SinkState.APPLIED,
            source=batch.source,
            batch_id=batch.batch_id,
            manifest=manifest,
            rows=rows,
            hash=hash_,
            once=batch.once,
            partitions=partitions,
        )

    def first_sequence(self, topic: str) -> int:
        """Return the sequence id of the first entry of the next batch in a topic partition."""
        partition = self.partitions.get(topic)
        return 0 if partition is None else partition.following

    def check_replay(self, rows: int, hash_: int) -> str:
        """Return a warning if the rows of a replay differ from those that are committed.

        Raise SinkRefusedError if their number differs.
        """
        if rows != self.rows:
            raise SinkRefusedError(
                f"the batch {self.batch_id} was committed with {self.rows} rows, and this attempt"
                f" to repeat it has {rows}: the source of the query does not give the same rows"
                " again. The topics keep the rows that were committed; `daybook sinks forget` lets"
                " a new query begin"
            )
        if hash_ != self.hash:
            return (
                f"the batch {self.batch_id} was committed with other rows than those of this"
                " attempt to repeat it; the topics keep the rows that were committed"
            )
        return ""

    # -- apply

    def mark_applied(self, marked: Collection[str]) -> "SinkRecord | None":
        """Return the APPLIED record; None while a topic partition is not marked as applied."""
        if self.state is not SinkState.COMMITTED or not set(self.in_batch) <= set(marked):
            return None
        return replace(self, state=SinkState.APPLIED)

    def block(self, topic: str, reason: str) -> "SinkRecord | None":
        """Return the BLOCKED record; None if the topic partition has nothing to apply."""
        if not self.unapplied or topic not in self.in_batch or self.partitions[topic].blocked:
            return None
        blocked = replace(self.partitions[topic], blocked=reason)
        return replace(
            self, state=SinkState.BLOCKED, partitions={**self.partitions, topic: blocked}
        )

    # -- decisions of an operator

    def skip(self, topic: str) -> "SinkRecord":
        """Give up the rest of the batch in one topic partition that is blocked."""
        partition = self.partitions.get(topic)
        if self.state is not SinkState.BLOCKED or partition is None or not partition.blocked:
            raise SinkRefusedError(
                f"{topic} does not block the sink: `daybook sinks show` names the topic partitions"
                " that do"
            )
        partitions = {**self.partitions, topic: replace(partition, skipped=True, blocked="")}
        blocked = any(p.blocked and p.batch == self.batch_id for p in partitions.values())
        state = SinkState.BLOCKED if blocked else SinkState.COMMITTED
        return replace(self, state=state, partitions=partitions)

    def abandon_batch(self) -> "SinkRecord":
        """Give up the rest of a blocked batch in all its topic partitions."""
        if self.state is not SinkState.BLOCKED:
            raise SinkRefusedError(
                f"the sink is {self.state.value}, and only a batch that is BLOCKED can be given up"
            )
        in_batch = self.in_batch
        partitions = {
            topic: replace(p, skipped=True, blocked="") if topic in in_batch else p
            for topic, p in self.partitions.items()
        }
        return replace(self, state=SinkState.APPLIED, partitions=partitions)

    def forget(self, sink_id: str) -> "SinkRecord":
        """Return the record of a sink that belongs to nobody, with a new id."""
        if self.unapplied:
            raise SinkRefusedError(
                f"the batch {self.batch_id} is {self.state.value} and not applied yet, so the sink"
                " cannot be forgotten: wait, or use `daybook sinks roll-forward` or `resolve`"
            )
        assert sink_id != self.sink_id
        return SinkRecord(sink_id, abandoned=self.abandoned, role=self.role)

    def move(self, checkpoint: str) -> "SinkRecord":
        """Return the record for the same query with another checkpoint path."""
        if self.source is None:
            raise SinkRefusedError("no query has used the sink, so there is nothing to move")
        return replace(self, source=Source(self.source.query_id, checkpoint))

    # -- staging that was not committed

    def abandon(self, attempts: Iterable[str], named: Collection[str]) -> "SinkRecord":
        """Add attempts to the abandoned ones.  After that their ledgers may be deleted.

        `named` are the attempts that the manifest of the record names: they are kept while the
        batch is not APPLIED.
        """
        wanted = set(attempts)
        if self.unapplied:
            wanted -= set(named)
        abandoned = self.abandoned | wanted
        if len(abandoned) > ABANDONED_MAX:
            raise SinkRefusedError(
                f"{len(abandoned)} attempts are being abandoned, and at most {ABANDONED_MAX} may"
                " be: the cleaner of the brokers removes them, try again"
            )
        return replace(self, abandoned=abandoned)

    def clear(self, attempts: Iterable[str]) -> "SinkRecord":
        """Remove attempts whose ledgers are deleted from the abandoned ones."""
        return replace(self, abandoned=self.abandoned - set(attempts))

    def may_be_abandoned(self, query_id: str, batch_id: int, age_ms: int) -> bool:
        """Return True if an attempt that nobody has ended will never be committed.

        Time alone deletes only what is a week old.
        """
        if self.unapplied:
            return False  # The next pass decides: the attempt may be one of the batch.
        same_query = self.source is not None and self.source.query_id == query_id
        return (same_query and batch_id <= self.batch_id) or age_ms >= WEEK_MS

    def may_be_removed(self, unchanged_ms: int) -> bool:
        """Return True if nobody will ask for the record any more."""
        unused = self.state is SinkState.NEW or (self.once and self.state is SinkState.APPLIED)
        return unused and not self.abandoned and unchanged_ms >= WEEK_MS


def digest_of_shares(batch_id: int, attempts: Sequence[str]) -> str:
    """Return the digest that names a batch: its attempts in the order of the tasks.

    An empty name is that of a task without entries.
    """
    return sha256("\n".join([str(batch_id), *attempts]).encode()).hexdigest()


# -- the progress of one sink in one topic partition


@dataclass(frozen=True, slots=True)
class Share:
    """The entries of one batch for one topic partition: [first, first + entries)."""

    first: int
    entries: int

    @property
    def last(self) -> int:
        return self.first + self.entries - 1


def next_to_append(share: Share, highest: int | None) -> int:
    """Return the first sequence id of the share that the topic lacks.

    `highest` is the highest sequence id of the sink in the topic; None if the sink never wrote to
    it.  The result is behind the last one if the topic lacks nothing.
    """
    if highest is None:
        return share.first
    return min(max(share.first, highest + 1), share.last + 1)
