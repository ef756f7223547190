"""The rules of a cursor, compared with a model: a set of positions and the existing entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change, CursorState, apply_change

LEDGERS = {1: 3, 2: 4, 5: 2, 9: 100}  # 9 is the one that is written
ENTRIES = [Position(i, e) for i, n in LEDGERS.items() for e in range(min(n, 12))]
START = Position(1, -1)


def next_position(position: Position) -> Position:
    if position.entry_id + 1 < LEDGERS.get(position.ledger_id, 0):
        return position.next_in_ledger()
    following = [i for i in LEDGERS if i > position.ledger_id]
    return Position(following[0], 0) if following else position.next_in_ledger()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.lists(st.sampled_from(ENTRIES), max_size=4)),
        st.tuples(st.just("cumulative"), st.sampled_from(ENTRIES)),
        st.tuples(st.just("reset"), st.sampled_from([START, *ENTRIES])),
        st.tuples(st.just("record")),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_cursor_skips_nothing_and_forgets_nothing(steps: list[tuple[object, ...]]) -> None:
    state = CursorState(START, AckSet(), next_position)
    acked: set[Position] = set()
    recovered, recovered_acked = START, AckSet()
    for step in steps:
        before = state.mark_delete
        match step:
            case ("ack", list(positions)):
                state.ack(positions)
                acked |= set(positions)
            case ("cumulative", Position() as position):
                state.ack_cumulative(position)
                acked |= {p for p in ENTRIES if p <= position}
            case ("reset", Position() as position):
                state.reset(position)
                acked = {p for p in ENTRIES if p <= position}
            case _:
                change = state.take_change()
                assert state.take_change() is None
                if change is not None:
                    recovered, recovered_acked = apply_change(recovered, recovered_acked, change)
                again = CursorState(recovered, recovered_acked, next_position)
                assert [again.is_acked(p) for p in ENTRIES] == [p in acked for p in ENTRIES]
                assert again.mark_delete == state.mark_delete
        assert [state.is_acked(p) for p in ENTRIES] == [p in acked for p in ENTRIES]
        assert next_position(state.mark_delete) not in acked
        assert step[0] == "reset" or state.mark_delete >= before
        copy = CursorState(START, AckSet(), next_position)
        copy.restore(state.snapshot())
        assert copy.canonical() == state.canonical()


def test_a_cursor_that_nobody_records_keeps_no_changes() -> None:
    state = CursorState(START, AckSet(), next_position, recording=False)
    state.ack(ENTRIES[3:9])
    assert state.snapshot().fresh == ()


def test_mark_delete_moves_over_what_was_acknowledged_behind_it_when_it_is_recovered() -> None:
    acked = AckSet()
    acked.add_range(1, 0, 2)
    acked.add_range(2, 0, 1)
    state = CursorState(START, acked, next_position)
    assert state.mark_delete == Position(2, 1)
    assert not state.acked


def test_an_older_change_moves_nothing_back() -> None:
    mark_delete, _ = apply_change(Position(2, 1), AckSet(), Change(Position(1, 2), ()))
    assert mark_delete == Position(2, 1)


def test_a_change_with_entries_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="entries"):
        apply_change(START, AckSet(), Change(START, ((1, 0, 2**60),)))
