"""How a log ends: terminated, closed, cleared to be deleted, or given up.

The first three let everything finish that was begun: what is pending is confirmed, a roll is over.
Whoever gives up touches nothing any more; what is in doubt then, the next opening decides.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError
from daybook.managed_ledger.appends import Appends
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.cursors import Cursors
from daybook.managed_ledger.errors import (
    ClosedError,
    FencedError,
    ManagedLedgerError,
    TerminatedError,
)
from daybook.managed_ledger.ledger_list import LedgerList
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.log import Event, State, Stop
from daybook.managed_ledger.records import nested
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.managed_ledger.rolling import Rolling
from daybook.wire.metadata.store import MetadataError


class EndingLog(Protocol):
    """What is needed of the log."""

    name: str
    config: LogConfig
    ledgers: LedgerList

    @property
    def context(self) -> LogContext: ...

    @property
    def state(self) -> State: ...

    @property
    def usable(self) -> bool: ...

    @property
    def terminated(self) -> Position | None: ...

    @property
    def last_confirmed(self) -> Position: ...

    @property
    def waiting_for(self) -> str: ...

    def check(self) -> None:
        """Raise if the log is of no use any more."""
        ...

    def feed(self, event: Event) -> None:
        """Give an event to the machine, and wake whoever waits for its state."""
        ...

    def wake(self) -> None: ...

    async def wait_changed(self) -> None:
        """Return when entries were confirmed, or the state may be another one."""
        ...

    async def update_list(
        self,
        change: Callable[[ManagedLedgerInfo], None],
        *,
        last: ManagedLedgerError | None = None,
    ) -> None:
        """ManagedLedgerError, MetadataError."""
        ...


class Ending:
    """`refused`: why no appends are taken, though the log may be open still."""

    def __init__(
        self, log: EndingLog, rolling: Rolling, cursors: Cursors, appends: Appends
    ) -> None:
        self.refused: ManagedLedgerError | None = None
        self._log = log
        self._rolling = rolling
        self._cursors = cursors
        self._appends = appends
        self._terminating = trio.Lock()
        if log.terminated is not None:
            self.refused = TerminatedError(f"{log.name} was terminated")

    # -- for ever

    async def terminate(self) -> Position:
        self._log.check()
        return await self._log.context.to_the_end(self._terminate)

    async def _terminate(self) -> Position:
        log = self._log
        async with self._terminating:
            if log.terminated is None:
                before = self.refused
                self.refused = TerminatedError(f"{log.name} was terminated")
                await self._drained()
                end = nested(log.last_confirmed)
                try:
                    await log.update_list(lambda info: info.terminatedPosition.CopyFrom(end))
                except MetadataError:
                    self.refused = before
                    raise
        assert log.terminated is not None
        return log.terminated

    async def _drained(self) -> None:
        """Nothing is pending, and no roll goes on."""
        log = self._log
        while log.usable and (self._appends.bytes or log.state is not State.OPEN):
            await log.wait_changed()
        log.check()

    # -- this handle, in good order

    async def close(self) -> None:
        log = self._log
        self.refused = self.refused or ClosedError(f"{log.name} is being closed")
        closed = ClosedError(f"{log.name} was closed")
        deadline_s = trio.current_time() + log.config.close_s
        try:
            with trio.move_on_at(deadline_s) as scope:
                await self._drained()
                await self._cursors.close()
                await log.ledgers.stop_behind_writes(closed)
            log.check()
            if scope.cancelled_caught:
                why = log.waiting_for or "bookies or metadata store do not answer"
                raise ManagedLedgerError(
                    f"{log.name} could not be closed in {log.config.close_s} s: {why}"
                )
            log.feed(Stop())
            try:
                # Whoever opens the log next closes the ledger if we do not.
                with trio.move_on_at(deadline_s), suppress(LedgerError, MetadataError):
                    await self._rolling.present.close()
            finally:
                self.drop(closed)
        finally:
            self.abandon()

    async def clear(self) -> list[int]:
        log = self._log
        log.check()
        error = ClosedError(f"{log.name} is being deleted")
        self.refused = self.refused or error
        for name in list(self._cursors.by_name):
            await self._cursors.delete(name)
        while log.state is State.ROLLING:  # Its ledger is about to be listed.
            await log.wait_changed()
        doomed: list[int] = []

        def empty(info: ManagedLedgerInfo) -> None:
            doomed.extend(ledger.ledgerId for ledger in info.ledgerInfo)
            info.ClearField("ledgerInfo")

        await log.update_list(empty, last=error)
        self.abandon()
        return doomed

    # -- at once

    def abandon(self) -> None:
        if self._log.usable:
            self._log.feed(Stop())
            self.drop(FencedError(f"{self._log.name} was given up by its owner"))

    def drop(self, error: ManagedLedgerError) -> None:
        """The machine has stopped: so does everything else, and whoever waits is told `error`."""
        self._log.ledgers.stop(error)
        self._rolling.abandon()
        self._cursors.abandon(error)
        self._log.context.nursery.cancel_scope.cancel()
        self._appends.fail(error)
        self._log.wake()
