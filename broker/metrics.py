"""Metrics under Pulsar's names.  Each broker has a registry, collected at each scrape."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daybook.bookie.ledger.ensemble import BookieDirectory
from daybook.broker.access_metrics import (
    audit_metrics,
    authentication_metrics,
    cut_metrics,
    held_metrics,
    token_file_metrics,
)
from daybook.broker.compaction.topic_compaction import CompactionCounts
from daybook.broker.exposition import in_pieces
from daybook.broker.load_metrics import (
    ProcessUsage,
    bundle_metrics,
    decision_metrics,
    process_metrics,
)
from daybook.broker.ownership.balancer import Balancer
from daybook.broker.ownership.load_report import LoadReports
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.dispatch.blockers import Cause
from daybook.broker.security.audit import Audit
from daybook.broker.security.authentication import Authentication, AuthenticationCounts
from daybook.broker.service.accept import ClientPort
from daybook.broker.service.request_counts import RequestCounts, command_name, error_name
from daybook.broker.topics.deduplication import Deduplication
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.orphans import OrphanRemoval
from daybook.broker.topics.stats import (
    SubscriptionStats,
    TopicStats,
    non_persistent_statistics,
    statistics,
)
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.broker.traffic_metrics import (
    publish_latency,
    traffic_of_namespaces,
    traffic_of_topics,
)
from daybook.managed_ledger.open import ManagedLedgers
from daybook.wire.arena import ArenaPool
from daybook.wire.version import __version__

_Row: TypeAlias = tuple[Topic | NonPersistentTopic, TopicStats]
_NAMESPACE_LABELS = ("cluster", "namespace")
_TOPICS_PER_TURN = 20  # The numbers of so many are computed; then other tasks run.
_NO_SUMS = ("average_msg_size", "ml_ledger_list_alarm")
_TOPIC_LABELS = ("cluster", "namespace", "topic")
_BACKLOG = "Messages not acknowledged by subscriptions; an estimate if messages are in batches."
_BACKLOG_BYTES = "Bytes of the largest backlog of a subscription, an estimate."
_MESSAGES_IN = "Messages received per second, averaged over the last minute."
_MESSAGES_OUT = "Messages delivered per second, averaged over the last minute."
_BYTES_IN = "Bytes received per second, averaged over the last minute."
_BYTES_OUT = "Bytes delivered per second, averaged over the last minute."
_STORED = "Bytes of messages that are stored."
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
        ledgers: ManagedLedgers,
        bookies: BookieDirectory,
        balancer: Balancer,
        loads: LoadReports,
        *,
        topics_max: int,
        authentication: Authentication | None = None,
        audit: Audit | None = None,
    ) -> None:
        """With more than `topics_max` loaded topics, there are no series for single topics."""
        self._cluster = cluster
        self.topics_max = topics_max
        self._topics = topics
        self._ownership = ownership
        self._clients = clients
        self._arenas = arenas
        self._requests = requests
        self._authentication = authentication
        self._audit = audit
        self._orphans = orphans
        self._one_scrape = trio.Lock()
        self._rows: list[_Row] | None = None  # during a scrape
        self._cache = ledgers.cache
        self._latencies = ledgers.write_latencies
        self._bookies = bookies
        self._balancer = balancer
        self._loads = loads
        self._usage = ProcessUsage()
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(self))
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return the text at once: for tests, and brokers with few topics."""
        return generate_latest(self._registry)

    async def scrape(self) -> bytes:
        """Return the text.  Other tasks run while it is made."""
        async with self._one_scrape:
            self._rows = []
            try:
                for count, row in enumerate(self._statistics(), 1):
                    self._rows.append(row)
                    if not count % _TOPICS_PER_TURN:
                        await trio.lowlevel.checkpoint()
                return await in_pieces(self._registry)
            finally:
                self._rows = None

    def _statistics(self) -> Iterator[_Row]:
        for topic in list(self._topics.loaded.values()):
            yield topic, statistics(topic)
        for volatile in list(self._topics.non_persistent.loaded.values()):
            yield volatile, non_persistent_statistics(volatile)

    def collect(self) -> Iterator[Metric]:
        stats = list(self._statistics()) if self._rows is None else self._rows
        loaded = [topic for topic, _ in stats if isinstance(topic, Topic)]
        volatile = [topic for topic, _ in stats if isinstance(topic, NonPersistentTopic)]
        yield from self._broker(stats)
        yield from self._of_requests()
        authentication = self._authentication
        counts = AuthenticationCounts() if authentication is None else authentication.counts
        yield from authentication_metrics(self._cluster, counts)
        trust = None if authentication is None else authentication.trust
        yield from token_file_metrics(self._cluster, trust)
        yield from cut_metrics(self._cluster, self._clients, self._requests)
        yield from held_metrics(self._cluster, self._requests)
        if self._audit is not None:
            yield from audit_metrics(self._cluster, self._audit)
        yield publish_latency(self._cluster, self._latencies)
        yield from self._of_load()
        yield self._topic_counts(stats)
        if len(stats) > self.topics_max:
            yield from self._of_namespaces(stats)
            yield from traffic_of_namespaces(self._cluster, loaded)
            return
        yield from self._of_topics(stats)
        yield from traffic_of_topics(self._cluster, loaded)
        yield from self._of_deduplication(loaded)
        yield from self._of_quotas(loaded)
        yield from self._of_compaction(loaded)
        yield from self._of_subscriptions(stats)
        yield self._of_drops(volatile)

    def _of_load(self) -> Iterator[Metric]:
        where = self._cluster, self._ownership.identity.broker_id
        yield from process_metrics(*where, self._usage)
        yield from decision_metrics(*where, self._balancer)
        yield from bundle_metrics(*where, self._loads.last)

    def _topic_counts(self, stats: list[_Row]) -> Metric:
        family = GaugeMetricFamily(
            "pulsar_topics_count",
            "Topics of the namespace that this broker has loaded.",
            labels=_NAMESPACE_LABELS,
        )
        for namespace, count in sorted(Counter(topic.name.namespace for topic, _ in stats).items()):
            family.add_metric((self._cluster, namespace), count)
        return family

    def _of_namespaces(self, stats: list[_Row]) -> Iterator[Metric]:
        """Yield the metrics of topics as sums, as Pulsar does without metrics of topics."""
        for make, name, text, value_of in _TOPIC_METRICS:
            if name in _NO_SUMS:
                continue
            sums = Counter[str]()
            for topic, one in stats:
                sums[topic.name.namespace] += value_of(one)  # type: ignore[assignment]
            family = make(f"pulsar_{name}", text, labels=_NAMESPACE_LABELS)
            for namespace, value in sorted(sums.items()):
                family.add_metric((self._cluster, namespace), value)
            yield family

    def _broker(self, stats: list[_Row]) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "pulsar_version_info",
            "Always 1; the label `version` is the version of the broker.",
            labels=("cluster", "version"),
        )
        info.add_metric((self._cluster, __version__), 1)
        yield info
        yield from self._of_all_topics([one for _, one in stats])
        yield from self._of_host()
        yield from self._of_work()
        yield from self._of_bugs()
        yield from self._of_bookies()
        yield from self._of_stalls()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        metric = GaugeMetricFamily(name, text, labels=("cluster",))
        metric.add_metric((self._cluster,), value)
        return metric

    def _of_all_topics(self, each: list[TopicStats]) -> Iterator[Metric]:
        """Yield sums over all topics that this broker has loaded."""
        subscriptions = [s for one in each for s in one.subscriptions.values()]
        for name, text, value in (
            ("topics_count", "Topics that this broker has loaded.", len(each)),
            (
                "producers_count",
                "Producers connected to the topics of this broker.",
                sum(len(s.publishers) for s in each),
            ),
            (
                "consumers_count",
                "Consumers connected to the topics of this broker.",
                sum(len(s.consumers) for s in subscriptions),
            ),
            (
                "subscriptions_count",
                "Subscriptions of the topics of this broker.",
                len(subscriptions),
            ),
            ("rate_in", _MESSAGES_IN, sum(s.msg_rate_in for s in each)),
            ("rate_out", _MESSAGES_OUT, sum(s.msg_rate_out for s in each)),
            ("throughput_in", _BYTES_IN, sum(s.msg_throughput_in for s in each)),
            ("throughput_out", _BYTES_OUT, sum(s.msg_throughput_out for s in each)),
            ("msg_backlog", _BACKLOG, sum(s.msg_backlog for s in subscriptions)),
            ("storage_size", _STORED, sum(s.storage_size for s in each)),
        ):
            yield self._gauge(f"pulsar_broker_{name}", text, value)

    def _of_host(self) -> Iterator[Metric]:
        """Yield what this broker holds now."""
        loads = self._topics.loads.counts()
        old = sum(
            cursor.old_records > 0
            for topic in self._topics.loaded.values()
            for cursor in topic.log.cursors.values()
        )
        for name, text, value in (
            ("connections", "Open client connections.", self._clients.connections),
            ("bundles", "Bundles of topics that this broker owns.", len(self._ownership.owned)),
            ("topic_loads", "Topics that this broker is loading.", loads.under_way),
            (
                "topic_loads_waiting",
                "Topics that wait until other topics are loaded.",
                loads.waiting,
            ),
            (
                "topic_load_wait_seconds",
                "For how long the oldest of these has waited.",
                loads.oldest_wait_s,
            ),
            (
                "in_contact",
                "1 while this broker is in contact with the metadata store, else 0.",
                self._ownership.contact,
            ),
            (
                "cursors_pulsar_misreads",
                "Loaded cursors with records of version 1, which a Pulsar broker misreads.",
                old,
            ),
            (
                "arena_bytes",
                "Memory of the receive buffers, in bytes.",
                self._arenas.total_bytes,
            ),
        ):
            yield self._gauge(f"daybook_broker_{name}", text, value)

    def _of_work(self) -> Iterator[Metric]:
        """Yield what this broker has done since it started."""
        for name, text, count in (
            (
                "connections_refused",
                "Client connections refused because there were too many.",
                self._clients.refused,
            ),
            (
                "sessions_lost",
                "Sessions with ZooKeeper that this broker lost, and all of its topics with each.",
                self._ownership.sessions_lost,
            ),
            (
                "orphaned_ledgers_removed",
                "Ledgers removed because no topic and no subscription names them.",
                self._orphans.removed,
            ),
            (
                "entry_cache_hits",
                "Entries that were delivered from the memory of the broker.",
                self._cache.hits,
            ),
            (
                "bookie_reads",
                "Reads of entries at bookies, each of one or more entries.",
                self._cache.reads,
            ),
        ):
            counter = CounterMetricFamily(f"daybook_broker_{name}", text, labels=("cluster",))
            counter.add_metric((self._cluster,), count)
            yield counter

    def _of_bugs(self) -> Iterator[Metric]:
        bugs = CounterMetricFamily(
            "daybook_broker_bugs",
            "Errors that nobody expected, each of which has ended a topic or a connection.",
            labels=("cluster", "ended"),
        )
        bugs.add_metric((self._cluster, "topic"), self._topics.bugs.found)
        bugs.add_metric((self._cluster, "connection"), self._clients.bugs + self._requests.bugs)
        yield bugs

    def _of_bookies(self) -> Iterator[Metric]:
        away = self._bookies.quarantined()
        gauge = GaugeMetricFamily(
            "daybook_broker_bookie_in_quarantine",
            "1 while this broker does not use a registered bookie because it failed, else 0.",
            labels=("cluster", "bookie"),
        )
        for bookie in self._bookies.writable:
            gauge.add_metric((self._cluster, bookie), bookie in away)
        yield gauge
        counter = CounterMetricFamily(
            "daybook_broker_bookie_quarantines",
            "Times that this broker stopped using a bookie because it failed.",
            labels=("cluster",),
        )
        counter.add_metric((self._cluster,), self._bookies.quarantines)
        yield counter

    def _of_stalls(self) -> Iterator[Metric]:
        watch = self._topics.watch
        stalls = CounterMetricFamily(
            "daybook_dispatch_stalls",
            "Times that a subscription with messages and permits sent nothing for long.",
            labels=("cluster",),
        )
        stalls.add_metric((self._cluster,), watch.stalls)
        yield stalls
        stalled = GaugeMetricFamily(
            "daybook_dispatch_stalled_subscriptions",
            "Subscriptions that are stalled now, by what blocks them.",
            labels=("cluster", "cause"),
        )
        for cause in Cause:
            stalled.add_metric((self._cluster, cause.value), watch.stalled[cause])
        yield stalled
        unreadable = GaugeMetricFamily(
            "daybook_dispatch_unreadable_entries",
            "Entries that subscriptions cannot read now, because copies are away, lost or damaged.",
            labels=("cluster",),
        )
        unreadable.add_metric((self._cluster,), watch.unreadable)
        yield unreadable
        unacked = self._topics.unacked.rules
        for name, text, value in (
            (
                "unacked_messages",
                "Messages that shared consumers have and have not acknowledged.",
                unacked.messages,
            ),
            (
                "unacked_blocked_subscriptions",
                "Subscriptions that get no more because the broker has too many unacknowledged.",
                unacked.blocked,
            ),
        ):
            yield self._gauge(f"daybook_broker_{name}", text, value)

    def _of_requests(self) -> Iterator[Metric]:
        received = CounterMetricFamily(
            "daybook_broker_commands",
            "Commands received from clients, except SEND and ACK.",
            labels=("cluster", "command"),
        )
        for command, count in sorted(self._requests.received.items()):
            received.add_metric((self._cluster, command_name(command)), count)
        yield received
        refused = CounterMetricFamily(
            "daybook_broker_commands_refused",
            "Commands of clients that were refused, with the error; SEND and ACK included.",
            labels=("cluster", "command", "error"),
        )
        for (command, error), count in sorted(self._requests.refused.items()):
            refused.add_metric((self._cluster, command_name(command), error_name(error)), count)
        yield refused

    def _of_topics(self, stats: list[_Row]) -> Iterator[Metric]:
        for make, name, text, value_of in _TOPIC_METRICS:
            family = make(f"pulsar_{name}", text, labels=_TOPIC_LABELS)
            for topic, one in stats:
                family.add_metric(self._labels(topic), value_of(one))
            yield family

    def _labels(self, topic: Topic | NonPersistentTopic) -> tuple[str, str, str]:
        return (self._cluster, topic.name.namespace, topic.name.full)

    def _of_deduplication(self, loaded: list[Topic]) -> Iterator[Metric]:
        """Yield metrics of the topics that are deduplicated; the others have none."""
        for make, name, text, value_of in _DEDUPLICATION_METRICS:
            family = make(f"daybook_deduplication_{name}", text, labels=_TOPIC_LABELS)
            for topic in loaded:
                if topic.deduplication is not None:
                    family.add_metric(self._labels(topic), value_of(topic.deduplication))
            yield family

    def _of_quotas(self, loaded: list[Topic]) -> Iterator[Metric]:
        """Yield metrics of the topics that have a backlog quota; the others have none."""
        for name, text, value_of in _QUOTA_METRICS:
            family = GaugeMetricFamily(f"pulsar_storage_{name}", text, labels=_TOPIC_LABELS)
            for topic in loaded:
                value = value_of(topic)
                if value is not None and value >= 0:
                    family.add_metric(self._labels(topic), value)
            yield family
        evictions = CounterMetricFamily(
            "pulsar_storage_backlog_quota_exceeded_evictions",
            "Evictions of messages because a backlog exceeded its quota, by size or by time.",
            labels=(*_TOPIC_LABELS, "quota_type"),
        )
        for topic in loaded:
            for kind, count in sorted(topic.quotas.evictions.items()):
                evictions.add_metric((*self._labels(topic), kind), count)
        yield evictions

    def _of_compaction(self, loaded: list[Topic]) -> Iterator[Metric]:
        """Yield metrics of the topics that were compacted since they were loaded."""
        for name, text, value_of in _COMPACTION_METRICS:
            family = GaugeMetricFamily(f"pulsar_compaction_{name}", text, labels=_TOPIC_LABELS)
            for topic in loaded:
                counts = topic.compaction.counts
                if counts.succeeded or counts.failed:
                    family.add_metric(self._labels(topic), value_of(counts))
            yield family

    def _of_subscriptions(self, stats: list[_Row]) -> Iterator[Metric]:
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
            "pulsar_subscription_consumers_count",
            "Consumers of the subscription.",
            labels=_SUBSCRIPTION_LABELS,
        )
        for labels, subscription in rows:
            family.add_metric(labels, len(subscription.consumers))
        yield family

    def _of_drops(self, topics: list[NonPersistentTopic]) -> Metric:
        family = CounterMetricFamily(
            "pulsar_subscription_msg_drop",
            "Messages of a non-persistent topic that no consumer could take.",
            labels=_SUBSCRIPTION_LABELS,
        )
        for topic in topics:
            for name, subscription in topic.subscriptions.by_name.items():
                family.add_metric((*self._labels(topic), name), subscription.dropped)
        return family


class _Collector(Collector):
    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect()


_SUBSCRIPTION_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("back_log", _BACKLOG, "msg_backlog"),
    ("back_log_entries", "Entries that the subscription has not acknowledged.", "backlog_entries"),
    ("back_log_bytes", "Bytes that are not acknowledged, an estimate.", "backlog_size"),
    (
        "back_log_no_delayed",
        "Messages not acknowledged, without those that wait for their delivery time.",
        "msg_backlog_no_delayed",
    ),
    ("delayed", "Entries that wait for their delivery time.", "msg_delayed"),
    ("msg_rate_out", _MESSAGES_OUT, "msg_rate_out"),
    ("msg_throughput_out", _BYTES_OUT, "msg_throughput_out"),
    (
        "msg_rate_redeliver",
        "Messages delivered again per second, averaged over the last minute.",
        "msg_rate_redeliver",
    ),
    (
        "msg_rate_expired",
        "Entries that expired per second, averaged over the last minute.",
        "msg_rate_expired",
    ),
    (
        "total_msg_expired",
        "Entries that expired since the broker loaded the topic.",
        "total_msg_expired",
    ),
    ("unacked_messages", "Messages delivered and not acknowledged.", "unacked_messages"),
    (
        "blocked_on_unacked_messages",
        "1 while too many messages are not acknowledged for more to be delivered, else 0.",
        "blocked_subscription_on_unacked_msgs",
    ),
    (
        "last_consumed_timestamp",
        "Time of the last delivery, in milliseconds since 1970.",
        "last_consumed_timestamp",
    ),
    (
        "last_expire_timestamp",
        "Time of the last expiry of messages, in milliseconds since 1970.",
        "last_expire_timestamp",
    ),
    (
        "last_mark_delete_advanced_timestamp",
        "Time when the mark-delete position last moved, in milliseconds since 1970.",
        "last_mark_delete_advanced_timestamp",
    ),
    (
        "last_acked_timestamp",
        "Time of the last acknowledgement, in milliseconds since 1970.",
        "last_acked_timestamp",
    ),
)
assert all(key in SubscriptionStats.__struct_fields__ for _, _, key in _SUBSCRIPTION_GAUGES)


def _consumers(stats: TopicStats) -> int:
    return sum(len(s.consumers) for s in stats.subscriptions.values())


def _backlog(stats: TopicStats) -> int:
    return sum(s.msg_backlog for s in stats.subscriptions.values())


_Make: TypeAlias = type[GaugeMetricFamily] | type[CounterMetricFamily]

_DEDUPLICATION_METRICS: tuple[tuple[_Make, str, str, Callable[[Deduplication], float]], ...] = (
    (
        CounterMetricFamily,
        "repeats",
        "Entries that were not stored, because the topic had them already.",
        lambda d: d.repeats,
    ),
    (GaugeMetricFamily, "names", "Producers whose last message is remembered.", lambda d: d.names),
    (
        CounterMetricFamily,
        "names_forgotten",
        "Producers that were forgotten because there were too many.",
        lambda d: d.forgotten,
    ),
    (
        GaugeMetricFamily,
        "first_offset",
        "The offset from which on repeats are found; it is above 0 if no snapshot was stored.",
        lambda d: d.first_offset,
    ),
)

_QUOTA_METRICS: tuple[tuple[str, str, Callable[[Topic], float | None]], ...] = (
    (
        "backlog_quota_limit",
        "The largest backlog that a subscription may have, in bytes.",
        lambda topic: topic.policies.size_quota.limit_size,
    ),
    (
        "backlog_quota_limit_time",
        "The age that the backlog of a subscription may have, in seconds.",
        lambda topic: topic.policies.age_quota.limit_time,
    ),
    (
        "backlog_age_seconds",
        "The age of the oldest backlog, in seconds, if there is a quota for it.",
        lambda topic: topic.quotas.oldest_age_s,
    ),
)

# Gauges without `_total`, because Pulsar's dashboards ask for these names.
_COMPACTION_METRICS: tuple[tuple[str, str, Callable[[CompactionCounts], float]], ...] = (
    (
        "removed_event_count",
        "Messages that the compactions of the topic have removed.",
        lambda c: c.removed,
    ),
    ("succeed_count", "Compactions of the topic that have succeeded.", lambda c: c.succeeded),
    ("failed_count", "Compactions of the topic that have failed.", lambda c: c.failed),
    (
        "duration_time_in_mills",
        "How long the last compaction took, in milliseconds.",
        lambda c: c.last_duration_ms,
    ),
    (
        "compacted_entries_count",
        "Entries that the last compaction has kept.",
        lambda c: c.kept_entries,
    ),
    (
        "compacted_entries_size",
        "Bytes that the last compaction has kept.",
        lambda c: c.kept_bytes,
    ),
)

_TOPIC_METRICS: tuple[tuple[_Make, str, str, Callable[[TopicStats], float]], ...] = (
    (
        GaugeMetricFamily,
        "subscriptions_count",
        "Subscriptions of the topic.",
        lambda s: len(s.subscriptions),
    ),
    (
        GaugeMetricFamily,
        "producers_count",
        "Producers connected to the topic.",
        lambda s: len(s.publishers),
    ),
    (GaugeMetricFamily, "consumers_count", "Consumers connected to the topic.", _consumers),
    (GaugeMetricFamily, "rate_in", _MESSAGES_IN, lambda s: s.msg_rate_in),
    (GaugeMetricFamily, "rate_out", _MESSAGES_OUT, lambda s: s.msg_rate_out),
    (GaugeMetricFamily, "throughput_in", _BYTES_IN, lambda s: s.msg_throughput_in),
    (GaugeMetricFamily, "throughput_out", _BYTES_OUT, lambda s: s.msg_throughput_out),
    (GaugeMetricFamily, "msg_backlog", _BACKLOG, _backlog),
    (GaugeMetricFamily, "backlog_size", _BACKLOG_BYTES, lambda s: s.backlog_size),
    (GaugeMetricFamily, "storage_size", _STORED, lambda s: s.storage_size),
    (GaugeMetricFamily, "storage_logical_size", _STORED, lambda s: s.storage_size),
    (GaugeMetricFamily, "storage_backlog_size", _BACKLOG_BYTES, lambda s: s.backlog_size),
    (
        GaugeMetricFamily,
        "storage_offloaded_size",
        "Bytes that Pulsar's brokers have offloaded; Daybook's offload nothing.",
        lambda s: s.offloaded_storage_size,
    ),
    (
        GaugeMetricFamily,
        "ml_ledger_list_bytes",
        "Bytes that the topic's list of ledgers takes in the metadata store.",
        lambda s: s.ledger_list_bytes,
    ),
    (
        GaugeMetricFamily,
        "ml_ledger_list_alarm",
        "1 if the topic's list of ledgers is half full; 2 if it is full and nothing is published.",
        lambda s: 2 if s.ledger_list_full else int(s.ledger_list_alarm),
    ),
    (
        GaugeMetricFamily,
        "average_msg_size",
        "Average size of a message, in bytes.",
        lambda s: s.average_msg_size,
    ),
    (
        CounterMetricFamily,
        "in_messages",
        "Messages received since the broker loaded the topic.",
        lambda s: s.msg_in_counter,
    ),
    (
        CounterMetricFamily,
        "out_messages",
        "Messages delivered since the broker loaded the topic.",
        lambda s: s.msg_out_counter,
    ),
    (
        CounterMetricFamily,
        "in_bytes",
        "Bytes received since the broker loaded the topic.",
        lambda s: s.bytes_in_counter,
    ),
    (
        CounterMetricFamily,
        "out_bytes",
        "Bytes delivered since the broker loaded the topic.",
        lambda s: s.bytes_out_counter,
    ),
)
