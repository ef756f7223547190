"""The metrics of a bookie for Prometheus, read at each request; nothing is counted twice.

The registry belongs to the host, not to the process, because one process can run many bookies.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_PREFIX = "daybook_bookie_"
_COUNTERS = {
    "attempts_failed",
    "bytes_added",
    "bytes_copied",
    "bytes_removed",
    "bytes_rewritten",
    "bytes_scrubbed",
    "checkpoints",
    "collections",
    "collections_failed",
    "commits",
    "connections_cut",
    "connections_made",
    "connections_refused",
    "drops_failed",
    "entries_added",
    "entries_copied",
    "ledgers_cleared",
    "ledgers_dropped",
    "reclaim_failures",
    "scrub_failures",
    "scrubs",
    "segments_removed",
    "sessions_lost",
    "tombstones_ended",
}


class StatisticsCollector(Collector):
    """A collector that exports the numeric fields of records, which are dataclasses."""

    def __init__(self, sources: dict[str, Callable[[], object]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for group, source in self._sources.items():
            record = source()
            for field in fields(record):  # type: ignore[arg-type]
                value = getattr(record, field.name)
                if not isinstance(value, int | float):
                    continue
                name = f"{_PREFIX}{group}_{field.name}"
                words = field.name.replace("_", " ")
                family = CounterMetricFamily if field.name in _COUNTERS else GaugeMetricFamily
                yield family(name, f"{group}: {words}", value=float(value))


def registry_of(sources: dict[str, Callable[[], object]]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatisticsCollector(sources))
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)
