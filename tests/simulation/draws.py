"""Counts how often plans draw each kind of fault and work; nothing is run.

A kind that no plan draws is not tested by any number of runs; the table shows it with a 0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args

from tests.simulation.acts import Act
from tests.simulation.plan import Plan, Shape, Topic, Work
from tests.simulation.settings import AutoRecovery, Limits, Settings

_FAULTS, _WORK = get_args(Act), get_args(Work)
_OF_SHAPE = (Shape, Settings, Limits, AutoRecovery)


def drawn(plan: Plan) -> Counter[str]:
    """Count a plan's kinds of faults and of work, and its fields that are not the default."""
    found: Counter[str] = Counter()
    for fault in plan.faults:
        found[f"fault {type(fault.act).__name__}"] += 1
    for work in plan.work:
        found[f"work {type(work).__name__}"] += 1
    for part in (plan.shape, *plan.topics, *plan.work):
        found.update(_unusual(part))
    return found


def _unusual(part: Any) -> Iterator[str]:
    """Yield the fields that differ from their defaults, also those of nested dataclasses."""
    for each in fields(part):
        value = getattr(part, each.name)
        if is_dataclass(value):
            yield from _unusual(value)
        if _has_default(each) and value != _default(each):
            yield f"{type(part).__name__}.{each.name}"


def _has_default(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _all() -> list[str]:
    """Return the names of everything that can be drawn."""
    names = [f"fault {kind.__name__}" for kind in _FAULTS]
    names += [f"work {kind.__name__}" for kind in _WORK]
    for part in (*_OF_SHAPE, Topic, *_WORK):
        names += [f"{part.__name__}.{each.name}" for each in fields(part) if _has_default(each)]
    return names


def table(plans: Iterable[Plan]) -> list[str]:
    """Format for people in how many runs each kind is drawn, and how often in all."""
    total, runs, count = Counter[str](), Counter[str](), 0
    for plan in plans:
        found = drawn(plan)
        total.update(found)
        runs.update(found.keys())
        count += 1
    lines = [f"{'in runs':>8} {'in all':>8}  drawn, in {count} runs"]
    lines += [f"{runs[name]:8} {total[name]:8}  {name}" for name in _all()]
    return lines
