"""Metrics under Pulsar's names.  Each broker has a registry, collected at each scrape."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daybook.broker.ownership.ownership import Ownership
from daybook.broker.service.accept import ClientPort
from daybook.broker.service.request_counts import RequestCounts, command_name, error_name
from daybook.broker.topics.orphans import OrphanRemoval
from daybook.broker.topics.stats import SubscriptionStats, TopicStats, statistics
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.wire.arena import ArenaPool
from daybook.wire.version import __version__

_TOPIC_LABELS = ("cluster", "namespace", "topic")
_BACKLOG = "Messages not acknowledged; an estimate inside a ledger with batches."
_BACKLOG_BYTES = "Bytes of the largest backlog, an estimate."
_SUBSCRIPTION_LABELS = (*_TOPIC_LABELS, "subscription")


class BrokerMetrics:
    """The metrics of one broker."""

    def __init__(
        self,
        cluster: str,
        topics: Topics,
        ownership: Ownership,
        clients: ClientPort,
        arenas: ArenaPool,
        requests: RequestCounts,
        orphans: OrphanRemoval,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._ownership = ownership
        self._clients = clients
        self._arenas = arenas
        self._requests = requests
        self._orphans = orphans
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self))

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        loaded = list(self._topics.loaded.values())
        stats = [(topic, statistics(topic)) for topic in loaded]
        yield from self._broker(stats)
        yield from self._of_requests()
        yield from self._of_topics(stats)
        yield from self._of_subscriptions(stats)

    def _broker(self, stats: list[tuple[Topic, TopicStats]]) -> Iterator[Metric]:
        def gauge(name: str, text: str, value: float) -> Metric:
            metric = GaugeMetricFamily(name, text, labels=("cluster",))
            metric.add_metric((self._cluster,), value)
            return metric

        info = GaugeMetricFamily("pulsar_version_info", "Version.", labels=("cluster", "version"))
        info.add_metric((self._cluster, __version__), 1)
        yield info
        each = [s for _, s in stats]
        subscriptions = [s for one in each for s in one.subscriptions.values()]
        for name, text, value in (
            ("topics_count", "Loaded topics.", len(each)),
            ("producers_count", "Connected producers.", sum(len(s.publishers) for s in each)),
            (
                "consumers_count",
                "Consumers.",
                sum(len(s.consumers) for s in subscriptions),
            ),
            ("subscriptions_count", "Subscriptions.", len(subscriptions)),
            ("rate_in", "Messages per second.", sum(s.msg_rate_in for s in each)),
            ("rate_out", "Messages per second.", sum(s.msg_rate_out for s in each)),
            ("throughput_in", "Bytes per second.", sum(s.msg_throughput_in for s in each)),
            ("throughput_out", "Bytes per second.", sum(s.msg_throughput_out for s in each)),
            ("msg_backlog", _BACKLOG, sum(s.msg_backlog for s in subscriptions)),
            ("storage_size", "Bytes stored.", sum(s.storage_size for s in each)),
        ):
            yield gauge(f"pulsar_broker_{name}", text, value)
        owned, in_contact = len(self._ownership.owned), self._ownership.contact
        yield gauge("daybook_broker_connections", "Client connections.", self._clients.connections)
        yield gauge("daybook_broker_bundles", "Bundles owned by this broker.", owned)
        yield gauge("daybook_broker_in_contact", "1: the store is in reach.", in_contact)
        old = sum(c.old_records > 0 for topic, _ in stats for c in topic.log.cursors.values())
        yield gauge(
            "daybook_broker_cursors_pulsar_misreads", "Cursors with records of version 1.", old
        )
        yield gauge("daybook_broker_arena_bytes", "Receive buffers.", self._arenas.total_bytes)
        for name, text, count in (
            ("connections_refused", "Refused connections.", self._clients.refused),
            (
                "orphaned_ledgers_removed",
                "Ledgers that no record named.",
                self._orphans.removed,
            ),
        ):
            counter = CounterMetricFamily(f"daybook_broker_{name}", text, labels=("cluster",))
            counter.add_metric((self._cluster,), count)
            yield counter

    def _of_requests(self) -> Iterator[Metric]:
        received = CounterMetricFamily(
            "daybook_broker_commands",
            "Commands received from clients, without SEND and ACK.",
            labels=("cluster", "command"),
        )
        for command, count in sorted(self._requests.received.items()):
            received.add_metric((self._cluster, command_name(command)), count)
        yield received
        refused = CounterMetricFamily(
            "daybook_broker_commands_refused",
            "Refused commands of clients, including SEND and ACK.",
            labels=("cluster", "command", "error"),
        )
        for (command, error), count in sorted(self._requests.refused.items()):
            refused.add_metric((self._cluster, command_name(command), error_name(error)), count)
        yield refused

    def _of_topics(self, stats: list[tuple[Topic, TopicStats]]) -> Iterator[Metric]:
        for make, name, text, value_of in _TOPIC_METRICS:
            family = make(f"pulsar_{name}", text, labels=_TOPIC_LABELS)
            for topic, one in stats:
                family.add_metric(self._labels(topic), value_of(one))
            yield family

    def _labels(self, topic: Topic) -> tuple[str, str, str]:
        return (self._cluster, topic.name.namespace, topic.name.full)

    def _of_subscriptions(self, stats: list[tuple[Topic, TopicStats]]) -> Iterator[Metric]:
        rows = [
            ((*self._labels(topic), name), subscription)
            for topic, one in stats
            for name, subscription in one.subscriptions.items()
        ]
        for name, text, key in _SUBSCRIPTION_GAUGES:
            family = GaugeMetricFamily(
                f"pulsar_subscription_{name}", text, labels=_SUBSCRIPTION_LABELS
            )
            for labels, subscription in rows:
                family.add_metric(labels, getattr(subscription, key))
            yield family
        family = GaugeMetricFamily(
            "pulsar_subscription_consumers_count", "Consumers.", labels=_SUBSCRIPTION_LABELS
        )
        for labels, subscription in rows:
            family.add_metric(labels, len(subscription.consumers))
        yield family


class _Collector(Collector):
    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect()


_SUBSCRIPTION_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("back_log", _BACKLOG, "msg_backlog"),
    ("back_log_entries", "Entries not acknowledged.", "backlog_entries"),
    ("back_log_bytes", "Bytes not acknowledged, an estimate.", "backlog_size"),
    ("delayed", "Entries that wait for their delivery time.", "msg_delayed"),
    ("msg_rate_out", "Messages per second.", "msg_rate_out"),
    ("msg_throughput_out", "Bytes per second.", "msg_throughput_out"),
    ("msg_rate_redeliver", "Messages per second.", "msg_rate_redeliver"),
    ("unacked_messages", "Messages delivered and not acknowledged.", "unacked_messages"),
    ("last_acked_timestamp", "Time of the last acknowledgement, in ms.", "last_acked_timestamp"),
)
assert all(key in SubscriptionStats.__struct_fields__ for _, _, key in _SUBSCRIPTION_GAUGES)


def _consumers(stats: TopicStats) -> int:
    return sum(len(s.consumers) for s in stats.subscriptions.values())


def _backlog(stats: TopicStats) -> int:
    return sum(s.msg_backlog for s in stats.subscriptions.values())


_Make: TypeAlias = type[GaugeMetricFamily] | type[CounterMetricFamily]

_TOPIC_METRICS: tuple[tuple[_Make, str, str, Callable[[TopicStats], float]], ...] = (
    (GaugeMetricFamily, "subscriptions_count", "Subscriptions.", lambda s: len(s.subscriptions)),
    (GaugeMetricFamily, "producers_count", "Producers.", lambda s: len(s.publishers)),
    (GaugeMetricFamily, "consumers_count", "Consumers.", _consumers),
    (GaugeMetricFamily, "rate_in", "Messages per second.", lambda s: s.msg_rate_in),
    (GaugeMetricFamily, "rate_out", "Messages per second.", lambda s: s.msg_rate_out),
    (GaugeMetricFamily, "throughput_in", "Bytes per second.", lambda s: s.msg_throughput_in),
    (GaugeMetricFamily, "throughput_out", "Bytes per second.", lambda s: s.msg_throughput_out),
    (GaugeMetricFamily, "msg_backlog", _BACKLOG, _backlog),
    (GaugeMetricFamily, "backlog_size", _BACKLOG_BYTES, lambda s: s.backlog_size),
    (GaugeMetricFamily, "storage_size", "Bytes stored.", lambda s: s.storage_size),
    (
        GaugeMetricFamily,
        "ml_ledger_list_bytes",
        "Bytes of the list of ledgers in the metadata store.",
        lambda s: s.ledger_list_bytes,
    ),
    (
        GaugeMetricFamily,
        "ml_ledger_list_alarm",
        "1: half of the bytes of such a list are used; 2: it is full, no message is accepted.",
        lambda s: 2 if s.ledger_list_full else int(s.ledger_list_alarm),
    ),
    (GaugeMetricFamily, "average_msg_size", "Bytes per message.", lambda s: s.average_msg_size),
    (CounterMetricFamily, "in_messages", "Messages received.", lambda s: s.msg_in_counter),
    (CounterMetricFamily, "out_messages", "Messages delivered.", lambda s: s.msg_out_counter),
    (CounterMetricFamily, "in_bytes", "Bytes received.", lambda s: s.bytes_in_counter),
    (CounterMetricFamily, "out_bytes", "Bytes delivered.", lambda s: s.bytes_out_counter),
)
