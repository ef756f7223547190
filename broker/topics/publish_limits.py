"""How much may be published to one topic: by its policy, and by the limit of the whole broker."""

from collections.abc import Callable

import trio

from daybook.broker.namespaces.policy_types import PublishRate
from daybook.broker.protocol.publish_rate import PublishRateLimit

_LOOK_S = 1.0  # A policy may change while somebody waits.


class PublishLimits:
    """The limits of one topic; `of_broker` is shared by all topics."""

    def __init__(self, rate: PublishRate, of_broker: PublishRateLimit | None = None) -> None:
        self._of_broker = of_broker
        self._rate = PublishRate()
        self._limits: tuple[PublishRateLimit, ...] = () if of_broker is None else (of_broker,)
        self.apply(rate)

    def apply(self, rate: PublishRate) -> None:
        """Publish at another rate from now on."""
        if rate != self._rate:
            self._rate = rate
            messages = rate.publish_throttling_rate_in_msg
            size = rate.publish_throttling_rate_in_byte
            both = publish_rate_limit(messages, size), self._of_broker
            self._limits = tuple(limit for limit in both if limit is not None)

    def take(self, messages: int, size: int) -> None:
        """Note that an entry was appended."""
        if self._limits:
            now_s = trio.current_time()
            for limit in self._limits:
                limit.take(messages, size, now_s)

    @property
    def are_set(self) -> bool:
        """True if there is any limit, reached or not."""
        return bool(self._limits)

    async def wait_room(self, is_closing: Callable[[], bool]) -> None:
        """Wait until more may be published, or the topic is being closed."""
        while self._limits and not is_closing():
            now_s = trio.current_time()
            wait_s = max(limit.wait_s(now_s) for limit in self._limits)
            if not wait_s:
                return
            await trio.sleep(min(wait_s, _LOOK_S))


def publish_rate_limit(messages: int, size: int) -> PublishRateLimit | None:
    """Return a limit of messages and bytes a second; a number below 1 is no limit."""
    if messages <= 0 and size <= 0:
        return None
    return PublishRateLimit(messages, size, 0.0)  # It begins with a full balance.
