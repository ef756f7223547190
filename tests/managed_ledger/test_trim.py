"""The ledgers that may be dropped."""

import pytest

from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.trim import DAY_MS, Retention, SealedLedger, trimmable

LEDGERS = [
    SealedLedger(1, 10, 100, 1000),
    SealedLedger(3, 5, 100, 2000),
    SealedLedger(4, 8, 100, 3000),
]
END = Position(4, 7)

CASES: dict[str, tuple[list[Position], Retention, int, list[int]]] = {
    "no cursor, no retention: all": ([], Retention(0, None), 3000, [1, 3, 4]),
    "no cursor, kept for ever": ([], Retention(None, None), 10**12, []),
    "time: the old ones": ([END], Retention(1000, None), 3000, [1, 3]),
    "time: exactly as old": ([END], Retention(2000, None), 3000, [1]),
    "time: not yet": ([END], Retention(2001, None), 3000, []),
    "by default seven days": ([END], Retention(), 1000 + 7 * DAY_MS, [1]),
    "size: what is over": ([END], Retention(None, 200), 0, [1]),
    "size: nothing is over": ([END], Retention(None, 201), 0, []),
    "size 0: all": ([END], Retention(None, 0), 0, [1, 3, 4]),
    "both: whichever is first": ([END], Retention(10**6, 100), 0, [1, 3]),
    "a cursor at the last entry has let go": ([Position(1, 9)], Retention(0), 9999, [1]),
    "one entry before has not": ([Position(1, 8)], Retention(0), 9999, []),
    "nothing of the next consumed": ([Position(3, -1)], Retention(0), 9999, [1]),
    "the slowest decides": ([END, Position(1, 8)], Retention(0), 9999, []),
    "never a hole": ([Position(3, 3)], Retention(0), 9999, [1]),
    "a clock that went back keeps": ([END], Retention(1), 0, []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_table(case: tuple[list[Position], Retention, int, list[int]]) -> None:
    stored, retention, now_ms, gone = case
    assert trimmable(LEDGERS, stored, retention, now_ms) == gone
