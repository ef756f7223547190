"""The model checker: searches everything that a few hosts with the real machines can do.

    result = check("ledger 2x 2/2/2, 1 entry, 1 rec")
    assert not result.violation, result.chart

    python -m tests.model            the small configurations
    python -m tests.model --large    the others, with a limit of time for each
    python -m tests.model --mutant M04

search            breadth-first search, with the steps to the first violation
chart             a run as a message sequence chart
numbering         values by number, which makes the search fast
ledger/           one ledger: writing, recovering, reading, its metadata
configurations    the table of small systems that are searched
cases             the table of mutants, with the set-up that finds each
checking          `check`

`docs/model_checker.md` lists what is modelled, what is not, and what was found.
"""

from tests.model.checking import check
from tests.model.configurations import CONFIGURATIONS, Configuration
from tests.model.search import Result

__all__ = ["CONFIGURATIONS", "Configuration", "Result", "check"]
