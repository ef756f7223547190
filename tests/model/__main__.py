"""The table of the model checker.

    python -m tests.model                   the small configurations, half a minute
    python -m tests.model --large           the large ones, up to 20 minutes each, two at a time
    python -m tests.model --all --write     both, and the table goes into docs/model_checker.md
    python -m tests.model --only "3x 3/3/2" those whose names contain this text
    python -m tests.model --mutant M04      the shortest counter-example, as a chart

The exit code is 1 if a rule was broken, or a mutant was not found.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests import tables
from tests.model.cases import CASES
from tests.model.checking import check
from tests.model.configurations import CONFIGURATIONS, Size
from tests.model.search import Result

DOCUMENT = Path(__file__).parents[2] / "docs" / "model_checker.md"
_HEAD = ("configuration", "states", "transitions", "depth", "CPU s", "result")
_NUMBERS = range(1, 5)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.mutant:
        return _show_mutant(options.mutant)
    chosen = [
        c.name
        for c in CONFIGURATIONS
        if options.only in c.name
        and (options.all or options.only or (c.size is Size.LARGE) == options.large)
    ]
    results: list[Result] = []
    for result in _searched(chosen, options.minutes * 60, options.jobs):
        results.append(result)
        if options.write:  # Write at once, so that an interrupted run keeps its results.
            order = [c.name for c in CONFIGURATIONS]
            tables.update(DOCUMENT, _HEAD, [_row(result)], order=order, right=_NUMBERS)
    results.sort(key=lambda result: chosen.index(result.name))
    print(tables.aligned([_HEAD, *map(_row, results)], right=_NUMBERS))
    for result in results:
        if result.violation:
            print(f"\n{result.name}\n{result.chart}")
    return int(any(result.violation for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--minutes", type=float, default=20.0, help="for each configuration")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="the table into the documentation")
    parser.add_argument("--mutant", default="", metavar="ID")
    return parser


def _searched(names: Sequence[str], seconds_max: float, jobs: int) -> Iterator[Result]:
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        under_way = [pool.submit(check, name, seconds_max=seconds_max) for name in names]
        for done in as_completed(under_way):
            result = done.result()
            print(" ".join(_row(result)), file=sys.stderr, flush=True)
            yield result


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.states:,}",
        f"{result.transitions:,}",
        str(result.depth),
        f"{result.seconds:.1f}",
        result.verdict,
    )


def _show_mutant(mutant: str) -> int:
    missed = False
    for case in CASES:
        if case.mutant.id == mutant:
            result = check(case.configuration, case.mutant)
            print(f"{mutant}: {case.mutant.rule}\n{result.name}: {result.states} states seen\n")
            print(f"{result.chart or 'nothing found'}\n")
            missed |= not result.violation
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
