"""When entries were stored, and how far a cursor may be moved by age or by size.

The broker that stored an entry states the time in front of it.  Times inside of a ledger never fall
(`ManagedLedger.append`), but a ledger of another broker may have a clock of its own.  So ages are
compared ledger by ledger: nothing is passed unless it is old enough itself.  An entry that no
broker dated has the time of its producer, whose clock may be anything; such a ledger is read entry
by entry.
"""

from daybook.managed_ledger.errors import LogCorruptError, ManagedLedgerError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.wire.batch import peek_metadata, split_broker_metadata
from daybook.wire.errors import WireError

_READ_ENTRIES = 256
_READ_BYTES = 4 << 20
_ENTRIES_MAX = 10_000  # one search reads so many one by one, and the next goes on behind


async def stored_ms(log: ManagedLedger, position: Position) -> int | None:
    """Return when the first entry at or behind a position was stored; None at the end.

    Raise LedgerError if the entry cannot be read now, ManagedLedgerError.
    """
    found = await log.read(position, max_entries=1, max_bytes=1)
    return _time_of(log, found[0].position, found[0].data)[0] if found else None


async def first_stored_since(log: ManagedLedger, start: Position, since_ms: int) -> Position:
    """Return the first entry at or behind `start` that was stored at `since_ms` or later.

    It is the end of the log if all entries are older.  No entry between `start` and the result was
    stored at `since_ms` or later.
    """
    end = log.last_confirmed
    at = log.next_position(log.previous_position(start))
    while at <= end:
        sealed = log.ledgers.find_sealed(at.ledger_id)
        if sealed is None and at.ledger_id != end.ledger_id:
            return at  # The ledger was dropped meanwhile, or is being sealed.
        last = end if sealed is None else sealed.last
        time_ms, dated = await _time_at(log, last)
        if not dated:
            found = await _walk(log, at, last, since_ms)
            if found <= last:
                return found
        elif time_ms >= since_ms:
            return await _bisect(log, at, last, since_ms)
        at = log.next_position(last)
    return at


async def _bisect(log: ManagedLedger, low: Position, high: Position, since_ms: int) -> Position:
    """Return the first entry of a ledger that is young enough; the one at `high` is."""
    ledger_id, first, last = low.ledger_id, low.entry_id, high.entry_id
    while first < last:
        middle = (first + last) // 2
        time_ms, dated = await _time_at(log, Position(ledger_id, middle))
        if not dated or time_ms >= since_ms:
            last = middle
        else:
            first = middle + 1
    return Position(ledger_id, first)


async def _walk(log: ManagedLedger, low: Position, high: Position, since_ms: int) -> Position:
    """Return the first entry of a ledger that is young enough, or was not looked at."""
    at = low
    while at <= high and at.entry_id - low.entry_id < _ENTRIES_MAX:
        for entry in await log.read(at, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES):
            if entry.position != at or at > high:
                return at
            if _time_of(log, at, entry.data)[0] >= since_ms:
                return at
            at = Position(at.ledger_id, at.entry_id + 1)
    return at


async def _time_at(log: ManagedLedger, position: Position) -> tuple[int, bool]:
    found = await log.read(position, max_entries=1, max_bytes=1)
    if not found or found[0].position != position:
        raise ManagedLedgerError(f"{log.name} has no entry at {position} any more")
    return _time_of(log, position, found[0].data)


def _time_of(log: ManagedLedger, position: Position, data: memoryview) -> tuple[int, bool]:
    """Return when an entry was stored, and True if a broker said so."""
    try:
        dated_ms, _, payload = split_broker_metadata(data)
        if dated_ms is not None:
            return dated_ms, True
        return peek_metadata(payload)[1].publish_time, False
    except WireError as error:
        raise LogCorruptError(
            f"{log.name}: the entry at {position} cannot be read: {error}"
        ) from error


def position_with_behind(log: ManagedLedger, start: Position, bytes_max: int) -> Position:
    """Return the first position, `start` or behind it, with at most so many bytes behind it.

    The bytes inside of a ledger are an estimate (`behind`).
    """
    end = log.last_confirmed
    at = start
    while at < end and log.behind(at).bytes > bytes_max:
        sealed = log.ledgers.find_sealed(at.ledger_id)
        last = end if sealed is None else sealed.last
        if last <= at:
            at = Position(log.next_position(at).ledger_id, -1)  # before its first entry
            continue
        if log.behind(last).bytes > bytes_max:
            at = last
            continue
        first, high = at.entry_id + 1, last.entry_id
        while first < high:
            middle = (first + high) // 2
            if log.behind(Position(at.ledger_id, middle)).bytes <= bytes_max:
                high = middle
            else:
                first = middle + 1
        return Position(at.ledger_id, first)
    return at
