"""Watches the ledger of a log or of a cursor for a missing ack quorum; see `protocol.stalled`.

A cursor that leaves its ledger starts a new one with everything it knows, and deletes the old one.
A log cannot do that: only recovery decides which entries the old ledger keeps.  So the log ends as
if another owner had taken it over, and the broker opens it again (`log`).
"""

import trio

from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.protocol.stalled import Key, Stall

_BACKOFF_SPREAD = (1.0, 1.25)


class StallWatch:
    """Decides when to leave the ledger of one log, or of one cursor."""

    def __init__(self, context: LogContext, *key: str) -> None:
        self._context = context
        self._key: Key = key
        self._stall = Stall()

    def may_leave(self, writer: LedgerWriter, config: LogConfig) -> bool:
        """Return True if the ledger is to be left now.  A timer calls this.

        The back-off counts a True as carried out, unless the caller calls `was_kept`.
        """
        now_s = trio.current_time()
        # Without pending entries nothing can be confirmed, and that is no stall.
        confirmed = (
            (writer.ledger_id, writer.last_add_confirmed) if writer.pending_entries else None
        )
        if self._stall.seconds(confirmed, now_s) < config.stuck_s or not writer.stuck:
            return False
        context = self._context
        spread = context.rng.uniform(*_BACKOFF_SPREAD)
        return context.backoffs.may_leave(self._key, now_s, config.heal_interval_s, spread)

    def was_kept(self, config: LogConfig) -> None:
        """Take back the last True of `may_leave`: the ledger was kept."""
        context = self._context
        length_s = config.heal_interval_s * context.rng.uniform(*_BACKOFF_SPREAD)
        context.backoffs.was_kept(self._key, trio.current_time(), length_s)
