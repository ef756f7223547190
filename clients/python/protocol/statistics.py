"""Counts for statistics: rates over the last minute, and percentiles of latencies.

Nothing here is done for each message: a producer and a consumer add a whole entry at a time.  The
memory is bounded, however long a client runs.

    Rate        a bucket for each second; those of the last minute count
    Latencies   a histogram whose buckets grow by a fifth, so that a percentile is exact to a tenth;
                it is begun anew every minute, and the one before counts, too
"""

from collections import deque
from math import exp2, log2

WINDOW_S = 60.0
_STEPS = 4  # buckets of a histogram while the latency doubles
_SHORTEST_S = 1e-6


class Rate:
    """Messages and bytes a second, over the last minute."""

    __slots__ = ("_buckets", "_since", "count", "size")

    def __init__(self, now: float) -> None:
        self.count = 0  # since the begin
        self.size = 0
        self._since = now
        self._buckets: deque[list[int]] = deque()  # second, count, size

    def add(self, now: float, count: int, size: int) -> None:
        self.count += count
        self.size += size
        second, buckets = int(now), self._buckets
        if buckets and buckets[-1][0] == second:
            last = buckets[-1]
            last[1] += count
            last[2] += size
            return
        buckets.append([second, count, size])
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] < int(now) - WINDOW_S:
            self._buckets.popleft()

    def per_second(self, now: float) -> tuple[float, float]:
        """Return messages and bytes a second."""
        self._forget(now)
        passed = max(1.0, min(WINDOW_S, now - self._since))
        return (
            sum(bucket[1] for bucket in self._buckets) / passed,
            sum(bucket[2] for bucket in self._buckets) / passed,
        )


class Latencies:
    """The latencies of the last one or two minutes."""

    __slots__ = ("_before", "_buckets", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._buckets: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def add(self, now: float, seconds: float) -> None:
        self._turn(now)
        bucket = round(_STEPS * log2(max(seconds, _SHORTEST_S)))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def _turn(self, now: float) -> None:
        if now - self._since >= WINDOW_S:
            is_old = now - self._since >= 2 * WINDOW_S
            self._before = {} if is_old else self._buckets
            self._buckets = {}
            self._since = now

    def percentile(self, now: float, share: float) -> float | None:
        """Return the latency that this share of all does not exceed; None without any."""
        self._turn(now)
        counts = dict(self._before)
        for bucket, count in self._buckets.items():
            counts[bucket] = counts.get(bucket, 0) + count
        left = share * sum(counts.values())
        for bucket in sorted(counts):
            left -= counts[bucket]
            if left <= 0:
                return exp2(bucket / _STEPS)
        return None
