"""Metrics of the storage under Pulsar's names: rates, write latency, sizes of entries.

The numbers are those of the last whole minute, as with Pulsar, whose dashboards divide them by 60.
The buckets are not cumulative: each entry is in one of them.  A topic that has neither stored nor
read anything in that minute has no series, so the number of series follows the topics in use.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import trio
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from daybook.broker.topics.rates import PERIOD_S
from daybook.broker.topics.topic import Topic
from daybook.managed_ledger.traffic import NO_TRAFFIC, Traffic, WriteLatencies

_QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
_LATENCIES = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
_SIZES = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")
_WRITTEN = "Entries of the last minute that were stored within so many milliseconds"
_SIZED = "Entries of the last minute with at most so many bytes"

_Row: TypeAlias = tuple[str, str, Callable[[Traffic], float]]
_RATES: list[_Row] = [
    ("storage_write_rate", "Entries stored per second.", lambda t: t.entries / PERIOD_S),
    (
        "storage_read_rate",
        "Entries read per second, from memory or from bookies.",
        lambda t: t.entries_read / PERIOD_S,
    ),
]


def _bucket(kind: str, index: int) -> Callable[[Traffic], float]:
    return lambda traffic: getattr(traffic, kind)[index]


_WRITES: list[_Row] = [
    (f"storage_write_latency_le_{bound}", f"{_WRITTEN}.", _bucket("latencies", index))
    for index, bound in enumerate(_LATENCIES)
]
_WRITES_IN_ALL: list[_Row] = [
    (
        "storage_write_latency_overflow",
        "Entries of the last minute that were stored after more than a second.",
        _bucket("latencies", -1),
    ),
    (
        "storage_write_latency_count",
        "Entries of the last minute that were stored.",
        lambda t: t.entries,
    ),
    (
        "storage_write_latency_sum",
        "The sum of the times that the entries of the last minute took, in microseconds.",
        lambda t: t.latency_s * 1e6,
    ),
]
_SIZES_OF_ENTRIES: list[_Row] = [
    (f"entry_size_le_{bound}", f"{_SIZED}.", _bucket("sizes", index))
    for index, bound in enumerate(_SIZES)
]
_LARGE_ENTRIES: list[_Row] = [
    # Pulsar's brokers have the first name, and its dashboards ask for the second one.
    (name, "Entries of the last minute with more than a megabyte.", _bucket("sizes", -1))
    for name in ("entry_size_le_overflow", "entry_size_overflow")
]
_SIZES_IN_ALL: list[_Row] = [
    ("entry_size_count", "Entries of the last minute that were stored.", lambda t: t.entries),
    ("entry_size_sum", "Bytes of the entries of the last minute.", lambda t: t.bytes),
]
_VALUES = [*_RATES, *_WRITES, *_WRITES_IN_ALL, *_SIZES_OF_ENTRIES, *_LARGE_ENTRIES, *_SIZES_IN_ALL]


def traffic_of_topics(cluster: str, topics: Iterable[Topic]) -> Iterator[Metric]:
    """Yield the metrics with a series for each topic in use."""
    rows = [
        ((cluster, topic.name.namespace, topic.name.full), (topic.traffic,))
        for topic in topics
        if topic.traffic is not NO_TRAFFIC
    ]
    return _families(("cluster", "namespace", "topic"), rows)


def traffic_of_namespaces(cluster: str, topics: Iterable[Topic]) -> Iterator[Metric]:
    """Yield the metrics as sums by namespace."""
    sums = defaultdict[str, list[Traffic]](list)
    for topic in topics:
        if topic.traffic is not NO_TRAFFIC:
            sums[topic.name.namespace].append(topic.traffic)
    rows = [((cluster, namespace), each) for namespace, each in sorted(sums.items())]
    return _families(("cluster", "namespace"), rows)


def _families(
    labels: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[Traffic]]]
) -> Iterator[Metric]:
    for name, text, value_of in _VALUES:
        family = GaugeMetricFamily(f"pulsar_{name}", text, labels=labels)
        for values, traffic in rows:
            family.add_metric(values, sum(map(value_of, traffic)))
        yield family


def publish_latency(cluster: str, latencies: WriteLatencies) -> Metric:
    """Return how long the entries of all topics took, as a summary in milliseconds."""
    name = "pulsar_broker_publish_latency"
    summary = Metric(
        name,
        "Milliseconds until an entry was stored: quantiles of the last minute.",
        "summary",
    )
    now_s = trio.current_time()
    for share in _QUANTILES:
        where = {"cluster": cluster, "quantile": str(share)}
        summary.add_sample(name, where, latencies.quantile(share, now_s) * 1000)
    summary.add_sample(f"{name}_count", {"cluster": cluster}, latencies.entries)
    summary.add_sample(f"{name}_sum", {"cluster": cluster}, latencies.latency_s * 1000)
    return summary
