"""For all tests: the suites that fakes and real things share assert like tests.

Nothing in the suite depends on how fast the machine is, nor on chance: Hypothesis measures no time
and draws the same examples each time.  To have it draw others: `--hypothesis-profile=default`.
"""

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.conformance", "tests.simulation", "tests.real.traffic")

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
