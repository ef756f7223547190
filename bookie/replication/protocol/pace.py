"""How fast copying may go, how far it is, and when it will be done."""

from dataclasses import dataclass


class Pace:
    """A rate that is kept on average, with `burst` at once; `now` comes from the caller."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        assert rate_per_s > 0
        self._rate_per_s = rate_per_s
        self._burst_s = burst / rate_per_s
        self._free_at = 0.0  # when all that was taken so far is paid for

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; return how long to wait before it is used."""
        start = max(self._free_at, now - self._burst_s)
        self._free_at = start + amount / self._rate_per_s
        return max(0.0, self._free_at - now)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done of something that takes long; totals are estimates, and may grow."""

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
        """None while nothing is known."""
        rest = max(0, self.total_bytes - self.done_bytes)
        if not rest:
            return 0.0
        return rest / self.rate_bytes_per_s if self.done_bytes and self.rate_bytes_per_s else None
