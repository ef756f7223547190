"""The rate limit of copying, its progress and its remaining time."""

from dataclasses import dataclass


class Pace:
    """A limit on the average rate, with `burst` at once; the caller passes `now`."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        assert rate_per_s > 0
        self._rate_per_s = rate_per_s
        self._burst_s = burst / rate_per_s
        self._free_at = 0.0  # when the rate allows the next amount

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; return how many seconds to wait before using it."""
        start = max(self._free_at, now - self._burst_s)
        self._free_at = start + amount / self._rate_per_s
        return max(0.0, self._free_at - now)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a long task; totals are estimates, and may grow."""

    done_bytes: int
    total_bytes: int
    started: float
    now: float

    @property
    def share(self) -> float:
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 1.0

    @property
    def rate_bytes_per_s(self) -> float:
        return self.done_bytes / (self.now - self.started) if self.now > self.started else 0.0

    @property
    def eta_s(self) -> float | None:
        """The remaining seconds; None while the rate is not known."""
        rest = max(0, self.total_bytes - self.done_bytes)
        if not rest:
            return 0.0
        return rest / self.rate_bytes_per_s if self.done_bytes and self.rate_bytes_per_s else None
