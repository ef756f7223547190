"""The load of this broker: measured, and reported in its registration, in Pulsar's JSON.

    reports = LoadReports(...)
    reports.run                 writes the report when it has changed, at most once an interval
    await reports.measure()     the report as it would be written now
    await read_loads(store)     the loads of all bundles, for the leader

The report holds the busiest `_BUNDLES_MAX` bundles, and none without topics.  The record is ours
while our guard stands, so both are named in the same request.
"""

from collections.abc import Iterable
from itertools import chain

import msgspec
import trio

from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import BrokerRecord, BundleStats, LoadReport
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.balance import BundleLoad
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topics import Topics
from daybook.wire.clock import WallClock
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import ANY, Check, MetadataError, MetadataStore, Set

_BUNDLES_MAX = 500  # All brokers read this record.
_AT_ONCE = 500  # topics; then other tasks run
_CHANGED = 0.1  # a share of the load; a smaller change is not reported
_OLD_S = 300.0  # an older report is written again
_REPORT_S = 15.0


class LoadReports:
    """The report of one broker."""

    def __init__(
        self,
        store: MetadataStore,
        registration: BrokerRecord,
        ownership: Ownership,
        policies: Policies,
        topics: Topics,
        *,
        clock: WallClock,
        interval_s: float = _REPORT_S,
        log: Log,
    ) -> None:
        self._store = store
        self._registration = registration
        self._ownership = ownership
        self._policies = policies
        self._topics = topics
        self._clock = clock
        self._interval_s = interval_s
        self._log = log
        self.last: LoadReport | None = None  # the last measurement

    async def run(self) -> None:
        written: LoadReport | None = None
        written_s, session = 0.0, 0
        while True:
            await trio.sleep(self._interval_s)
            report = await self.measure()
            fresh = trio.current_time() - written_s < _OLD_S
            same_session = self._store.session_id == session
            if written is not None and fresh and same_session and not _differ(written, report):
                continue
            try:
                if await self._write(report):
                    written, written_s = report, trio.current_time()
                    session = self._store.session_id
            except MetadataError as error:
                self._log.info("the load of this broker is reported later", why=str(error))

    async def _write(self, report: LoadReport) -> bool:
        path = f"{records.BROKERS}/{self._ownership.identity.broker_id}"
        guard, record = self._ownership.guard, await self._store.get(path)
        if guard is None or record is None or record.stat.owner != self._store.session_id:
            return False  # This broker joins, or leaves.
        value = records.encode(report)
        await self._store.multi([Check(guard.path, ANY), Set(path, value, record.stat.version)])
        return True

    async def measure(self) -> LoadReport:
        """Return the load of this broker; rates are those of the last minute."""
        stats = {bundle: BundleStats() for bundle in self._ownership.owned}
        loaded: Iterable[Topic | NonPersistentTopic] = chain(
            list(self._topics.loaded.values()), list(self._topics.non_persistent.loaded.values())
        )
        for count, topic in enumerate(loaded, 1):
            bundle = self._policies.known_bundle_of(topic.name)
            if bundle is not None and bundle in stats:
                _add(stats[bundle], topic)
            if not count % _AT_ONCE:
                await trio.lowlevel.checkpoint()
        values = stats.values()
        used = [bundle for bundle, each in stats.items() if each.topics]
        busiest = sorted(used, key=lambda b: (-load_of(stats[b]).weight, b))[:_BUNDLES_MAX]
        self.last = LoadReport(
            **msgspec.structs.asdict(self._registration),
            last_update=self._clock.now_ms(),
            msg_rate_in=sum(each.msg_rate_in for each in values),
            msg_rate_out=sum(each.msg_rate_out for each in values),
            msg_throughput_in=sum(each.msg_throughput_in for each in values),
            msg_throughput_out=sum(each.msg_throughput_out for each in values),
            num_topics=sum(each.topics for each in values),
            num_bundles=len(stats),
            num_consumers=sum(each.consumer_count for each in values),
            num_producers=sum(each.producer_count for each in values),
            bundles=[str(bundle) for bundle in sorted(stats)[:_BUNDLES_MAX]],
            last_stats={bundle: stats[bundle] for bundle in busiest},
        )
        return self.last


def _add(stats: BundleStats, topic: Topic | NonPersistentTopic) -> None:
    rates, subscriptions = topic.rates.current, topic.subscriptions.by_name.values()
    stats.msg_rate_in += rates.messages
    stats.msg_throughput_in += rates.bytes
    for out in rates.out.values():
        stats.msg_rate_out += out.messages
        stats.msg_throughput_out += out.bytes
    stats.topics += 1
    stats.producer_count += len(topic.producers)
    stats.consumer_count += sum(len(each.consumers) for each in subscriptions)


def load_of(stats: BundleStats) -> BundleLoad:
    return BundleLoad(
        stats.msg_rate_in + stats.msg_rate_out,
        stats.msg_throughput_in + stats.msg_throughput_out,
        stats.topics,
        stats.consumer_count + stats.producer_count,
    )


def _differ(old: LoadReport, new: LoadReport) -> bool:
    if old.bundles != new.bundles:
        return True
    for bundle in old.last_stats.keys() | new.last_stats.keys():
        before = load_of(old.last_stats.get(bundle, BundleStats())).weight
        after = load_of(new.last_stats.get(bundle, BundleStats())).weight
        if abs(before - after) > _CHANGED * max(before, after):
            return True
    return False


async def read_loads(store: MetadataStore, brokers: Iterable[str]) -> dict[BundleName, BundleLoad]:
    """Return the loads of bundles as their brokers have reported them.  Raise MetadataError."""
    found: dict[BundleName, BundleLoad] = {}
    for broker_id in brokers:
        record = await store.get(f"{records.BROKERS}/{broker_id}")
        if record is None:
            continue
        try:
            report = records.decode(LoadReport, record.value)
        except MalformedError:
            continue  # A broker of another project, or one that reports nothing.
        for name, stats in report.last_stats.items():
            found[BundleName(name)] = load_of(stats)
    return found
