"""The offsets of entries.

An entry that we appended says the offset of its last message (broker entry metadata).  Entries that
a Pulsar broker wrote may not: their messages are counted, from the nearest entry before them whose
offset is known.  That reads a ledger once, when its offsets are first needed; how far it comes is
kept with the list of ledgers.
"""

from array import array
from dataclasses import dataclass, replace

from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.ledger_list import LedgerList, Row, stored_offset
from daybook.managed_ledger.records import Owner
from daybook.wire.batch import num_messages, parse_metadata, split_broker_metadata
from daybook.wire.errors import WireError

_READ_ENTRIES = 256
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """What the head of an entry says.  Offsets are -1 if no broker has numbered it."""

    first_offset: int
    last_offset: int
    publish_ms: int
    messages: int


def facts(data: memoryview) -> EntryFacts:
    """Raises a WireError for an entry that is not a message."""
    _, index, payload = split_broker_metadata(data)
    metadata, _ = parse_metadata(payload)
    messages = num_messages(metadata)
    last = -1 if index is None else index
    first = -1 if index is None else index - messages + 1
    return EntryFacts(first, last, metadata.publish_time, messages)


async def last_offset_of(context: LogContext, ledgers: LedgerList) -> int:
    """The offset of the last entry of a log that is being opened; -1 if it has none.

    Learns the last offsets of the rows that it looks at.
    """
    rows = [row for row in ledgers.rows if row.entries]
    if not rows:
        return -1
    last = stored_offset(ledgers.info, ledgers.path) - 1  # if all numbered entries are trimmed
    unnumbered: list[Row] = []
    for row in reversed(rows):
        found = row.last_offset
        if found is None:
            found = await _stated(context, ledgers.owner, row)
        if found is not None:
            ledgers.learn(replace(row, last_offset=found))
            last = found
            break
        unnumbered.append(row)
    for row in reversed(unnumbered):
        last = (await count(context, ledgers.owner, row, last))[-1]
        ledgers.learn(replace(row, last_offset=last))
    return last


async def known_last(context: LogContext, ledgers: LedgerList, row: Row) -> int:
    """The offset of the last entry of a sealed ledger that is not empty; it is kept."""
    if row.last_offset is not None:
        return row.last_offset
    last = await _stated(context, ledgers.owner, row)
    if last is None:
        before = [r for r in ledgers.rows if r.ledger_id < row.ledger_id and r.entries]
        base = await known_last(context, ledgers, before[-1]) if before else -1
        last = (await count(context, ledgers.owner, row, base))[-1]
    ledgers.learn(replace(row, last_offset=last))
    return last


async def count(context: LogContext, owner: Owner, row: Row, base: int) -> "array[int]":
    """The last offsets of all entries of a ledger; `base` is that of the entry before them."""
    reader = await context.answered(
        lambda: context.open_ledger(row.ledger_id, owner, recover=False)
    )
    offsets = array("q")
    while len(offsets) < row.entries:
        at = len(offsets)
        end = min(row.entries, at + _READ_ENTRIES) - 1
        for entry in await reader.read(at, end, max_bytes=_READ_BYTES):
            try:
                _, index, payload = split_broker_metadata(entry.payload)
                if index is None:
                    index = base + num_messages(parse_metadata(payload)[0])
            except WireError as error:
                raise LogCorruptError(f"{row.ledger_id}:{entry.entry_id}: {error}") from error
            base = index
            offsets.append(base)
    return offsets


async def _stated(context: LogContext, owner: Owner, row: Row) -> int | None:
    """What the last entry of a ledger says itself."""
    reader = await context.answered(
        lambda: context.open_ledger(row.ledger_id, owner, recover=False)
    )
    last = row.entries - 1
    (entry,) = await reader.read(last, last, max_bytes=1)
    try:
        return split_broker_metadata(entry.payload)[1]
    except WireError as error:
        raise LogCorruptError(f"the last entry of ledger {row.ledger_id}: {error}") from error
