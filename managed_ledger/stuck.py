"""Leaves ledgers that get no ack quorum any more; `protocol.stuck` says when.

A cursor begins a new ledger, with all that it knows, and deletes the old one.  A log can not: which
of its entries the old ledger keeps, recovery decides.  So it ends, as if it were taken over, and
whoever serves it opens it anew.  But not before its bookies say that they could recover what
opening has to recover: else it would be there no longer, and before it could at least be read.
"""

from collections.abc import Sequence
from typing import Protocol

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.protocol.stuck import Key, Stall
from daybook.wire.metadata.store import MetadataError

_PAUSE_SPREAD = (1.0, 1.25)
_START_SPREAD = 0.25  # of the interval


class Watch:
    """Looks after the ledger of a log, or of a cursor."""

    def __init__(self, context: LogContext, *key: str) -> None:
        self._context = context
        self._key: Key = key
        self._stall = Stall()

    def may_leave(self, writer: LedgerWriter, config: LogConfig) -> bool:
        """For a timer; yes is taken to be carried out, if `was_kept` is not called."""
        now_s = trio.current_time()
        confirmed = (
            (writer.ledger_id, writer.last_add_confirmed) if writer.pending_entries else None
        )
        if self._stall.seconds(confirmed, now_s) < config.stuck_s or not writer.stuck:
            return False
        context = self._context
        spread = context.rng.uniform(*_PAUSE_SPREAD)
        return context.pauses.may_leave(self._key, now_s, config.heal_interval_s, spread)

    def was_kept(self, config: LogConfig) -> None:
        context = self._context
        length_s = config.heal_interval_s * context.rng.uniform(*_PAUSE_SPREAD)
        context.pauses.was_kept(self._key, trio.current_time(), length_s)


class StuckLog(Protocol):
    """What is needed of the log."""

    name: str
    config: LogConfig

    @property
    def context(self) -> LogContext: ...

    @property
    def usable(self) -> bool: ...

    def unclosed(self) -> Sequence[LedgerWriter]:
        """Of all ledgers that the next opening recovers; the present one of the log first."""
        ...

    def lost(self, reason: str) -> None: ...


class Leaving:
    """Has a log give up its present ledger."""

    def __init__(self, log: StuckLog) -> None:
        self._log = log
        self._watch = Watch(log.context, log.name)
        self._running = False

    def check(self, writer: LedgerWriter) -> None:
        """For a timer.  `writer`: of the present ledger."""
        log = self._log
        if log.usable and not self._running and self._watch.may_leave(writer, log.config):
            self._running = True
            log.context.nursery.start_soon(self._leave, writer)

    async def _leave(self, writer: LedgerWriter) -> None:
        log, confirmed, since_s = self._log, writer.last_add_confirmed, trio.current_time()
        try:
            # All logs of a host see the same bookies go.
            await trio.sleep(log.context.rng.uniform(0, _START_SPREAD * log.config.heal_interval_s))
            recoverable = await self._are_recoverable(log.unclosed())
            same = writer is log.unclosed()[0] and writer.last_add_confirmed == confirmed
            if not (recoverable and same and writer.stuck):
                self._watch.was_kept(log.config)
            else:
                waited_s = log.config.stuck_s + trio.current_time() - since_s
                log.lost(
                    f"nothing was confirmed for {waited_s:.0f} s or more ({writer.waiting_for});"
                    " it is opened anew, with a new ledger"
                )
        finally:
            self._running = False

    async def _are_recoverable(self, writers: Sequence[LedgerWriter]) -> bool:
        try:
            for writer in writers:
                if not await self._log.context.client.can_recover(writer):
                    return False
        except (LedgerError, MetadataError):
            return False
        return True
