"""The table of the model checker.

    python -m tests.model                   the small configurations, half a minute
    python -m tests.model --large           the large ones, up to 20 minutes each, two at a time
    python -m tests.model --all --write     both, and the table goes into docs/model_checker.md
    python -m tests.model --only "3x 3/3/2" those whose names contain this
    python -m tests.model --mutant M05      the shortest way to harm, as a chart

The exit code is 1 if a rule was broken, or a mutant was not found.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.model.cases import CASES
from tests.model.checking import check
from tests.model.configurations import CONFIGURATIONS, Size
from tests.model.search import Result

DOCUMENT = Path(__file__).parents[2] / "docs" / "model_checker.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
_HEAD = ("configuration", "states", "transitions", "depth", "CPU s", "result")


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
    results = list(_searched(chosen, options.minutes * 60, options.jobs))
    results.sort(key=lambda result: chosen.index(result.name))
    table = _table(results)
    print(table)
    for result in results:
        if result.violation:
            print(f"\n{result.name}\n{result.chart}")
    if options.write:
        _write(table)
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


def _table(results: Iterable[Result]) -> str:
    rows = [_HEAD, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [_line(row, widths) for row in rows]
    rule = ["-" * width for width in widths]
    return "\n".join([lines[0], _line(rule, widths), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left, *middle, right = zip(cells, widths, strict=True)
    numbers = [cell.rjust(width) for cell, width in middle]
    return f"| {' | '.join([left[0].ljust(left[1]), *numbers, right[0].ljust(right[1])])} |"


def _write(table: str) -> None:
    """Rows of the table that were not searched now are kept."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {_name(line): line for line in old.splitlines()[2:] if line}
    rows |= {_name(line): line for line in table.splitlines()[2:]}
    order = [c.name for c in CONFIGURATIONS]
    cells = [
        tuple(cell.strip() for cell in rows[name].strip("| ").split(" | "))
        for name in order
        if name in rows
    ]
    widths = [max(len(row[column]) for row in [_HEAD, *cells]) for column in range(len(_HEAD))]
    rule = ["-" * width for width in widths]
    lines = [_line(row, widths) for row in [_HEAD, rule, *cells]]
    DOCUMENT.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


def _name(line: str) -> str:
    return line.strip("| ").partition(" | ")[0].strip()


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
