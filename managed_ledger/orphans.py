"""Ledgers that nothing names: of a creation that was not listed, of a deletion that was cut short.

A ledger is removed only by the owner of the log that its metadata name, and only if

- its id is below that of the ledger which our opening has put on the list: whoever created it can
  put it on no list any more, since that write would name a version that is gone;
- it is not on the list; or, if it is a cursor's, no record of a cursor points to it;
- and the list is still as we have written it, which is asked of the store right before.

Ledgers of other kinds, and those of logs that are not open here, are left alone.
"""

from collections.abc import Iterable

from bookie.errors import LedgerError
from bookie.ledger.client import LedgerClient
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.log import ManagedLedger
from managed_ledger.records import Owner, owner_of
from wire.metadata.store import MetadataError


async def remove_orphans(client: LedgerClient, logs: Iterable[ManagedLedger]) -> list[int]:
    """One pass over all ledgers of the cluster; the ids of those that were removed.

    What cannot be looked at now is left to the next pass.  MetadataError if the ledgers cannot be
    listed.
    """
    by_name = {log.name: log for log in logs if log.usable}
    newest = max((log.owned_from for log in by_name.values()), default=-1)
    removed: list[int] = []
    async for ledger_id in client.list_ledgers():
        if ledger_id >= newest:
            break
        owner = await _orphan_of(client, by_name, ledger_id)
        if owner is not None and await _is_ours(log := by_name[owner.log]):
            await log.context.forget([ledger_id], owner)
            removed.append(ledger_id)
    return removed


async def _orphan_of(
    client: LedgerClient, logs: dict[str, ManagedLedger], ledger_id: int
) -> Owner | None:
    """Return the owner of an orphan; None if the ledger is no orphan, or that is not known."""
    if any(log.ledgers.lists(ledger_id) for log in logs.values()):
        return None
    try:
        found = owner_of((await client.metadata(ledger_id)).custom)
    except (LedgerError, MetadataError):
        return None
    if found is None:
        return None
    name, cursor = found
    log = logs.get(name)
    if log is None or ledger_id >= log.owned_from or log.ledgers.lists(ledger_id):
        return None
    if cursor is not None and any(c.ledger_id == ledger_id for c in log.cursors.values()):
        return None
    return Owner(name, cursor)


async def _is_ours(log: ManagedLedger) -> bool:
    try:
        await log.ledgers.guarded([])
    except (ManagedLedgerError, MetadataError):
        return False
    return log.usable
