"""Compute which offsets a Spark query reads: bounds, limits, splits.  Pure, on half-open ranges.

A topic has partitions 0 to n-1 (a topic without partitions is one partition, 0).  Each message of a
partition has an offset, an exact integer.  Trimming raises the first offset, publishing the next.
A range [start, end) of a partition is read by one Spark task or by several.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

EARLIEST = -2  # the same numbers as in Spark's Kafka source
LATEST = -1

Bound: TypeAlias = Literal["earliest", "latest"]
OffsetSpec: TypeAlias = Bound | Mapping[int, int]


class DataLossError(Exception):
    """Offsets that the query should read are no longer retained."""


@dataclass(frozen=True, slots=True)
class Retained:
    """The offsets [first, next) that a partition holds."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def parse_offsets(text: str, topic: str, option: str) -> OffsetSpec:
    """Parse `earliest`, `latest`, or JSON: {"0": 5, "1": -2} or {"topic": {"0": 5}}.

    In JSON, -2 is the earliest and -1 the latest offset.  Raise ValueError for anything else.
    """
    lowered = text.strip().lower()
    if lowered == "earliest":
        return "earliest"
    if lowered == "latest":
        return "latest"
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(
            f"{option}={text!r} is not valid: write 'earliest', 'latest' or JSON such as"
            f' {{"0": 42}}'
        ) from None
    if isinstance(parsed, dict) and set(parsed) == {topic}:
        parsed = parsed[topic]
    if not isinstance(parsed, dict):
        raise ValueError(f"{option}: the JSON must be an object of partition -> offset")
    offsets: dict[int, int] = {}
    for partition, offset in parsed.items():
        if not str(partition).isdigit() or type(offset) is not int or offset < EARLIEST:
            raise ValueError(
                f"{option}: {partition!r}: {offset!r} is not a partition and its offset, both"
                " integers"
            )
        offsets[int(partition)] = offset
    return offsets


def resolve(spec: OffsetSpec, retained: Mapping[int, Retained], option: str) -> dict[int, int]:
    """Return the offset of each partition.  A JSON spec must name exactly the partitions."""
    if spec == "earliest":
        return {partition: held.first for partition, held in retained.items()}
    if spec == "latest":
        return {partition: held.next for partition, held in retained.items()}
    assert not isinstance(spec, str)
    if set(spec) != set(retained):
        raise ValueError(
            f"{option} names the partitions {sorted(spec)}, but the topic has {sorted(retained)}"
        )
    named = {EARLIEST: "first", LATEST: "next"}
    return {
        partition: getattr(retained[partition], named[offset]) if offset in named else offset
        for partition, offset in sorted(spec.items())
    }


def ranges(
    start: Mapping[int, int],
    end: Mapping[int, int],
    retained: Mapping[int, Retained],
    *,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """Return the range from `start` to `end` of each partition; empty ranges are left out.

    Offsets that were trimmed, or never existed, are data loss: DataLossError, or without
    `fail_on_data_loss` the range is cut to the offsets that exist.
    """
    found: list[OffsetRange] = []
    for partition in sorted(end):
        held = retained.get(partition, Retained(0, 0))
        low, high = start.get(partition, held.first), end[partition]
        if low > high:
            raise ValueError(f"partition {partition}: the start {low} is behind the end {high}")
        if low < high and (low < held.first or high > held.next):
            if fail_on_data_loss:
                raise DataLossError(
                    f"partition {partition}: offsets {low} to {high} were asked for, "
                    f"{held.first} to {held.next} are retained; "
                    "set failOnDataLoss=false to continue with what is there"
                )
            low, high = max(low, held.first), min(high, held.next)
        if low < high:
            found.append(OffsetRange(partition, low, high))
    return found


def carry_over(
    start: Mapping[int, int], retained: Mapping[int, Retained], *, fail_on_data_loss: bool
) -> dict[int, int]:
    """Return where a stream that has read up to `start` resumes in each existing partition.

    A new partition is read from its first offset.  Offsets never decrease, so a topic that ends
    before `start`, or has fewer partitions, was deleted and created again: DataLossError, or
    without `fail_on_data_loss` the stream starts at its beginning.
    """
    anew = [p for p, at in sorted(start.items()) if p not in retained or at > retained[p].next]
    if anew and fail_on_data_loss:
        held = {p: retained[p].next for p in anew if p in retained}
        raise DataLossError(
            f"partitions {anew}: the stream had read up to {[start[p] for p in anew]}, the topic "
            f"ends at {held}: it was deleted and created again; "
            "set failOnDataLoss=false to read it from its beginning"
        )
    return {
        p: held.first if p in anew else start.get(p, held.first)
        for p, held in sorted(retained.items())
    }


def limit(start: Mapping[int, int], end: Mapping[int, int], offsets_max: int) -> dict[int, int]:
    """Return an end with at most `offsets_max` offsets in all, in proportion to the sizes.

    At least one offset is taken if there is any, so a stream always makes progress.
    """
    sizes = {p: max(0, end[p] - start.get(p, end[p])) for p in sorted(end)}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(end)
    taken = {p: size * offsets_max // total for p, size in sizes.items()}
    # Rounding down leaves fewer offsets than there are partitions.  They go, one each, to the
    # partitions that have the most left.
    left = offsets_max - sum(taken.values())
    assert 0 <= left <= len(sizes)
    for p in sorted(sizes, key=lambda p: (taken[p] - sizes[p], p)):
        more = min(left, sizes[p] - taken[p], 1)
        taken[p] += more
        left -= more
    assert sum(taken.values()) == offsets_max
    return {p: start.get(p, end[p]) + taken[p] for p in sizes}


def split(found: list[OffsetRange], partitions_min: int) -> list[OffsetRange]:
    """Split into at least `partitions_min` ranges of about equal size, if offsets suffice."""
    total = sum(map(len, found))
    if len(found) >= partitions_min or not total:
        return found
    parts: list[OffsetRange] = []
    for whole in found:
        count = max(1, min(len(whole), round(partitions_min * len(whole) / total)))
        edges = [whole.start + len(whole) * i // count for i in range(count + 1)]
        parts += [OffsetRange(whole.partition, low, high) for low, high in pairwise(edges)]
    # Rounding can leave too few: halve the largest range until there are enough.
    while len(parts) < min(partitions_min, total):
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        part = parts[largest]
        middle = (part.start + part.end) // 2
        parts[largest : largest + 1] = [
            OffsetRange(part.partition, part.start, middle),
            OffsetRange(part.partition, middle, part.end),
        ]
    assert sum(map(len, parts)) == total, "each offset is in exactly one range"
    return parts
