"""Removes ledgers that nothing names, once in a while: the shell of `managed_ledger.orphans`.

Each broker removes those of the logs that it has open, because only their owner knows for certain
that nothing is about to name them.  The leader removes those of logs that are gone, too.  Two
leaders, or none, do no harm.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError, RegistryError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError

_SHOWN = 20


class OrphanedLedgers(Protocol):
    """What is needed of the ledgers of logs."""

    async def remove_orphans(self, *, age_s: float, of_gone_logs: bool) -> Sequence[int]:
        """One pass; the ids of those that were removed.

        MetadataError, LedgerError, RegistryError, if nothing was removed.
        """
        ...


class OrphanRemoval:
    """`leads`: does this broker lead now?  It raises MetadataError."""

    def __init__(
        self,
        ledgers: OrphanedLedgers,
        leads: Callable[[], Awaitable[bool]],
        *,
        interval_s: float,
        age_s: float,
        log: Log,
    ) -> None:
        self.removed = 0
        self._ledgers = ledgers
        self._leads = leads
        self._interval_s = interval_s
        self._age_s = age_s
        self._log = log

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval_s)
            try:
                leads = await self._leads()
                ids = await self._ledgers.remove_orphans(age_s=self._age_s, of_gone_logs=leads)
            except (MetadataError, LedgerError, RegistryError) as error:
                self._log.info("orphaned ledgers are not looked for now", why=str(error))
                continue
            self.removed += len(ids)
            if ids:
                self._log.info(
                    "removed ledgers that nothing names",
                    count=len(ids),
                    first=",".join(map(str, ids[:_SHOWN])),
                )
