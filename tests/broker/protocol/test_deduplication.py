"""The machine of deduplication: what is new, what is a repeat, and what is remembered."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daybook.broker.protocol.deduplication import (
    CHUNKS,
    GENERATED,
    NOTHING,
    Chunk,
    DeduplicationState,
    EntryIds,
    Verdict,
    shape_of,
)

NEW, REPEAT, TORN, GAP = Verdict.NEW, Verdict.REPEAT, Verdict.TORN, Verdict.GAP


def new_state(names_max: int = 100, names_bytes_max: int = 10_000) -> DeduplicationState:
    return DeduplicationState(
        names_max=names_max, names_bytes_max=names_bytes_max, generated_s=600.0
    )


def connected(*names: str) -> DeduplicationState:
    state = new_state()
    for name in names:
        state.joined(name, 0.0)
    return state


def store(state: DeduplicationState, name: str, first: int, last: int | None = None) -> None:
    ids = EntryIds(name, first, first if last is None else last)
    assert state.judge(ids) is NEW
    state.appended(ids)
    assert state.confirmed() == name


def chunk(sequence_id: int, number: int, shape: int = 7) -> EntryIds:
    return EntryIds("p", sequence_id, sequence_id, Chunk(shape, number))


def last_chunk(sequence_id: int, number: int, shape: int = 7) -> EntryIds:
    return EntryIds("p", sequence_id, sequence_id, Chunk(shape, number, completes=True))


def test_a_message_counts_as_seen_only_when_its_entry_is_confirmed() -> None:
    state = connected("p")
    state.appended(EntryIds("p", 0, 0))
    assert state.last_seen("p") == NOTHING
    assert state.is_pending("p")
    assert state.snapshot() == {}
    state.confirmed()
    assert state.last_seen("p") == 0
    assert not state.is_pending("p")
    assert state.snapshot() == {"p": 0}


def test_a_repeat_of_a_pending_message_is_a_repeat() -> None:
    state = connected("p")
    state.appended(EntryIds("p", 5, 5))
    assert state.judge(EntryIds("p", 5, 5)) is REPEAT
    assert state.judge(EntryIds("p", 6, 6)) is NEW


def test_a_message_that_the_log_refused_may_come_again() -> None:
    state = connected("p")
    store(state, "p", 1)
    state.appended(EntryIds("p", 2, 2))
    state.appended(EntryIds("p", 3, 3))
    state.refused()
    assert state.judge(EntryIds("p", 3, 3)) is NEW
    assert state.judge(EntryIds("p", 2, 2)) is REPEAT
    state.confirmed()
    assert state.last_seen("p") == 2


def test_a_batch_that_lies_partly_above_is_torn() -> None:
    state = connected("p")
    store(state, "p", 0, 9)
    assert state.judge(EntryIds("p", 3, 9)) is REPEAT
    assert state.judge(EntryIds("p", 5, 12)) is TORN
    assert state.judge(EntryIds("p", 9, 10)) is TORN
    assert state.judge(EntryIds("p", 10, 12)) is NEW
    state.appended(EntryIds("p", 10, 19))
    assert state.judge(EntryIds("p", 15, 25)) is TORN, "pending entries count, too"


def test_names_do_not_meet() -> None:
    state = connected("p", "q")
    store(state, "p", 5)
    assert state.judge(EntryIds("q", 5, 5)) is NEW


def test_a_chunked_message_is_seen_with_its_last_chunk() -> None:
    state = connected("p")
    for number in range(3):
        assert state.judge(chunk(4, number)) is NEW
        state.appended(chunk(4, number))
        state.confirmed()
        assert state.last_seen("p") == NOTHING
    assert state.judge(chunk(4, 2)) is REPEAT
    assert state.judge(chunk(4, 3)) is NEW
    last = last_chunk(4, 3)
    assert state.judge(last) is NEW
    state.appended(last)
    state.confirmed()
    assert state.last_seen("p") == 4
    assert state.judge(chunk(4, 0)) is REPEAT
    assert state.judge(EntryIds("p", 4, 4)) is REPEAT


def test_a_message_that_is_cut_in_other_places_begins_anew() -> None:
    """Chunks of two attempts must not be mixed: the consumer would get a message nobody sent."""
    state = connected("p")
    for number in range(3):
        state.appended(chunk(4, number, shape=1))
        state.confirmed()
    assert state.judge(chunk(4, 0, shape=2)) is NEW
    state.appended(chunk(4, 0, shape=2))
    state.confirmed()
    assert state.judge(chunk(4, 1, shape=2)) is NEW


def test_a_chunk_whose_predecessor_was_refused_is_refused() -> None:
    """Otherwise the last chunk would complete a message that the topic does not have."""
    state = connected("p")
    assert state.judge(chunk(4, 1)) is GAP
    assert state.judge(last_chunk(4, 2)) is GAP
    state.appended(chunk(4, 0))
    assert state.judge(chunk(4, 2)) is GAP
    assert state.judge(last_chunk(4, 2)) is GAP
    state.appended(chunk(4, 1))
    assert state.judge(last_chunk(4, 2)) is NEW
    state.refused()
    assert state.judge(last_chunk(4, 2)) is GAP


def test_the_chunks_of_a_stranger_do_not_continue_a_message() -> None:
    state = connected("q")
    assert state.judge(last_chunk(4, 1)) is GAP, "the producer is not known"


def test_the_last_chunk_must_be_of_the_same_message_and_may_be_smaller() -> None:
    shapes = [shape_of(4, "p-4", 3, 2500, size) for size in (1000, 500)]
    assert shapes[0] != shapes[1]
    state = connected("p")
    for number in range(2):
        state.appended(chunk(4, number, shapes[0]))
    assert state.judge(last_chunk(4, 2, shape_of(4, "p-5", 3, 2500, 500))) is GAP
    assert state.judge(last_chunk(4, 2, shapes[1])) is NEW


def test_a_log_that_lacks_a_chunk_lacks_the_message() -> None:
    state = new_state()
    for ids in (chunk(4, 0), last_chunk(4, 2)):
        state.replay(ids, 0.0)
    assert state.last_seen("p") == NOTHING
    for ids in (chunk(4, 0), chunk(4, 1), chunk(4, 0), last_chunk(4, 2)):
        state.replay(ids, 0.0)
    assert state.last_seen("p") == 4


def test_another_message_ends_a_chunked_one_that_was_given_up() -> None:
    state = connected("p")
    state.appended(chunk(4, 0))
    state.confirmed()
    store(state, "p", 5)
    assert state.snapshot() == {"p": 5}


def test_the_shape_of_chunks_depends_on_everything_that_decides_where_a_message_is_cut() -> None:
    shape = shape_of(4, "p-4", 3, 2500, 1000)
    others = (
        shape_of(5, "p-4", 3, 2500, 1000),
        shape_of(4, "p-5", 3, 2500, 1000),
        shape_of(4, "p-4", 4, 2500, 1000),
        shape_of(4, "p-4", 3, 2501, 1000),
        shape_of(4, "p-4", 3, 2500, 999),
    )
    assert shape not in others
    assert len(set(others)) == len(others)


def test_a_snapshot_restores_what_was_stored_and_the_chunks() -> None:
    state = connected("p", "q")
    store(state, "q", 0, 41)
    store(state, "p", 3)
    state.appended(chunk(4, 0, shape=(1 << 39) - 1))
    state.confirmed()
    state.appended(chunk(4, 1, shape=(1 << 39) - 1))
    taken = state.snapshot()
    assert set(taken) == {"p", "q", CHUNKS + "p"}
    assert all(number < 1 << 63 for number in taken.values()), "Pulsar stores signed numbers"
    again = new_state()
    again.restore(taken, 0.0)
    assert (again.last_seen("p"), again.last_seen("q")) == (3, 41)
    assert again.judge(chunk(4, 0, shape=(1 << 39) - 1)) is REPEAT
    assert again.judge(chunk(4, 1, shape=(1 << 39) - 1)) is NEW, "it was pending"


def test_entries_are_replayed_on_top_of_a_snapshot() -> None:
    state = new_state()
    state.restore({"p": 10}, 0.0)
    for first, last in ((9, 9), (11, 15), (12, 12)):
        state.replay(EntryIds("p", first, last), 0.0)
    state.replay(EntryIds("q", 1, 1), 0.0)
    assert (state.last_seen("p"), state.last_seen("q")) == (15, 1)


def test_a_generated_name_is_forgotten_ten_minutes_after_its_producer_has_left() -> None:
    name = GENERATED + "1"
    state = connected(name, "app")
    store(state, name, 1)
    store(state, "app", 1)
    state.forget(10_000.0)
    assert state.last_seen(name) == 1, "it is connected"
    state.left(name, 100.0)
    state.left("app", 100.0)
    state.forget(699.0)
    assert state.last_seen(name) == 1
    state.forget(700.0)
    assert state.last_seen(name) == NOTHING
    assert state.last_seen("app") == 1
    assert state.forgotten == 0


def test_a_producer_that_leaves_while_entries_are_pending_is_remembered() -> None:
    state = connected("p")
    state.appended(EntryIds("p", 1, 1))
    state.left("p", 0.0)
    state.confirmed()
    assert state.last_seen("p") == 1


def test_a_producer_that_sent_nothing_leaves_no_name() -> None:
    state = connected("p")
    state.left("p", 0.0)
    assert len(state) == 0


def test_when_there_are_too_many_names_generated_ones_go_first_then_the_idlest() -> None:
    state = new_state(names_max=32)
    names = [f"daybook.sink.{i}" for i in range(2)]
    names += [f"app-{i}" for i in range(20)]
    names += [f"{GENERATED}{i}" for i in range(12)]
    for at, name in enumerate(names):
        state.joined(name, 0.0)
        store(state, name, 1)
        state.left(name, float(at))
    assert len(state) <= 32
    assert all(state.last_seen(f"app-{i}") == 1 for i in range(20))
    for i in range(30, 60):
        state.joined(f"app-{i}", 100.0)
        store(state, f"app-{i}", 1)
        state.left(f"app-{i}", 100.0 + i)
    assert len(state) <= 32
    assert not any(state.last_seen(f"{GENERATED}{i}") == 1 for i in range(12))
    assert state.last_seen("app-0") == NOTHING
    assert state.last_seen("app-59") == 1
    assert state.last_seen("daybook.sink.0") == 1, "these go last"
    assert state.forgotten > 0


def test_the_bytes_of_all_names_are_bounded() -> None:
    state = new_state(names_bytes_max=1_000)
    for i in range(50):
        name = f"{i:03}" + "n" * 97
        state.joined(name, float(i))
        store(state, name, 1)
        state.left(name, float(i))
    assert sum(map(len, state.snapshot())) <= 1_000


def test_as_many_names_as_may_be_are_kept_and_one_more_makes_room_for_several() -> None:
    """To sort all names for each new one would cost too much."""
    state = new_state(names_max=32)
    for i in range(32):
        state.joined(f"p{i}", 0.0)
        store(state, f"p{i}", 1)
        state.left(f"p{i}", float(i))
    state.forget(100.0)
    assert (len(state), state.forgotten) == (32, 0)
    state.joined("another", 100.0)
    assert (len(state), state.forgotten) == (30, 3)
    assert [state.last_seen(f"p{i}") for i in range(4)] == [NOTHING] * 3 + [1]


def test_as_many_bytes_of_names_as_may_be_are_kept_and_no_more_go_than_must() -> None:
    state = new_state(names_bytes_max=1_600)
    for i in range(16):
        name = f"{i:0100}"
        state.joined(name, 0.0)
        store(state, name, 1)
        state.left(name, float(i))
    state.forget(100.0)
    assert (len(state), state.forgotten) == (16, 0)
    state.joined(f"{16:0100}", 100.0)
    assert (len(state), state.forgotten) == (15, 2), "15 / 16 of the bytes"


# -- a model


@dataclass
class _Told:
    """The model's knowledge about one producer."""

    stored: set[int] = field(default_factory=set)
    pending: list[range] = field(default_factory=list)


class Deduplicated(RuleBasedStateMachine):
    """A producer that repeats at will; the log has each id at most once, and none is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.state = connected("a", "b")
        self.told = {"a": _Told(), "b": _Told()}
        self.order: list[str] = []

    @rule(name=st.sampled_from("ab"), first=st.integers(0, 12), count=st.integers(1, 4))
    def send(self, name: str, first: int, count: int) -> None:
        told = self.told[name]
        ids = range(first, first + count)
        known = told.stored.union(*told.pending)
        top = max(known, default=NOTHING)
        verdict = self.state.judge(EntryIds(name, ids[0], ids[-1]))
        if ids[-1] <= top:
            assert verdict is REPEAT
        elif ids[0] <= top:
            assert verdict is TORN
        else:
            assert verdict is NEW
            assert not known & set(ids)
            self.state.appended(EntryIds(name, ids[0], ids[-1]))
            told.pending.append(ids)
            self.order.append(name)

    @precondition(lambda self: self.order)
    @rule()
    def confirm(self) -> None:
        name = self.order.pop(0)
        assert self.state.confirmed() == name
        self.told[name].stored |= set(self.told[name].pending.pop(0))

    @precondition(lambda self: self.order)
    @rule()
    def refuse(self) -> None:
        self.state.refused()
        self.told[self.order.pop()].pending.pop()

    @rule()
    def take_over(self) -> None:
        """Pending entries are lost or stored; the next owner sees from the log which."""
        snapshot = self.state.snapshot()
        kept = len(self.order) // 2
        self.state = new_state()
        self.state.restore(snapshot, 0.0)
        for index, name in enumerate(self.order):
            ids = self.told[name].pending.pop(0)
            if index < kept:
                self.state.replay(EntryIds(name, ids[0], ids[-1]), 0.0)
                self.told[name].stored |= set(ids)
        self.order = []
        for name in self.told:
            self.state.joined(name, 0.0)

    @invariant()
    def what_is_seen_is_stored(self) -> None:
        for name, told in self.told.items():
            assert self.state.last_seen(name) == max(told.stored, default=NOTHING)
            assert self.state.is_pending(name) == bool(told.pending)


TestDeduplicated = Deduplicated.TestCase


@given(st.dictionaries(st.text(max_size=5), st.integers(0, (1 << 63) - 1), max_size=5))
def test_any_snapshot_is_restored_and_taken_again(numbers: dict[str, int]) -> None:
    state = new_state()
    state.restore(numbers, 0.0)
    assert state.snapshot() == numbers
