"""Batches of sinks under faults; `python -m tests.simulation.sinks` runs more seeds."""

from dataclasses import replace

import pytest

from daybook.managed_ledger.protocol.sink import ManifestId, SinkRecord, SinkState
from tests.simulation.sinks import BATCHES, Audit, run_sinks

COMMITTED = SinkRecord("id", SinkState.COMMITTED, batch_id=1, manifest=ManifestId(7, "c", "s"))
APPLIED = replace(COMMITTED, state=SinkState.APPLIED)
NEXT = replace(COMMITTED, batch_id=2, manifest=ManifestId(8, "d", "t"))


@pytest.mark.parametrize("seed", [1, 3])
def test_batches_are_there_once_whatever_happens(seed: int) -> None:
    result = run_sinks(seed)
    assert result.batches == BATCHES
    assert result.faults


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((COMMITTED, APPLIED, NEXT), ""),
        ((COMMITTED, NEXT), "2 is committed before 1"),
        ((NEXT, replace(NEXT, state=SinkState.APPLIED), COMMITTED), "1 follows 2"),
        ((APPLIED, COMMITTED), "X1: the batch 1 is"),
        ((COMMITTED, replace(COMMITTED, manifest=NEXT.manifest)), "X4: the batch 1 has another"),
        ((replace(APPLIED, abandoned=frozenset({"a"})), NEXT), "X5: 2 has the abandoned attempts"),
    ],
)
def test_the_audit_notices_a_record_that_breaks_a_rule(
    records: tuple[SinkRecord, ...], says: str
) -> None:
    audit = Audit()
    audit.named["t"] = {"a"}
    for record in records:
        audit.record_changed(record)
    assert len(audit.problems) == bool(says)
    assert all(says in problem for problem in audit.problems)
