"""The limit of unacknowledged messages of a broker, and the dispatchers that it stops and wakes.

Each dispatcher tells how many messages its consumers have, once for each batch of deliveries,
acknowledgements or other inputs, and only if the number has changed.
"""

from typing import TYPE_CHECKING

from daybook.broker.limits import UnackedLimits
from daybook.broker.protocol.dispatch.broker_limit import BrokerLimit
from daybook.wire.logging import Log, LogLimiter

if TYPE_CHECKING:
    from daybook.broker.dispatch.dispatcher import Dispatcher


class UnackedLimit:
    """One instance per broker."""

    def __init__(self, limits: UnackedLimits, log: Log) -> None:
        self.rules: BrokerLimit[Dispatcher] = BrokerLimit(limits.messages_max, limits.share)
        self._limiter = LogLimiter(log)

    def count(self, dispatcher: "Dispatcher", messages: int) -> None:
        """The consumers of the dispatcher have so many messages now."""
        rules, was_full = self.rules, self.rules.full
        for each in rules.count(dispatcher, messages):
            each.wake()
        if rules.full != was_full:
            self._log_change()

    def _log_change(self) -> None:
        rules = self.rules
        if rules.full:
            self._limiter.warning(
                "the subscriptions of this broker have too many unacknowledged messages, so those"
                " with the most get no more: acknowledge, or raise max_unacked_messages_per_broker",
                "full",
                messages=rules.messages,
                limit=rules.messages_max,
                blocked_subscriptions=rules.blocked,
            )
        else:
            self._limiter.info(
                "all subscriptions go on, because half of the unacknowledged messages are gone",
                "free",
                messages=rules.messages,
                limit=rules.messages_max,
            )
