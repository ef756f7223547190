"""Times as bounds of a topic and its archive: the offsets that the whole topic would give."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.pipelines.archive.archived import Archived
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.manifest import ArchivedPartition
from daybook.clients.pipelines.archive.times import first_published
from daybook.clients.python.limits import ClientLimits
from daybook.clients.spark.columns import TIME_MS_MAX
from daybook.clients.spark.offsets import Partition, Retained
from daybook.clients.spark.options import AtTimes
from daybook.clients.spark.selection import parse_selection
from daybook.clients.spark.topics import Held, TopicOffsets
from tests.clients.pipelines.memory_files import MemoryFiles
from tests.clients.pipelines.rows import DAY, a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import ID, TOPIC
from tests.clients.pipelines.test_archive_write import START_MS, written

T0 = Partition(TOPIC, 0)
Times = Sequence[int | None]
"""The publish time of each offset, in ms after `START_MS`; None: later than a row can hold."""


def archived(times: Times, *edges: int) -> tuple[MemoryFiles, ArchivedPartition]:
    """Return an archive whose files begin and end at these offsets."""
    files = MemoryFiles()
    found = []
    for low, high in pairwise(edges):
        rows = [a_row(offset) for offset in range(low, high)]
        for row in rows:
            at = times[row["offset"]]
            row["timestamp"] = None if at is None else DAY + timedelta(milliseconds=at)
        found += written(a_batch(*rows), files=files)
    return files, ArchivedPartition(7, edges[0], tuple(found))


def together(times: Times, first: int, *edges: int) -> Archived:
    """Return the archive in front of a topic that holds the offsets from `first` on."""
    files, part = archived(times, *edges)
    return Archived(files, ID, {T0: part}, {T0: Retained(first, len(times), 7)})


def asking(times: Sequence[int], first: int) -> Callable[[int], int | None]:
    """Return a topic whose times ascend, as brokers search it."""

    def ask(time_ms: int) -> int | None:
        found = bisect_left(times, time_ms - START_MS, lo=first)
        return found if found < len(times) else None

    return ask


ORDERED = st.lists(st.integers(0, 8), min_size=1, max_size=12).map(sorted)


@settings(deadline=None, max_examples=150)
@given(ORDERED, st.data())
def test_a_time_is_found_where_the_whole_topic_has_it(
    times: list[int], data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(times)), "the end of the archive")
    begin = data.draw(st.integers(0, end), "its begin")
    first = data.draw(st.integers(0, end), "the first offset of the topic")
    inner = data.draw(st.sets(st.integers(begin, end)), "the edges of its files")
    both = together(times, first, *sorted({begin, end} | inner))
    held = min(begin, first)
    for at in range(-1, 10):
        expected = asking(times, held)(START_MS + at)
        for is_start in (False, True):
            asked = asking(times, first)
            assert both.offset_at(T0, START_MS + at, asked, is_start=is_start) == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(st.none() | st.integers(0, 8), min_size=1, max_size=10), st.data())
def test_the_first_message_so_late_is_found_also_if_clocks_differ(
    times: list[int | None], data: st.DataObject
) -> None:
    inner = data.draw(st.sets(st.integers(0, len(times))), "the edges of its files")
    files, part = archived(times, *sorted({0, len(times)} | inner))
    for at in range(-1, 10):
        late = (n for n, time in enumerate(times) if time is None or time >= at)
        assert first_published(files, ID, 0, part, START_MS + at) == next(late, None)


def test_a_gap_that_may_hold_the_time_is_not_passed_by() -> None:
    times = [0, 1, 2, 3, 4, 5, 6, 7]
    both = together(times, 6, 0, 2, 4)  # neither side holds the offsets 4 and 5
    ask = asking(times, 6)

    def at(time: int, *, is_start: bool) -> int | None:
        return both.offset_at(T0, START_MS + time, ask, is_start=is_start)

    assert [at(time, is_start=True) for time in range(9)] == [0, 1, 2, 3, 4, 4, 4, 7, None]
    # An end behind the gap has the gap in the range of the query.
    assert [at(time, is_start=False) for time in range(9)] == [0, 1, 2, 3, 6, 6, 6, 7, None]
    nothing = together(times, 8, 0, 2, 4)
    assert nothing.offset_at(T0, START_MS + 4, lambda _: None, is_start=True) == 4


def test_a_partition_without_an_archive_is_asked_for() -> None:
    both = together([0, 1], 0, 0, 2)
    other = Partition(TOPIC, 1)
    assert both.offset_at(other, 5, lambda time: time + 1, is_start=True) == 6


def test_a_time_that_no_row_can_hold_is_refused_where_it_would_decide() -> None:
    files, part = archived([1, 2, None], 0, 2, 3)
    assert first_published(files, ID, 0, part, TIME_MS_MAX) == 2
    with pytest.raises(ArchiveError, match="after the year 9999, and does not say when"):
        first_published(files, ID, 0, part, TIME_MS_MAX + 1)


def test_the_bounds_of_a_query_are_found_in_the_archive_first() -> None:
    times = [0, 1, 2, 3]

    class Topics(TopicOffsets):
        def _offset_at(self, topic: str, time_ms: int) -> int | None:
            assert topic == f"{TOPIC}-partition-0"
            return asking(times, 2)(time_ms)

    topics = Topics("pulsar://x", parse_selection({"topic": "orders"}), ClientLimits())
    both = together(times, 2, 0, 2)
    held = Held({T0: Retained(0, 4, 7)}, {T0: f"{TOPIC}-partition-0"}, archived=both)
    for option in ("startingOffsets", "endingOffsets"):
        for time, offset in enumerate([0, 1, 2, 3, 4]):
            bounds = AtTimes(START_MS + time, "startingTimestamp", end_if_none=True)
            assert topics.resolve(bounds, held, option) == {T0: offset}
    gone = together(times, 3, 0, 2)
    held = Held({T0: Retained(0, 4, 7)}, {T0: f"{TOPIC}-partition-0"}, archived=gone)
    bounds = AtTimes(START_MS + 9, "startingTimestamp", end_if_none=False)
    with pytest.raises(ValueError, match="has no message that was published at"):
        topics.resolve(bounds, held, "startingOffsets")
