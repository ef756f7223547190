"""The count of the holes of a cursor is a function of its state, whatever has happened before.

Each step is compared with a full count over all entries.  Sizes of entries may be known or not, and
may be forgotten at any moment.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import (
    decode_holes,
    encode_change,
    encode_holes,
    encode_snapshot,
    recover,
)
from daybook.managed_ledger.entry_sizes import EntrySizes
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import CursorState
from daybook.managed_ledger.protocol.holes import HoleCount, Holes, Run, pending_messages

LEDGERS = {1: 3, 2: 4, 4: 0, 5: 2, 9: 12}  # 9 is the one that is written
ENTRIES = [Position(i, e) for i, n in LEDGERS.items() for e in range(n)]
START = Position(1, -1)


def messages_of(position: Position) -> int:
    return 1 + (3 * position.ledger_id + position.entry_id) % 4


def bytes_of(position: Position) -> int:
    return 100 + 17 * position.ledger_id + position.entry_id


def next_position(position: Position) -> Position:
    if position.entry_id + 1 < (LEDGERS | {9: 100}).get(position.ledger_id, 0):
        return position.next_in_ledger()
    following = [i for i in LEDGERS if i > position.ledger_id and LEDGERS[i]]
    return Position(following[0], 0) if following else position.next_in_ledger()


def spans(after: Position, through: Position) -> list[Run]:
    found: list[Run] = []
    for ledger_id, count in LEDGERS.items():
        here = [p.entry_id for p in ENTRIES if p.ledger_id == ledger_id and after < p <= through]
        if here:
            found.append((ledger_id, here[0], here[-1]))
        assert count >= len(here)
    return found


class World:
    """A cursor, and the full count over its log."""

    def __init__(self) -> None:
        self.sizes = EntrySizes(1 << 20)
        self.state = self.new(START, AckSet())

    def new(self, mark_delete: Position, acked: AckSet) -> CursorState:
        return CursorState(mark_delete, acked, next_position, sizes=self.sizes, spans=spans)

    def learn(self, position: Position) -> None:
        here = [messages_of(position)], [bytes_of(position)]
        self.sizes.note(position.ledger_id, position.entry_id, *here)

    def holes(self) -> list[Position]:
        state = self.state
        top = state.holes.top if state.holes.open else state.mark_delete
        return [p for p in ENTRIES if p <= top and not state.is_acked(p)]

    def full_count(self, of: list[Position]) -> tuple[int, int]:
        pending = self.state.parts.pending
        return (
            sum(pending_messages(pending(p), messages_of(p)) for p in of),
            sum(map(bytes_of, of)),
        )

    def check(self) -> None:
        state, found = self.state, self.state.holes
        holes = self.holes()
        uncounted = [p for p in ENTRIES if p in found.uncounted]
        assert len(found.uncounted) == len(uncounted)
        assert set(uncounted) <= set(holes)
        counted = [p for p in holes if p not in found.uncounted]
        assert (found.messages, found.bytes) == self.full_count(counted)
        # Behind the top nothing is acknowledged, not even in part.
        top = found.top if found.open else state.mark_delete
        touched = [p for p in ENTRIES if p > state.mark_delete and state.is_acked(p)]
        touched += [p for p, _ in state.parts.sets()]
        assert all(p <= top for p in touched)

    def count_all(self) -> None:
        for position in ENTRIES:
            self.state.count(position, messages_of(position), bytes_of(position))
        assert not self.state.holes.uncounted


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.lists(st.sampled_from(ENTRIES), max_size=4)),
        st.tuples(st.just("part"), st.sampled_from(ENTRIES), st.integers(0, 15)),
        st.tuples(st.just("cumulative"), st.sampled_from(ENTRIES)),
        st.tuples(st.just("reset"), st.sampled_from([START, *ENTRIES])),
        st.tuples(st.just("learn"), st.lists(st.sampled_from(ENTRIES), max_size=12)),
        st.tuples(st.just("forget")),
        st.tuples(st.just("count")),
        st.tuples(st.just("count run"), st.sampled_from(spans(START, ENTRIES[-1]))),
        st.tuples(st.just("take over")),
    ),
    max_size=30,
)


def take(world: World, step: Any) -> None:
    state = world.state
    match step:
        case ("ack", positions):
            state.ack(positions)
        case ("part", position, pending):
            if state.ack_part(position, pending & ((1 << messages_of(position)) - 1)):
                state.ack([position])
        case ("cumulative", position):
            state.ack_cumulative(position)
        case ("reset", position):
            state.reset(position)
        case ("learn", positions):
            for position in positions:
                world.learn(position)
        case ("forget",):
            world.sizes = state.holes._sizes = EntrySizes(1 << 20)
        case ("count",):
            world.count_all()
        case ("count run", (ledger_id, first, last)):
            run = [Position(ledger_id, e) for e in range(first, last + 1)]
            state.count_run(
                (ledger_id, first, last), sum(map(messages_of, run)), sum(map(bytes_of, run))
            )
        case ("take over",):
            take_over(world)
        case other:
            raise AssertionError(other)


def take_over(world: World) -> None:
    """Store the cursor, and continue with what another host reads."""
    state = world.state
    count = state.count_of_holes()
    data = encode_snapshot(
        state.mark_delete,
        state.acked,
        {},
        parts=state.parts.sets(),
        holes=encode_holes(count),
    )
    found = recover(data, {i: n for i, n in LEDGERS.items() if i != 9})
    assert found.mark_delete is not None
    world.sizes = EntrySizes(1 << 20)
    world.state = world.new(found.mark_delete, found.acked)
    world.state.take_parts(found.partial)
    world.state.take_count(found.holes)
    if count is not None:  # A count that was stored is not made again.
        assert not world.state.holes.uncounted
        assert world.state.count_of_holes() == count


@settings(max_examples=300)
@given(STEPS)
def test_pulsar_25047_the_count_is_a_function_of_the_state(steps: list[Any]) -> None:
    """Also 5543, 759, 5755, 23805, 5202: seeks, cumulative, individual and partial acks, mixed."""
    world = World()
    for step in steps:
        take(world, step)
        world.check()
    world.count_all()
    world.check()


@given(STEPS)
def test_with_all_sizes_known_nothing_is_ever_uncounted(steps: list[Any]) -> None:
    world = World()
    for position in ENTRIES:
        world.learn(position)
    for step in steps:
        if step[0] in ("forget", "take over"):
            continue
        take(world, step)
        world.check()
        assert not world.state.holes.uncounted


def test_acknowledgements_in_order_need_no_sizes() -> None:
    world = World()
    for position in ENTRIES:
        world.state.ack([position])
        assert not world.state.holes.open
    assert world.state.count_of_holes() == HoleCount(ENTRIES[-1], ENTRIES[-1], 0, 0, 0)


def test_a_forgotten_part_counts_whole_again() -> None:
    world = World()
    for position in ENTRIES:
        world.learn(position)
    world.state.parts._bytes_max = 700  # room for two
    parts = [p for p in ENTRIES if messages_of(p) == 4][:4]
    for position in parts:
        assert not world.state.ack_part(position, 0b0001)
        world.check()
    assert len(world.state.parts) == 2
    world.count_all()
    world.check()


def test_a_count_of_another_state_is_not_taken_over() -> None:
    """A Pulsar broker may have kept our field, and changed the rest."""
    world = World()
    for position in ENTRIES:
        world.learn(position)
    world.state.ack([ENTRIES[1], ENTRIES[3]])
    count = world.state.count_of_holes()
    assert count is not None
    acked = AckSet()
    for position in (ENTRIES[1], ENTRIES[3]):
        acked.add(position)
    again = world.new(START, acked)
    again.take_count(count)
    assert (again.holes.messages, again.holes.bytes) == (count.messages, count.bytes)
    for other in ([ENTRIES[1]], [ENTRIES[2], ENTRIES[3], ENTRIES[4]], [ENTRIES[1], ENTRIES[5]]):
        acked = AckSet()
        for position in other:
            acked.add(position)
        again = world.new(START, acked)
        again.take_count(count)
        assert again.holes.uncounted
    again = world.new(ENTRIES[0], AckSet())
    again.take_count(count)
    assert not again.holes.open


def test_a_change_states_the_count_and_pulsar_reads_the_rest() -> None:
    world = World()
    for position in ENTRIES:
        world.learn(position)
    (first,) = encode_snapshot(START, AckSet(), {})
    world.state.ack([ENTRIES[2], ENTRIES[5]])
    change = world.state.take_change()
    assert change is not None
    count = world.state.count_of_holes()
    record = encode_change(change, b"", encode_holes(count))
    found = recover([first, record], LEDGERS)
    assert found.holes == count
    # The next record knows nothing of a count, as one of an older version or of Pulsar.
    world.state.ack([ENTRIES[7]])
    change = world.state.take_change()
    assert change is not None
    assert recover([first, record, encode_change(change)], LEDGERS).holes is None


@pytest.mark.parametrize(
    "data", [b"", b"\x02\x01\x01\x01\x01\x01\x01\x01", b"\x01\x01", b"\xff" * 20, b"\x01" * 9]
)
def test_a_count_that_is_not_valid_is_ignored(data: bytes) -> None:
    assert decode_holes(data) is None


def test_sizes_are_bounded_and_the_oldest_are_forgotten() -> None:
    sizes = EntrySizes(10_000)
    for first in range(0, 5_000, 100):
        sizes.note(7, first, [2] * 100, [50] * 100)
    assert sizes.get(7, 0) is None
    assert sizes.get(7, 4_999) == (2, 50)
    assert sizes.total(7, 4_990, 4_999) == (20, 500, [])
    messages, size, unknown = sizes.total(7, 0, 4_999)
    assert unknown == [(0, 5_000 - messages // 2 - 1)]
    assert (messages // 2 * 50, len(sizes._blocks)) == (size, 4)


def test_acknowledged_entries_of_a_run_do_not_hide_sizes_that_are_known() -> None:
    sizes = EntrySizes()
    sizes.note(7, 250, [3] * 12, [9] * 12)
    sizes.note(7, 248, [1, 0, 0, 1], [5, 5, 5, 5])
    assert [sizes.get(7, e) for e in (248, 249, 250, 251, 261)] == [
        (1, 5),
        None,
        (3, 9),
        (1, 5),
        (3, 9),
    ]
    assert sizes.total(7, 247, 262) == (
        1 + 3 + 1 + 3 * 10,
        5 + 9 + 5 + 90,
        [(247, 247), (249, 249), (262, 262)],
    )


def test_a_part_in_a_ledger_that_was_trimmed_away_is_no_error() -> None:
    """Volatile cursors hold back no trimming, so such a ledger may go under their holes."""
    sizes, mark = EntrySizes(), Position(1, -1)
    holes = Holes(sizes, lambda _after, _through: [(2, 0, 3)])
    sizes.note(2, 0, [1] * 4, [10] * 4)
    holes.acked(Position(2, 3), None, mark)
    parts = [(Position(1, 0), 0b1)]
    assert not holes.passed(mark, Position(2, 1), AckSet(), parts)
