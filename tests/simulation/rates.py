"""Looks at the deliveries of topics and subscriptions whose dispatch is limited, during a run.

The bound is that of `broker.protocol.dispatch_rate`: in any time, the rate, one period's worth, and
one entry for each subscription that shares the limit.  Each limit counts from the moment at which
it was seen first, in the broker that has it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.protocol.dispatch_rate import DispatchRateLimit
from daybook.broker.topics.topic import Topic
from tests.simulation.cluster import Cluster
from tests.simulation.plan import Plan, Produce, Restrict, Spoil

_LOOK_S = 0.2
_RATES = ("dispatch rate", "subscription rate")


@dataclass(slots=True)
class _Limited:
    """The messages that have passed one limit since it was seen first."""

    since_s: float
    passed: int = 0
    counts: dict[Subscription, int] = field(default_factory=dict[Subscription, int])

    def count(self, subscriptions: Iterable[Subscription], *, first: bool) -> None:
        for each in subscriptions:
            before = self.counts.get(each, each.messages if first else 0)
            self.passed += each.messages - before
            self.counts[each] = each.messages


class RateAudit:
    """The rates of one run."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.problems: list[str] = []
        self._cluster = cluster
        self._brokers = plan.shape.broker_names()
        # By topic: so many messages a second are allowed.
        self._rates = {
            (each.topic, each.how): each.limit
            for each in plan.work
            if isinstance(each, Restrict) and each.how in _RATES
        }
        batches = [each.burst for each in plan.work if isinstance(each, Produce) and each.batching]
        batches += [each.batch for each in plan.work if isinstance(each, Spoil)]
        self._entry = max(batches, default=1)
        self._limits: dict[DispatchRateLimit, _Limited] = {}

    @property
    def needed(self) -> bool:
        """True if the plan has such a rate."""
        return bool(self._rates)

    async def run(self) -> None:
        """Look at all limits in intervals, until one is exceeded."""
        while not self.problems:
            await self._cluster.run.sleep(_LOOK_S)
            for name in self._brokers:
                broker = self._cluster.broker(name)
                for topic in [] if broker is None else list(broker.topics.loaded.values()):
                    if isinstance(topic, Topic):
                        self._look_at(topic)

    def _look_at(self, topic: Topic) -> None:
        parent = topic.name.full.rpartition("-partition-")[0] or topic.name.full
        of_topic = self._rates.get((parent, "dispatch rate"))
        of_each = self._rates.get((parent, "subscription rate"))
        subscriptions = list(topic.subscriptions.by_name.values())
        if of_topic is not None:
            limit = topic.rate_limits.dispatch.limit
            self._compare(topic, "all subscriptions", limit, of_topic, subscriptions)
        for each in subscriptions if of_each is not None else ():
            assert of_each is not None
            self._compare(topic, each.name, each.dispatch_rate.limit, of_each, [each])

    def _compare(
        self,
        topic: Topic,
        what: str,
        limit: DispatchRateLimit | None,
        rate: int,
        subscriptions: list[Subscription],
    ) -> None:
        if limit is None:
            return
        now_s = self._cluster.run.clock.now
        first = limit not in self._limits
        seen = self._limits.setdefault(limit, _Limited(now_s))
        seen.count(subscriptions, first=first)
        allowed = rate * (now_s - seen.since_s) + rate + len(seen.counts) * self._entry
        if seen.passed > allowed:
            self.problems.append(
                f"rate: {what} of {topic.name.full} got {seen.passed} messages in"
                f" {now_s - seen.since_s:.1f} s, and {allowed:.0f} are allowed"
            )
