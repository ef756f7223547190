"""How much lies behind a position of a log: entries, messages, bytes.

Entries are counted.  Messages are counted by offsets, which are known where ledgers begin and end.
Between two such places every entry is assumed to have the average number of messages, so the number
is an estimate if the position lies inside a ledger that has batches.  The bytes inside of a ledger
are always estimated in the same way.

An entry that was read tells both exactly: it states its offset, and its header states how many
bytes its ledger has up to it.  That is an `EntryStart`.
"""

from dataclasses import dataclass

from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class Behind:
    """The amount behind a position.

    `exact` says that `messages` was counted; `bytes` is always an estimate.
    """

    entries: int
    messages: int
    bytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class EntryStart:
    """Where an entry begins: the offset of its first message, and the bytes before it.

    `ledger_bytes` counts the bytes of its ledger.  The entry itself has `messages` and `bytes`.
    """

    position: Position
    first_offset: int
    ledger_bytes: int
    publish_ms: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log: its last confirmed entry, and the end of the ledgers before its opening."""

    ledgers: LedgerList
    confirmed_offset: int  # the offset of the last confirmed message
    current_bytes: int  # in the present ledger
    opened_behind: Position  # the position behind which this handle appends
    offset_before_opening: int  # the offset of the message at that position

    @property
    def last_confirmed(self) -> Position:
        return self.ledgers.last_confirmed


def behind(log: LogEnd, position: Position) -> Behind:
    """Return what lies behind `position`, up to the last confirmed entry."""
    entries = log.ledgers.entries_between(position, log.last_confirmed)
    if not entries:
        return Behind(0, 0, 0, exact=True)
    messages, exact = _messages(log, position)
    return Behind(entries, max(0, messages), _bytes(log, position), exact)


def _messages(log: LogEnd, position: Position) -> tuple[int, bool]:
    """Return the number of messages behind `position`, and True if it was counted."""
    count = log.ledgers.entries_between
    above, offset_above = _known_above(log, position)
    whole = log.confirmed_offset - offset_above
    part = count(position, above)
    if not part:
        return whole, True
    below = _known_below(log, position)
    if below is None:  # The ledgers before it were trimmed, so their offsets are not known.
        entries = count(above, log.last_confirmed)
        return whole + round(part * max(1.0, whole / entries if entries else 1.0)), False
    lowest, offset_below = below
    span, messages = count(lowest, above), offset_above - offset_below
    # With one message an entry the average is the truth.
    exact = part == span or messages == span
    return whole + round(part * messages / span), exact


def _known_above(log: LogEnd, position: Position) -> tuple[Position, int]:
    """Return the nearest position at or above `position` whose offset is known, and the offset."""
    sealed = log.ledgers.sealed
    for i in range(log.ledgers.first_sealed(position.ledger_id), len(sealed)):
        ledger = sealed[i]
        if ledger.entries and ledger.last_offset is not None and ledger.last >= position:
            return ledger.last, ledger.last_offset
    if position < log.opened_behind:
        return log.opened_behind, log.offset_before_opening
    return log.last_confirmed, log.confirmed_offset


def _known_below(log: LogEnd, position: Position) -> tuple[Position, int] | None:
    """Return the nearest position at or below `position` whose offset is known; None if none is."""
    opened = log.opened_behind, log.offset_before_opening
    known = opened if log.opened_behind <= position else None
    sealed = log.ledgers.sealed
    for i in range(min(log.ledgers.first_sealed(position.ledger_id), len(sealed) - 1), -1, -1):
        ledger = sealed[i]
        if ledger.entries and ledger.last_offset is not None and ledger.last <= position:
            found = (ledger.last, ledger.last_offset)
            return found if known is None else max(known, found)
    return known


def _bytes(log: LogEnd, position: Position) -> int:
    """Estimate the bytes behind `position`."""
    ledgers = log.ledgers
    total = ledgers.bytes_from(ledgers.first_sealed(position.ledger_id)) + log.current_bytes
    passed = position.entry_id + 1
    here = ledgers.find_sealed(position.ledger_id)
    if here is not None:
        return total - _share(here.bytes, passed, here.entries)
    present = log.last_confirmed
    if position.ledger_id == present.ledger_id:
        return total - _share(log.current_bytes, passed, present.entry_id + 1)
    return total


def _share(size: int, part: int, entries: int) -> int:
    """Return the bytes of `part` of the entries, if all entries have the same size."""
    return size * min(part, entries) // entries if entries else 0
