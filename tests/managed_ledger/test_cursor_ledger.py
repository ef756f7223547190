"""How a cursor is kept in its ledger."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.ack_set import AckSet
from managed_ledger.cursor_ledger import (
    PART_BYTES_MAX,
    encode_change,
    encode_snapshot,
    recover,
)
from managed_ledger.errors import LogCorruptError
from managed_ledger.position import Position
from managed_ledger.protocol.cursor import Change, CursorState
from managed_ledger.records_pb2 import MessageRange, NestedPositionInfo, PositionInfo

RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5000), st.integers(0, 50)), max_size=150
)


def acked_of(runs: list[tuple[int, int, int]]) -> AckSet:
    acked = AckSet()
    for ledger, first, more in runs:
        acked.add_range(ledger, first, first + more)
    return acked


@given(RUNS, st.integers(-1, 5000), st.dictionaries(st.text(max_size=5), st.integers(0, 2**40)))
def test_a_snapshot_says_everything(
    runs: list[tuple[int, int, int]], entry: int, properties: dict[str, int]
) -> None:
    mark_delete = Position(1, entry)
    acked = acked_of(runs)
    acked.discard_through(mark_delete)
    found = recover(encode_snapshot(mark_delete, acked, properties), {})
    assert found.mark_delete == mark_delete
    assert list(found.acked.ranges()) == list(acked.ranges())
    assert found.properties == properties


@given(RUNS, RUNS, st.booleans())
def test_changes_apply_behind_a_snapshot(
    one: list[tuple[int, int, int]], two: list[tuple[int, int, int]], reset: bool
) -> None:
    start = Position(0, -1)
    change = Change(start, tuple(acked_of(two).ranges()), reset)
    found = recover([*encode_snapshot(start, acked_of(one), {}), encode_change(change)], {})
    assert list(found.acked.ranges()) == list(acked_of(two if reset else one + two).ranges())


def scattered(words: int) -> AckSet:
    """So many holes that neither form of a snapshot fits into one record."""
    rng, acked = random.Random(1), AckSet()
    for ledger in range(1, 5):
        acked.add_words(ledger, [rng.getrandbits(63) for _ in range(words)])
    return acked


def test_a_large_snapshot_is_several_records_and_counts_when_all_are_there() -> None:
    small, large = scattered(10), scattered(40_000)
    parts = encode_snapshot(Position(1, -1), large, {})
    assert len(parts) > 1
    assert all(len(part) <= PART_BYTES_MAX + 30 for part in parts)
    assert list(recover(parts, {}).acked.words()) == list(large.words())
    before = encode_snapshot(Position(1, -1), small, {})
    for count in range(len(parts)):
        assert len(recover([*before, *parts[:count]], {}).acked) == len(small)
        assert recover(parts[:count], {}).mark_delete is None
    assert len(recover([*parts[:1], *parts], {}).acked) == len(large)


def test_an_ack_among_half_a_million_holes_is_a_small_record() -> None:
    acked = AckSet()
    for entry in range(1, 1_000_000, 2):
        acked.add(Position(7, entry))
    state = CursorState(Position(7, -1), acked, Position.next_in_ledger)
    state.ack([Position(7, 700_000)])
    change = state.take_change()
    assert change is not None
    assert len(encode_change(change)) < 100


def test_golden_bytes() -> None:
    acked = acked_of([(3, 5, 2)])
    (snapshot,) = encode_snapshot(Position(3, 1), acked, {"a": 1})
    assert snapshot.hex() == "080310011a0c0a04080310041204080310072205" + "0a01611001"
    change = Change(Position(3, 1), ((3, 5, 7), (4, 300, 300)))
    assert encode_change(change).hex() == "000101" + "03020002" + "030502" + "04ac0200"


def nested(ledger: int, entry: int) -> NestedPositionInfo:
    return NestedPositionInfo(ledgerId=ledger, entryId=entry)


def test_a_range_over_several_ledgers_covers_all_between() -> None:
    info = PositionInfo(ledgerId=1, entryId=0)
    info.individualDeletedMessages.append(
        MessageRange(lowerEndpoint=nested(1, 3), upperEndpoint=nested(4, 1))
    )
    found = recover([info.SerializeToString()], {1: 6, 2: 3, 4: 9})
    assert list(found.acked.ranges()) == [(1, 4, 5), (2, 0, 2), (4, 0, 1)]


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_garbage_raises_nothing_but_log_corrupt(records: list[bytes]) -> None:
    try:
        recover(records, {})
    except LogCorruptError:
        return


HEADS = [b"\0\1\1", b"\0\1\2", b"\0\1", b"\0\2\1", b"\x08\x01\x10\x01\x1a", b"\x08\x01\x10\x012"]


@given(st.sampled_from(HEADS), st.binary(max_size=60))
def test_nearly_right_garbage_raises_nothing_but_log_corrupt(head: bytes, rest: bytes) -> None:
    snapshot = encode_snapshot(Position(1, 1), AckSet(), {})
    try:
        recover([*snapshot, head + rest], {})
    except LogCorruptError:
        return


@pytest.mark.parametrize(
    "record",
    [
        PositionInfo(ledgerId=1).SerializePartialToString(),
        encode_change(Change(Position(1, 0), ((1, 0, 2**40),))),
        b"\0\1\1\1",
        b"\0\1\x09",
        b"\0\2\1",
        b"\0",
    ],
)
def test_a_record_that_cannot_be_is_corrupt(record: bytes) -> None:
    with pytest.raises(LogCorruptError):
        recover([*encode_snapshot(Position(1, 1), AckSet(), {}), record], {})
