"""The search finds each mutant, by the shortest counter-example."""

import pytest

from tests.model import CONFIGURATIONS, Configuration, check
from tests.model.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.mutant.id} {c.configuration.name}")
def test_the_search_finds_the_mutant(case: Case) -> None:
    result = check(case.configuration, case.mutant, seconds_max=60)
    assert result.violation, f"nothing found in {result.states} states"
    assert (result.rule, result.steps) == (case.rule, case.steps), result.chart


SET_UPS = {case.configuration.name: case.configuration for case in CASES}
OTHERS = [SET_UPS[name] for name in SET_UPS if name not in {c.name for c in CONFIGURATIONS}]


@pytest.mark.parametrize("configuration", OTHERS, ids=lambda c: c.name)
def test_without_the_mutant_the_same_set_up_is_sound(configuration: Configuration) -> None:
    result = check(configuration)
    assert not result.violation, result.chart
    assert result.finished
