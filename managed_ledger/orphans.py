"""Removes orphans: ledgers of a creation that was not listed, or of a deletion that was cut short.

`protocol.orphans` says why a ledger may be removed.  The facts for that come from the metadata
store.  The version of an open log's list is checked right before the removal, and what the log
knows is compared with the newest records if the ledger is younger than the opening.  A log counts
as gone only after the server has synced.  If a fact is not known now, the next pass looks again.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.managed_ledger.compacted import CURSOR as COMPACTION_CURSOR
from daybook.managed_ledger.compacted import LEDGER as COMPACTED_LEDGER
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import InvalidNameError, ManagedLedgerError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.protocol.orphans import (
    Candidate,
    Suspects,
    is_orphan_of_open_log,
    may_be_orphan,
)
from daybook.managed_ledger.records import (
    LedgerOwner,
    compacted_topic_of,
    log_path,
    owner_of,
    parse,
    tree_of,
)
from daybook.managed_ledger.records_pb2 import ManagedCursorInfo
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName

_READS_PER_S = 200  # A pass is not urgent, and must not load the store.

RemoveOther: TypeAlias = Callable[[int, StoredMetadata, str, int], Awaitable[bool]]
"""Removes a ledger that belongs to no log, if it is an orphan.

The arguments are its id and metadata, the tree of logs, and the least age in milliseconds."""


async def remove_orphans(
    context: LogContext,
    logs: Iterable[ManagedLedger],
    suspects: Suspects,
    *,
    age_s: float,
    of_gone_logs: bool,
    remove_other: RemoveOther | None = None,
) -> list[int]:
    """Look at all ledgers of the cluster once, and return the ids of those that were removed.

    With `of_gone_logs`, ledgers of logs that do not exist any more are removed, too, and
    `remove_other` is asked about the ledgers that belong to no log.  Raise
    MetadataError if the ledgers cannot be listed and none was removed.
    """
    if context.tree is None:
        return []
    if of_gone_logs:
        suspects.begin()
    else:
        suspects.forget()
    a_pass = _Pass(context, context.tree, logs, suspects, round(age_s * 1000))
    if not (a_pass.logs or of_gone_logs):
        return []
    removed: list[int] = []
    try:
        async for ledger_id in context.client.list_ledgers():
            stored = await a_pass.metadata(ledger_id)
            if stored is not None:
                candidate = _candidate(ledger_id, stored)
                if candidate is not None:
                    gone = await a_pass.remove(candidate, of_gone_logs=of_gone_logs)
                else:
                    gone = of_gone_logs and await a_pass.remove_other(
                        ledger_id, stored, remove_other
                    )
                if gone:
                    removed.append(ledger_id)
            await trio.sleep(1 / _READS_PER_S)
    except MetadataError:
        if not removed:
            raise
    return removed


class _Pass:
    """One look at all ledgers.  `logs` are those that this host has open."""

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

    async def metadata(self, ledger_id: int) -> StoredMetadata | None:
        """Return the metadata of a ledger; None if they cannot be read now."""
        try:
            return await self._context.client.stored_metadata(ledger_id)
        except (LedgerError, MetadataError):
            return None

    async def remove(self, candidate: Candidate, *, of_gone_logs: bool) -> bool:
        """Remove a ledger of a log if it is an orphan; return True if it was removed."""
        owner = await self._owner_of_orphan(candidate, of_gone_logs=of_gone_logs)
        return owner is not None and await self._context.delete_ledger(candidate.ledger_id, owner)

    async def remove_other(
        self, ledger_id: int, stored: StoredMetadata, remove: RemoveOther | None
    ) -> bool:
        """Remove a ledger that belongs to no log if it is an orphan."""
        if remove is None:
            return False
        try:
            return await remove(ledger_id, stored, self._tree, self._age_ms)
        except (LedgerError, MetadataError):
            return False  # A later pass will know.

    async def _owner_of_orphan(
        self, candidate: Candidate, *, of_gone_logs: bool
    ) -> LedgerOwner | None:
        """Return the owner of an orphan; None if the ledger is no orphan, or that is not known."""
        try:
            if not self._may_be(candidate):
                return None
            log = self.logs.get(candidate.log)
            if log is not None:
                known = await self._is_of_open(candidate, log)
            else:
                known = of_gone_logs and await self._is_of_gone(candidate)
        except (LedgerError, MetadataError):
            return None
        return LedgerOwner(candidate.log, candidate.cursor, candidate.topic) if known else None

    def _may_be(self, candidate: Candidate) -> bool:
        now_ms = self._context.clock.now_ms()
        return may_be_orphan(candidate, self._tree, now_ms, self._age_ms)

    async def _is_of_open(self, candidate: Candidate, log: ManagedLedger) -> bool:
        if not _is_orphan(log, candidate):
            return False
        try:
            # This checks the version of the list: a stale owner must not remove anything.
            await log.ledgers.guarded([])
            if candidate.ledger_id >= log.owned_from and not await self._is_unnamed(candidate, log):
                return False
        except ManagedLedgerError:
            return False
        # The log has gone on while the store was asked.
        return log.usable and _is_orphan(log, candidate)

    async def _is_unnamed(self, candidate: Candidate, log: ManagedLedger) -> bool:
        """Return True if the newest records do not name the ledger either.

        A list that was deleted and created again may have the version that this log knows, but not
        its transaction.
        """
        path = log.ledgers.path
        if candidate.cursor is not None:
            found = await self._context.read_newest(f"{path}/{candidate.cursor}")
            if found is not None:
                info = parse(ManagedCursorInfo(), found.value, path)
                if info.cursorsLedgerId == candidate.ledger_id:
                    return False
        record = await self._context.read_newest(path)
        if record is None or log.created <= 0:
            return False
        stat, known = record.stat, (log.created, log.ledgers.version)
        return (stat.created_txid, stat.version) == known

    async def _is_of_gone(self, candidate: Candidate) -> bool:
        """Return True if the log has no list now, and had none in the last pass."""
        try:
            path = log_path(candidate.log)
        except InvalidNameError:
            return False
        if await self._context.store.get(path) is not None:
            return False  # The answer may be outdated; then the next pass removes the ledger.
        if await self._context.read_newest(path) is not None:
            return False
        return self._suspects.is_found_again(candidate)


def _candidate(ledger_id: int, stored: StoredMetadata) -> Candidate | None:
    """Return None for a ledger that belongs to no log, no cursor and no compacted topic."""
    metadata = stored.metadata
    tree = tree_of(metadata.custom)
    topic = compacted_topic_of(metadata.custom)
    owner = owner_of(metadata.custom)
    if topic is not None:
        with suppress(WireError):
            owner = TopicName.parse(topic).managed_ledger_name, None
    if owner is None:
        return None
    log, cursor = owner
    return Candidate(ledger_id, stored.version, tree, log, cursor, metadata.created_ms, topic)


def _is_orphan(log: ManagedLedger, candidate: Candidate) -> bool:
    """Return True if the log, as it knows itself now, does not name the ledger and never will."""
    ledgers = log.ledgers
    creating = candidate.cursor in ledgers.naming
    if candidate.cursor is None:
        creating |= ledgers.doubtful  # a write that has no answer may name the ledger
    named = _names(log, candidate)
    return is_orphan_of_open_log(candidate, log.owned_from, named=named, creating=creating)


def _names(log: ManagedLedger, candidate: Candidate) -> bool:
    """Return True if the list of the log, or one of its cursors, names the ledger."""
    ledger_id = candidate.ledger_id
    if candidate.topic is not None:
        cursor = log.cursors.get(COMPACTION_CURSOR)
        # While a change is not stored, the stored record may still name the ledger before.
        return cursor is not None and (
            not cursor.is_stored or cursor.properties.get(COMPACTED_LEDGER) == ledger_id
        )
    if log.ledgers.lists(ledger_id):
        return True
    return any(cursor.ledger_id == ledger_id for cursor in log.cursors.values())
