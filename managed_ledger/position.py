"""The position of an entry: its ledger, and its number in the ledger.

Positions are ordered, since the ids of ledgers ascend along a log.  As a mark-delete position,
(L, -1) means that no entry of ledger L was acknowledged.
"""

from typing import NamedTuple


class Position(NamedTuple):
    # A tuple is made and compared in C: cursors and dispatchers do both for each entry.
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    def next_in_ledger(self) -> "Position":
        return Position(self.ledger_id, self.entry_id + 1)


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
