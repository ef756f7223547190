"""Where an entry lies: in which ledger, and where in it.

Positions are ordered; ledger ids rise along a log.  As a mark-delete position, (L, -1) says that
nothing of ledger L has been consumed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Position:
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    def next_in_ledger(self) -> "Position":
        return Position(self.ledger_id, self.entry_id + 1)


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
