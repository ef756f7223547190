"""The wall clock of a host: publish times, retention, logs.  trio's clock measures durations.

A wall clock may jump, also backwards.  Nothing that must be correct may depend on it: no order, no
lease, no fence.
"""

import time
from typing import Protocol


class WallClock(Protocol):
    """SEAM.  Milliseconds since the epoch, as this host believes them to be."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
