"""Batches of sinks under faults, and their audit; `python -m tests.simulation.sinks` runs more."""

from dataclasses import replace

import pytest

from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.sink import ManifestId, SinkPartition, SinkRecord, SinkState
from tests.simulation.sinks.audit import SinkAudit
from tests.simulation.sinks.story import BATCHES, run_sinks

TOPIC = "persistent://public/default/t"
NEW = SinkRecord("id")


@pytest.mark.parametrize("seed", [1, 2])
def test_batches_are_there_once_whatever_happens(seed: int) -> None:
    result = run_sinks(seed)
    assert result.batches == BATCHES
    assert result.faults


class Records:
    """Records of batches without entries, as their audit sees them."""

    def __init__(self) -> None:
        self.audit = SinkAudit()
        self.first = self.committed(1, "a")
        self.applied = replace(self.first, state=SinkState.APPLIED)
        self.second = self.committed(2, "b")

    def committed(self, number: int, attempt: str) -> SinkRecord:
        digest = self.audit.staged(number, [attempt], [[]])
        manifest = ManifestId(number, "checksum", digest)
        return replace(NEW, state=SinkState.COMMITTED, batch_id=number, manifest=manifest)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (lambda r: (r.first, r.applied, r.second), ""),
        (lambda r: (r.first, r.second), "2 is committed before 1"),
        (lambda r: (r.second, replace(r.second, state=SinkState.APPLIED), r.first), "1 follows 2"),
        (lambda r: (r.applied, r.first), "X1: the batch 1 is"),
        (lambda r: (r.first, replace(r.first, manifest=r.second.manifest)), "X4: the batch 1 has"),
        (
            lambda r: (replace(r.applied, abandoned=frozenset({"b"})), r.second),
            "X5: 2 has the abandoned attempts",
        ),
        (lambda r: (r.first, SinkRecord("other")), "X1: the sink was forgotten"),
    ],
)
def test_the_audit_notices_a_record_that_breaks_a_rule(changes: object, says: str) -> None:
    records = Records()
    for record in changes(records):  # type: ignore[operator]
        records.audit.record_changed(record)
    assert len(records.audit.problems) == bool(says)
    assert all(says in problem for problem in records.audit.problems)


def audit_with(*texts: str) -> SinkAudit:
    """Return an audit that has seen the commit of a batch with these texts."""
    audit = SinkAudit()
    digest = audit.staged(0, ["a"], [[(TOPIC, text) for text in texts]])
    record = replace(
        NEW, state=SinkState.COMMITTED, batch_id=0, manifest=ManifestId(1, "checksum", digest)
    )
    audit.record_changed(record)
    return audit


def test_the_audit_notices_an_append_that_breaks_a_rule() -> None:
    audit = audit_with("x", "y")
    audit.appended(TOPIC, "id", 0, "x")
    assert audit.problems == []
    audit.appended(TOPIC, "id", 1, "x")
    audit.appended(TOPIC, "id", 2, "z")
    assert [problem[:2] for problem in audit.problems] == ["X2", "X1"]


def test_the_audit_notices_what_is_no_prefix_or_there_twice() -> None:
    audit = audit_with("x", "y", "z")
    audit.confirmed(TOPIC, "id", 0, Position(1, 0))
    audit.confirmed(TOPIC, "id", 0, Position(1, 0))  # An owner of before hears of it late.
    assert audit.problems == []
    audit.confirmed(TOPIC, "id", 0, Position(2, 0))
    audit.confirmed(TOPIC, "id", 2, Position(2, 1))
    assert [problem[:2] for problem in audit.problems] == ["X1", "X1"]


def test_the_audit_notices_what_a_reader_must_not_find() -> None:
    audit = audit_with("x", "y")
    audit.found(TOPIC, "daybook.sink.id", 0, "x")
    assert audit.problems == []
    audit.found(TOPIC, "daybook.sink.id", 0, "x")
    audit.found(TOPIC, "daybook.sink.other", 0, "x")
    assert [problem[:2] for problem in audit.problems] == ["X1", "X1"]


def test_the_audit_notices_what_is_missing_at_the_end() -> None:
    audit = audit_with("x", "y")
    audit.check_end({TOPIC: [("daybook.sink.id", 0, "x"), ("daybook.sink.id", 1, "y")]})
    assert audit.problems == []
    audit.check_end({TOPIC: [("daybook.sink.id", 0, "x")]})
    assert len(audit.problems) == 1


def test_the_audit_notices_a_batch_that_is_not_whole_when_it_is_applied() -> None:
    audit = audit_with("x", "y")
    assert audit.record is not None
    audit.confirmed(TOPIC, "id", 0, Position(1, 0))
    partitions = {TOPIC: SinkPartition(1, 2, 0)}
    audit.record_changed(replace(audit.record, state=SinkState.APPLIED, partitions=partitions))
    assert "APPLIED" in audit.problems[-1]
