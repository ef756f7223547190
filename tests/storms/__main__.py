"""python -m tests.storms --seed N [--kind K] | --schedules N [--first N] [--jobs N] [--tally]

`--steps N --kind K` runs schedules of that kind until they have N steps together.
"""

import argparse
import sys
import time

from tests.storms.chance import Drawn
from tests.storms.kinds import ALL_KINDS, KINDS
from tests.storms.run import Failure, Report, drawn, explain, play, run_many, run_steps
from tests.storms.tally import add_to_tally, present_commit


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storms")
    parser.add_argument(
        "--kind", choices=list(ALL_KINDS), action="append", help="default: all that are mixed"
    )
    parser.add_argument("--seed", type=int, help="one schedule of each kind, step by step")
    parser.add_argument("--schedules", type=int, default=10_000, help="so many in all")
    parser.add_argument("--steps", type=int, help="so many steps of each kind instead")
    parser.add_argument("--first", type=int, default=0, help="the first seed of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--tally", action="store_true", help="add the result to tally.jsonl")
    parser.add_argument("--marks", action="store_true", help="how often each state was met")
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    if options.seed is not None:
        return sum(_show(kind, options.seed) for kind in kinds)
    commit = present_commit() if options.tally else ""
    started = time.perf_counter()
    if options.steps:
        report = run_steps(options.steps, first=options.first, kinds=kinds)
    else:
        report = run_many(options.schedules, first=options.first, kinds=kinds, jobs=options.jobs)
    _print_report(report, time.perf_counter() - started, marks=options.marks)
    if options.tally:
        lines = add_to_tally(report, commit)
        schedules, failures = sum(x.schedules for x in lines), sum(x.failures for x in lines)
        print(f"in all so far: {schedules:,} schedules, {failures} failures")
    return len(report.failures)


def _show(kind: str, seed: int) -> int:
    """Play one schedule and print it; return 1 if it breaks a rule."""
    chance: Drawn = drawn(kind, seed)
    trace: list[str] = []
    failure = play(kind, chance, trace)[1]
    if failure is not None:
        failure = Failure(kind, seed, failure.rule, failure.detail)
        print(*explain(failure), sep="\n")
    else:
        print(*(f"  {number:3} {line}" for number, line in enumerate(trace)), sep="\n")
    print(f"{kind} {seed}: {'FAILED' if failure else 'ok'}")
    return int(failure is not None)


def _print_report(report: Report, seconds: float, *, marks: bool) -> None:
    for kind, count in report.schedules.items():
        print(f"{kind:10} {count:10,} schedules, {report.steps[kind]:,} steps")
        if marks:
            for mark in ALL_KINDS[kind].wanted:
                part = report.marks[kind][mark] / count
                print(f"{'':10} {part:10.4f} {mark}")
        for line in report.rare(kind):
            print(f"{'':10} rare: {line}")
    total = sum(report.schedules.values())
    print(
        f"{total:,} schedules in {seconds:.1f} s: {total / max(seconds, 0.001):,.0f} a second,"
        f" {total / max(report.seconds, 0.001):,.0f} a second of one processor,"
        f" {len(report.failures)} violations"
    )
    for failure in report.failures:
        print(failure, *explain(failure), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
