"""Ledgers that nothing names: of a creation that was not listed, of a deletion that was cut short.

Why a ledger may be removed is in `protocol.orphans`.  What is needed to know it is asked of the
store: that a list of ours is still as we have written it, right before; that a log is gone, after
the server has caught up.  What is not known now is left to the next pass.
"""

from collections.abc import Iterable

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import InvalidNameError, ManagedLedgerError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.protocol.orphans import (
    Candidate,
    Suspects,
    is_orphan_of_open_log,
    may_be_orphan,
)
from daybook.managed_ledger.records import Owner, log_path, owner_of, tree_of
from daybook.wire.metadata.store import MetadataError

_READS_PER_S = 200  # A pass is in no hurry.


async def remove_orphans(
    context: LogContext,
    logs: Iterable[ManagedLedger],
    suspects: Suspects,
    *,
    age_s: float,
    of_gone_logs: bool,
) -> list[int]:
    """One pass over all ledgers of the cluster; the ids of those that were removed.

    `of_gone_logs`: those of logs that are not there any more, too.  MetadataError if the ledgers
    cannot be listed, unless some were removed; the next pass begins anew.
    """
    if context.tree is None:
        return []
    if of_gone_logs:
        suspects.begin()
    else:
        suspects.forget()
    a_pass = _Pass(context, context.tree, logs, suspects, round(age_s * 1000))
    newest = max((log.owned_from for log in a_pass.logs.values()), default=-1)
    removed: list[int] = []
    try:
        async for ledger_id in context.client.list_ledgers():
            if ledger_id >= newest and not of_gone_logs:
                break
            owner = await a_pass.owner_of_orphan(ledger_id, of_gone_logs=of_gone_logs)
            if owner is not None and await context.delete(ledger_id, owner):
                removed.append(ledger_id)
            await trio.sleep(1 / _READS_PER_S)
    except MetadataError:
        if not removed:
            raise
    return removed


class _Pass:
    def __init__(
        self,
        context: LogContext,
        tree: str,
        logs: Iterable[ManagedLedger],
        suspects: Suspects,
        age_ms: int,
    ) -> None:
        self.logs = {log.name: log for log in logs if log.usable}
        self._context = context
        self._tree = tree
        self._suspects = suspects
        self._age_ms = age_ms

    async def owner_of_orphan(self, ledger_id: int, *, of_gone_logs: bool) -> Owner | None:
        """The owner of an orphan; None if the ledger is no orphan, or that is not known."""
        try:
            candidate = _candidate(ledger_id, await self._context.client.stored_metadata(ledger_id))
            if candidate is None or not self._may_be(candidate):
                return None
            log = self.logs.get(candidate.log)
            if log is not None:
                known = await self._is_of_open(candidate, log)
            else:
                known = of_gone_logs and await self._is_of_gone(candidate)
        except (LedgerError, MetadataError):
            return None
        return Owner(candidate.log, candidate.cursor) if known else None

    def _may_be(self, candidate: Candidate) -> bool:
        now_ms = self._context.clock.now_ms()
        return may_be_orphan(candidate, self._tree, now_ms, self._age_ms)

    async def _is_of_open(self, candidate: Candidate, log: ManagedLedger) -> bool:
        if not is_orphan_of_open_log(candidate, log.owned_from, named=_names(log, candidate)):
            return False
        try:
            await log.ledgers.guarded([])
        except ManagedLedgerError:
            return False
        return log.usable

    async def _is_of_gone(self, candidate: Candidate) -> bool:
        """Is there no list of its log, and was there none the last time?"""
        try:
            path = log_path(candidate.log)
        except InvalidNameError:
            return False
        if await self._context.store.get(path) is not None:
            return False  # That answer may be old, and then it is for the next pass.
        if await self._context.newest(path) is not None:
            return False
        return self._suspects.is_found_again(candidate)


def _candidate(ledger_id: int, stored: StoredMetadata) -> Candidate | None:
    """None for a ledger that is not of a log, or a cursor."""
    metadata = stored.metadata
    owner = owner_of(metadata.custom)
    if owner is None:
        return None
    log, cursor = owner
    tree = tree_of(metadata.custom)
    return Candidate(ledger_id, stored.version, tree, log, cursor, metadata.created_ms)


def _names(log: ManagedLedger, candidate: Candidate) -> bool:
    ledger_id = candidate.ledger_id
    if log.ledgers.lists(ledger_id):
        return True
    return any(cursor.ledger_id == ledger_id for cursor in log.cursors.values())
