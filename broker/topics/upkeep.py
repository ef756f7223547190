"""The policies of loaded topics that need time: expiry, backlog quotas, inactive topics.

One pass a minute (`policy_check_interval_s`, jittered) looks at the topics that have such a policy.
A topic whose bookies do not answer is given up for this pass, and delays only a few others.
Policies count from the moment at which a topic is loaded: nothing happens to one that is not.

    message TTL           acknowledges what was stored longer ago than that, and nothing else
    subscription expiry   deletes subscriptions that had no consumer for so long
    backlog quotas        `backlog_quota`
    inactive topics       deletes topics that nobody uses (`protocol.upkeep`)
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from random import Random

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.protocol import upkeep
from daybook.broker.protocol.upkeep import Use
from daybook.broker.topics.topic import Topic
from daybook.wire.logging import Log, LogLimiter

_JITTER = (0.9, 1.1)
_AT_ONCE = 4  # topics
_TOPIC_S = 10.0  # for one topic in one pass
_TOPICS_PER_TURN = 100  # then other tasks run


class Upkeep:
    """One instance per broker.  `delete_unused` deletes a topic unless it is in use by then.

    `contained` drops a topic if its upkeep ends with an error that nobody expected.
    """

    def __init__(
        self,
        loaded: Callable[[], Iterable[Topic]],
        delete_unused: Callable[[Topic], Awaitable[None]],
        contained: Callable[[Topic, str], AbstractContextManager[None]],
        *,
        interval_s: float,
        rng: Random,
        log: Log,
    ) -> None:
        self._loaded = loaded
        self._delete_unused = delete_unused
        self._contained = contained
        self._interval_s = interval_s
        self._rng = rng
        self._log = log
        self._log_limiter = LogLimiter(log)

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval_s * self._rng.uniform(*_JITTER))
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        watched: list[Topic] = []
        for count, topic in enumerate(list(self._loaded()), 1):
            if upkeep.is_watched(topic.policies):
                watched.append(topic)
            if not count % _TOPICS_PER_TURN:
                await trio.lowlevel.checkpoint()

        async def work() -> None:
            while watched:
                topic = watched.pop()
                with self._contained(topic, "applying policies that need time"):
                    await self._look_at(topic)

        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(watched))):
                nursery.start_soon(work)

    async def _look_at(self, topic: Topic) -> None:
        if not topic.serving:
            return
        why = "its bookies take too long to answer"
        try:
            with trio.move_on_after(_TOPIC_S) as scope:
                await self._expire_messages(topic)
                await self._expire_subscriptions(topic)
                await self._hold_quotas(topic)
                await self._delete_if_inactive(topic)
            if not scope.cancelled_caught:
                return
        except BrokerError as error:
            why = str(error)
        self._log_limiter.info(
            "the policies of a topic could not be applied; the broker tries again",
            (topic.name.full,),
            topic=topic.name.full,
            why=why,
        )

    async def _expire_messages(self, topic: Topic) -> None:
        ttl_s = topic.policies.message_ttl_s
        if ttl_s:
            before_ms = topic.clock.now_ms() - ttl_s * 1000
            for subscription in list(topic.subscriptions.by_name.values()):
                await subscription.expire(before_ms)

    async def _expire_subscriptions(self, topic: Topic) -> None:
        minutes = topic.policies.subscription_expiry_minutes
        if not minutes:
            return
        for subscription in list(topic.subscriptions.by_name.values()):
            unused_ms = topic.clock.now_ms() - subscription.unused_since_ms
            if subscription.durable and not subscription.gone and unused_ms >= minutes * 60_000:
                self._log.info(
                    "a subscription had no consumer for long and is deleted",
                    topic=topic.name.full,
                    subscription=subscription.name,
                    minutes=minutes,
                )
                await topic.subscriptions.remove(subscription)

    async def _hold_quotas(self, topic: Topic) -> None:
        for each in await topic.quotas.enforce():
            self._log_limiter.info(
                "the backlog of a topic exceeds its quota",
                (topic.name.full, each.by_age),
                topic=topic.name.full,
                why=each.reason,
                policy=each.quota.policy,
            )

    async def _delete_if_inactive(self, topic: Topic) -> None:
        if topic.in_use:
            topic.used_ms = topic.clock.now_ms()
        if upkeep.is_inactive(topic.policies, use_of(topic)):
            self._log.info("nobody uses a topic, and it is deleted", topic=topic.name.full)
            await self._delete_unused(topic)


def use_of(topic: Topic) -> Use:
    """Return how a topic is used at this moment."""
    log = topic.log
    subscriptions = topic.subscriptions.by_name.values()
    # A compacted ledger may have messages that the log has no longer.
    stored = log.next_position(log.before_first) <= log.last_confirmed
    compacted = topic.compaction.published is not None or topic.compaction.running
    return Use(
        in_use=topic.in_use or (topic.sinks is not None and topic.sinks.active),
        partition=topic.name.partition >= 0,
        retained=stored or compacted,
        subscriptions=len(subscriptions),
        backlogs=sum(s.cursor.backlog_entries > 0 for s in subscriptions),
        remembered=0 if topic.deduplication is None else topic.deduplication.names,
        idle_s=(topic.clock.now_ms() - topic.used_ms) / 1000,
    )
