"""The rules of a sink as tables: what a commit does, what may be abandoned, what ends a batch."""

from dataclasses import replace

import pytest

from daybook.managed_ledger.protocol.sink import (
    ABANDONED_MAX,
    PARTITIONS_MAX,
    WEEK_MS,
    BatchToCommit,
    ManifestId,
    Share,
    SinkPartition,
    SinkRecord,
    SinkRefusedError,
    SinkState,
    Source,
    Verdict,
    digest_of_shares,
    next_to_append,
)

MINE = Source("query", "/checkpoint")
P0, P1 = "t-partition-0", "t-partition-1"
CREATED = {P0: 11, P1: 12}


def to_commit(
    batch_id: int, *attempts: str, source: Source = MINE, once: bool = False
) -> BatchToCommit:
    digest = digest_of_shares(batch_id, attempts)
    return BatchToCommit(source, batch_id, digest, frozenset(attempts) - {""}, once)


def committed(
    batch_id: int,
    *attempts: str,
    before: SinkRecord | None = None,
    entries: dict[str, int] | None = None,
) -> SinkRecord:
    batch = to_commit(batch_id, *attempts)
    manifest = ManifestId(100 + batch_id, "checksum", batch.shares)
    counts = {P0: 3, P1: 2} if entries is None else entries
    record = before or SinkRecord("id")
    return record.commit(batch, manifest, counts, CREATED, rows=10, hash_=99)


def applied(record: SinkRecord) -> SinkRecord:
    done = record.mark_applied(record.in_batch)
    assert done is not None
    return done


def blocked(record: SinkRecord, topic: str) -> SinkRecord:
    found = record.block(topic, "terminated")
    assert found is not None
    return found


NEW = SinkRecord("id")
FIVE = committed(5, "a", "b")
FIVE_APPLIED = applied(FIVE)
FIVE_BLOCKED = blocked(FIVE, P0)

OTHER_QUERY = Source("other", "/checkpoint")
COPY = Source("query", "/copy")


@pytest.mark.parametrize(
    ("record", "batch", "verdict"),
    [
        (NEW, to_commit(0, "a"), Verdict.PROCEED),
        (NEW, to_commit(7, "a"), Verdict.PROCEED),
        (FIVE, to_commit(5, "a", "b"), Verdict.DONE),
        (FIVE_APPLIED, to_commit(5, "a", "b"), Verdict.DONE),
        (FIVE_BLOCKED, to_commit(5, "a", "b"), Verdict.DONE),
        (FIVE, to_commit(5, "b", "a"), Verdict.REPLAY),
        (FIVE, to_commit(5, "a", "", "b"), Verdict.REPLAY),
        (FIVE_APPLIED, to_commit(5, "c"), Verdict.REPLAY),
        (FIVE_BLOCKED, to_commit(5, "c"), Verdict.REPLAY),
        (FIVE, to_commit(6, "c"), Verdict.WAIT),
        (FIVE_BLOCKED, to_commit(6, "c"), Verdict.WAIT),
        (FIVE_APPLIED, to_commit(6, "c"), Verdict.PROCEED),
        (FIVE_APPLIED, to_commit(9, "c"), Verdict.PROCEED),
        # Even the very shares of the last batch are another batch under another id.
        (FIVE_APPLIED, to_commit(6, "a", "b"), Verdict.PROCEED),
    ],
)
def test_what_a_commit_does(record: SinkRecord, batch: BatchToCommit, verdict: Verdict) -> None:
    assert record.judge(batch) is verdict


@pytest.mark.parametrize(
    ("record", "batch", "why"),
    [
        (FIVE_APPLIED, to_commit(4, "c"), "lower than the batch 5"),
        (FIVE, to_commit(4, "c"), "lower than the batch 5"),
        (FIVE_APPLIED, to_commit(6, "c", source=OTHER_QUERY), "sinks forget"),
        (FIVE_APPLIED, to_commit(6, "c", source=COPY), "sinks move"),
        (FIVE, to_commit(5, "a", "b", source=OTHER_QUERY), "sinks forget"),
        (FIVE, to_commit(5, "a", "b", source=COPY), "sinks move"),
        (FIVE_APPLIED.abandon("c", ()), to_commit(6, "c", "d"), "attempt c .* was abandoned"),
        (NEW.abandon("c", ()), to_commit(0, "d", "c"), "attempt c .* was abandoned"),
    ],
)
def test_what_is_refused(record: SinkRecord, batch: BatchToCommit, why: str) -> None:
    with pytest.raises(SinkRefusedError, match=why):
        record.judge(batch)


def test_sequence_ids_count_on_over_all_batches() -> None:
    assert {t: p.following for t, p in FIVE.partitions.items()} == {P0: 3, P1: 2}
    six = committed(6, "c", before=FIVE_APPLIED, entries={P1: 4})
    assert (six.first_sequence(P0), six.first_sequence(P1)) == (3, 6)
    assert six.in_batch == [P1]
    assert six.partitions[P1] == SinkPartition(12, 6, 6)
    assert six.first_sequence("t-partition-2") == 0


def test_a_batch_without_entries_is_applied_at_once() -> None:
    empty = committed(6, before=FIVE_APPLIED, entries={})
    assert (empty.state, empty.batch_id, empty.in_batch) == (SinkState.APPLIED, 6, [])
    assert empty.judge(to_commit(6)) is Verdict.DONE


def test_a_batch_has_a_bounded_number_of_partitions() -> None:
    many = {f"t-partition-{i}": 1 for i in range(PARTITIONS_MAX + 1)}
    batch = to_commit(0, "a")
    with pytest.raises(SinkRefusedError, match="Use several sinks"):
        NEW.commit(
            batch, ManifestId(1, "", batch.shares), many, dict.fromkeys(many, 1), rows=1, hash_=1
        )


# -- the end of a batch


def test_a_batch_is_applied_when_all_its_partitions_are() -> None:
    assert FIVE.mark_applied([]) is None
    assert FIVE.mark_applied([P0]) is None
    assert FIVE.mark_applied([P1, P0]) == replace(FIVE, state=SinkState.APPLIED)
    assert FIVE_BLOCKED.mark_applied([P0, P1]) is None
    assert FIVE_APPLIED.mark_applied([P0, P1]) is None


def test_a_blocked_partition_is_skipped_or_the_rest_is_given_up() -> None:
    both = blocked(FIVE_BLOCKED, P1)
    assert FIVE_BLOCKED.block(P0, "again") is None
    assert FIVE_APPLIED.block(P0, "late") is None
    assert FIVE.block("t-partition-2", "unknown") is None
    one = both.skip(P0)
    assert (one.state, one.in_batch) == (SinkState.BLOCKED, [P1])
    none = one.skip(P1)
    assert (none.state, none.in_batch) == (SinkState.COMMITTED, [])
    assert applied(none).state is SinkState.APPLIED
    for record in (FIVE, FIVE_APPLIED, FIVE_BLOCKED):
        with pytest.raises(SinkRefusedError, match="does not block"):
            record.skip(P1)
    for record in (NEW, FIVE, FIVE_APPLIED):
        with pytest.raises(SinkRefusedError, match="only a batch that is BLOCKED"):
            record.abandon_batch()
    given_up = both.abandon_batch()
    assert (given_up.state, given_up.in_batch) == (SinkState.APPLIED, [])
    # The next batch counts on in a partition that was given up.
    assert committed(6, "c", before=given_up).partitions[P0] == SinkPartition(11, 6, 6)


def test_a_sink_is_forgotten_only_when_its_batch_is_applied() -> None:
    for record in (FIVE, FIVE_BLOCKED):
        with pytest.raises(SinkRefusedError, match="cannot be forgotten"):
            record.forget("id2")
    forgotten = FIVE_APPLIED.abandon("c", ()).forget("id2")
    assert forgotten == SinkRecord("id2", abandoned=frozenset("c"))
    assert forgotten.judge(to_commit(0, "d", source=OTHER_QUERY)) is Verdict.PROCEED


def test_a_moved_sink_belongs_to_the_same_query() -> None:
    moved = FIVE_APPLIED.move("/copy")
    assert moved.judge(to_commit(6, "c", source=COPY)) is Verdict.PROCEED
    with pytest.raises(SinkRefusedError):
        moved.judge(to_commit(6, "c"))
    with pytest.raises(SinkRefusedError, match="no query has used"):
        NEW.move("/copy")


# -- a replay


def test_a_replay_with_other_rows() -> None:
    assert FIVE.check_replay(10, 99) == ""
    assert "other rows" in FIVE.check_replay(10, 98)
    for rows in (9, 11):
        with pytest.raises(SinkRefusedError, match="committed with 10 rows"):
            FIVE.check_replay(rows, 99)


# -- staging that was not committed


@pytest.mark.parametrize(
    ("record", "abandoned"),
    [
        (NEW, {"a", "b", "c"}),
        (FIVE, {"c"}),
        (FIVE_BLOCKED, {"c"}),
        (FIVE_APPLIED, {"a", "b", "c"}),
    ],
)
def test_what_a_committed_batch_names_is_not_abandoned(
    record: SinkRecord, abandoned: set[str]
) -> None:
    found = record.abandon(["a", "b", "c"], {"a", "b"})
    assert found.abandoned == abandoned
    assert found.clear(["c"]).abandoned == abandoned - {"c"}


def test_the_abandoned_attempts_are_bounded() -> None:
    many = [str(i) for i in range(ABANDONED_MAX + 1)]
    assert len(NEW.abandon(many[1:], ()).abandoned) == ABANDONED_MAX
    with pytest.raises(SinkRefusedError, match="try again"):
        NEW.abandon(many, ())


@pytest.mark.parametrize(
    ("record", "query", "batch_id", "age_ms", "may_be"),
    [
        (FIVE_APPLIED, "query", 5, 0, True),
        (FIVE_APPLIED, "query", 4, 0, True),
        (FIVE_APPLIED, "query", 6, WEEK_MS - 1, False),
        (FIVE_APPLIED, "query", 6, WEEK_MS, True),
        (FIVE_APPLIED, "other", 0, WEEK_MS - 1, False),
        (FIVE_APPLIED, "other", 0, WEEK_MS, True),
        (NEW, "query", 0, WEEK_MS - 1, False),
        (NEW, "query", 0, WEEK_MS, True),
        (FIVE, "query", 4, WEEK_MS, False),
        (FIVE_BLOCKED, "query", 5, WEEK_MS, False),
    ],
)
def test_what_the_cleaner_may_abandon(
    record: SinkRecord, query: str, batch_id: int, age_ms: int, may_be: bool
) -> None:
    assert record.may_be_abandoned(query, batch_id, age_ms) is may_be


@pytest.mark.parametrize(
    ("record", "unchanged_ms", "may_be"),
    [
        (NEW, WEEK_MS, True),
        (NEW, WEEK_MS - 1, False),
        (NEW.abandon("c", ()), WEEK_MS, False),
        (FIVE_APPLIED, WEEK_MS, False),
        (replace(FIVE_APPLIED, once=True), WEEK_MS, True),
        (replace(FIVE, once=True), WEEK_MS, False),
    ],
)
def test_which_records_are_removed(record: SinkRecord, unchanged_ms: int, may_be: bool) -> None:
    assert record.may_be_removed(unchanged_ms) is may_be


# -- progress


@pytest.mark.parametrize(
    ("highest", "following"),
    [(None, 10), (-1, 10), (9, 10), (10, 11), (13, 14), (14, 15), (20, 15), (4, 10)],
)
def test_the_first_sequence_id_that_is_appended(highest: int | None, following: int) -> None:
    assert next_to_append(Share(10, 5), highest) == following


def test_shares_differ_by_batch_and_order() -> None:
    digests = {
        digest_of_shares(5, ["a", "b"]),
        digest_of_shares(5, ["b", "a"]),
        digest_of_shares(6, ["a", "b"]),
        digest_of_shares(5, ["a", "", "b"]),
        digest_of_shares(5, ["ab"]),
    }
    assert len(digests) == 5
