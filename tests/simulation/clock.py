"""SEAM wall clock, simulated: each host has a clock of its own, which may be wrong."""

import trio

EPOCH_MS = 1_700_000_000_000


class VirtualClock:
    """Virtual time since a day in 2023, plus the error of this clock."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self._rate = 1.0  # virtual seconds are multiplied by this
        self._since_s = 0.0

    def now_ms(self) -> int:
        now_s = trio.current_time()
        drift_ms = round((now_s - self._since_s) * 1000 * (self._rate - 1.0))
        return EPOCH_MS + round(now_s * 1000) + drift_ms + self.offset_ms

    def run_at(self, rate: float) -> None:
        """Run at this rate from now on.  The present error stays."""
        now_s = trio.current_time()
        self.offset_ms += round((now_s - self._since_s) * 1000 * (self._rate - 1.0))
        self._rate, self._since_s = rate, now_s
