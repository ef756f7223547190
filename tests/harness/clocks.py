"""SEAM wall clock: clocks that follow virtual time, or stand still."""

import trio

EPOCH_MS = 1_700_000_000_000  # a day in 2023


class VirtualClock:
    """The wall clock of one host: virtual time since `EPOCH_MS`, and its own error."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self._rate = 1.0  # the clock runs so many times as fast
        self._since_s = 0.0

    def now_ms(self) -> int:
        now_s = trio.current_time()
        drift_ms = round((now_s - self._since_s) * 1000 * (self._rate - 1.0))
        return EPOCH_MS + round(now_s * 1000) + drift_ms + self.offset_ms

    def run_at(self, rate: float) -> None:
        """Change the rate from now on; the error that the clock has by now stays."""
        now_s = trio.current_time()
        self.offset_ms += round((now_s - self._since_s) * 1000 * (self._rate - 1.0))
        self._rate, self._since_s = rate, now_s


class FixedClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now
