"""A run for each named write of exactly-once batches, in which somebody dies there.

`python -m tests.simulation.sinks.points --all` plays the same at every write of the reference run.
"""

import pytest

from tests.simulation.sinks.points import POINTS, Crash, Run, Way, run_crash

_USUAL = (Way.BEFORE, Way.AFTER, Way.TWO_COPIES)
CASES = [
    pytest.param(
        Crash(point, way),
        id=f"{point}-{way.name}".replace(": ", "-").replace(" ", "_"),
        marks=[] if way in _USUAL else pytest.mark.long,
    )
    for point, ways in POINTS.items()
    for way in ways
]


@pytest.fixture(scope="module")
def reference() -> Run:
    return run_crash(None)


def test_a_run_without_faults_meets_each_name(reference: Run) -> None:
    named = {name for _, name in (*reference.writes, *reference.pieces)}
    assert named == set(POINTS)
    assert reference.committed == [0, 1, 2, 0]
    assert reference.replays == 1


@pytest.mark.parametrize("crash", CASES)
def test_nothing_is_lost_or_there_twice_when_somebody_dies(crash: Crash, reference: Run) -> None:
    """X1 to X5 hold at each step, and in the end all batches are in the topic."""
    result = run_crash(crash, reference)
    assert result.crashed
    assert result.committed == [0, 1, 2, 0]
