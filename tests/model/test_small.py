"""The small configurations are searched completely, and break no rule."""

import pytest

from tests.model import CONFIGURATIONS, Configuration, check
from tests.model.configurations import Size

SMALL = [c for c in CONFIGURATIONS if c.size is Size.SMALL]


@pytest.mark.parametrize("configuration", SMALL, ids=lambda c: c.name)
def test_no_step_breaks_a_rule(configuration: Configuration) -> None:
    result = check(configuration)
    assert not result.violation, result.chart
    assert result.finished
