"""Which consumer serves which key: Pulsar's slots, and that only what must change hands does."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.broker.protocol.dispatch.murmur import murmur3
from daybook.broker.protocol.dispatch.places import SlotRange
from daybook.broker.protocol.dispatch.ranges import (
    SLOTS,
    AutoSplitRanges,
    KeyRanges,
    RingRanges,
    StickyRanges,
    ranges_problem,
)

KEYS = range(0, SLOTS, 257)
KINDS: dict[str, Callable[[], KeyRanges]] = {
    "split": AutoSplitRanges,
    "ring": lambda: RingRanges(10),
    "small ring": lambda: RingRanges(2),
}


def owners(ranges: KeyRanges) -> list[int | None]:
    return [ranges.owner_of(key) for key in KEYS]


@pytest.mark.parametrize(
    ("key", "value", "split", "ring"),
    [(b"key1", 462881061, 293, 7357), (b"key2", 1936800180, 14772, 44326)],
)
def test_the_slots_are_pulsars(key: bytes, value: int, split: int, ring: int) -> None:
    assert murmur3(key) == value
    assert AutoSplitRanges().slot_of(value) == StickyRanges().slot_of(value) == split
    assert RingRanges(100).slot_of(value) == ring


@pytest.mark.parametrize("kind", [AutoSplitRanges, StickyRanges])
def test_slot_0_is_not_used(kind: Callable[[], KeyRanges]) -> None:
    assert kind().slot_of(0) == kind().slot_of(SLOTS) == kind().slot_of(1) == 1
    assert kind().slot_of(SLOTS - 1) == SLOTS - 1


def test_a_ring_uses_the_slots_from_1_on() -> None:
    assert RingRanges(1).slot_of(0) == RingRanges(1).slot_of(SLOTS - 1) == 1
    assert RingRanges(1).slot_of(SLOTS - 2) == SLOTS - 1


def test_a_newcomer_takes_the_lower_half_of_the_largest_range() -> None:
    ranges = AutoSplitRanges()
    assert ranges.add(1, "", ()) == set()
    assert ranges.of_consumer(1) == [(1, 65_535)]
    assert ranges.add(2, "", ()) == {1}
    assert ranges.of_consumer(2) == [(1, 32_768)]
    assert ranges.of_consumer(1) == [(32_769, 65_535)]
    assert ranges.add(3, "", ()) == {2}  # The lower one of two that are as large.
    assert ranges.of_consumer(3) == [(1, 16_384)]
    assert ranges.add(4, "", ()) == {1}
    assert ranges.of_consumer(4) == [(32_769, 49_152)]


def test_the_range_of_a_leaver_goes_up_and_the_top_one_down() -> None:
    ranges = AutoSplitRanges()
    for consumer in (1, 2, 3):
        ranges.add(consumer, "", ())
    ranges.remove(3)
    assert ranges.of_consumer(2) == [(1, 32_768)]
    ranges.remove(1)
    assert ranges.of_consumer(2) == [(1, 65_535)]
    ranges.remove(2)
    assert ranges.owner_of(5) is None
    ranges.add(4, "", ())
    assert ranges.owner_of(5) == 4


def test_what_has_one_slot_cannot_be_split() -> None:
    ranges = AutoSplitRanges()
    for consumer in range(SLOTS):
        assert consumer % 997 or ranges.refusal(()) is None
        ranges.add(consumer, "", ())
    assert "can be split" in (ranges.refusal(()) or "")
    ranges.remove(7)
    assert ranges.refusal(()) is None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(steps=st.lists(st.integers(0, 6), max_size=20))
def test_only_slots_of_the_newcomer_or_the_leaver_change_hands(kind: str, steps: list[int]) -> None:
    ranges, there = KINDS[kind](), set[int]()
    before = owners(ranges)
    for step in steps:
        if step in there:
            there.remove(step)
            ranges.remove(step)
            after = owners(ranges)
            moved = {old for old, new in zip(before, after, strict=True) if old != new}
            assert moved <= {step}
        else:
            losers = ranges.add(step, f"c{step % 3}", ())
            there.add(step)
            after = owners(ranges)
            pairs = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
            assert {new for _, new in pairs} <= {step}
            assert {old for old, _ in pairs} - {None} <= losers <= there
        before = after
        assert set(before) <= {*there} if there else set(before) == {None}
        _check_ranges(ranges, there)


def _check_ranges(ranges: KeyRanges, there: set[int]) -> None:
    """The ranges cover each slot once, and say what `owner_of` says."""
    said: dict[int, int] = {}
    for consumer in there:
        for first, last in ranges.of_consumer(consumer):
            assert 1 <= first <= last < SLOTS
            for slot in {first, last, (first + last) // 2}:
                assert slot not in said
                said[slot] = consumer
    for key in KEYS[:50]:
        slot = ranges.slot_of(key)
        covering = [
            c for c in there for first, last in ranges.of_consumer(c) if first <= slot <= last
        ]
        assert covering == [ranges.owner_of(key)] * bool(there)


@settings(max_examples=5)
@given(names=st.permutations(["a", "b", "c", "d"]))
def test_a_ring_follows_from_the_set_of_consumers(names: Sequence[str]) -> None:
    def by_name(order: Sequence[str], points: int) -> list[str]:
        ranges = RingRanges(points)
        for name in order:
            ranges.add(ord(name), name, ())
        return [chr(ranges.owner_of(key) or 0) for key in KEYS]

    for points in (20, 3):
        assert by_name(names, points) == by_name("abcd", points)


def test_consumers_of_one_name_have_points_of_their_own() -> None:
    ranges = RingRanges(100)
    for consumer in range(4):
        ranges.add(consumer, "same", ())
    shares = Counter(owners(ranges))
    assert set(shares) == {0, 1, 2, 3}
    before = owners(ranges)
    ranges.remove(2)
    ranges.add(9, "same", ())  # It gets the number, and so the slots, of the one that left.
    assert [9 if owner == 2 else owner for owner in before] == owners(ranges)


def test_a_ring_shares_fairly() -> None:
    ranges = RingRanges(100)
    for consumer in range(100):
        ranges.add(consumer, f"consumer-{consumer}", ())
    shares = Counter(ranges.owner_of(key) for key in range(SLOTS))
    assert min(shares[consumer] for consumer in range(100)) > 0.5 * SLOTS / 100
    assert max(shares.values()) < 2 * SLOTS / 100


def test_sticky_ranges_include_both_ends() -> None:
    ranges = StickyRanges()
    assert ranges.add(1, "", [(10, 20), (40, 40)]) == {None}
    ranges.add(2, "", [(21, 39)])
    assert [ranges.owner_of(slot) for slot in (9, 10, 20, 21, 39, 40, 41)] == [
        None,
        1,
        1,
        2,
        2,
        1,
        None,
    ]
    ranges.remove(1)
    assert [ranges.owner_of(slot) for slot in (10, 21, 40)] == [None, 2, None]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ([(0, 9)], True),
        ([(0, 10)], False),
        ([(20, 30)], False),
        ([(21, 30)], True),
        ([(12, 13)], False),
        ([(0, 65_535)], False),
        ([(0, 1), (30, 31)], True),
        ([(0, 1), (15, 15)], False),
    ],
)
def test_sticky_ranges_do_not_overlap(wanted: list[SlotRange], fits: bool) -> None:
    ranges = StickyRanges()
    ranges.add(1, "", [(10, 20)])
    assert (ranges.refusal(wanted) is None) == fits
    assert ranges.overlapping(wanted) == (set() if fits else {1})


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([], "names none"),
        ([(3, 2)], "from 0 to 65535"),
        ([(-1, 2)], "from 0 to 65535"),
        ([(0, 65_536)], "from 0 to 65535"),
        ([(5, 9), (0, 5)], "slot 5 twice"),
        ([(0, 65_535)], None),
        ([(2 * n, 2 * n) for n in range(1000)], None),
        ([(2 * n, 2 * n) for n in range(1001)], "may name 1000"),
        ([(5, 9), (0, 4)], None),
    ],
)
def test_ranges_that_make_no_sense_are_refused(ranges: Any, said: str | None) -> None:
    problem = ranges_problem(ranges)
    assert (problem is None) if said is None else (said in (problem or ""))


def test_a_consumer_that_comes_and_goes_leaves_nothing_behind() -> None:
    ranges = AutoSplitRanges()
    ranges.add(0, "", ())
    for consumer in range(1, 2_000):
        ranges.add(consumer, "", ())
        ranges.remove(consumer)
    assert ranges.of_consumer(0) == [(1, SLOTS - 1)]
    assert len(ranges._largest) < 100  # pyright: ignore[reportPrivateUsage]
