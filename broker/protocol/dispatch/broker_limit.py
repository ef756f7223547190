"""The limit of unacknowledged messages of a broker: all shared subscriptions together.

A subscription is known by a key, which the machine never looks into.  The caller tells after each
input of a subscription how many messages its consumers have and have not acknowledged.  Exclusive
and failover subscriptions are not counted, as in Pulsar.

    broker below the limit    nobody is blocked
    broker reaches the limit  each subscription with more than its share is blocked
    while it is full          a subscription that exceeds its share is blocked, and goes on when it
                              has at most half of the share
    at half of the limit      everybody goes on

So the subscriptions that hold most of the messages wait, and those that acknowledge what they get
notice nothing.  A subscription that was blocked is not served before all of this says so; nothing
else sets or clears that.  A limit of 0 blocks nobody, and the messages are counted all the same.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

SubscriptionKey = TypeVar("SubscriptionKey", bound=Hashable)


class BrokerLimit(Generic[SubscriptionKey]):
    """One instance per broker; `share` is the part of the limit that a subscription may have."""

    def __init__(self, messages_max: int, share: float) -> None:
        self.messages_max = messages_max
        self.share_max = int(messages_max * share)
        self.messages = 0  # the sum of all subscriptions
        self.full = False
        self._counts: dict[SubscriptionKey, int] = {}  # those that have some
        self._blocked: dict[SubscriptionKey, None] = {}

    @property
    def blocked(self) -> int:
        """The number of subscriptions that are blocked."""
        return len(self._blocked)

    def blocks(self, subscription: SubscriptionKey) -> bool:
        return subscription in self._blocked

    def messages_of(self, subscription: SubscriptionKey) -> int:
        return self._counts.get(subscription, 0)

    def count(self, subscription: SubscriptionKey, messages: int) -> Sequence[SubscriptionKey]:
        """The subscription has so many messages now; return the subscriptions that may go on."""
        self.messages += messages - self._counts.get(subscription, 0)
        if messages:
            self._counts[subscription] = messages
        else:
            self._counts.pop(subscription, None)
        assert messages >= 0
        assert self.messages >= 0
        if not self.messages_max:
            return ()
        if not self.full:
            if self.messages >= self.messages_max:
                self._fill()
            return ()
        # Half of the limit lies between blocking and unblocking, else each message would do both.
        if self.messages <= self.messages_max // 2:
            self.full = False
            freed = list(self._blocked)
            self._blocked.clear()
            return freed
        if messages > self.share_max:
            self._blocked[subscription] = None
        elif messages <= self.share_max // 2 and subscription in self._blocked:
            del self._blocked[subscription]
            return (subscription,)
        return ()

    def _fill(self) -> None:
        # Half of the limit is delivered between two such looks at all subscriptions.
        self.full = True
        self._blocked.update(
            (each, None) for each, messages in self._counts.items() if messages > self.share_max
        )
