"""The whole cluster from one seed: nothing lost, and the same run twice."""

import os
import subprocess
import sys

import pytest

from tests.simulation.failover import MESSAGES, run_failover


@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_lost_when_a_broker_a_bookie_and_a_session_are(seed: int) -> None:
    result = run_failover(seed)
    assert result.acknowledged == MESSAGES


def test_one_seed_is_one_run_also_in_another_process_with_another_hash_seed() -> None:
    here = run_failover(1)
    assert run_failover(1) == here
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "1"],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    line = done.stdout.strip().splitlines()[-1]
    assert line == f"seed 1: ok, {here.steps} steps, trace {here.trace}"
