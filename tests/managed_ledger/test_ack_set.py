"""The ack set, compared with a plain set of positions."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.managed_ledger.ack_set import ENTRIES_MAX, AckSet
from daybook.managed_ledger.position import Position

LEDGERS = st.integers(1, 3)
ENTRIES = st.integers(0, 300)
POSITIONS = st.builds(Position, LEDGERS, ENTRIES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), POSITIONS),
        st.tuples(st.just("range"), LEDGERS, ENTRIES, st.integers(-2, 130)),
        st.tuples(st.just("discard"), st.builds(Position, LEDGERS, st.integers(-1, 310))),
    ),
    max_size=40,
)


def build(steps: list[tuple[object, ...]]) -> tuple[AckSet, set[Position]]:
    acked, model = AckSet(), set[Position]()
    for step in steps:
        match step:
            case ("add", Position() as position):
                assert acked.add(position) == (position not in model)
                model.add(position)
            case ("range", int(ledger), int(first), int(more)):
                acked.add_range(ledger, first, first + more)
                model |= {Position(ledger, e) for e in range(first, first + more + 1)}
            case ("discard", Position() as position):
                acked.discard_through(position)
                model = {p for p in model if p > position}
            case _:
                raise AssertionError(step)
        assert len(acked) == len(model)
    return acked, model


def runs(model: set[Position]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for p in sorted(model):
        if found and found[-1][0] == p.ledger_id and found[-1][2] == p.entry_id - 1:
            found[-1] = (p.ledger_id, found[-1][1], p.entry_id)
        else:
            found.append((p.ledger_id, p.entry_id, p.entry_id))
    return found


@given(STEPS)
def test_it_is_a_set_of_positions(steps: list[tuple[object, ...]]) -> None:
    acked, model = build(steps)
    for ledger in range(4):
        for entry in range(-1, 440):
            assert (Position(ledger, entry) in acked) == (Position(ledger, entry) in model)
    assert list(acked.ranges()) == runs(model)
    assert acked.range_count(1000) == len(runs(model))
    for ledger, first, last in runs(model):
        assert acked.run_end(Position(ledger, first)) == last


@given(STEPS, STEPS)
def test_words_say_the_same(one: list[tuple[object, ...]], two: list[tuple[object, ...]]) -> None:
    (first, model), (second, other) = build(one), build(two)
    for ledger, words in first.words():
        assert all(-(2**63) <= word < 2**63 for word in words)
        second.add_words(ledger, words)
    assert list(second.ranges()) == runs(model | other)
    assert len(second) == len(model | other)


@pytest.mark.parametrize("entry", [-1, ENTRIES_MAX, 2**63])
def test_entries_that_no_ledger_can_have_are_refused(entry: int) -> None:
    with pytest.raises(ValueError, match="entries"):
        AckSet().add(Position(1, entry))
    with pytest.raises(ValueError, match="entries"):
        AckSet().add_range(1, min(entry, 0), max(entry, 0))


def test_words_of_more_than_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        AckSet().add_words(1, [2**63])


def test_half_a_million_holes_are_fast_and_small() -> None:
    acked = AckSet()
    begin = time.process_time()
    for entry in range(1, 1_000_000, 2):
        acked.add(Position(1, entry))
    assert acked.range_count(100) == 101
    (_, words), *_ = acked.words()
    again = AckSet()
    again.add_words(1, words)
    assert len(again) == len(acked) == 500_000
    acked.discard_through(Position(1, 499_999))
    assert len(acked) == 250_000
    assert time.process_time() - begin < 60  # one second; if it were quadratic, hours


def test_acknowledging_in_order_behind_a_far_front_costs_nothing_of_what_lies_before() -> None:
    acked = AckSet()
    begin = time.process_time()
    for entry in range(50_000_000, 50_020_000):
        acked.add(Position(1, entry))
        acked.discard_through(Position(1, entry - 1))
    assert len(acked) == 1
    assert time.process_time() - begin < 15  # a tenth of a second; else minutes
