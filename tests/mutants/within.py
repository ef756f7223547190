"""python -m tests.mutants.within ID PYTEST-ARGUMENT...: run tests while a mutant is in the code.

Ends with 1, and the line `caught by TEST after N tests`, if one fails; with 0 if all pass.
"""

import sys
from typing import Any

import pytest

from tests.mutants.catalogue import BY_ID
from tests.mutants.patch import applied


class Witness:
    """Which test failed first, and how many had run until then."""

    def __init__(self) -> None:
        self.ran = 0
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid.removeprefix("tests/")


def main() -> int:
    mutant_id, *arguments = sys.argv[1:]
    witness = Witness()
    with applied(BY_ID[mutant_id]):
        code = pytest.main(["-x", "-q", "--no-header", *arguments], plugins=[witness])
    if witness.failed:
        print(f"caught by {witness.failed} after {witness.ran} tests")
        return 1
    return 0 if code == pytest.ExitCode.OK else 2


if __name__ == "__main__":
    sys.exit(main())
