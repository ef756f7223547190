"""When a log leaves its present ledger for a new one.

A ledger is left by a rollover if it is full, old, or crowded, or if a new one would have copies
that this one lacks.  A ledger that gets no ack quorum cannot be left in that way, because only its
recovery decides which entries it keeps.  Then the log ends, and the broker opens it again.
"""

from collections.abc import Callable, Sequence

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.ack_set import ENTRIES_MAX
from daybook.managed_ledger.context import LogConfig, LogContext
from daybook.managed_ledger.protocol.healing import Healing
from daybook.managed_ledger.stalled import StallWatch
from daybook.wire.metadata.store import MetadataError

# A ledger is rolled here however full the list is, since an ack set has a bit for each entry.
ROLL_ENTRIES_MAX = ENTRIES_MAX // 4 * 3
_LEAVE_SPREAD = 0.25  # the share of the heal interval


class Leaving:
    """Looks after the present ledger of one log.

    `unclosed` returns the writers of all ledgers that the next opening has to recover, the present
    one first, and `lost` ends the log.
    """

    def __init__(
        self,
        context: LogContext,
        name: str,
        unclosed: Callable[[], Sequence[LedgerWriter]],
        lost: Callable[[str], None],
    ) -> None:
        self._context = context
        self._unclosed = unclosed
        self._lost = lost
        self._began_s = trio.current_time()
        self._healing = Healing(context.rng.random())
        self._stall = StallWatch(context, name)
        self._asking = False  # The bookies are being asked if they can recover a stalled ledger.

    def begin(self) -> None:
        """Note that another ledger is the present one."""
        self._began_s = trio.current_time()

    # -- rolling over

    def roll_is_due(self, writer: LedgerWriter, config: LogConfig, stretch: float) -> bool:
        """Return True if the present ledger is full, or old, or could be healthier."""
        now_s = trio.current_time()
        entries, age_s = writer.last_add_confirmed + 1, now_s - self._began_s
        full = (
            entries >= config.roll_entries * stretch or writer.length >= config.roll_bytes * stretch
        )
        old = entries > 0 and age_s >= config.roll_age_s * stretch
        due = full and age_s >= config.roll_age_min_s * stretch
        due |= old or entries >= ROLL_ENTRIES_MAX or writer.crowded
        return due or self._healing_is_due(writer, config.heal_interval_s * stretch, now_s)

    def _healing_is_due(self, writer: LedgerWriter, interval_s: float, now_s: float) -> bool:
        if not writer.under_replicated:
            self._healing.whole(now_s)
            return False
        return self._healing.due(now_s, interval_s, replaceable=writer.replaceable)

    # -- a ledger without an ack quorum

    def check_stalled(self, writer: LedgerWriter, config: LogConfig) -> None:
        """End the log if its ledger has stalled and recovery is possible.  A timer calls this."""
        if not self._asking and self._stall.may_leave(writer, config):
            self._asking = True
            self._context.tasks.start_soon(self._leave_stalled, writer, config)

    async def _leave_stalled(self, writer: LedgerWriter, config: LogConfig) -> None:
        """End the log, so that the broker opens it again, if its bookies allow recovery.

        The bookies are asked first.  If recovery were impossible, the log could not be opened
        again, while now it can at least be read.
        """
        confirmed, since_s = writer.last_add_confirmed, trio.current_time()
        try:
            # All logs of a host lose the same bookies at the same time.
            spread_s = _LEAVE_SPREAD * config.heal_interval_s
            await trio.sleep(self._context.rng.uniform(0, spread_s))
            recoverable = await self._are_recoverable(self._unclosed())
            # The log may have gone on while the bookies were asked.
            present = self._unclosed()[0]
            same = writer is present and writer.last_add_confirmed == confirmed
            if not (recoverable and same and writer.stuck):
                self._stall.was_kept(config)
            else:
                waited_s = config.stuck_s + trio.current_time() - since_s
                self._lost(
                    f"nothing was confirmed for {waited_s:.0f} s or more ({writer.waiting_for});"
                    " it is opened again, with a new ledger"
                )
        finally:
            self._asking = False

    async def _are_recoverable(self, writers: Sequence[LedgerWriter]) -> bool:
        try:
            for writer in writers:
                if not await self._context.client.can_recover(writer):
                    return False
        except (LedgerError, MetadataError):
            return False
        return True
