"""A limit on the rate of background work, in bytes or whatever the caller counts."""

import trio


class RateLimit:
    """A limit on the average rate; what idle time saves up is at most `burst`."""

    def __init__(self, rate_per_s: float, burst: float = 0.0) -> None:
        assert rate_per_s > 0
        self._rate_per_s = rate_per_s
        self._burst_s = burst / rate_per_s
        self._free_at = 0.0  # when the rate allows the next amount

    async def spend(self, amount: float) -> None:
        """Return when this amount may be used."""
        await trio.sleep(self.take(amount, trio.current_time()))

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; return how many seconds to wait before using it."""
        assert amount >= 0
        start = max(self._free_at, now - self._burst_s)
        self._free_at = start + amount / self._rate_per_s
        return max(0.0, self._free_at - now)
