"""Offsets and times of messages, and the positions where they are.

An entry that Daybook appended states the offset of its last message (broker entry metadata).  An
entry that a Pulsar broker wrote may not: its messages are counted from the nearest entry before it
whose offset is known.  Counting reads a ledger once, when its offsets are first needed; the result
is kept with the list of ledgers.

To find an offset or a time, a binary search over the list finds the ledger, and a second one, which
reads one entry at each step, finds the entry.
"""

from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from daybook.bookie.errors import LedgerError
from daybook.managed_ledger.behind import EntryStart
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import LogCorruptError, ManagedLedgerError
from daybook.managed_ledger.ledger_list import LedgerList, stored_offset
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records import LedgerOwner
from daybook.wire.batch import num_messages, parse_metadata, split_broker_metadata
from daybook.wire.entry import Entry
from daybook.wire.errors import WireError

_READ_ENTRIES = 256
_READ_BYTES = 4 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """The facts that the head of an entry states.  Offsets are -1 if no broker numbered it."""

    first_offset: int
    last_offset: int
    publish_ms: int
    messages: int


@dataclass(frozen=True, slots=True)
class LedgerOffsets:
    """A sealed ledger, and the offsets [first, next) of its messages."""

    ledger: SealedLedger
    first: int
    next: int


_Holds = Callable[[EntryFacts], bool]


class _TrimmedError(ManagedLedgerError):
    """The ledger was dropped while it was searched."""


# -- searching


async def retained_offsets(log: ManagedLedger) -> tuple[int, int]:
    """Return the offsets that the log holds as [first, next), which are equal if it is empty."""

    async def look() -> tuple[int, int]:
        following = log.confirmed_offset + 1
        first = log.next_position(log.before_first)
        if first > log.last_confirmed:
            return following, following
        return (await facts_at(log, first)).first_offset, following

    return await _untrimmed(look)


async def sealed_offsets(log: ManagedLedger) -> list[LedgerOffsets]:
    """Return the sealed ledgers that hold messages, in order, with their offsets.

    The list states most of the offsets.  A ledger of which it does not is looked at once.
    """

    async def look() -> list[LedgerOffsets]:
        start = log.before_first
        first = (await retained_offsets(log))[0]
        found: list[LedgerOffsets] = []
        # A ledger that a pending write drops from the list is sealed, and not retained any more.
        for ledger in [
            e for e in log.ledgers.sealed if e.entries and e.ledger_id >= start.ledger_id
        ]:
            following = await known_last(log.context, log.ledgers, ledger) + 1
            found.append(LedgerOffsets(ledger, first, following))
            first = following
        if log.before_first != start:  # `first` may then be that of another ledger.
            raise _TrimmedError(f"{log.name} was trimmed")
        return found

    return await _untrimmed(look)


async def offset_before(log: ManagedLedger, position: Position) -> int:
    """Return the offset of the last message at, or before, a position.

    The entry behind the position is read for that.
    """

    async def look() -> int:
        following = log.next_position(position)
        if following > log.last_confirmed:
            return log.confirmed_offset
        return (await facts_at(log, following)).first_offset - 1

    return await _untrimmed(look)


async def start_of(log: ManagedLedger, position: Position) -> EntryStart | None:
    """Return where the entry at a position begins; None if there is none, or no longer.

    One entry is read for that.  Raise LedgerError, ManagedLedgerError.
    """
    entry = await log.read_one(position)
    if entry is None:
        return None
    try:
        stated = facts(entry.payload)
    except WireError as error:
        raise LogCorruptError(
            f"{log.name}: the entry at {position} cannot be read: {error}"
        ) from error
    if stated.last_offset < 0:
        stated = await _numbered(log, position, stated)
    size = len(entry.payload)
    return EntryStart(
        position,
        stated.first_offset,
        entry.length - size,
        stated.publish_ms,
        stated.messages,
        size,
    )


async def position_of_offset(log: ManagedLedger, offset: int) -> Position:
    """Return the entry that holds the offset.

    For an offset that was trimmed it is the first retained entry, for one behind the end the end.
    """

    async def reaches(ledger: SealedLedger) -> bool:
        return await known_last(log.context, log.ledgers, ledger) >= offset

    async def look() -> Position:
        end = log.last_confirmed
        if offset > log.confirmed_offset:
            return log.next_position(end)
        return await _search(log, end, reaches, lambda found: found.last_offset >= offset)

    return await _untrimmed(look)


async def position_of_time(log: ManagedLedger, publish_ms: int) -> Position:
    """Return the first entry that was published at `publish_ms` or later; the end if there is none.

    The clocks of producers differ.  If times do not ascend, the result is one of the entries where
    the times pass `publish_ms`.
    """

    def late(found: EntryFacts) -> bool:
        return found.publish_ms >= publish_ms

    async def reaches(ledger: SealedLedger) -> bool:
        return late(await facts_at(log, ledger.last))

    return await _untrimmed(lambda: _search(log, log.last_confirmed, reaches, late))


async def _search(
    log: ManagedLedger,
    end: Position,
    reaches: Callable[[SealedLedger], Awaitable[bool]],
    holds: _Holds,
) -> Position:
    """Return the first entry, up to `end`, for which `holds` is true.

    `reaches` is true for a ledger if `holds` is true for its last entry.
    """
    sealed = [ledger for ledger in log.ledgers.sealed if ledger.entries]
    low, high = 0, len(sealed)
    while low < high:
        middle = (low + high) // 2
        if await reaches(sealed[middle]):
            high = middle
        else:
            low = middle + 1
    if low < len(sealed):
        return await _bisect(log, sealed[low].ledger_id, sealed[low].entries, holds)
    # No sealed ledger reaches it, so it lies in the present ledger or behind the end.
    if (
        end.entry_id < 0
        or (sealed and end <= sealed[-1].last)
        or not log.ledgers.lists(end.ledger_id)
    ):
        return log.next_position(end)
    if not holds(await facts_at(log, end)):
        return log.next_position(end)
    return await _bisect(log, end.ledger_id, end.entry_id + 1, holds)


async def _bisect(log: ManagedLedger, ledger_id: int, entries: int, holds: _Holds) -> Position:
    """Return the first entry of the ledger for which `holds` is true; it is for the last one."""
    assert entries > 0
    low, high = 0, entries - 1
    while low < high:
        middle = (low + high) // 2
        if holds(await facts_at(log, Position(ledger_id, middle))):
            high = middle
        else:
            low = middle + 1
    return Position(ledger_id, low)


async def _untrimmed(look: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a search if the ledger that it searched was trimmed meanwhile."""
    while True:
        try:
            return await look()
        except _TrimmedError:
            continue


# -- one entry


def facts(data: memoryview) -> EntryFacts:
    """Return the facts that an entry itself states.  Raise WireError if it is not a message."""
    _, index, payload = split_broker_metadata(data)
    metadata, _ = parse_metadata(payload)
    messages = num_messages(metadata)
    last = -1 if index is None else index
    first = -1 if index is None else index - messages + 1
    return EntryFacts(first, last, metadata.publish_time, messages)


async def facts_at(log: ManagedLedger, position: Position) -> EntryFacts:
    """Return the facts of an entry.  Raise ManagedLedgerError if there is none, LedgerError."""
    try:
        found = await log.read(position, max_entries=1, max_bytes=1)
    except LedgerError:
        if log.ledgers.lists(position.ledger_id):
            raise
        found = []
    # `read` returns a later entry if the one at `position` is gone.
    if not found or found[0].position != position:
        if log.ledgers.lists(position.ledger_id):
            raise ManagedLedgerError(f"{log.name} has no entry at {position}")
        raise _TrimmedError(f"{log.name}: {position} was trimmed")
    try:
        stated = facts(found[0].data)
    except WireError as error:
        raise LogCorruptError(
            f"{log.name}: the entry at {position} cannot be read: {error}"
        ) from error
    return stated if stated.last_offset >= 0 else await _numbered(log, position, stated)


async def _numbered(log: ManagedLedger, position: Position, stated: EntryFacts) -> EntryFacts:
    """Return the facts of an entry that a Pulsar broker wrote without an offset."""
    offsets = log.counted_offsets.get(position.ledger_id)
    if offsets is None:
        ledger = log.ledgers.find_sealed(position.ledger_id)
        if ledger is None:  # The present ledger has only entries that Daybook numbered.
            raise LogCorruptError(f"{log.name}: the entry at {position} has no offset")
        last = await known_last(log.context, log.ledgers, ledger)
        offsets = await count(log.context, log.ledgers.owner, ledger, -1)
        # The list states the offset at the end of the ledger, and so the one at its beginning.
        shift = last - offsets[-1]
        if shift:
            offsets = await count(log.context, log.ledgers.owner, ledger, shift - 1)
        log.counted_offsets.clear()  # One ledger is enough, since a search stays in one.
        log.counted_offsets[position.ledger_id] = offsets
    at = offsets[position.entry_id]
    return replace(stated, first_offset=at - stated.messages + 1, last_offset=at)


# -- the last offsets of ledgers


async def last_offset_of(context: LogContext, ledgers: LedgerList) -> int:
    """Return the offset of the last entry of a log that is being opened; -1 if it has none.

    The list learns the last offsets of the ledgers that this looks at.
    """
    filled = [ledger for ledger in ledgers.sealed if ledger.entries]
    if not filled:
        return -1
    # The offset before the first ledger, which counts if no ledger states an offset.
    last = stored_offset(ledgers.info, ledgers.path) - 1
    unnumbered: list[SealedLedger] = []
    for ledger in reversed(filled):
        found = ledger.last_offset
        if found is None:
            found = await _stated(context, ledgers.owner, ledger)
        if found is not None:
            ledgers.learn(replace(ledger, last_offset=found))
            last = found
            break
        unnumbered.append(ledger)
    for ledger in reversed(unnumbered):
        last = (await count(context, ledgers.owner, ledger, last))[-1]
        ledgers.learn(replace(ledger, last_offset=last))
    return last


async def known_last(context: LogContext, ledgers: LedgerList, ledger: SealedLedger) -> int:
    """Return the offset of the last entry of a sealed ledger that is not empty, and keep it."""
    if ledger.last_offset is not None:
        return ledger.last_offset
    last = await _stated(context, ledgers.owner, ledger)
    if last is None:
        before = [e for e in ledgers.sealed if e.ledger_id < ledger.ledger_id and e.entries]
        base = await known_last(context, ledgers, before[-1]) if before else -1
        last = (await count(context, ledgers.owner, ledger, base))[-1]
    ledgers.learn(replace(ledger, last_offset=last))
    return last


async def count(
    context: LogContext, owner: LedgerOwner, ledger: SealedLedger, base: int
) -> "array[int]":
    """Return the last offset of each entry of a ledger.

    `base` is the last offset of the entry before the ledger.
    """
    reader = await context.retry_read(
        lambda: context.open_ledger(ledger.ledger_id, owner, recover=False)
    )
    offsets = array("q")
    while len(offsets) < ledger.entries:
        at = len(offsets)
        end = min(ledger.entries, at + _READ_ENTRIES) - 1
        for entry in await reader.read(at, end, max_bytes=_READ_BYTES):
            try:
                _, index, payload = split_broker_metadata(entry.payload)
                if index is None:
                    index = base + num_messages(parse_metadata(payload)[0])
            except WireError as error:
                raise LogCorruptError(
                    f"the entry {ledger.ledger_id}:{entry.entry_id} cannot be read: {error}"
                ) from error
            base = index
            offsets.append(base)
    assert len(offsets) == ledger.entries
    return offsets


async def _stated(context: LogContext, owner: LedgerOwner, ledger: SealedLedger) -> int | None:
    """Return the offset that the last entry of a ledger itself states; None if it states none."""
    reader = await context.retry_read(
        lambda: context.open_ledger(ledger.ledger_id, owner, recover=False)
    )
    last = ledger.entries - 1
    (entry,) = await reader.read(last, last, max_bytes=1)
    return stated_offset(entry)


def stated_offset(entry: Entry) -> int | None:
    """Return the offset that an entry itself states; None if it states none.

    Raise LogCorruptError if it is not the entry of a log.
    """
    try:
        return split_broker_metadata(entry.payload)[1]
    except WireError as error:
        raise LogCorruptError(
            f"the entry {entry.ledger_id}:{entry.entry_id} cannot be read: {error}"
        ) from error
