"""The times without a receipt after an owner was killed: quantiles, and a histogram in text."""

import math
from collections.abc import Sequence

_BAR_MAX = 40


def quantile(sorted_s: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted_s[max(0, math.ceil(share * len(sorted_s)) - 1)]


def describe(takeovers_s: Sequence[float]) -> list[str]:
    """Return the lines for people."""
    if not takeovers_s:
        return ["no owner was killed"]
    ordered = sorted(takeovers_s)
    p50, p99 = quantile(ordered, 0.5), quantile(ordered, 0.99)
    return [
        f"{len(ordered)} takeovers: p50 {p50:.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s",
        *histogram(ordered),
    ]


def histogram(sorted_s: Sequence[float]) -> list[str]:
    """Return rows of half a second, of a second from 5 s on, of five seconds from 10 s on."""
    counts: dict[tuple[float, float], int] = {}
    row = (0.0, _width(0.0))
    for value in sorted_s:
        while value >= row[1]:
            if counts:  # Rows before the first value are left out; empty ones between are kept.
                counts.setdefault(row, 0)
            row = (row[1], row[1] + _width(row[1]))
        counts[row] = counts.get(row, 0) + 1
    most = max(counts.values())
    return [
        f"{low:5.1f} to {high:4.1f} s {count:5d} {_bar(count / most)}".rstrip()
        for (low, high), count in counts.items()
    ]


def _width(low_s: float) -> float:
    return 0.5 if low_s < 5 else 1.0 if low_s < 10 else 5.0


def _bar(share: float) -> str:
    return "#" * math.ceil(share * _BAR_MAX)
