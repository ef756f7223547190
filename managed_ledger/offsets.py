"""From offsets and times to positions, and back.

Which ledger an offset or a time lies in is searched over the list, where in it by bisection,
reading one entry at a time.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from daybook.bookie.errors import LedgerError
from daybook.managed_ledger.errors import LogCorruptError, ManagedLedgerError
from daybook.managed_ledger.ledger_list import Row
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.numbering import EntryFacts, count, known_last
from daybook.managed_ledger.numbering import facts as facts_in
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry
from daybook.wire.errors import WireError

__all__ = [
    "EntryFacts",
    "facts",
    "facts_at",
    "offset_before",
    "position_of_offset",
    "position_of_time",
    "retained_offsets",
]

_T = TypeVar("_T")
_Holds = Callable[[EntryFacts], bool]


class _TrimmedError(ManagedLedgerError):
    """The ledger was dropped while we searched in it."""


def facts(entry: LogEntry) -> EntryFacts:
    """What the entry itself says.  Raises a WireError for an entry that is not a message."""
    return facts_in(entry.data)


async def facts_at(log: ManagedLedger, position: Position) -> EntryFacts:
    """Of an entry that exists.  ManagedLedgerError if it does not (any more); LedgerError."""
    try:
        found = await log.read(position, max_entries=1, max_bytes=1)
    except LedgerError:
        if log.ledgers.lists(position.ledger_id):
            raise
        found = []
    if not found or found[0].position != position:
        if log.ledgers.lists(position.ledger_id):
            raise ManagedLedgerError(f"{log.name}: there is no entry at {position}")
        raise _TrimmedError(f"{log.name}: {position} was trimmed")
    try:
        said = facts(found[0])
    except WireError as error:
        raise LogCorruptError(f"{log.name}: the entry at {position}: {error}") from error
    return said if said.last_offset >= 0 else await _numbered(log, position, said)


async def _numbered(log: ManagedLedger, position: Position, said: EntryFacts) -> EntryFacts:
    """The facts of an entry that a Pulsar broker wrote without an offset."""
    offsets = log.counted.get(position.ledger_id)
    if offsets is None:
        row = log.ledgers.row(position.ledger_id)
        if row is None:  # Ours are numbered.
            raise LogCorruptError(f"{log.name}: the entry at {position} has no offset")
        last = await known_last(log.context, log.ledgers, row)
        offsets = await count(log.context, log.ledgers.owner, row, -1)
        shift = last - offsets[-1]  # The list says where the ledger ends, so where it begins.
        if shift:
            offsets = await count(log.context, log.ledgers.owner, row, shift - 1)
        log.counted.clear()  # One ledger is enough: searches stay in one.
        log.counted[position.ledger_id] = offsets
    at = offsets[position.entry_id]
    return replace(said, first_offset=at - said.messages + 1, last_offset=at)


async def retained_offsets(log: ManagedLedger) -> tuple[int, int]:
    """[first, next): the offsets that the log holds.  Equal if it is empty."""

    async def look() -> tuple[int, int]:
        following = log.confirmed_offset + 1
        first = log.next_position(log.before_first)
        if first > log.last_confirmed:
            return following, following
        return (await facts_at(log, first)).first_offset, following

    return await _untrimmed(look)


async def offset_before(log: ManagedLedger, position: Position) -> int:
    """The offset of the last message at, or before, a position; read from the entry behind it."""

    async def look() -> int:
        following = log.next_position(position)
        if following > log.last_confirmed:
            return log.confirmed_offset
        return (await facts_at(log, following)).first_offset - 1

    return await _untrimmed(look)


async def position_of_offset(log: ManagedLedger, offset: int) -> Position:
    """The entry that holds the offset; the first retained one before it, the end behind it."""

    async def reaches(row: Row) -> bool:
        return await known_last(log.context, log.ledgers, row) >= offset

    async def look() -> Position:
        end = log.last_confirmed
        if offset > log.confirmed_offset:
            return log.next_position(end)
        return await _search(log, end, reaches, lambda found: found.last_offset >= offset)

    return await _untrimmed(look)


async def position_of_time(log: ManagedLedger, publish_ms: int) -> Position:
    """The first entry that was published at `publish_ms` or later; the end if there is none.

    Producers' clocks differ: where times do not ascend it is one of the places where they pass.
    """

    def late(found: EntryFacts) -> bool:
        return found.publish_ms >= publish_ms

    async def reaches(row: Row) -> bool:
        return late(await facts_at(log, row.last))

    return await _untrimmed(lambda: _search(log, log.last_confirmed, reaches, late))


async def _search(
    log: ManagedLedger, end: Position, reaches: Callable[[Row], Awaitable[bool]], holds: _Holds
) -> Position:
    """The first entry, up to `end`, for which `holds`; `reaches` tells that of a row's last."""
    rows = [row for row in log.ledgers.rows if row.entries]
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if await reaches(rows[middle]):
            high = middle
        else:
            low = middle + 1
    if low < len(rows):
        return await _bisect(log, rows[low].ledger_id, rows[low].entries, holds)
    if end.entry_id < 0 or (rows and end <= rows[-1].last) or not log.ledgers.lists(end.ledger_id):
        return log.next_position(end)
    if not holds(await facts_at(log, end)):
        return log.next_position(end)
    return await _bisect(log, end.ledger_id, end.entry_id + 1, holds)


async def _bisect(log: ManagedLedger, ledger_id: int, entries: int, holds: _Holds) -> Position:
    """The first entry of the ledger for which `holds` is true; it is for the last one."""
    low, high = 0, entries - 1
    while low < high:
        middle = (low + high) // 2
        if holds(await facts_at(log, Position(ledger_id, middle))):
            high = middle
        else:
            low = middle + 1
    return Position(ledger_id, low)


async def _untrimmed(look: Callable[[], Awaitable[_T]]) -> _T:
    """Once more, if what we searched in was trimmed meanwhile."""
    while True:
        try:
            return await look()
        except _TrimmedError:
            continue
