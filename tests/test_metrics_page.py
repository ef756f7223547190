"""`docs/operations.md` explains each metric of a broker and of a bookie."""

import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

from daybook.bookie.server.data_integrity import LimboStatistics
from daybook.bookie.server.garbage_collector import GarbageCollectorStatistics
from daybook.bookie.server.host import RegistrationStatistics
from daybook.bookie.server.http import StatisticsCollector
from daybook.bookie.server.port import ServerStatistics
from daybook.bookie.storage.statistics import StoreStatistics
from tests.broker.control.test_server import World, simulated

PAGE = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
BROKER, BOOKIE = PAGE.split("### Metrics of a broker")[1].split("### Metrics of a bookie")
NAMED_BY_BOOKIE = set(re.findall(r"`([a-z_]+)`", BOOKIE.partition("\n## ")[0]))
NAMED_BY_BROKER = set(re.findall(r"`((?:pulsar|daybook)_[a-z0-9_]+)`", BROKER))
PREFIX = "daybook_bookie_"
SOURCES = {
    "store": StoreStatistics,
    "server": ServerStatistics,
    "registration": RegistrationStatistics,
    "housekeeping": GarbageCollectorStatistics,
    "limbo": LimboStatistics,
}


def exposed(family: str, samples: list[str]) -> str:
    """Return the name of the sample that people look for: `..._total` of a counter."""
    return next((name for name in samples if name.endswith("_total")), family)


def empty(kind: type) -> Callable[[], object]:
    """Return a source of statistics in which every number is 0."""
    made = {
        each.name: each.type() if each.type in (int, bool, str) else () for each in fields(kind)
    }
    return partial(kind, **made)


def test_each_metric_of_a_bookie_is_explained_and_no_other() -> None:
    collector = StatisticsCollector({group: empty(kind) for group, kind in SOURCES.items()})
    names = {
        exposed(family.name, [sample.name for sample in family.samples]).removeprefix(PREFIX)
        for family in collector.collect()
    }
    groups = tuple(f"{group}_" for group in SOURCES)
    assert {name for name in NAMED_BY_BOOKIE if name.startswith(groups)} == names


def test_each_metric_of_a_broker_is_explained_and_no_other() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        names = {
            exposed(family.name, [sample.name for sample in family.samples] or [family.name])
            for family in broker.metrics.collect()
        }
        bare = {name.removesuffix("_total") for name in NAMED_BY_BROKER}
        assert {name.removesuffix("_total") for name in names} == bare
        counters = {name for name in names if name.endswith("_total")}
        assert counters <= NAMED_BY_BROKER

    simulated(story)
