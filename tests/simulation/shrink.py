"""Shrinks a failing plan: fewer faults, less work, fewer messages and hosts, the same broken rule.

A candidate is kept if it breaks the rule that the whole plan broke.  Parts have generators of their
own, so that one can go without changing the others.  The result is printed as Python, to be kept as
a scenario.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from tests.simulation.plan import ManyTopics, Plan, Produce, Shape, TopicWork
from tests.simulation.run import Outcome, simulate
from tests.simulation.settings import Settings

RUNS_MAX = 150
_T = TypeVar("_T")


def rule_of(outcome: Outcome) -> str:
    """Return the first broken rule of a run; empty if none."""
    return outcome.violations[0].partition(":")[0] if outcome.violations else ""


def shrink(
    outcome: Outcome,
    *,
    runs_max: int = RUNS_MAX,
    run: Callable[[Plan], Outcome] = simulate,
    on_progress: Callable[[Plan], None] | None = None,
) -> Outcome:
    """Return the smallest plan found that breaks the same rule, and its outcome."""
    rule, best, runs = rule_of(outcome), outcome, 0
    progress = True
    while progress and runs < runs_max:
        progress = False
        for candidate in _smaller(best.plan):
            if runs >= runs_max:
                break
            runs += 1
            tried = run(candidate)
            if rule in {violation.partition(":")[0] for violation in tried.violations}:
                best, progress = tried, True
                if on_progress is not None:
                    on_progress(candidate)
                break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield candidates, the most promising ones first."""
    for some in _without(plan.faults):
        yield replace(plan, faults=some)
    for less in _without(plan.work):
        yield replace(plan, work=less)
    for index, work in enumerate(plan.work):
        if isinstance(work, Produce) and work.messages > 1:
            fewer = replace(work, messages=work.messages // 2)
            yield replace(plan, work=(*plan.work[:index], fewer, *plan.work[index + 1 :]))
        if isinstance(work, ManyTopics) and work.topics > 1:
            halved = replace(work, topics=work.topics // 2)
            yield replace(plan, work=(*plan.work[:index], halved, *plan.work[index + 1 :]))
    used = {work.topic for work in plan.work if isinstance(work, TopicWork)}
    if any(topic.name not in used for topic in plan.topics):
        yield replace(plan, topics=tuple(topic for topic in plan.topics if topic.name in used))
    if plan.storm_s > 2.0:
        yield replace(plan, storm_s=plan.storm_s / 2)
    if plan.power_cycle:
        yield replace(plan, power_cycle=False)
    yield from _simpler_shapes(plan)


def _without(parts: tuple[_T, ...]) -> Iterator[tuple[_T, ...]]:
    """Yield the parts without a half of them, then without a quarter, down to one."""
    size = (len(parts) + 1) // 2
    while size:
        for first in range(0, len(parts), size):
            yield parts[:first] + parts[first + size :]
        size = size // 2 if size > 1 else 0


def _simpler_shapes(plan: Plan) -> Iterator[Plan]:
    shape, settings, usual = plan.shape, plan.shape.settings, Settings()
    if shape.brokers > 1:
        yield replace(plan, shape=replace(shape, brokers=shape.brokers - 1))
    quorums = settings.quorums
    if shape.bookies > (quorums[0] if quorums else 1):
        yield replace(plan, shape=replace(shape, bookies=shape.bookies - 1))
    for field in fields(Settings):
        value = getattr(usual, field.name)
        if getattr(settings, field.name) != value:
            usual_there = replace(settings, **{field.name: value})
            yield replace(plan, shape=replace(shape, settings=usual_there))


def as_python(value: object, indent: int = 0) -> str:
    """Return an expression that makes the plan again; defaults are left out."""
    pad = "    " * (indent + 1)
    if isinstance(value, tuple) and any(map(is_dataclass, value)):
        inner = "".join(f"{pad}{as_python(each, indent + 1)},\n" for each in value)
        return f"(\n{inner}{'    ' * indent})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    shown = [
        (field.name, getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != field.default
    ]
    if isinstance(value, Plan | Shape):
        lines = "".join(f"{pad}{name}={as_python(each, indent + 1)},\n" for name, each in shown)
        return f"{type(value).__name__}(\n{lines}{'    ' * indent})"
    arguments = ", ".join(f"{name}={as_python(each, indent)}" for name, each in shown)
    return f"{type(value).__name__}({arguments})"
