"""Counts the holes of a cursor whose size is not known (`protocol.holes`).

This is needed when a Pulsar broker has written the cursor last, when entries were acknowledged that
this host never delivered, and when the sizes of very many entries were forgotten.  Short runs are
read, at most a megabyte at a time.  A long run is counted by its two ends, which state offsets and
lengths of their ledger.  At most a few cursors of a host are counted at a time.

Each step keeps its result, so a count that is given up continues where it was.
"""

import trio

from daybook.managed_ledger.cursor import Cursor
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.offsets import start_of
from daybook.managed_ledger.position import EARLIEST, Position
from daybook.managed_ledger.protocol.cursor import Run
from daybook.wire.batch import count_messages

_LONG_RUN = 512  # entries
_READ_ENTRIES = 256
_READ_BYTES = 1 << 20
_TURN = 1_000  # sizes that are looked up before other tasks have their turn


async def recount(log: ManagedLedger, cursor: Cursor) -> None:
    """Count the holes that are uncounted now.  Raise LedgerError, ManagedLedgerError."""
    async with log.context.recounts:
        begin, looked_up = EARLIEST, 0
        while (at := cursor.uncounted.next_from(begin)) is not None:
            size = log.sizes.get(at.ledger_id, at.entry_id)
            if size is not None:
                cursor.count(at, *size)
                begin = at.next_in_ledger()
                looked_up += 1
                if not looked_up % _TURN:
                    await trio.lowlevel.checkpoint()
                continue
            run = at.ledger_id, at.entry_id, cursor.uncounted.run_end(at)
            if run[2] - run[1] >= _LONG_RUN and await _count_by_ends(log, cursor, run):
                begin = Position(run[0], run[2] + 1)
            else:
                begin = await _count_one_by_one(log, cursor, at)


async def _count_by_ends(log: ManagedLedger, cursor: Cursor, run: Run) -> bool:
    """Count a run by its two ends; return False if that is not possible."""
    ledger_id, first, last = run
    begin = await start_of(log, Position(ledger_id, first))
    end = await start_of(log, Position(ledger_id, last))
    if begin is None or end is None:
        return False
    messages = end.first_offset + end.messages - begin.first_offset
    return cursor.count_run(run, messages, end.ledger_bytes + end.bytes - begin.ledger_bytes)


async def _count_one_by_one(log: ManagedLedger, cursor: Cursor, at: Position) -> Position:
    """Read some entries from `at` on and count them; return the position behind them."""
    found = await log.read(at, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES)
    for entry in found:
        cursor.count(entry.position, count_messages(entry.data), len(entry.data))
    # Entries that are gone were trimmed, so they are below the mark-delete position by now.
    return found[-1].position.next_in_ledger() if found else Position(at.ledger_id + 1, 0)
