"""python -m tests.mutants.within ID PYTEST-ARGUMENT...: run tests while a mutant is in the code.

It ends with 3, and the line `caught by TEST after N tests`, if one fails; with 0 if all pass.  A
test that hangs has failed.
"""

import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from tests.mutants.catalogue import BY_ID
from tests.mutants.patch import applied

CAUGHT = 3  # Python and pytest themselves end with 1 and 2
PROCESSOR_S_MAX = 30.0  # per test
REAL_S_MAX = 600.0


class HangsError(Exception):
    """A test takes too long: it waits for an action that the mutant no longer takes."""


class Witness:
    """The first test that failed, and how many had run until then."""

    def __init__(self) -> None:
        self.ran = 0
        self.failed = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, object, object]:
        def stop(number: int, frame: FrameType | None) -> None:
            raise HangsError(item.nodeid)

        signal.signal(signal.SIGPROF, stop)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S_MAX)
        signal.setitimer(signal.ITIMER_REAL, REAL_S_MAX)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid.removeprefix("tests/")


def main() -> int:
    mutant_id, *arguments = sys.argv[1:]
    witness = Witness()
    code: int = pytest.ExitCode.INTERNAL_ERROR
    with applied(BY_ID[mutant_id]), suppress(pytest.PytestUnhandledThreadExceptionWarning):
        # Raised after the last test, if the mutant has ended a thread.
        # The mutant's module may have imported a library that has a plugin, such as anyio.
        options = ["-x", "-q", "--no-header", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, *arguments], plugins=[witness])
    if witness.failed:
        print(f"caught by {witness.failed} after {witness.ran} tests")
        return CAUGHT
    return 0 if code == pytest.ExitCode.OK else 4


if __name__ == "__main__":
    sys.exit(main())
