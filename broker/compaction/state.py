"""The state of a compaction, for administrators, with the keys that Pulsar's tools know."""

from collections.abc import Sequence

import msgspec

from daybook.broker.compaction.topic_compaction import CompactionStatus, TopicCompaction

# The state that an administrator of a partitioned topic has to know first comes first.
_URGENCY = (
    CompactionStatus.RUNNING,
    CompactionStatus.ERROR,
    CompactionStatus.SUCCESS,
    CompactionStatus.NOT_RUN,
)


class CompactionProgress(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers of the run that is under way.  A run reads everything twice."""

    pass_number: int
    horizon: str
    read_entries: int
    read_bytes: int
    keys: int
    removed: int
    written_entries: int
    written_bytes: int


class CompactionState(msgspec.Struct, frozen=True, rename="camel"):
    """Pulsar's tools know the first two keys."""

    status: str
    last_error: str
    horizon: str | None = None  # the compacted ledger replaces everything up to here
    ledger_id: int = -1
    progress: CompactionProgress | None = None


class CompactionStats(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a topic's statistics; the keys are Pulsar's."""

    last_compaction_removed_event_count: int
    last_compaction_succeed_timestamp: int
    last_compaction_failed_timestamp: int
    last_compaction_duration_time_in_mills: int


def compaction_state(compaction: TopicCompaction) -> CompactionState:
    published, progress = compaction.published, compaction.progress
    return CompactionState(
        compaction.status.value,
        compaction.last_error,
        None if published is None else str(published.horizon),
        -1 if published is None else published.ledger_id,
        None
        if progress is None
        else CompactionProgress(
            progress.pass_number,
            str(progress.horizon),
            progress.read_entries,
            progress.read_bytes,
            progress.keys,
            progress.removed,
            progress.written_entries,
            progress.written_bytes,
        ),
    )


def compaction_stats(compaction: TopicCompaction) -> CompactionStats:
    counts = compaction.counts
    return CompactionStats(
        counts.last_removed,
        counts.last_succeeded_ms,
        counts.last_failed_ms,
        counts.last_duration_ms,
    )


def most_urgent(states: Sequence[CompactionState]) -> CompactionState:
    """Return one of the states of the partitions: one that runs, else one that failed, ..."""
    return min(states, key=lambda state: _URGENCY.index(CompactionStatus(state.status)))
