"""How far queries are behind their topics, for people and for Prometheus.

    listener = daybook.spark.LagListener()
    spark.streams.addListener(listener)
    ...
    listener.behind()          {("archive", Partition(topic="persistent://...", number=0)): 1200}
    listener.prometheus_text() b'daybook_spark_offsets_behind{query="archive",...} 1200.0 ...'

After each micro-batch Spark tells where a query is and where its topics end.  The listener logs the
difference, and keeps the latest one until the query ends.  A query without a name is known by its
id.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
import logging
import threading
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from daybook.clients.spark.checkpoint import StreamOffset, decode_offset
from daybook.clients.spark.offsets import Partition

_log = logging.getLogger("daybook.spark")


class LagListener(StreamingQueryListener):
    """One instance per Spark session.

    With `registry`, its gauge is in that registry of prometheus-client, too.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()  # Spark calls from threads of its own.
        self._names: dict[str, str] = {}  # the name of each run of a query
        self._behind: dict[str, dict[Partition, int]] = {}  # by run
        self._own = CollectorRegistry()
        self._own.register(_Gauge(self))
        if registry is not None:
            registry.register(_Gauge(self))

    def behind(self) -> dict[tuple[str, Partition], int]:
        """Return how many offsets each running query is behind, partition by partition."""
        with self._lock:
            return {
                (self._names[run], partition): offsets
                for run, those in self._behind.items()
                for partition, offsets in those.items()
            }

    def prometheus_text(self) -> bytes:
        """Return the same as a page for Prometheus."""
        return generate_latest(self._own)

    # -- what Spark calls

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        progress = event.progress
        found: dict[Partition, int] = {}
        for source in progress.sources:
            for partition, offsets in behind(source.endOffset, source.latestOffset).items():
                found[partition] = found.get(partition, 0) + offsets
        if not found:
            return
        name = progress.name or str(progress.id)
        with self._lock:
            self._names[str(progress.runId)] = name
            self._behind[str(progress.runId)] = found
        worst = max(found, key=lambda partition: found[partition])
        _log.info(
            "the query %s is %d offsets behind, %d of them in %s",
            name,
            sum(found.values()),
            found[worst],
            worst,
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name
        with self._lock:
            self._behind.pop(str(event.runId), None)
            self._names.pop(str(event.runId), None)


class _Gauge(Collector):
    def __init__(self, listener: LagListener) -> None:
        self._listener = listener

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for (query, partition), offsets in sorted(self._listener.behind().items()):
            family.add_metric([query, partition.topic, str(partition.number)], offsets)
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "daybook_spark_offsets_behind",
            "Offsets between the end of a partition and the last micro-batch of a query",
            labels=["query", "topic", "partition"],
        )


def behind(end: str | None, latest: str | None) -> Mapping[Partition, int]:
    """Return how many offsets lie between two offsets of a progress report, for each partition.

    The result is empty for sources that are not Daybook's.
    """
    read, there = _decode(end), _decode(latest)
    if read is None or there is None:
        return {}
    found: dict[Partition, int] = {}
    for partition, until in there.partitions.items():
        before = read.partitions.get(partition)
        if before is not None:
            found[partition] = max(0, until.next - before.next)
    return found


def _decode(text: str | None) -> StreamOffset | None:
    try:
        parsed = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(parsed, dict) or "version" not in parsed:
        return None
    try:
        return decode_offset(parsed, None)
    except ValueError:
        return None
