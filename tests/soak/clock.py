"""The clock of a history, which gives no two events of a process the same time."""

import time


class Clock:
    def __init__(self) -> None:
        self._last_ns = 0

    def now_ns(self) -> int:
        """Return the monotonic time of this machine, later than at the last call."""
        self._last_ns = max(self._last_ns + 1, time.monotonic_ns())
        return self._last_ns
