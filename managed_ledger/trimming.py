"""Ledgers of one log that nobody needs any more: off the list, then deleted.  Shell of `trim`.

What may go is decided when the list is written: cursors may have been set back while that waited.
The list comes first, the data after it; what is left of them when a process dies in between is an
orphan (`orphans`).
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursors import Cursors
from daybook.managed_ledger.ledger_list import LedgerList, Row, drop
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol import trim
from daybook.managed_ledger.reading import LogReader
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.managed_ledger.rolling import Rolling


class TrimmedLog(Protocol):
    """What is needed of the log."""

    config: LogConfig
    ledgers: LedgerList

    @property
    def context(self) -> LogContext: ...

    async def update_list(self, change: Callable[[ManagedLedgerInfo], None]) -> None:
        """ManagedLedgerError, MetadataError."""
        ...


class Trimming:
    def __init__(
        self, log: TrimmedLog, rolling: Rolling, cursors: Cursors, reader: LogReader
    ) -> None:
        self._log = log
        self._rolling = rolling
        self._cursors = cursors
        self._reader = reader
        self._one_at_a_time = trio.Lock()

    async def run(self) -> list[int]:
        """Drop what may go; return the ids."""
        gone: list[int] = []

        def cut(info: ManagedLedgerInfo) -> None:
            gone[:] = self._trimmable()  # Cursors may have been set back while we waited.
            drop(info, gone)

        async with self._one_at_a_time:
            if self._trimmable():
                await self._log.update_list(cut)
        for ledger_id in gone:
            self._reader.forget(ledger_id)
        await self._log.context.forget(gone, self._log.ledgers.owner)
        return gone

    def _trimmable(self) -> list[int]:
        now_ms = self._log.context.clock.now_ms()
        held = self._cursors.held_from()
        return trimmable(self._rolling.sealed, held, self._log.config, now_ms)


def trimmable(
    sealed: Iterable[Row], held: Iterable[Position], config: LogConfig, now_ms: int
) -> list[int]:
    """The ids of those sealed ledgers that may go: the same rule for a log that is open, and for
    one that is being opened.
    """
    ledgers = [trim.Sealed(row.ledger_id, row.entries, row.bytes, row.closed_ms) for row in sealed]
    return trim.trimmable(ledgers, held, config.retention, now_ms)
