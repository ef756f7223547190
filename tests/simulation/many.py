"""Many runs: which of them failed, which marks they met, how long they took.

Every twentieth run is repeated by a `Twin`, and the traces are compared.
"""

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.marks import marks_of
from tests.simulation.nemesis import draw_plan
from tests.simulation.run import simulate
from tests.simulation.twin import Twin

_TWICE_EVERY = 20
_SEEDS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Result:
    """The report of a run in another process."""

    seed: int
    line: str
    ok: bool
    violations: tuple[str, ...]
    marks: Counter[str]


@dataclass(slots=True)
class Series:
    """The sums of the runs that were made, from the first seed on."""

    runs: int = 0
    failed: list[int] = field(default_factory=list[int])  # seeds
    marks: list[Counter[str]] = field(default_factory=list[Counter[str]])
    seconds: float = 0.0
    cpu_s: float = 0.0


def run_seed(seed: int) -> Result:
    """Make one run.  Never raise: a run that cannot be made has failed."""
    gc.collect()
    gc.freeze()  # the remaining objects stay for good; most of them are modules
    gc.disable()
    try:
        outcome = simulate(draw_plan(seed))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        line = f"seed {seed}: FAILED, the simulator: {error!r}"
        return Result(seed, line, False, (repr(error),), Counter())
    finally:
        gc.enable()
    marks = outcome.marks + marks_of(outcome.events)
    return Result(seed, outcome.line, outcome.ok, tuple(outcome.violations), marks)


def run_many(seeds: range, *, jobs: int, minutes: float | None = None) -> Series:
    """Make the runs in order of the seeds and show each; after `minutes` begin no other one."""
    series = Series()
    began_s, began_cpu_s = time.monotonic(), _cpu_s()
    end_s = float("inf") if minutes is None else began_s + 60 * minutes
    with Twin() as twin:
        for result in _results(seeds, jobs, end_s):
            series.runs += 1
            series.marks.append(result.marks)
            if not _shown(result, twin):
                series.failed.append(result.seed)
    series.seconds = round(time.monotonic() - began_s, 1)
    series.cpu_s = round(_cpu_s() - began_cpu_s, 1)
    return series


def _results(seeds: range, jobs: int, end_s: float) -> Iterator[Result]:
    """Yield results in order of the seeds."""
    if jobs <= 1:
        for seed in seeds:
            yield run_seed(seed)
            if time.monotonic() > end_s:
                return
        return
    with ProcessPoolExecutor(jobs) as pool:
        for result in pool.map(run_seed, seeds, chunksize=_SEEDS_AT_ONCE):
            yield result
            if time.monotonic() > end_s:
                pool.shutdown(cancel_futures=True)
                return


def _shown(result: Result, twin: Twin) -> bool:
    """Show a result and return True if all is well."""
    print(result.line, flush=True)
    for violation in result.violations[:3]:
        print(f"    {violation}", flush=True)
    if result.ok and result.seed % _TWICE_EVERY == 0 and twin.line(result.seed) != result.line:
        print(f"seed {result.seed}: FAILED, another trace in another process", flush=True)
        return False
    return result.ok


def _cpu_s() -> float:
    """Return the CPU seconds of this process, and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
