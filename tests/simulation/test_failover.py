"""The whole cluster from one seed: no message is lost, and a second run is the same."""

import os
import subprocess
import sys

import pytest

from tests.simulation.failover import MESSAGES, run_failover


@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_lost_when_a_broker_a_bookie_and_a_session_are(seed: int) -> None:
    result = run_failover(seed)
    assert result.acknowledged == MESSAGES


_RUN = """
from tests.simulation.failover import run_failover
result = run_failover(1)
print(result.steps, result.trace)
"""


def test_one_seed_is_one_run_also_in_another_process_with_another_hash_seed() -> None:
    here = run_failover(1)
    assert run_failover(1) == here
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(here.steps), here.trace]
