"""The traffic of a log: entries stored, by size and by the time that it took, and entries read.

    meter.mark(n)              the entries from number `n` on are appended now
    meter.confirmed(n, sizes)  so many entries are confirmed by now; the sizes of those that are new
    meter.take()               everything since the last `take`

The meter works for each batch, not for each entry.  All entries of one turn of the event loop
leave in one frame, so they share the time of the first one.  An entry counts when it is confirmed.
A log that stores nothing has no counts in memory, as a host has many such logs.

The bounds are those of Pulsar, whose dashboards ask for them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan

import trio

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
SIZE_BOUNDS = (128, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 100 << 10, 1 << 20)
# The buckets of a host are finer: a quantile is at most a tenth too high.
_FINE_BOUNDS_S = tuple(0.0001 * 1.1**power for power in range(170))
WINDOW_S = 60.0


@dataclass(slots=True)
class Traffic:
    """The counts of a while.

    Each entry is in one bucket: the first one whose bound is not below it.  The last bucket is for
    those above all bounds.
    """

    entries: int = 0
    bytes: int = 0
    entries_read: int = 0
    latency_s: float = 0.0  # the sum
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BOUNDS) + 1))


NO_TRAFFIC = Traffic()  # shared, so nobody may change it


class TrafficMeter:
    """The counts of one log."""

    def __init__(self, host: "WriteLatencies") -> None:
        self._host = host
        self._now: Traffic | None = None
        # For each batch that is not confirmed as a whole: the number of its first entry, and when
        # it was appended.  Entries are numbered from 0 in the order of their appends.
        self._marks: list[tuple[int, float]] = []
        self._confirmed = 0

    def mark(self, first: int) -> None:
        """Note that the entries from this number on are appended now."""
        self._marks.append((first, trio.current_time()))

    def confirmed(self, through: int, sizes: Sequence[int]) -> None:
        """Count entries that were confirmed; with them, `through` entries are."""
        count = self._count()
        count.entries += len(sizes)
        count.bytes += sum(sizes)
        _note_sizes(count.sizes, sizes)
        now_s = trio.current_time()
        marks, done = self._marks, 0
        while self._confirmed < through:
            _, since_s = marks[done]
            more = done + 1 < len(marks)
            end = min(through, marks[done + 1][0]) if more else through
            entries, latency_s = end - self._confirmed, now_s - since_s
            count.latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += entries
            count.latency_s += latency_s * entries
            self._host.note(latency_s, entries, now_s)
            self._confirmed = end
            # The last mark stays: entries of its turn may still follow.
            done += more and end == marks[done + 1][0]
        if done:
            del marks[:done]

    def read(self, entries: int) -> None:
        """Count entries that somebody has read."""
        if entries:
            self._count().entries_read += entries

    def take(self) -> Traffic:
        """Return the counts since the last call.  The caller must not change them."""
        taken, self._now = self._now, None
        return NO_TRAFFIC if taken is None else taken

    def _count(self) -> Traffic:
        if self._now is None:
            self._now = Traffic()
        return self._now


def _note_sizes(buckets: list[int], sizes: Sequence[int]) -> None:
    bucket = bisect_left(SIZE_BOUNDS, max(sizes))
    # The entries of a batch are mostly alike.
    if bisect_left(SIZE_BOUNDS, min(sizes)) == bucket:
        buckets[bucket] += len(sizes)
        return
    for size in sizes:
        buckets[bisect_left(SIZE_BOUNDS, size)] += 1


class WriteLatencies:
    """How long the appends of all logs of a host took, in the last whole window.

    The last window is over when another one has begun; without appends it is empty.
    """

    def __init__(self) -> None:
        self.entries = 0  # since the host began
        self.latency_s = 0.0
        self._began_s = 0.0
        self._now = _Window()
        self._last = _Window()

    def note(self, latency_s: float, entries: int, now_s: float) -> None:
        self._turn(now_s)
        self.entries += entries
        self.latency_s += latency_s * entries
        self._now.note(latency_s, entries)

    def quantile(self, share: float, now_s: float) -> float:
        """Return the time in which this share of the entries was safe; NaN if there were none."""
        self._turn(now_s)
        return self._last.quantile(share)

    def _turn(self, now_s: float) -> None:
        """Begin another window if the present one is over."""
        age_s = now_s - self._began_s
        if age_s >= WINDOW_S:
            # Nothing was noted between the end of an old window and now.
            self._last = self._now if age_s < 2 * WINDOW_S else _Window()
            self._now, self._began_s = _Window(), now_s - age_s % WINDOW_S


class _Window:
    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._entries = 0
        self._least_s = nan
        self._most_s = nan

    def note(self, latency_s: float, entries: int) -> None:
        bucket = bisect_left(_FINE_BOUNDS_S, latency_s)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + entries
        if not self._entries or latency_s < self._least_s:
            self._least_s = latency_s
        if not self._entries or latency_s > self._most_s:
            self._most_s = latency_s
        self._entries += entries

    def quantile(self, share: float) -> float:
        if not self._entries or share <= 0:
            return self._least_s
        left = share * self._entries
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0 and bucket < len(_FINE_BOUNDS_S):
                return max(self._least_s, min(self._most_s, _FINE_BOUNDS_S[bucket]))
        return self._most_s
