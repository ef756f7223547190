"""Rules of the command line, for people who type quickly."""

from tests.mutants.patch import Edit, Mutant

_CONFIRM = "daybook.clients.cli.confirm"
_NOT_FOUND = "daybook.clients.cli.not_found"
_BY_CONFIRM = "tests:tests/clients/cli/test_confirm.py"
_BY_NOT_FOUND = "tests:tests/clients/cli/test_not_found.py"

MUTANTS = [
    Mutant(
        id="CL1 asked",
        rule="what destroys something needs --yes without a terminal -> it is done",
        module=_CONFIRM,
        name="confirm",
        replacement=Edit("if yes:", "if yes or not sys.stdin.isatty():"),
        caught_by=_BY_CONFIRM,
    ),
    Mutant(
        id="CL1 answered",
        rule="on a terminal the user decides -> the command does",
        module=_CONFIRM,
        name="confirm",
        replacement=Edit("if yes:", "if yes or sys.stdin.isatty():"),
        caught_by=_BY_CONFIRM,
    ),
    Mutant(
        id="CL2 hint",
        rule="the hint is for what is missing -> for topics",
        module=_NOT_FOUND,
        name="hint",
        replacement=Edit("in _HINTS:", "in _HINTS[-1:]:"),
        caught_by=_BY_NOT_FOUND,
    ),
]
