"""Metrics of the load of a broker under Pulsar's names: its process, its bundles, its decisions.

The process counts as full at 100: a broker runs on one core.  The numbers of bundles are those of
the last load report (`ownership.load_report`), which names a bounded number of bundles.
"""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from daybook.broker.namespaces.records import BundleStats, LoadReport
from daybook.broker.ownership.balancer import Balancer, Outcome
from daybook.broker.protocol.balance import Kind

_MEASURED_S = 15.0  # scrapes that come sooner show the same
_STATM = Path("/proc/self/statm")


class ProcessUsage:
    """How busy this process is, in percent."""

    def __init__(self) -> None:
        self._cpu_s = _cpu_s()
        self._since_s = trio.current_time()
        self._cpu = 0.0

    def cpu(self) -> float:
        """Return the processor time since the last measurement, in percent of one core."""
        now_s = trio.current_time()
        if now_s - self._since_s >= _MEASURED_S:
            used_s = _cpu_s()
            self._cpu = 100 * (used_s - self._cpu_s) / (now_s - self._since_s)
            self._cpu_s, self._since_s = used_s, now_s
        return self._cpu

    def memory(self) -> float | None:
        """Return the resident memory in percent of the machine's; None if nobody says."""
        try:
            resident = int(_STATM.read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return 100 * resident / os.sysconf("SC_PHYS_PAGES")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


_BUNDLE_METRICS: tuple[tuple[str, str, Callable[[BundleStats], float]], ...] = (
    ("msg_rate_in", "Messages received per second.", lambda b: b.msg_rate_in),
    ("msg_rate_out", "Messages delivered per second.", lambda b: b.msg_rate_out),
    ("msg_throughput_in", "Bytes received per second.", lambda b: b.msg_throughput_in),
    ("msg_throughput_out", "Bytes delivered per second.", lambda b: b.msg_throughput_out),
    ("topics_count", "Loaded topics of the bundle.", lambda b: b.topics),
    ("consumer_count", "Consumers of the bundle.", lambda b: b.consumer_count),
    ("producer_count", "Producers of the bundle.", lambda b: b.producer_count),
)


def bundle_metrics(cluster: str, broker: str, report: LoadReport | None) -> Iterator[Metric]:
    """Yield the load of each bundle that the report names; None is no report yet."""
    stats = {} if report is None else report.last_stats
    for name, text, value_of in _BUNDLE_METRICS:
        family = GaugeMetricFamily(
            f"pulsar_bundle_{name}", text, labels=("cluster", "broker", "bundle")
        )
        for bundle, each in sorted(stats.items()):
            family.add_metric((cluster, broker, bundle), value_of(each))
        yield family


def process_metrics(cluster: str, broker: str, usage: ProcessUsage) -> Iterator[Metric]:
    """Yield how busy the process of the broker is."""
    for name, text, value in (
        ("cpu", "Processor time of the broker, in percent of one core.", usage.cpu()),
        ("memory", "Memory of the broker, in percent of the machine's.", usage.memory()),
    ):
        family = GaugeMetricFamily(f"pulsar_lb_{name}_usage", text, labels=("cluster", "broker"))
        if value is not None:
            family.add_metric((cluster, broker), value)
        yield family


def decision_metrics(cluster: str, broker: str, balancer: Balancer) -> Iterator[Metric]:
    """Yield the decisions of this broker while it led, each about one bundle of one broker."""
    made = balancer.outcomes
    for name, text, kind in (
        ("unload_bundle", "Bundles that the leader has moved to another broker.", Kind.MOVE),
        (
            "unload_broker",
            "Times that the leader has moved a bundle away from a broker.",
            Kind.MOVE,
        ),
        ("bundles_split", "Bundles that the leader has split.", Kind.SPLIT),
    ):
        family = CounterMetricFamily(f"pulsar_lb_{name}", text, labels=("cluster", "broker"))
        family.add_metric((cluster, broker), made[kind, Outcome.SUCCESS])
        yield family
    for name, text, kind in (
        (
            "unload_broker_breakdown",
            "Moves of bundles that the leader decided, by result.",
            Kind.MOVE,
        ),
        ("bundles_split_breakdown", "Splits that the leader decided, by result.", Kind.SPLIT),
    ):
        family = CounterMetricFamily(
            f"pulsar_lb_{name}", text, labels=("cluster", "broker", "result", "reason")
        )
        for outcome in Outcome:
            where = (cluster, broker, outcome.value, outcome.reason)
            family.add_metric(where, made[kind, outcome])
        yield family
