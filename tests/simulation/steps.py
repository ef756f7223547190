"""The steps of the protocols at which faults strike, and counts of which fault struck at which
step.

Each step is a few moments (`moments`).  A plan draws among steps, not times, and makes the step
occur: nobody recovers a ledger as long as all brokers are well.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from tests.simulation.acts import Act

BOOKIE, BROKER, COPIES = "bookie", "broker", "copies"
_ASK, _ANSWER, _WRITE, _DISK = (BROKER, BOOKIE), (BOOKIE, BROKER), (BROKER,), (BOOKIE,)


@dataclass(frozen=True, slots=True)
class Moment:
    name: str
    roles: tuple[str, ...]  # the kinds of the subject, and of the peer if there is one
    nth: tuple[int, ...] = (1, 1, 2, 3, 5)  # the occurrence to wait for: one of these


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    moments: tuple[Moment, ...]
    cause: str = ""  # a broker or bookie that has to fail first; COPIES: some must be lost


_OFTEN = (1, 3, 10, 20, 40, 60)
STEPS = (
    Step(
        "takeover",
        (Moment("owner taken", _WRITE), Moment("broker joined", _WRITE), Moment("owner gone", ())),
        BROKER,
    ),
    Step(
        "fence to first read",
        (Moment("fence", _ASK), Moment("fence answered", _ANSWER), Moment("recovery read", _ASK)),
        BROKER,
    ),
    Step(
        "recovery",
        (
            Moment("ledger in recovery", _WRITE, (1, 1, 2)),
            Moment("recovery joined", _ASK, (1,)),
            Moment("recovery add", _ASK, (1, 1, 2, 3, 10)),
            Moment("no entry", _ANSWER, (1, 2, 5, 20)),
        ),
        BROKER,
    ),
    Step("closing", (Moment("ledger closed", _WRITE), Moment("ledger deleted", _WRITE))),
    Step("ledger to list", (Moment("ledger created", _WRITE),)),
    Step(
        "list",
        (
            Moment("list created", _WRITE, (1,)),
            Moment("list changed", _WRITE),
            Moment("list claimed", _WRITE),
        ),
    ),
    Step("fragments", (Moment("ledger fragments", _WRITE, (1,)),), BOOKIE),
    Step(
        "cursor roll",
        (
            Moment("cursor ledger created", _WRITE),
            Moment("cursor created", _WRITE, (1, 2)),
            Moment("cursor changed", _WRITE),
            Moment("cursor deleted", _WRITE, (1,)),
        ),
    ),
    Step(
        "adds",
        (
            Moment("add", _ASK, _OFTEN),
            Moment("add answered", _ANSWER, _OFTEN),
            Moment("fenced", _ANSWER, (1, 2)),
        ),
    ),
    Step("reads", (Moment("read", _ASK, _OFTEN), Moment("read answered", _ANSWER, _OFTEN))),
    Step(
        "disk",
        (
            Moment("write", _DISK, _OFTEN),
            Moment("sync", _DISK, _OFTEN),
            Moment("segment", _DISK),
            Moment("checkpoint", _DISK, (1, 2, 3, 5, 20)),
        ),
    ),
    Step("space", (Moment("segment removed", _DISK, (1, 1, 2, 5)),)),
    Step(
        "copies",
        (
            Moment("ledger marked", _DISK, (1, 1, 2)),
            Moment("copy", (BOOKIE, BOOKIE), (1, 1, 2, 5, 20)),
            Moment("copies moved", _DISK, (1, 1, 2, 3)),
            Moment("mark cleared", _DISK, (1, 2)),
        ),
        COPIES,
    ),
)
# This step occurs where brokers have an HTTP port; `draw_features` draws its faults.
HAND_OVER = Step(
    "hand-over",
    (
        Moment("bundle expected", (BROKER, BROKER), (1, 1, 2, 5)),
        Moment("bundle held", (BROKER, BROKER), (1, 2)),
        Moment("topics passed on", (BROKER, BROKER), (1, 2)),
        Moment("bundle taken", (BROKER, BROKER), (1, 1, 2, 5)),
    ),
)
# Brokers load topics in every run; `draw_many_topics` draws faults while they load many.
LOADS = Step("loads", (Moment("list read", _WRITE), Moment("topic loaded", _WRITE)))
ALL_STEPS = (*STEPS, HAND_OVER, LOADS)
STEP_OF = {moment.name: step.name for step in ALL_STEPS for moment in step.moments}
KINDS = tuple(kind.__name__ for kind in get_args(Act))
_MARK = "struck at "


def mark_of(act: Act, moment: str) -> str:
    """Return the name of the mark for a fault that waited for a moment and has struck."""
    return f"{_MARK}{STEP_OF.get(moment, moment)}: {type(act).__name__}"


def is_mark(mark: str) -> bool:
    return mark.startswith(_MARK)


def _shown(count: int) -> str:
    return str(count) if count else "."


def matrix(runs: Iterable[Counter[str]]) -> list[str]:
    """Format for people how often each fault has struck at each step, in all."""
    total: Counter[str] = Counter()
    for run in runs:
        total.update({mark: count for mark, count in run.items() if is_mark(mark)})
    width = max(map(len, KINDS)) + 1
    heads = [f"{step.name[:9]:>9}" for step in ALL_STEPS]
    lines = [f"{'fault at step':{width}} {' '.join(heads)}"]
    for kind in KINDS:
        counts = [total[f"{_MARK}{step.name}: {kind}"] for step in ALL_STEPS]
        lines.append(f"{kind:{width}} {' '.join(f'{_shown(count):>9}' for count in counts)}")
    met = sum(count > 0 for count in total.values())
    lines.append(f"{met} of {len(KINDS) * len(ALL_STEPS)} pairs were met")
    return lines
