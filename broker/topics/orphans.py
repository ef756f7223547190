"""Periodic removal of ledgers that no log names: it calls `managed_ledger.orphans`.

Each broker removes the orphaned ledgers of the logs that it has open, because only the owner of a
log is certain that no list is about to name them.  The leader also removes those of deleted logs,
and those of schemas (`broker.schemas.orphans`).
Two leaders, or none, do no harm.
"""

from collections.abc import Awaitable, Callable

import trio

from daybook.bookie.errors import LedgerError, RegistryError
from daybook.managed_ledger.open import ManagedLedgers
from daybook.managed_ledger.orphans import RemoveOther
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError

_SHOWN = 20


class OrphanRemoval:
    """`leads` returns True if this broker is the leader, or raises MetadataError."""

    def __init__(
        self,
        ledgers: ManagedLedgers,
        leads: Callable[[], Awaitable[bool]],
        remove_other: RemoveOther,
        *,
        interval_s: float,
        age_s: float,
        log: Log,
    ) -> None:
        self.removed = 0
        self._ledgers = ledgers
        self._leads = leads
        self._remove_other = remove_other
        self._interval_s = interval_s
        self._age_s = age_s
        self._log = log

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval_s)
            try:
                leads = await self._leads()
                ids = await self._ledgers.remove_orphans(
                    age_s=self._age_s, of_gone_logs=leads, remove_other=self._remove_other
                )
            except (MetadataError, LedgerError, RegistryError) as error:
                self._log.info(
                    "the search for orphaned ledgers failed; the next one follows",
                    in_s=self._interval_s,
                    why=str(error),
                )
                continue
            self.removed += len(ids)
            if ids:
                self._log.info(
                    "removed ledgers that nothing names",
                    count=len(ids),
                    first=",".join(map(str, ids[:_SHOWN])),
                )
