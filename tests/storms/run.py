"""Runs of many schedules: the failures, the states that were met, and the speed."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.storms.chance import Chance, Drawn, Given, Recorded, Schedule
from tests.storms.kinds import ALL_KINDS, KINDS, SHARES
from tests.storms.shrink import shrink
from tests.storms.storm import Storm, ViolationError, Worlds

CHUNK = 1000
CODE = "the code itself"  # the name of the rule if the code raises an error of its own


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    seed: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}: {self.rule}: {self.detail}"


@dataclass(slots=True)
class Report:
    """The result of some schedules."""

    schedules: Counter[str] = field(default_factory=Counter[str])
    steps: Counter[str] = field(default_factory=Counter[str])
    marks: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    failures: list[Failure] = field(default_factory=list[Failure])
    seconds: float = 0.0  # time of one processor

    def add(self, other: "Report") -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.failures += other.failures
        for kind, marks in other.marks.items():
            self.marks.setdefault(kind, Counter()).update(marks)

    def rare(self, kind: str) -> list[str]:
        """Return the marks that were met less often than they should be."""
        total, seen = self.schedules[kind], self.marks.get(kind, Counter())
        return [
            f"{kind}: {mark}: {seen[mark]} of {total}"
            for mark, part in ALL_KINDS[kind].wanted.items()
            if seen[mark] < part * total
        ]


def play(
    kind: str,
    chance: Chance,
    trace: list[str] | None = None,
    *,
    white_box: bool = True,
    worlds: Worlds | None = None,
) -> tuple[Storm, Failure | None]:
    """Play one schedule; the seed of the failure is not known here, and 0."""
    storm = ALL_KINDS[kind](chance, trace)
    storm.white_box = white_box
    storm.worlds = worlds or Worlds()
    try:
        storm.run()
    except ViolationError as violation:
        return storm, Failure(kind, 0, violation.rule, str(violation).partition(": ")[2])
    except Exception as error:  # A machine raised an error, which is a failure, too.
        return storm, Failure(kind, 0, CODE, f"{type(error).__name__}: {error}")
    return storm, None


def drawn(kind: str, seed: int) -> Drawn:
    return Drawn(seed, ALL_KINDS[kind].steps_max)


def run_seeds(kind: str, first: int, count: int, *, white_box: bool = True) -> Report:
    """Run the seeds up to the first failure."""
    report, marks, worlds = Report(), Counter[str](), Worlds()
    started = time.process_time()
    for seed in range(first, first + count):
        storm, failure = play(kind, drawn(kind, seed), white_box=white_box, worlds=worlds)
        report.schedules[kind] += 1
        report.steps[kind] += storm.steps
        marks.update(storm.marks)
        if failure is not None:
            report.failures.append(Failure(kind, seed, failure.rule, failure.detail))
            break
    report.marks[kind] = marks
    report.seconds = time.process_time() - started
    return report


def run_steps(steps: int, *, first: int = 0, kinds: list[str]) -> Report:
    """Run schedules of each kind until they have so many steps together, or one fails."""
    report = Report()
    for kind in kinds:
        at = first
        while report.steps[kind] < steps and not report.failures:
            report.add(run_seeds(kind, at, CHUNK))
            at += CHUNK
    return report


def chunks(schedules: int, first: int, kinds: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield kind, first seed and count; kinds get their shares, and count their own seeds."""
    total = sum(SHARES[kind] for kind in kinds)
    left = {kind: max(1, schedules * SHARES[kind] // total) for kind in kinds}
    at = dict.fromkeys(kinds, first)
    while any(left.values()):
        for kind in kinds:
            if count := min(CHUNK, left[kind]):
                yield kind, at[kind], count
                at[kind] += count
                left[kind] -= count


def run_many(
    schedules: int, *, first: int = 0, kinds: list[str] | None = None, jobs: int = 1
) -> Report:
    """Run so many schedules in all, until one fails."""
    report = Report()
    work = chunks(schedules, first, kinds or list(KINDS))
    if jobs == 1:
        for kind, start, count in work:
            report.add(run_seeds(kind, start, count))
            if report.failures:
                break
        return report
    with ProcessPoolExecutor(jobs) as pool:
        for part in pool.map(run_seeds, *zip(*work, strict=True)):
            report.add(part)
            if report.failures:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    return report


def explain(failure: Failure) -> list[str]:
    """Return the command that repeats it, and the shortest schedule found, message by message."""
    recorded, worlds = Recorded(drawn(failure.kind, failure.seed)), Worlds()
    play(failure.kind, recorded, worlds=worlds)

    def breaks(schedule: Schedule) -> bool:
        found = play(failure.kind, Given(schedule), worlds=worlds)[1]
        return found is not None and found.rule == failure.rule

    schedule = shrink(recorded.schedule, breaks)
    trace: list[str] = []
    found = play(failure.kind, Given(schedule), trace)[1]
    assert found is not None
    return [
        f"python -m tests.storms --kind {failure.kind} --seed {failure.seed}",
        f"{len(recorded.schedule) - 2} steps, shrunk to {len(schedule) - 2}:",
        *(f"  {number:3} {line}" for number, line in enumerate(trace)),
        f"  {found.rule}: {found.detail}",
    ]
