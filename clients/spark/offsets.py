"""Compute which offsets a Spark query reads: bounds, limits, splits.  Pure, on half-open ranges.

A topic has partitions 0 to n-1 (a topic without partitions is one partition, 0).  Each message of a
partition has an offset, an exact integer.  Trimming raises the first offset, publishing the next.
A range [start, end) of a partition is read by one Spark task or by several.

A topic that was deleted and created again counts its offsets from 0.  Its creation, a number that
the broker tells, is then another one, so old offsets are never taken for those of the new topic.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal, NamedTuple, TypeAlias

from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName

EARLIEST = -2  # the same numbers as in Spark's Kafka source
LATEST = -1
_YEAR_2000_S = 946_684_800

Bound: TypeAlias = Literal["earliest", "latest"]


class Partition(NamedTuple):
    """One partition of a topic, which has its full name here."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.number}"


PartitionValues: TypeAlias = Mapping[Partition, int]
"""A number for each partition: an offset, or a time in milliseconds since 1970."""

OffsetSpec: TypeAlias = Bound | PartitionValues


class DataLossError(Exception):
    """Offsets that the query should read are no longer retained."""


@dataclass(frozen=True, slots=True)
class Retained:
    """The offsets [first, next) that a partition holds, and the creation of its topic."""

    first: int
    next: int
    created: int | None = None  # None: the broker does not tell


class Progress(NamedTuple):
    """How far a query has read a partition: the next offset, and the creation of its topic."""

    next: int
    created: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int
    topic: str = ""  # the full name

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a stream goes on, and sentences that say what it cannot read any more."""

    start: Mapping[Partition, int]
    losses: Sequence[str]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The ranges of a batch, and sentences that say what it cannot read any more."""

    ranges: list[OffsetRange]
    losses: Sequence[str]


def check_losses(losses: Sequence[str]) -> None:
    """Raise DataLossError, in one sentence, if anything is lost."""
    if losses:
        more = f" (and {len(losses) - 1} more like this)" if len(losses) > 1 else ""
        raise DataLossError(
            f"{losses[0]}{more}: set failOnDataLoss=false to continue with what is there"
        )


# -- options


def full_topic_name(topic: str, option: str) -> str:
    """Return the full name of a topic.  Raise ValueError that names the option."""
    try:
        name = TopicName.parse(topic)
    except MalformedError as error:
        raise ValueError(f"{option}: {error}") from None
    return name.full


def parse_offsets(text: str, topic: str | None, option: str) -> OffsetSpec:
    """Parse `earliest`, `latest`, or JSON: {"topic": {"0": 5, "1": -2}}.

    `topic` is the full name if the query reads one topic only: then {"0": 5, "1": -2} is enough.
    In JSON, -2 is the earliest and -1 the latest offset.  Raise ValueError for anything else.
    """
    lowered = text.strip().lower()
    if lowered == "earliest":
        return "earliest"
    if lowered == "latest":
        return "latest"
    advice = "write 'earliest', 'latest' or JSON such as" + ' {"topic": {"0": 42}}'
    return _parse_json(text, topic, option, advice, EARLIEST)


def parse_times(text: str, topic: str | None, option: str) -> PartitionValues:
    """Parse JSON as `parse_offsets` does, with milliseconds since 1970 in place of offsets."""
    advice = 'write milliseconds since 1970, such as {"topic": {"0": 1764000000000}}'
    found = _parse_json(text, topic, option, advice, 0)
    check_milliseconds(found.values(), option)
    return found


def check_milliseconds(times: Iterable[int], option: str) -> None:
    """Raise ValueError for a time that is of this century if it is in seconds, and else of 1970.

    Such a query would read everything, or nothing.  Smaller numbers are left alone: 0 is a usual
    word for the beginning.
    """
    for time in times:
        if _YEAR_2000_S <= time < _YEAR_2000_S * 1000:
            raise ValueError(
                f"{option}: {time} is a time in seconds, and milliseconds since 1970 are expected:"
                f" write {time * 1000}"
            )


def _parse_json(
    text: str, topic: str | None, option: str, advice: str, least: int
) -> PartitionValues:
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{option}={text!r} is not valid: {advice}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{option}={text!r} is not valid: {advice}")
    if not any(isinstance(value, dict) for value in parsed.values()):
        if topic is None:
            raise ValueError(f"{option} names no topics, and the query reads several: {advice}")
        parsed = {topic: parsed}
    found: dict[Partition, int] = {}
    for name, values in parsed.items():
        full = full_topic_name(str(name), option)
        if not isinstance(values, dict):
            raise ValueError(f"{option}: {name!r} needs an object of partition -> number")
        for index, value in values.items():
            if not (index.isascii() and index.isdigit()) or len(index) > 9:
                raise ValueError(f"{option}: {index!r} is not the number of a partition")
            if type(value) is not int or value < least:
                raise ValueError(f"{option}: {value!r} of partition {index} is no valid integer")
            found[Partition(full, int(index))] = value
    return found


def check_partitions(
    named: Mapping[Partition, object], held: Mapping[Partition, object], option: str
) -> None:
    """Raise ValueError unless an option names exactly the partitions that the query reads."""
    if set(named) == set(held):
        return
    for topic in sorted({partition.topic for partition in (*named, *held)}):
        says = sorted(p.number for p in named if p.topic == topic)
        has = sorted(p.number for p in held if p.topic == topic)
        if says != has:
            raise ValueError(
                f"{option} names the partitions {says} of {topic}, but the query reads {has}"
            )


def resolve(
    spec: OffsetSpec, retained: Mapping[Partition, Retained], option: str
) -> dict[Partition, int]:
    """Return the offset of each partition.  A JSON spec must name exactly the partitions."""
    if spec == "earliest":
        return {partition: held.first for partition, held in retained.items()}
    if spec == "latest":
        return {partition: held.next for partition, held in retained.items()}
    assert not isinstance(spec, str)
    check_partitions(spec, retained, option)
    return {
        partition: retained[partition].first
        if offset == EARLIEST
        else retained[partition].next
        if offset == LATEST
        else offset
        for partition, offset in sorted(spec.items())
    }


# -- streams and batches


def is_another_topic(before: int | None, now: int | None) -> bool:
    """Return True if two creations are known and differ: the topic was made anew in between."""
    return before is not None and now is not None and before != now


def carry_over(
    start: Mapping[Partition, Progress], retained: Mapping[Partition, Retained]
) -> Resumption:
    """Return where a stream that has read up to `start` goes on in each existing partition.

    A new partition is read from its first offset.  Three things are losses: partitions that are
    gone, topics that were made anew, and offsets that were trimmed before they were read.  The
    stream goes on at the first retained offset then.
    """
    begin: dict[Partition, int] = {}
    losses = [_gone(topic, list(those)) for topic, those in _by_topic(start, retained)]
    for partition, held in sorted(retained.items()):
        before = start.get(partition)
        begin[partition] = held.first
        if before is None:
            continue
        # Offsets never decrease, so a topic that ends before `start` is another one, too.
        if is_another_topic(before.created, held.created) or before.next > held.next:
            losses.append(
                f"{partition} was deleted and created again (the query had read it up to offset"
                f" {before.next}, and it holds {held.first} to {held.next} now)"
            )
        elif before.next < held.first:
            losses.append(_trimmed(partition, before.next, held.first))
        else:
            begin[partition] = before.next
    return Resumption(begin, losses)


def _by_topic(
    start: Mapping[Partition, Progress], retained: Mapping[Partition, Retained]
) -> list[tuple[str, list[tuple[Partition, Progress]]]]:
    """Return the partitions of `start` that are gone, topic by topic."""
    gone = sorted((p, before) for p, before in start.items() if p not in retained)
    return [(topic, list(those)) for topic, those in groupby(gone, lambda each: each[0].topic)]


def _gone(topic: str, those: Sequence[tuple[Partition, Progress]]) -> str:
    read = ", ".join(f"{partition.number} up to {before.next}" for partition, before in those)
    return f"{topic} lacks partitions: it was deleted (the query had read partition {read})"


def _trimmed(partition: Partition, low: int, high: int) -> str:
    return f"{partition}: the offsets {low} to {high} are no longer retained"


def batch_plan(
    start: Mapping[Partition, Progress],
    end: Mapping[Partition, Progress],
    retained: Mapping[Partition, Retained],
) -> BatchPlan:
    """Return the ranges from `start` to `end` that can be read; empty ones are left out.

    Spark plans a batch again after a restart, when the topic may be another one than it was.  An
    end that belongs to another creation than the start, or lies before it, tells that the topic was
    made anew before the batch was planned first: the batch begins at its first offset.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for partition, until in sorted(end.items()):
        before = start.get(partition)
        high = until.next
        held = retained.get(partition)
        low = 0 if before is None else before.next
        if held is None or is_another_topic(until.created, held.created):
            if low < high:
                gone = "deleted" if held is None else "deleted and created again"
                losses.append(
                    f"{partition} was {gone} before its offsets {low} to {high} were read"
                )
            continue
        if before is None:
            low = held.first
        elif is_another_topic(before.created, until.created):
            low = held.first  # `carry_over` has told of it when the batch was planned first.
        elif low > high:
            losses.append(
                f"{partition} was deleted and created again (the batch begins at offset {low} and"
                f" ends at {high})"
            )
            low = held.first
        if low < high:
            low, high = _cut(partition, low, high, held, losses)
        if low < high:
            ranges.append(OffsetRange(partition.number, low, high, partition.topic))
    return BatchPlan(ranges, losses)


def _cut(
    partition: Partition, low: int, high: int, held: Retained, losses: list[str]
) -> tuple[int, int]:
    """Return the part of a range that is retained, and note the rest as lost."""
    if low < held.first:
        losses.append(_trimmed(partition, low, min(high, held.first)))
    if high > held.next:
        losses.append(
            f"{partition}: the offsets up to {high} were asked for, and it ends at {held.next}"
        )
    return max(low, held.first), min(high, held.next)


def limit(start: PartitionValues, end: PartitionValues, offsets_max: int) -> dict[Partition, int]:
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


class Stored(NamedTuple):
    """About how many bytes the messages at the offsets [first, next) of a partition have."""

    first: int
    next: int
    bytes: float


def stored_sizes(
    start: int, end: int, sealed: Sequence[Stored], average: float | None
) -> list[Stored]:
    """Return the sizes of the offsets [start, end), in order and without gaps.

    Sealed ledgers know their sizes.  The other messages, which are mostly in the open ledger, are
    taken to be as large as those of the sealed ledgers, or as `average` where there are none.
    """
    messages = sum(each.next - each.first for each in sealed)
    if messages:
        average = sum(each.bytes for each in sealed) / messages
    found: list[Stored] = []
    at = start
    for each in (*sealed, Stored(end, end, 0)):
        low, high = max(each.first, at), min(each.next, end)
        if at < min(low, end):
            found.append(Stored(at, min(low, end), (min(low, end) - at) * (average or 0.0)))
            at = min(low, end)
        if low < high:
            found.append(Stored(low, high, each.bytes * (high - low) / (each.next - each.first)))
            at = high
    return found


def limit_bytes(
    start: PartitionValues,
    end: PartitionValues,
    sizes: Mapping[Partition, Sequence[Stored]],
    bytes_max: int,
) -> dict[Partition, int]:
    """Return an end with at most `bytes_max` bytes in all, in proportion to what partitions have.

    At least one offset is taken if there is any, however large it is, so a stream always makes
    progress.  `sizes` has the offsets from the start to the end of each partition.
    """
    totals = {p: sum(each.bytes for each in sizes.get(p, ())) for p in sorted(end)}
    total = sum(totals.values())
    if total <= bytes_max:
        return dict(end)
    found = {p: start.get(p, end[p]) for p in totals}
    waiting = [p for p in found if found[p] < end[p]]
    smallest = sorted(waiting, key=lambda p: (_size_at(sizes[p], found[p]), p))
    if _size_at(sizes[smallest[0]], found[smallest[0]]) > bytes_max:
        found[smallest[0]] += 1  # Every message is larger than the limit.
        return found
    # A partition with a small share gets one offset, or it would wait for a large one to end.
    left = _one_each(smallest, found, sizes, float(bytes_max))
    rest = {p: [each for s in sizes[p] if (each := _behind(s, found[p])).bytes] for p in waiting}
    totals = {p: sum(each.bytes for each in several) for p, several in rest.items()}
    total, budget = sum(totals.values()), left
    for p, size in totals.items():
        found[p], used = _offset_within(rest[p], size * budget / total if total else 0.0, end[p])
        left -= used
    # Rounding down leaves some bytes.  They go to the partitions that have most left.
    waiting = [p for p in waiting if found[p] < end[p]]
    _one_each(sorted(waiting, key=lambda p: (found[p] - end[p], p)), found, sizes, left)
    return found


def _one_each(
    partitions: Sequence[Partition],
    found: dict[Partition, int],
    sizes: Mapping[Partition, Sequence[Stored]],
    left: float,
) -> float:
    """Move each partition on by one offset that fits into what is left; return the rest."""
    for p in partitions:
        size = _size_at(sizes[p], found[p])
        if size <= left:
            found[p] += 1
            left -= size
    return left


def _behind(sizes: Stored, offset: int) -> Stored:
    """Return the part of these offsets that begins at the offset."""
    first = min(max(sizes.first, offset), sizes.next)
    share = (sizes.next - first) / (sizes.next - sizes.first)
    return Stored(first, sizes.next, sizes.bytes * share)


def _offset_within(sizes: Sequence[Stored], bytes_max: float, end: int) -> tuple[int, float]:
    """Return how far so many bytes reach, and how many of them are used."""
    used = 0.0
    for each in sizes:
        if used + each.bytes > bytes_max:
            count = int((bytes_max - used) * (each.next - each.first) / each.bytes)
            return each.first + count, used + each.bytes * count / (each.next - each.first)
        used += each.bytes
    return end, used


def _size_at(sizes: Sequence[Stored], offset: int) -> float:
    (found,) = (each for each in sizes if each.first <= offset < each.next)
    return found.bytes / (found.next - found.first)


def split(
    found: list[OffsetRange], partitions_min: int, records_max: int | None = None
) -> list[OffsetRange]:
    """Split into at least `partitions_min` ranges of about equal size, if offsets suffice.

    No range has more than `records_max` offsets.
    """
    total = sum(map(len, found))
    if records_max is not None:
        found = [
            part for whole in found for part in _in_parts(whole, -(-len(whole) // records_max))
        ]
    if len(found) >= partitions_min or not total:
        return found
    parts: list[OffsetRange] = []
    for whole in found:
        count = max(1, min(len(whole), round(partitions_min * len(whole) / total)))
        parts += _in_parts(whole, count)
    # Rounding can leave too few: halve the largest range until there are enough.
    while len(parts) < min(partitions_min, total):
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[largest : largest + 1] = _in_parts(parts[largest], 2)
    assert sum(map(len, parts)) == total, "each offset is in exactly one range"
    return parts


def _in_parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + len(whole) * i // count for i in range(count + 1)]
    return [replace(whole, start=low, end=high) for low, high in pairwise(edges)]
