"""The rates at which the consumers of a topic are served, and may subscribe.

`broker.protocol.dispatch_rate` and `broker.protocol.subscribe_rate` have the rules.  A limit starts
with a full balance: when the topic is loaded, and when its policy has changed.  Another policy that
changes leaves it alone.
"""

import trio

from daybook.broker.connected_client import ConnectedClient
from daybook.broker.errors import TooManyRequestsError
from daybook.broker.namespaces.policy_table import EffectivePolicies
from daybook.broker.namespaces.policy_types import DispatchRate, SubscribeRate
from daybook.broker.protocol.dispatch_rate import DispatchRateLimit
from daybook.broker.protocol.subscribe_rate import SubscribeRateLimit
from daybook.broker.topics.rates import Rates


class DispatchRatePolicy:
    """A policy of that name and the limit that it asks for; one per topic and per subscription."""

    def __init__(self, policy: str, rates: Rates) -> None:
        self.limit: DispatchRateLimit | None = None
        self._policy = policy
        self._rates = rates
        self._rate = DispatchRate()

    def apply(self, rate: DispatchRate) -> None:
        if rate == self._rate:
            return
        self._rate = rate
        messages, size = rate.dispatch_throttling_rate_in_msg, rate.dispatch_throttling_rate_in_byte
        self.limit = None
        if messages > 0 or size > 0:
            self.limit = DispatchRateLimit(
                self._policy,
                messages,
                size,
                rate.rate_period_in_second,
                trio.current_time(),
                relative=rate.relative_to_publish_rate,
            )
            self.follow()

    def follow(self) -> None:
        """Take over the rate of the producers, if the policy is relative to it."""
        if self.limit is not None:
            now = self._rates.current
            self.limit.publish_rate(now.messages, now.bytes, trio.current_time())


class TopicRateLimits:
    """The limits of one topic."""

    def __init__(self, policies: EffectivePolicies, rates: Rates) -> None:
        self.dispatch = DispatchRatePolicy("dispatchRate", rates)
        self._subscribe_rate = SubscribeRate()
        self._subscribe: SubscribeRateLimit | None = None
        self.apply(policies)

    def apply(self, policies: EffectivePolicies) -> None:
        self.dispatch.apply(policies.dispatch_rate)
        rate = policies.subscribe_rate
        if rate != self._subscribe_rate:
            self._subscribe_rate = rate
            count = rate.subscribe_throttling_rate_per_consumer
            self._subscribe = None
            if count > 0:
                self._subscribe = SubscribeRateLimit(count, rate.rate_period_in_second)

    def check_subscribe(self, connection: ConnectedClient, name: str, consumer_id: int) -> None:
        """Count a subscribe.  Raise TooManyRequestsError if the consumer comes too often."""
        limit = self._subscribe
        if limit is None:
            return
        host = connection.peer.rpartition(":")[0]
        wait_s = limit.take((host, name, consumer_id), trio.current_time())
        if wait_s:
            raise TooManyRequestsError(
                f"the consumer {name} subscribes more often than {limit.subscribes} times in"
                f" {limit.period_s:g} s (subscribeRate): try again in {wait_s:.1f} s"
            )
