"""Batches of sinks under faults; `python -m tests.simulation.sinks` runs more seeds."""

import pytest

from tests.simulation.sinks import BATCHES, run_sinks


@pytest.mark.parametrize("seed", [1, 3])
def test_batches_are_there_once_whatever_happens(seed: int) -> None:
    result = run_sinks(seed)
    assert result.batches == BATCHES
    assert result.faults
