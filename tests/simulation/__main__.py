"""Run whole clusters in one program, each from a seed.

    python -m tests.simulation --seed N               one run; if it fails, its plan and story
    python -m tests.simulation --seed N --trace       print everything as it happens, too
    python -m tests.simulation --seed N --plan        print the plan only
    python -m tests.simulation --seed N --history F   write the history, for python -m tests.history
    python -m tests.simulation --seeds A..B           many runs, in --jobs processes
    python -m tests.simulation --seeds A..B --only old-images   runs that have old images only
    python -m tests.simulation --seeds -              seeds from standard input, one per line
    python -m tests.simulation --seeds A..B --marks   count how often interesting situations occur
    python -m tests.simulation --seeds A..B --draws   count what the plans draw, run nothing
    python -m tests.simulation --seeds A..B --tally F add a line to the file (`tally`)

Every run ends with a line `seed N: ok
FAILED, S steps, trace HASH`.  A seed that fails is shrunk
(unless `--no-shrink` is given) and shown.  Every twentieth run of `--seeds` is repeated in another
process with another hash seed, and the traces are compared (`twin`).  `--minutes M` ends a series
after that time; the runs made until then count.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from tests.history.recorder import FileSink
from tests.simulation import draws, tally
from tests.simulation.many import run_many, run_seed
from tests.simulation.marks import table
from tests.simulation.nemesis import OLD_IMAGES, draw_plan
from tests.simulation.plan import describe
from tests.simulation.report import explain, trace
from tests.simulation.run import Outcome, simulate
from tests.simulation.shrink import as_python, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--seeds", metavar="A..B", help="with both ends; -: from standard input")
    parser.add_argument("--only", choices=["old-images"], help="runs that have them, all")
    parser.add_argument("--trace", action="store_true", help="say everything as it happens")
    parser.add_argument("--plan", action="store_true", help="only say what would happen")
    parser.add_argument("--history", type=Path, metavar="FILE", help="where to write the history")
    parser.add_argument("--no-shrink", action="store_true", help="show failures as they are")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="begin no other run after that")
    parser.add_argument("--marks", action="store_true", help="count interesting situations")
    parser.add_argument("--draws", action="store_true", help="run nothing, count what is drawn")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="where to count the runs")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' messages are not shown
    offset = OLD_IMAGES if options.only else 0
    if options.seeds is None:
        options.seed += offset
        return _one(options.seed, options)
    if options.seeds == "-":
        return _as_asked()
    first, _, last = options.seeds.partition("..")
    seeds = range(offset + int(first), offset + int(last) + 1)
    if options.draws:
        print("\n".join(draws.table(map(draw_plan, seeds))))
        return 0
    return _many(seeds, options)


def _one(seed: int, options: argparse.Namespace) -> int:
    plan = draw_plan(seed)
    if options.plan:
        print("\n".join(describe(plan)))
        return 0
    outcome = trace(plan, print) if options.trace else simulate(plan)
    if options.history is not None:
        options.history.unlink(missing_ok=True)
        with FileSink(options.history) as sink:
            for stamped in outcome.events:
                sink.put(stamped)
    if not outcome.ok:
        _show(outcome, shrinking=not options.no_shrink)
    print(outcome.line)
    return 0 if outcome.ok else 1


def _as_asked() -> int:
    """Run as a twin: make the runs that the parent process asks for."""
    for line in sys.stdin:
        print(run_seed(int(line)).line, flush=True)
    return 0


def _show(outcome: Outcome, *, shrinking: bool) -> None:
    print(f"run it again: python -m tests.simulation --seed {outcome.plan.seed} --trace")
    if shrinking:
        smaller = shrink(outcome)
        print(f"made smaller:\n{as_python(smaller.plan)}")
        outcome = smaller
    explain(outcome, print)


def _many(seeds: range, options: argparse.Namespace) -> int:
    commit, changed = tally.present()
    series = run_many(seeds, jobs=options.jobs, minutes=options.minutes)
    runs, failed = series.runs, series.failed
    if options.tally is not None:
        facts = (seeds[0], seeds[runs - 1], runs, len(failed), series.seconds, series.cpu_s)
        tally.append(options.tally, tally.Entry(tally.CLUSTER, commit, changed, *facts))
    if options.marks:
        print("\n".join(table(series.marks)))
    if failed and not options.no_shrink:
        outcome = simulate(draw_plan(failed[0]))
        if not outcome.ok:
            _show(outcome, shrinking=True)
    verdict = "ok" if not failed else f"FAILED: {' '.join(map(str, failed))}"
    rate = f", {60 * runs / series.cpu_s:.0f} a minute of CPU" if series.cpu_s else ""
    print(f"{runs} seeds, {len(failed)} failed, {series.seconds:g} s{rate}: {verdict}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
