"""The model checker: everything that a few hosts can do, by the real protocol machines.

    result = check("ledger 2x 2/2/2, 1 entry, 1 rec")
    assert not result.violation, result.chart

    python -m tests.model            the small configurations
    python -m tests.model --large    the others, with a limit of time for each
    python -m tests.model --mutant M04

search            breadth-first, with the way to the first violation
chart             a run as a message sequence chart
numbering         values by number: what makes it fast
ledger/           one ledger: writing, recovering, reading, its metadata
configurations    what is searched
cases             which mutant is found where
checking          `check`

`docs/model_checker.md` says what is modelled, what is not, and what was found.
"""

from tests.model.checking import check
from tests.model.configurations import CONFIGURATIONS, Configuration
from tests.model.search import Result

__all__ = ["CONFIGURATIONS", "Configuration", "Result", "check"]
