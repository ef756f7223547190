"""Tasks over sealed ledgers have the same offsets, about equal bytes, and the ledgers they need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.clients.python.reader import OffsetRange as Held
from daybook.clients.python.reader import SealedLedger, TopicLedgers
from daybook.clients.spark.direct import find_entry
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.sealed import cut, with_ledgers

URL = "zk://host:2181/ledgers"


def ledgers_of(sizes: list[tuple[int, int]], first: int = 0) -> tuple[SealedLedger, ...]:
    """Return ledgers with (messages, bytes), one behind the other."""
    found: list[SealedLedger] = []
    for number, (messages, size) in enumerate(sizes):
        found.append(SealedLedger(10 + number, first, first + messages, messages, size))
        first += messages
    return tuple(found)


sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), max_size=6)


@settings(deadline=None)
@given(sizes, st.integers(0, 20), st.data())
def test_tasks_cover_the_range_once_and_know_the_ledgers(
    shape: list[tuple[int, int]], before: int, data: st.DataObject
) -> None:
    sealed = ledgers_of(shape, before)
    following = sealed[-1].next if sealed else before
    start = data.draw(st.integers(0, following))
    end = data.draw(st.integers(start + 1, following + 30))
    task_bytes = data.draw(st.integers(1, 2000))
    task = ReadTask("pulsar://x", "t", OffsetRange(3, start, end), True)
    found = with_ledgers(
        task, TopicLedgers(Held(before, following + 30), URL, sealed), task_bytes=task_bytes
    )
    edges = [start]
    for each in found:
        assert each.part.partition == 3
        assert each.part.start == edges[-1] < each.part.end
        edges.append(each.part.end)
        needed = [e for e in sealed if e.first < each.part.end and each.part.start < e.next]
        assert (list(each.ledgers.sealed) if each.ledgers else []) == needed
    assert edges[-1] == end


def test_a_large_range_is_cut_into_equal_bytes_within_ledgers_too() -> None:
    """Spark 20698: tasks were small, or one of them had most of the work."""
    sealed = ledgers_of([(100, 1000), (10, 1000), (1000, 2000)])
    parts = cut(OffsetRange(0, 0, 1500), sealed, 500)
    assert [(part.start, part.end) for part in parts] == [
        (0, 50),
        (50, 100),
        (100, 105),
        (105, 110),
        (110, 360),
        (360, 610),
        (610, 860),
        (860, 1500),  # the tail is not sealed
    ]
    assert len(cut(OffsetRange(0, 0, 1500), sealed, 4000)) == 1


def test_without_an_address_of_the_ledgers_the_brokers_have_everything() -> None:
    task = ReadTask("pulsar://x", "t", OffsetRange(3, 0, 9), True)
    assert with_ledgers(task, TopicLedgers(Held(0, 9))) == [task]


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(0, 99), st.data())
def test_the_entry_of_an_offset_is_found_in_a_few_looks(
    counts: list[int], first: int, data: st.DataObject
) -> None:
    edges = [first]
    for count in counts:
        edges.append(edges[-1] + count)
    ledger = SealedLedger(1, first, edges[-1], len(counts), 1)
    looks: list[int] = []

    def offsets_at(low: int, high: int) -> list[int | None]:
        looks.append(low)
        return [edges[entry_id + 1] - 1 for entry_id in range(low, high + 1)]

    offset = data.draw(st.integers(first, edges[-1] - 1))
    found = find_entry(offsets_at, ledger, offset)
    assert edges[found] <= offset < edges[found + 1]
    assert len(looks) <= 2 * len(counts).bit_length()


def test_a_regular_ledger_needs_few_looks_however_long_it_is() -> None:
    looks: list[int] = []

    def offsets_at(low: int, high: int) -> list[int | None]:
        looks.append(low)
        return [10 * entry_id + 9 for entry_id in range(low, high + 1)]

    ledger = SealedLedger(1, 0, 500_000, 50_000, 1)
    assert find_entry(offsets_at, ledger, 123_456) == 12_345
    assert len(looks) == 1


def test_entries_without_offsets_are_counted_from_the_beginning() -> None:
    ledger = SealedLedger(1, 0, 100, 10, 1)
    assert find_entry(lambda low, high: [None] * (high + 1 - low), ledger, 77) == 0
