"""Brings the tail of a log to its end, before it is taken over.

A roll leaves two ledgers unclosed at most, so the last two are recovered, which fences whoever
writes to them; so is any other that the list does not say the length of.  A ledger that is listed
and has no metadata is an error: its entries were promised to be there.  All of them prove that they
are the log's before the first one is fenced.
"""

from daybook.bookie.errors import NoSuchLedgerError
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.ledger_list import LedgerList, Row, sealed_row, stored_offset
from daybook.managed_ledger.numbering import last_offset_of
from daybook.managed_ledger.records import LedgerInfo, Owner

RECOVERED_LEDGERS = 2


async def recover_tail(context: LogContext, ledgers: LedgerList) -> int:
    """Seal all ledgers of the list, in memory; return the next offset.

    LogCorruptError; LedgerError and MetadataError if it does not work now.
    """
    infos = list(ledgers.info.ledgerInfo)
    unsealed = {
        ledger.ledgerId: await _proven(context, ledgers.owner, ledger.ledgerId)
        for i, ledger in enumerate(infos)
        if i >= len(infos) - RECOVERED_LEDGERS or not ledger.HasField("entries")
    }
    for ledger in infos:
        stored = unsealed.get(ledger.ledgerId)
        if stored is not None:
            ledgers.seal(await _recover(context, ledger, stored))
        else:
            ledgers.seal(sealed_row(ledger, context.clock.now_ms()))
    return max(
        stored_offset(ledgers.info, ledgers.path), await last_offset_of(context, ledgers) + 1
    )


async def _proven(context: LogContext, owner: Owner, ledger_id: int) -> StoredMetadata:
    try:
        return await context.answered(lambda: context.proven(ledger_id, owner))
    except NoSuchLedgerError:
        raise _gone(ledger_id) from None


def _gone(ledger_id: int) -> LogCorruptError:
    return LogCorruptError(
        f"ledger {ledger_id} is on the list of its log and not in the metadata store"
    )


async def _recover(context: LogContext, ledger: LedgerInfo, stored: StoredMetadata) -> Row:
    known = sealed_row(ledger, context.clock.now_ms())
    ledger_id = ledger.ledgerId
    try:
        reader = await context.answered(
            lambda: context.client.open_stored(ledger_id, stored, recover=True)
        )
    except NoSuchLedgerError:
        raise _gone(ledger_id) from None
    entries = reader.last_add_confirmed + 1
    if ledger.HasField("entries") and ledger.entries != entries:
        raise LogCorruptError(
            f"ledger {ledger_id} has {entries} entries, and {ledger.entries} by the list of its log"
        )
    return Row(ledger_id, entries, reader.length, known.closed_ms, known.last_offset)
