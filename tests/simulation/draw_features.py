"""Draws work that uses one feature of topics, in some runs.

Each kind has a generator of its own, so that the rest of a seed's plan does not change.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.simulation.plan import Administer, Latest, Plan, Produce

_COMPACTED = 0.25  # share of runs; all of them, of the seeds of a feature


def _compaction(plan: Plan, rng: Random) -> Plan:
    """Compact the topics without partitions of some runs, and read the latest of each key."""
    if rng.random() >= _COMPACTED:
        return plan
    work = list(plan.work)
    for topic in plan.topics:
        if topic.partitions:
            continue
        short, hosts = topic.name[-2:], plan.shape.client_names()
        work += [
            Administer(
                f"compact{number + 1}-{short}",
                rng.choice(hosts),
                "compact",
                topic.name,
                rng.uniform(0.0, plan.storm_s),
            )
            for number in range(rng.choice([1, 2, 4]))
        ]
        work += [
            Latest(
                f"latest{number + 1}-{short}",
                rng.choice(hosts),
                topic.name,
                view=rng.random() < 0.5,
                again=rng.choice([0.0, 0.1]),
            )
            for number in range(rng.choice([1, 1, 2]))
        ]
    share = rng.choice([0.0, 0.1, 0.3])
    return replace(
        plan,
        work=tuple(
            replace(each, tombstones=share) if isinstance(each, Produce) else each for each in work
        ),
    )


FEATURES: tuple[Callable[[Plan, Random], Plan], ...] = (_compaction,)
