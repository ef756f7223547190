"""The rate of a run and how far it is behind, over time: for a picture, and for a line.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

POINTS_MAX = 2000
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Point:
    """How far a run was after `at_s` seconds: messages read, and behind (None: not known)."""

    at_s: float
    read: int
    behind: int | None


class History:
    """The points of a run; the first one is its start.

    A long run keeps `POINTS_MAX` points at most: when there are more, every second one goes.
    """

    def __init__(self) -> None:
        self.points = [Point(0.0, 0, None)]

    def add(self, at_s: float, read: int, behind: int | None) -> None:
        """Add a point.  It replaces the last one if that is not older."""
        if at_s <= self.points[-1].at_s and len(self.points) > 1:
            self.points.pop()
        self.points.append(Point(at_s, read, behind))
        if len(self.points) > POINTS_MAX:
            self.points[1:-1] = self.points[1:-1:2]

    def copy(self) -> "History":
        """Return the same points, which another thread does not change."""
        copied = History()
        copied.points = list(self.points)
        return copied

    @property
    def rates(self) -> list[float]:
        """The messages per second up to each point but the first."""
        return [
            (after.read - before.read) / max(after.at_s - before.at_s, 0.001)
            for before, after in zip(self.points, self.points[1:], strict=False)
        ]

    def line(self, width: int = 40) -> str:
        """Return the rate over time as bars of one line; '' for a run that has read nothing."""
        end_s = self.points[-1].at_s
        columns = [0.0] * min(width, len(self.points) - 1)
        if not end_s or not any(self.rates):
            return ""
        for index in range(len(columns)):
            begin, end = (end_s * each / len(columns) for each in (index, index + 1))
            columns[index] = (self._read_at(end) - self._read_at(begin)) / (end - begin)
        return _bars(columns)

    def _read_at(self, at_s: float) -> float:
        """Return how many messages were read at a time, between two points in proportion."""
        for before, after in zip(self.points, self.points[1:], strict=False):
            if at_s <= after.at_s:
                part = (at_s - before.at_s) / max(after.at_s - before.at_s, 0.001)
                return before.read + (after.read - before.read) * part
        return self.points[-1].read


def _bars(values: Sequence[float]) -> str:
    highest = max(values)
    return "".join(_BARS[min(int(each / highest * len(_BARS)), len(_BARS) - 1)] for each in values)
