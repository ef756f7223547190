"""Batches with some acknowledged messages: what is remembered, and what it costs."""

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any

from daybook.managed_ledger.partial_acks import PartialAcks
from daybook.managed_ledger.position import Position


def test_an_entry_is_done_when_all_its_messages_are() -> None:
    partial = PartialAcks(10_000)
    assert not partial.ack(Position(5, 0), 0b1110)
    assert partial.pending(Position(5, 0)) == 0b1110
    assert not partial.ack(Position(5, 0), 0b0111)
    assert partial.pending(Position(5, 0)) == 0b0110
    assert partial.ack(Position(5, 0), 0b1001)
    assert partial.pending(Position(5, 0)) is None
    assert not partial


def test_what_is_done_is_forgotten() -> None:
    partial = PartialAcks(10_000)
    for n in range(5):
        partial.ack(Position(5, n), 1)
    partial.done([Position(5, 4), Position(5, 9)])
    partial.done_up_to(Position(5, 1))
    assert [n for n in range(5) if partial.pending(Position(5, n))] == [2, 3]


def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    partial = PartialAcks(1_000_000)
    for n in range(1000):
        partial.ack(Position(5, n), 1 << 200_000)  # 25 kB each
    kept = [n for n in range(1000) if partial.pending(Position(5, n)) is not None]
    assert kept == list(range(1000 - len(kept), 1000))
    assert 30 <= len(kept) <= 40


def test_sets_that_just_fit_are_kept() -> None:
    """A set costs 300 bytes and its bits."""
    whole = 300 + 1000
    for bytes_max, kept in ((2 * whole, [0, 1]), (2 * whole - 1, [1])):
        partial = PartialAcks(bytes_max)
        for n in range(2):
            partial.ack(Position(5, n), 1 << 7999)
        assert [position.entry_id for position, _ in partial.sets()] == kept


def test_what_is_dropped_gives_its_bytes_back() -> None:
    partial = PartialAcks(301)
    for n in range(4):
        partial.ack(Position(5, n), 1)
        assert partial.pending(Position(5, n)) == 1
        match n:
            case 0:
                assert partial.ack(Position(5, n), 0)
            case 1:
                partial.done([Position(5, n)])
            case 2:
                partial.done_up_to(Position(5, n))
            case _:
                partial.clear()
        assert partial._bytes == 0


N = 2_000
_compared = 0


def _counting(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def counted(left: Position, right: Position) -> bool:
        global _compared
        _compared += 1
        return compare((left.ledger_id, left.entry_id), (right.ledger_id, right.entry_id))

    return counted


class Counting(Position):
    """A position that counts its comparisons."""

    __slots__ = ()
    __lt__, __le__, __gt__, __ge__ = map(_counting, (lt, le, gt, ge))


def test_an_acknowledgement_up_to_an_entry_costs_what_it_removes() -> None:
    partial = PartialAcks(1 << 30)
    for n in range(N):
        partial.ack(Counting(5, n), 0b10)
    before = _compared
    for _ in range(N):
        partial.done_up_to(Counting(4, 0))
    assert N <= _compared - before <= 2 * N
    partial.done_up_to(Counting(5, N))
    assert not partial
    assert _compared - before <= 40 * N


def test_parts_that_are_acknowledged_one_by_one_leave_nothing_behind() -> None:
    partial = PartialAcks(1 << 30)
    for n in range(10 * N):
        assert not partial.ack(Position(5, n), 0b10)
        assert partial.ack(Position(5, n), 0)
    assert not partial
    assert len(partial._lowest) <= 2_000


def test_a_part_that_comes_again_after_its_entry_was_done_is_found() -> None:
    partial = PartialAcks(1 << 30)
    partial.ack(Position(5, 1), 0b10)
    partial.done([Position(5, 1)])
    partial.ack(Position(5, 1), 0b10)
    partial.ack(Position(5, 2), 0b10)
    partial.done_up_to(Position(5, 1))
    assert partial.pending(Position(5, 1)) is None
    assert partial.pending(Position(5, 2)) == 0b10
