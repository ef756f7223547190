"""The backlog quota of a topic: who may produce, and what is evicted.

The backlog of a topic is the largest, or the oldest, of its durable subscriptions.  Cursors of the
broker itself do not count.  A quota is looked at when a producer is opened, and once a minute
(`upkeep`), so a topic may exceed it by what is published meanwhile.

    producer_request_hold       producers are closed, and new ones wait; if there is no room within
                                a few seconds, they are refused and their clients ask again
    producer_exception          producers are closed, and new ones are refused
    consumer_backlog_eviction   the oldest messages are acknowledged for the consumers
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import trio

from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.errors import BrokerError, RefusedError
from daybook.broker.protocol import upkeep
from daybook.broker.protocol.upkeep import Exceeded
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.weakly import weak

_HOLD_S = 5.0  # so long the opening of a producer waits for room
_LOOK_S = 0.5  # and looks so often if there is some


class BacklogQuotas:
    """One instance per loaded topic.

    `subscriptions` are those that the topic has now, by name.  `stop_producers` closes its
    producers.
    """

    def __init__(
        self,
        topic: StoredTopic,
        subscriptions: Mapping[str, Subscription],
        stop_producers: Callable[[], Awaitable[None]],
    ) -> None:
        self.evictions: Counter[str] = Counter()  # by the type of the quota
        self.oldest_age_s: float | None = None  # at the last look; None if there is no backlog
        self._topic = weak(topic)
        self._by_name = subscriptions
        self._stop_producers = stop_producers
        self._looked_s = -_LOOK_S
        self._answer: list[Exceeded] = []
        self._looking = trio.Lock()

    @property
    def _limited(self) -> bool:
        """True if the topic has a quota at all."""
        policies = self._topic().policies
        return policies.size_quota.limit_size >= 0 or policies.age_quota.limit_time >= 0

    async def exceeded(self) -> list[Exceeded]:
        """Return the quotas that are exceeded now.  Raise UnavailableError."""
        topic = self._topic()
        if not self._limited:
            self.oldest_age_s = None
            return []
        size = max((s.backlog.bytes for s in self._subscriptions()), default=0)
        self.oldest_age_s = None
        if topic.policies.age_quota.limit_time >= 0:
            self.oldest_age_s = await self._oldest_age_s()
        return upkeep.exceeded(topic.policies, size, self.oldest_age_s)

    def _subscriptions(self) -> list[Subscription]:
        return [s for s in self._by_name.values() if s.durable and s.cursor.backlog_entries]

    async def _oldest_age_s(self) -> float | None:
        topic = self._topic()
        first = min((s.cursor.read_start for s in self._subscriptions()), default=None)
        if first is None:
            return None
        stored_ms = await topic.logs.stored_ms(topic.log, first)
        return None if stored_ms is None else (topic.clock.now_ms() - stored_ms) / 1000

    # -- producers

    async def wait_room(self, on_wait: Callable[[], None]) -> None:
        """Return when a producer may be opened.  Raise RefusedError.

        `on_wait` is called if that is not immediately.
        """
        if not self._limited:
            return
        deadline_s = trio.current_time() + _HOLD_S
        while blocking := [each for each in await self._blocking() if not each.evicts]:
            first = blocking[0]
            if not all(each.holds for each in blocking):
                raise self._refusal(pb.ProducerBlockedQuotaExceededException, first)
            if trio.current_time() >= deadline_s:
                raise self._refusal(pb.ProducerBlockedQuotaExceededError, first)
            on_wait()
            await trio.sleep(_LOOK_S)

    async def _blocking(self) -> list[Exceeded]:
        # All producers that wait look at one answer, also while it is being found.
        async with self._looking:
            if trio.current_time() >= self._looked_s + _LOOK_S:
                self._answer = await self._look()
                self._looked_s = trio.current_time()
            return self._answer

    async def _look(self) -> list[Exceeded]:
        # A backlog whose age cannot be read now blocks nobody: the producer did nothing wrong.
        with suppress(BrokerError):
            return await self.exceeded()
        return []

    def _refusal(self, code: int, why: Exceeded) -> RefusedError:
        return RefusedError(
            code,
            f"{self._topic().name} takes no messages now, because {why.reason}: acknowledge"
            " messages, delete subscriptions that nobody uses, or raise the quota",
        )

    # -- once a minute

    async def enforce(self) -> list[Exceeded]:
        """Close producers or evict messages, and return the quotas that were exceeded."""
        found = await self.exceeded()
        for each in found:
            if each.evicts:
                await self._evict(each)
        if any(not each.evicts for each in found):
            await self._stop_producers()
        return found

    async def _evict(self, why: Exceeded) -> None:
        topic = self._topic()
        evicted = 0
        for subscription in self._subscriptions():
            if why.by_age:
                before_ms = topic.clock.now_ms() - why.quota.limit_time * 1000
                evicted += await subscription.expire(before_ms)
            elif subscription.backlog.bytes >= why.quota.limit_size:
                start = subscription.cursor.mark_delete
                kept = upkeep.kept_bytes(why.quota)
                to = topic.logs.position_with_behind(topic.log, start, kept)
                evicted += subscription.skip_to(to)
        if evicted:
            self.evictions["time" if why.by_age else "size"] += 1
