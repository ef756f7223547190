"""Brings the tail of a log to its end, before it is taken over.

A roll leaves two ledgers unclosed at most, so the last two are recovered, which fences whoever
writes to them; so is any other that the list does not say the length of.  A ledger that is listed
and has no metadata is an error: its entries were promised to be there.
"""

from bookie.errors import NoSuchLedgerError
from managed_ledger.context import LogContext
from managed_ledger.errors import LogCorruptError
from managed_ledger.ledger_list import LedgerList, Row, sealed_row, stored_offset
from managed_ledger.numbering import last_offset_of
from managed_ledger.records import LedgerInfo

RECOVERED_LEDGERS = 2


async def recover_tail(context: LogContext, ledgers: LedgerList) -> int:
    """Seal all ledgers of the list, in memory; return the next offset.

    LogCorruptError; LedgerError and MetadataError if it does not work now.
    """
    infos = list(ledgers.info.ledgerInfo)
    for i, ledger in enumerate(infos):
        if i >= len(infos) - RECOVERED_LEDGERS or not ledger.HasField("entries"):
            ledgers.seal(await _recover(context, ledger))
        else:
            ledgers.seal(sealed_row(ledger, context.clock.now_ms()))
    return max(
        stored_offset(ledgers.info, ledgers.path), await last_offset_of(context, ledgers) + 1
    )


async def _recover(context: LogContext, ledger: LedgerInfo) -> Row:
    known = sealed_row(ledger, context.clock.now_ms())
    ledger_id = ledger.ledgerId
    try:
        reader = await context.answered(lambda: context.client.open(ledger_id, recover=True))
    except NoSuchLedgerError:
        raise LogCorruptError(
            f"ledger {ledger_id} is on the list of its log and not in the metadata store"
        ) from None
    entries = reader.last_add_confirmed + 1
    if ledger.HasField("entries") and ledger.entries != entries:
        raise LogCorruptError(
            f"ledger {ledger_id} has {entries} entries, and {ledger.entries} by the list of its log"
        )
    return Row(ledger_id, entries, reader.length, known.closed_ms, known.last_offset)
