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
        st.tuples(st.just("part"), st.sampled_from(ENTRIES), st.integers(0, 7)),
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
    parts: dict[Position, int] = {}
    recovered, recovered_acked = START, AckSet()
    recovered_parts: dict[Position, int] = {}
    for step in steps:
        before = state.mark_delete
        match step:
            case ("ack", list(positions)):
                state.ack(positions)
                acked |= set(positions)
            case ("part", Position() as position, int(pending)):
                parts[position] = parts.get(position, -1) & pending
                done = position not in acked and not parts[position]
                assert state.ack_part(position, pending) is done
                if done:
                    state.ack([position])
                    acked.add(position)
            case ("cumulative", Position() as position):
                state.ack_cumulative(position)
                acked |= {p for p in ENTRIES if p <= position}
            case ("reset", Position() as position):
                state.reset(position)
                acked = {p for p in ENTRIES if p <= position}
                parts = {}
            case _:
                change = state.take_change()
                assert state.take_change() is None
                if change is not None:
                    recovered, recovered_acked = apply_change(recovered, recovered_acked, change)
                    recovered_parts = {} if change.reset else recovered_parts
                    recovered_parts.update(change.parts)
                again = CursorState(recovered, recovered_acked, next_position)
                assert [again.is_acked(p) for p in ENTRIES] == [p in acked for p in ENTRIES]
                assert again.mark_delete == state.mark_delete
                again.take_parts(recovered_parts)
                assert again.parts.sets() == state.parts.sets()
        parts = {each: left for each, left in parts.items() if each not in acked}
        assert dict(state.parts.sets()) == parts
        assert [state.is_acked(p) for p in ENTRIES] == [p in acked for p in ENTRIES]
        assert next_position(state.mark_delete) not in acked
        assert step[0] == "reset" or state.mark_delete >= before
        copy = CursorState(START, AckSet(), next_position)
        copy.restore(state.snapshot())
        assert copy.canonical() == state.canonical()


def test_a_cursor_that_nobody_records_keeps_no_changes() -> None:
    state = CursorState(START, AckSet(), next_position, recording=False)
    state.ack(ENTRIES[3:9])
    state.ack_part(ENTRIES[1], 0b10)
    assert state.snapshot().fresh == ()
    assert state.snapshot().fresh_parts == ()


def test_an_entry_that_was_missing_moves_mark_delete_over_those_behind_it() -> None:
    state = CursorState(START, AckSet(), next_position)
    state.ack([ENTRIES[1], ENTRIES[2], ENTRIES[4]])
    state.ack([ENTRIES[0]])
    assert state.mark_delete == ENTRIES[2]
    assert state.changes == 4
    assert state.ack_cumulative(ENTRIES[3])
    assert state.mark_delete == ENTRIES[4]
    assert state.changes == 5
    assert not state.ack_cumulative(ENTRIES[4])
    assert state.changes == 5


def test_only_a_part_that_is_new_is_a_change() -> None:
    """A change that is none would be recorded again and again."""
    state = CursorState(START, AckSet(), next_position)
    state.ack_part(ENTRIES[1], 0b110)
    assert state.changes == 1
    change = state.take_change()
    assert change == Change(START, (), parts=((ENTRIES[1], 0b110),))
    state.ack_part(ENTRIES[1], 0b111)
    assert state.changes == 1
    assert state.take_change() is None
    state.ack_part(ENTRIES[1], 0b011)
    assert state.changes == 2


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


def test_an_id_behind_the_end_of_a_ledger_moves_no_mark_delete() -> None:
    # A client can send any id.  Entries of the next ledger must not look as if they were behind it.
    state = CursorState(START, AckSet(), next_position)
    state.ack(ENTRIES[:3])
    state.ack([Position(1, 3), Position(1, 4)])
    assert state.mark_delete == Position(1, 2)
    state.ack([Position(2, 0)])
    assert state.mark_delete == Position(2, 0)
