"""The progress of the queries of a pipeline: a line while it runs, and a table in the end.  Pure.

Spark makes a report for each micro-batch.  `Tally` adds them up; a report that it has had already
changes nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from daybook.clients.spark.checkpoint import decode_offset

Place = tuple[str, int]
"""A topic and the number of a partition."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The report of Spark about a micro-batch."""

    query: str
    batch_id: int
    rows: int  # the rows read
    start: str | None  # offsets of the source as JSON, in the form of its format
    end: str | None
    latest: str | None
    late: int = 0  # rows that came behind the watermark
    written: int | None = None  # None: as many as were read


@dataclass(slots=True)
class _Way:
    """How far a query has read a partition in this run."""

    first: int | None  # Spark does not tell where the first micro-batch of a checkpoint begins.
    next: int
    behind: int | None


@dataclass(slots=True)
class Tally:
    """The sums of one query over one run."""

    read: int = 0
    written: int = 0
    late: int = 0
    batches: int = 0
    ways: dict[Place, _Way] = field(default_factory=dict[Place, _Way])
    _last: int = -1

    def add(self, report: BatchReport) -> bool:
        """Add a micro-batch; return False if it was added before."""
        if report.batch_id <= self._last:
            return False
        self._last = report.batch_id
        self.read += report.rows
        self.written += report.rows if report.written is None else report.written
        self.late += report.late
        self.batches += 1
        start, end, latest = map(offsets_in, (report.start, report.end, report.latest))
        for place, next_ in end.items():
            behind = max(0, latest[place] - next_) if place in latest else None
            way = self.ways.setdefault(place, _Way(start.get(place), next_, behind))
            way.next, way.behind = next_, behind
        return True

    @property
    def behind(self) -> int | None:
        """The offsets between the queries and the ends of the partitions; None if not known."""
        known = [way.behind for way in self.ways.values() if way.behind is not None]
        return sum(known) if known else None


def offsets_in(text: str | None) -> Mapping[Place, int]:
    """Return the next offset of each partition, of a source of Daybook or of Kafka."""
    try:
        parsed: Any = json.loads(text or "")
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    found = cast("dict[str, Any]", parsed)
    try:
        if "version" in found:
            partitions = decode_offset(found, None).partitions
            return {(place.topic, place.number): at.next for place, at in partitions.items()}
        return {
            (str(topic), int(number)): int(offset)
            for topic, those in found.items()
            for number, offset in those.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


class Line:
    """Makes the line that tells how far a pipeline is, with the rate since the line before."""

    def __init__(self, name: str, now_s: float) -> None:
        self._name = name
        self._at_s = now_s
        self._read = 0

    def text(self, rows: Tally, letters: Tally | None, now_s: float) -> str:
        took_s = max(now_s - self._at_s, 0.001)
        rate = (rows.read - self._read) / took_s
        self._at_s, self._read = now_s, rows.read
        parts = [f"{rows.read:,} messages read", f"{rate:,.0f}/s"]
        if rows.written != rows.read:
            parts.append(f"{rows.written:,} written")
        if letters is not None:
            parts.append(f"{letters.written:,} dead letters")
        behind = rows.behind
        if behind is not None:
            parts.append(f"{behind:,} behind{_left(behind, rate)}")
        return f"{self._name}: {', '.join(parts)}."


def _left(behind: int, rate: float) -> str:
    if not behind or rate < 1:
        return ""
    seconds = round(behind / rate)
    if seconds < 90:
        return f" (about {seconds} s)"
    return f" (about {round(seconds / 60)} min)"


def table(rows: Tally) -> list[dict[str, Any]]:
    """Return a row for each partition of the source that the run has read."""
    return [
        {
            "topic": topic.removeprefix("persistent://"),
            "partition": number,
            "from": way.first,
            "to": way.next,
            "behind": way.behind,
        }
        for (topic, number), way in sorted(rows.ways.items())
    ]


def summary(rows: Tally, letters: Tally | None, took_s: float) -> dict[str, Any]:
    """Return the sums of a run."""
    found: dict[str, Any] = {"read": rows.read, "written": rows.written}
    if letters is not None:
        found["dead letters"] = letters.written
    if rows.late:
        found["late, left out"] = rows.late
    rate = rows.read / took_s if took_s else 0.0
    return found | {"batches": rows.batches, "seconds": round(took_s, 1), "rate": round(rate)}
