"""Schemas in a cluster that loses hosts and sessions: no version is lost or changed."""

import pytest

from tests.simulation.typed import run_typed


@pytest.mark.parametrize("seed", range(1, 3))
def test_versions_and_typed_messages_survive_takeovers(seed: int) -> None:
    result = run_typed(seed)
    assert result.versions >= 4
    assert result.messages >= 5


def test_one_seed_is_one_run() -> None:
    assert run_typed(3) == run_typed(3)
