"""How much lies behind a position of a log: entries, messages, bytes.

Entries are counted.  Messages are counted by offsets, which are known where ledgers begin and end.
Between two such places each entry is taken to have as many messages as the others there, so the
number is an estimate if the position lies inside a ledger that has batches.  Bytes inside of a
ledger are estimated in the same way, and always.
"""

from dataclasses import dataclass
from typing import Protocol

from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class Behind:
    """`exact`: is `messages` a count?  `bytes` is an estimate in any case."""

    entries: int
    messages: int
    bytes: int
    exact: bool


class CountedLog(Protocol):
    """What is needed of a log."""

    ledgers: LedgerList

    @property
    def last_confirmed(self) -> Position: ...

    @property
    def confirmed_offset(self) -> int: ...

    @property
    def opened_behind(self) -> tuple[Position, int]:
        """The place behind which this handle appends, and the offset of the message before it."""
        ...

    @property
    def current_bytes(self) -> int: ...


def behind(log: CountedLog, position: Position) -> Behind:
    """What lies behind `position`, up to the last confirmed entry."""
    entries = log.ledgers.entries_between(position, log.last_confirmed)
    if not entries:
        return Behind(0, 0, 0, exact=True)
    messages, exact = _messages(log, position)
    return Behind(entries, max(0, messages), _bytes(log, position), exact)


def _messages(log: CountedLog, position: Position) -> tuple[int, bool]:
    count = log.ledgers.entries_between
    above, offset_above = _known_above(log, position)
    whole = log.confirmed_offset - offset_above
    part = count(position, above)
    if not part:
        return whole, True
    below = _known_below(log, position)
    if below is None:  # What lay before it was trimmed, and nobody knows how much that was.
        entries = count(above, log.last_confirmed)
        return whole + round(part * max(1.0, whole / entries if entries else 1.0)), False
    lowest, offset_below = below
    span, messages = count(lowest, above), offset_above - offset_below
    exact = part == span or messages == span
    return whole + round(part * messages / span), exact


def _known_above(log: CountedLog, position: Position) -> tuple[Position, int]:
    """The nearest place at or above `position` whose offset is known."""
    rows = log.ledgers.rows
    for i in range(log.ledgers.first_row(position.ledger_id), len(rows)):
        row = rows[i]
        if row.entries and row.last_offset is not None and row.last >= position:
            return row.last, row.last_offset
    opened, offset = log.opened_behind
    if position < opened:
        return opened, offset
    return log.last_confirmed, log.confirmed_offset


def _known_below(log: CountedLog, position: Position) -> tuple[Position, int] | None:
    opened, offset = log.opened_behind
    known = (opened, offset) if opened <= position else None
    rows = log.ledgers.rows
    for i in range(min(log.ledgers.first_row(position.ledger_id), len(rows) - 1), -1, -1):
        row = rows[i]
        if row.entries and row.last_offset is not None and row.last <= position:
            found = (row.last, row.last_offset)
            return found if known is None else max(known, found)
    return known


def _bytes(log: CountedLog, position: Position) -> int:
    ledgers = log.ledgers
    first = ledgers.first_row(position.ledger_id)
    total = ledgers.bytes_from_row(first)
    here = ledgers.row(position.ledger_id)
    passed = position.entry_id + 1
    if here is not None:
        return total - _share(here.bytes, passed, here.entries) + log.current_bytes
    present = log.last_confirmed
    if position.ledger_id == present.ledger_id:
        return total + log.current_bytes - _share(log.current_bytes, passed, present.entry_id + 1)
    return total + log.current_bytes


def _share(size: int, part: int, entries: int) -> int:
    return size * min(part, entries) // entries if entries else 0
