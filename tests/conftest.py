"""For all tests: the suites that fakes and real things share assert like tests."""

import pytest

pytest.register_assert_rewrite("tests.conformance", "tests.simulation", "tests.real.traffic")
