"""Positions along a list, compared with the plain list of all entries."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.entry_cache import EntryCache
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import EARLIEST, LATEST, Position
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo

SIZES = st.lists(st.integers(0, 4), max_size=5)


def nothing() -> LogContext:
    """Return a context for tests that use no store and no ledgers."""
    context = object.__new__(LogContext)
    object.__setattr__(context, "rng", random.Random(1))
    object.__setattr__(context, "cache", EntryCache())
    return context


def build(ids: list[int]) -> LedgerList:
    info = ManagedLedgerInfo()
    for ledger_id in ids:
        info.ledgerInfo.add(ledgerId=ledger_id)
    return LedgerList(nothing(), "it", info, 0)


def make(sizes: list[int], present: int) -> tuple[LedgerList, list[Position]]:
    """Return ledgers 10, 12, 14... of these sizes with a present one, and all their entries."""
    ids = [10 + 2 * i for i in range(len(sizes) + 1)]
    ledgers = build(ids)
    for ledger_id, size in zip(ids, sizes, strict=False):
        ledgers.seal(SealedLedger(ledger_id, size, 0, 0))
    every = [*zip(ids, sizes, strict=False), (ids[-1], present)]
    return ledgers, [Position(i, e) for i, n in every for e in range(n)]


@given(SIZES, st.integers(0, 4))
def test_next_and_previous_walk_over_all_entries(sizes: list[int], present: int) -> None:
    ledgers, entries = make(sizes, present)
    end = Position(ledgers.ids[-1], present)
    for at in [EARLIEST, *(Position(i, e) for i in range(9, 22) for e in range(-1, 6))]:
        if at.ledger_id == end.ledger_id and at >= end:
            continue
        following = ledgers.next_position(at)
        behind = [p for p in entries if p > at]
        if at.ledger_id <= end.ledger_id:
            assert following == (behind[0] if behind else end)
        before = [p for p in entries if p < at]
        if at.ledger_id < end.ledger_id:
            expected = before[-1] if before else Position(ledgers.ids[0], -1)
            assert ledgers.previous_position(at) == expected
            if at.entry_id >= 0:
                upto = [p for p in entries if p <= at]
                expected = upto[-1] if upto else Position(ledgers.ids[0], -1)
                assert ledgers.floor(at) == expected
        there = [p for p in entries if p >= at]
        if at.ledger_id <= end.ledger_id:
            assert ledgers.entry_at(at) == (there[0] if there else end)


@given(SIZES, st.integers(0, 4), st.data())
def test_entries_between_counts_them(sizes: list[int], present: int, data: st.DataObject) -> None:
    ledgers, entries = make(sizes, present)
    ends = [*entries, Position(ledgers.ids[0], -1)]
    through = data.draw(st.sampled_from(ends))
    after = data.draw(st.builds(Position, st.integers(9, 20), st.integers(-1, 6)))
    if after.ledger_id == through.ledger_id:
        after = data.draw(st.sampled_from(ends))
    count = len([p for p in entries if after < p <= through])
    assert ledgers.entries_between(after, through) == count


def test_a_roll_in_between_keeps_the_present_ledger_open() -> None:
    ledgers = build([10, 12])  # 12 is listed, and not used yet
    assert ledgers.next_position(Position(10, 7)) == Position(10, 8)
    ledgers.seal(SealedLedger(10, 8, 0, 0))
    assert ledgers.next_position(Position(10, 7)) == Position(12, 0)


def test_the_far_ends() -> None:
    ledgers, _ = make([3, 2], 1)
    assert ledgers.next_position(EARLIEST) == Position(10, 0)
    assert ledgers.floor(EARLIEST) == EARLIEST
    assert ledgers.next_position(LATEST) > LATEST


@pytest.mark.parametrize("ids", [[3, 2], [2, 2]])
def test_ids_that_do_not_ascend_are_corrupt(ids: list[int]) -> None:
    with pytest.raises(LogCorruptError, match="ascend"):
        build(ids)
