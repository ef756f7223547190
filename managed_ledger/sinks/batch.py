"""A batch of a query as its driver names it, and what it asks of topics."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from daybook.managed_ledger.protocol.sink import BatchToCommit, Source, digest_of_shares
from daybook.managed_ledger.sinks.staging import StagingEnd

_TOPICS_MAX = 8  # The record of an empty first batch names so many.


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
