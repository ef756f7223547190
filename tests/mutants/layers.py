"""The layers that catch mutants, by the first word of `Mutant.caught_by`.

    storms:KIND            the machines in storms (`tests.storms`), until a schedule breaks a rule
    storms outside:KIND    the same without the rules about single steps (W): only the effects count
    model                  every interleaving of a small set-up (`tests.model`), its shortest one
    tests:PATH [...]       pytest on these files or tests, until one fails

A catch names the rule that a schedule broke, or the test that failed.  A layer stops at the first
catch, and begins with the last catcher of the mutant, if that is known.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.model import check
from tests.model.cases import CASES
from tests.mutants import within
from tests.mutants.patch import Mutant, applied
from tests.storms.kinds import KINDS
from tests.storms.run import run_seeds

SCHEDULES = "schedules"
SEEDS = range(100_000)
SEARCH_MAX_S = 300.0
TESTS_TIMEOUT_S = 1800.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Catch:
    by: str
    after: str


def hunt(mutant: Mutant, last: Catch | None = None) -> Catch | None:
    """Return the catch; None if the mutant survives.  The last catcher is tried first."""
    layer, _, what = mutant.caught_by.partition(":")
    match layer:
        case "storms":
            return _in_storms(mutant, what, last, white_box=True)
        case "storms outside":
            return _in_storms(mutant, what, last, white_box=False)
        case "model":
            return _in_model(mutant)
        case "tests":
            soon = None if last is None else test_of(last.by)
            return (soon and _in_tests(mutant, soon)) or _in_tests(mutant, what)
        case _:
            raise ValueError(f"{mutant.id}: there is no layer {layer}")


def _in_storms(mutant: Mutant, kind: str, last: Catch | None, *, white_box: bool) -> Catch | None:
    assert kind in KINDS
    soon = None if last is None else _seed_of(last.after)
    ways = [SEEDS] if soon is None else [range(soon, soon + 1), SEEDS]
    with applied(mutant):
        for seeds in ways:
            report = run_seeds(kind, seeds.start, len(seeds), white_box=white_box)
            if report.failures:
                (failure,) = report.failures
                return Catch(failure.rule, f"{failure.seed + 1:,} {SCHEDULES}")
    return None


def _seed_of(after: str) -> int | None:
    """Return the seed of a schedule; schedules are numbered by their seeds, from 0."""
    count, _, what = after.partition(" ")
    return int(count.replace(",", "")) - 1 if what == SCHEDULES else None


def test_of(by: str) -> str | None:
    """Return the test with all its parameters; None if no test has that name any longer."""
    path, _, name = f"tests/{by}".partition("[")[0].partition("::")
    holder, _, function = name.rpartition("::")
    wanted = f"class {holder}" if holder else f"def {function}("  # a class may have inherited it
    there = (_ROOT / path).is_file() and wanted in (_ROOT / path).read_text()
    return f"{path}::{name}" if there else None


def _in_model(mutant: Mutant) -> Catch | None:
    case = next(case for case in CASES if case.mutant is mutant)
    result = check(case.configuration, mutant, seconds_max=SEARCH_MAX_S)
    if not result.violation:
        return None
    return Catch(result.rule, f"{result.states:,} states")


def _in_tests(mutant: Mutant, what: str) -> Catch | None:
    """Run tests in a process of their own: they must import the mutant's code."""
    with applied(mutant):
        pass  # If the code has changed, this raises the error.
    command = [sys.executable, "-m", "tests.mutants.within", mutant.id, *what.split()]
    done = subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, timeout=TESTS_TIMEOUT_S, check=False
    )
    match done.returncode:
        case 0:
            return None
        case within.CAUGHT:
            found = [line for line in done.stdout.splitlines() if line.startswith("caught by ")]
            by, _, after = found[0].removeprefix("caught by ").rpartition(" after ")
            return Catch(by, after)
        case _:
            raise RuntimeError(f"{mutant.id}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
