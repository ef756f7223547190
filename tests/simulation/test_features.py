"""Small runs, each with one feature of topics and the faults that are hard for it.

The mutants of these features name these runs as their catchers.  `MET` says which situations a run
must have met, or it would test nothing.
"""

import pytest

from tests.simulation.acts import At, Kill
from tests.simulation.plan import (
    Administer,
    Consume,
    Latest,
    Mishap,
    Plan,
    Produce,
    Shape,
    Topic,
)
from tests.simulation.run import simulate
from tests.simulation.settings import Settings

T = "persistent://public/default/t1"

PLANS = {
    # Ledgers are trimmed behind each compaction, and brokers are killed between them.
    "compaction": Plan(
        seed=1,
        shape=Shape(settings=Settings(retention=False, roll_entries=3, trim_interval_s=0.5)),
        topics=(Topic(T),),
        work=(
            Produce("p1", "client-1", T, 40, pace_s=0.08, burst=3, tombstones=0.1),
            Produce("p2", "client-1", T, 40, pace_s=0.08, burst=1, batching=False),
            Consume("c1", "client-1", T, "s1", linger_s=0.01),
            Latest("latest1", "client-1", T),
            Latest("latest2", "client-1", T, view=True, again=0.1),
            Latest("latest3", "client-1", T, again=0.1),
            *(Administer(f"a{i}", "client-1", "compact", T, 0.7 + 0.6 * i) for i in range(6)),
        ),
        faults=(
            Mishap("k1", At(1.6), Kill("broker-1", 0.3)),
            Mishap("k2", At(2.8), Kill("broker-2", 0.3)),
        ),
        storm_s=5.0,
        power_cycle=False,
    ),
}
MET = {
    "compaction": (
        "a compaction ended: SUCCESS",
        "a tombstone was sent",
        "a key of a table view was changed",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_feature_keeps_its_rules_through_faults(name: str) -> None:
    outcome = simulate(PLANS[name])
    assert outcome.violations == []
    missed = [mark for mark in MET[name] if not outcome.marks[mark]]
    assert missed == []
