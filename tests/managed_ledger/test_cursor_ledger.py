"""The records in a cursor's ledger."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import (
    PART_BYTES_MAX,
    encode_change,
    encode_change_1,
    encode_properties,
    encode_snapshot,
    is_old,
    recover,
)
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change, CursorState, apply_change
from daybook.managed_ledger.records_pb2 import MessageRange, NestedPositionInfo, PositionInfo
from tests.managed_ledger.first_release import read_as_snapshot

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


BOTH = pytest.mark.parametrize("encode", [encode_change, encode_change_1])


@BOTH
@given(one=RUNS, two=RUNS, reset=st.booleans())
def test_changes_apply_behind_a_snapshot(
    encode: Callable[[Change], bytes],
    one: list[tuple[int, int, int]],
    two: list[tuple[int, int, int]],
    reset: bool,
) -> None:
    start = Position(0, -1)
    change = Change(start, tuple(acked_of(two).ranges()), reset)
    found = recover([*encode_snapshot(start, acked_of(one), {}), encode(change)], {})
    assert found.old_records == int(encode is encode_change_1)
    assert list(found.acked.ranges()) == list(acked_of(two if reset else one + two).ranges())


def scattered(words: int) -> AckSet:
    """The cursor has so many holes that neither form of a snapshot fits into one record."""
    rng, acked = random.Random(1), AckSet()
    for ledger in range(1, 5):
        acked.add_words(ledger, [rng.getrandbits(63) for _ in range(words)])
    return acked


@pytest.mark.parametrize("version", [1, 2])
def test_a_large_snapshot_is_several_records_and_counts_when_all_are_there(version: int) -> None:
    small, large = scattered(10), scattered(40_000)
    parts = encode_snapshot(Position(1, -1), large, {}, version=version)
    assert len(parts) > 1
    assert all(len(part) <= PART_BYTES_MAX + 40 for part in parts)
    assert recover(parts, {}).old_records == (len(parts) if version == 1 else 0)
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
    assert encode_change(change).hex() == "08031001" + "c23e0a" + "020100" + "030502" + "04ac0200"
    assert encode_change_1(change).hex() == "000101" + "03020002" + "030502" + "04ac0200"


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


HEADS = [
    b"\x08\x01\x10\x01\xc2\x3e",
    b"\x08\x01\x10\x01\xca\x3e\x05\x02",
    b"\0\1\1",
    b"\0\1\2",
    b"\0\1",
    b"\0\2\1",
    b"\x08\x01\x10\x01\x1a",
    b"\x08\x01\x10\x012",
]


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
        encode_change_1(Change(Position(1, 0), ((1, 0, 2**40),))),
        PositionInfo(ledgerId=1, entryId=1, change=b"").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, change=b"\2\1").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, change=b"\3\1\0").SerializeToString(),  # newer
        PositionInfo(ledgerId=1, entryId=1, change=b"\2\2\0").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, change=b"\2\1\2").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, change=b"\2\1\0\1\1").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, change=b"\2\1\0\x80").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, part=b"").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, part=b"\3\0\1").SerializeToString(),
        PositionInfo(ledgerId=1, entryId=1, part=b"\2\0").SerializeToString(),
        b"\0\1\1\1",
        b"\0\1\x09",
        b"\0\2\1",
        b"\0",
    ],
)
def test_a_record_that_cannot_be_is_corrupt(record: bytes) -> None:
    with pytest.raises(LogCorruptError):
        recover([*encode_snapshot(Position(1, 1), AckSet(), {}), record], {})


def test_a_part_fits_into_a_frame_that_takes_less_than_a_snapshot() -> None:
    large = scattered(400)
    parts = encode_snapshot(Position(1, -1), large, {}, whole_bytes_max=1000)
    assert max(map(len, parts)) < 1100
    assert len(recover(parts, {}).acked) == len(large)
    assert (
        len(encode_snapshot(Position(1, -1), scattered(40_000), {}, whole_bytes_max=4 << 20)) == 1
    )


# -- records of version 2, as other releases read them


def random_runs(rng: random.Random, most: int) -> list[tuple[int, int, int]]:
    """Draw ranges of ledgers 5 to 8, in any order; they may overlap."""
    runs: list[tuple[int, int, int]] = []
    for _ in range(rng.randrange(most)):
        first = rng.choice([rng.randrange(64), rng.randrange(20_000)])
        runs.append((rng.randrange(5, 9), first, first + rng.choice([0, 0, 1, rng.randrange(60)])))
    return runs


def random_position(rng: random.Random) -> Position:
    return Position(rng.randrange(5, 9), rng.choice([-1, rng.randrange(20_000)]))


def test_the_first_release_takes_each_record_for_a_snapshot_with_exactly_that_position() -> None:
    """Pulsar may deliver acknowledged messages again, and never skips one."""
    rng = random.Random(1)
    for number in range(20_000):
        properties = {f"p{n}": rng.getrandbits(63) for n in range(rng.choice([0, 0, 0, 2]))}
        change = Change(random_position(rng), tuple(random_runs(rng, 5)), rng.random() < 0.1)
        records = [encode_change(change, encode_properties(properties))]
        if number % 100 == 0:
            acked = acked_of(random_runs(rng, 300))
            records += encode_snapshot(
                change.mark_delete, acked, properties, whole_bytes_max=rng.choice([5, 50])
            )
        for record in records:
            assert not is_old(record)
            found = read_as_snapshot(record)
            assert found.mark_delete == change.mark_delete
            assert found.properties == properties
            assert not found.acked


def test_a_hundred_thousand_random_changes_are_read_exactly() -> None:
    """The ledgers have 1,000 records, with snapshots, parts and seeks in between."""
    rng, changes = random.Random(2), 0
    while changes < 100_000:
        mark_delete, acked = Position(5, -1), AckSet()
        records = encode_snapshot(mark_delete, acked, {})
        for _ in range(1000):
            if rng.random() < 0.01:
                records += encode_snapshot(mark_delete, acked, {}, whole_bytes_max=200)
            reset = rng.random() < 0.02
            target = random_position(rng) if reset or rng.random() < 0.1 else mark_delete
            target = target if reset else max(target, mark_delete)
            change = Change(target, tuple(random_runs(rng, 4)), reset)
            records.append(encode_change(change))
            assert len(records[-1]) < 100
            mark_delete, acked = apply_change(mark_delete, acked, change)
            changes += 1
        found = recover(records, {})
        assert found.mark_delete == mark_delete
        assert list(found.acked.words()) == list(acked.words())


def test_parts_of_batches_go_through_snapshots_and_changes() -> None:
    at, other = Position(17, 44), Position(17, 50)
    snapshot = encode_snapshot(Position(17, 41), AckSet(), {}, parts=[(at, 0b1110)])
    change = encode_change(Change(Position(17, 42), (), parts=((at, 0b0110), (other, 1 << 70))))
    found = recover([*snapshot, change], {})
    assert found.partial == {at: 0b0110, other: 1 << 70}
    assert recover(snapshot, {}).partial == {at: 0b1110}
    reset = encode_change(Change(Position(17, 41), (), reset=True))
    assert recover([*snapshot, change, reset], {}).partial == {}
    (cut, *_) = encode_snapshot(Position(17, 41), AckSet(), {}, parts=[(at, 0b1110)])
    info = PositionInfo.FromString(cut)
    (part,) = info.batchedEntryDeletionIndexInfo
    assert list(part.deleteSet) == [0b1110], "as Pulsar: a bit is set while its message is pending"


def test_an_entry_whose_pending_messages_are_not_named_comes_again_as_a_whole() -> None:
    info = PositionInfo(ledgerId=17, entryId=41)
    for words in ([], [0], [0, 0]):
        info.batchedEntryDeletionIndexInfo.add(
            position=NestedPositionInfo(ledgerId=17, entryId=44), deleteSet=words
        )
    assert recover([info.SerializeToString()], {}).partial == {}
