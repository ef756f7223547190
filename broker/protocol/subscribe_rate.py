"""How often one consumer may subscribe to a topic, in a period.

A consumer is known by its host, its name and its id in the client, which a client that reconnects
keeps.  Each has a balance of subscribes, which grows evenly with time up to one period's worth.  A
consumer that has not subscribed for a period has all of it again, so it is forgotten.
"""

from collections.abc import Hashable

_CONSUMERS_MAX = 10_000  # per topic; the one that subscribed longest ago is forgotten first
_TINY = 1e-6


class SubscribeRateLimit:
    """One instance per topic with such a policy."""

    def __init__(
        self, subscribes: int, period_s: float, *, consumers_max: int = _CONSUMERS_MAX
    ) -> None:
        assert subscribes > 0
        self.subscribes = subscribes
        self.period_s = period_s
        self._consumers_max = consumers_max
        self._left: dict[Hashable, tuple[float, float]] = {}  # the balance, and at what time

    def __len__(self) -> int:
        return len(self._left)

    def take(self, consumer: Hashable, now_s: float) -> float:
        """Count a subscribe.  Return 0 if it is allowed, else in how many seconds it will be."""
        self._forget(now_s)
        left, at_s = self._left.pop(consumer, (float(self.subscribes), now_s))
        per_s = self.subscribes / self.period_s
        left = min(float(self.subscribes), left + max(0.0, now_s - at_s) * per_s)
        allowed = left >= 1 - _TINY
        if allowed:
            left -= 1
        self._left[consumer] = left, now_s
        if len(self._left) > self._consumers_max:
            del self._left[next(iter(self._left))]
        return 0.0 if allowed else (1 - left) / per_s

    def _forget(self, now_s: float) -> None:
        while self._left:
            consumer, (_, at_s) = next(iter(self._left.items()))
            if now_s - at_s < self.period_s:
                return
            del self._left[consumer]
