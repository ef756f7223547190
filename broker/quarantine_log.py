"""Log of the bookies that the ledger client of a broker puts into quarantine, and uses again.

Without it nobody sees why new ledgers avoid a bookie, or why a topic waits.
"""

import trio

from daybook.bookie.ledger.ensemble import Quarantined, QuarantineEvent
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.wire.logging import LIMITER_INTERVAL_S, Log

_LINES_MAX = 4  # about one bookie, in one interval


class QuarantineLog:
    """Writes a line for each change, and a few lines a minute for a bookie that comes and goes.

    Further changes are counted.  The last one of them follows at the end of the minute, so that the
    log always ends with the present state of each bookie.
    """

    def __init__(self, log: Log, nursery: trio.Nursery) -> None:
        self._log = log
        self._nursery = nursery
        self._until_s = 0.0  # the end of the present interval
        self._lines: dict[BookieId, int] = {}  # written in it
        # The last change of each bookie with too many, and the number of those dropped before.
        self._held: dict[BookieId, tuple[QuarantineEvent, int]] = {}

    def note(self, event: QuarantineEvent) -> None:
        """Log a change, now or at the end of the interval."""
        now_s = trio.current_time()
        if now_s >= self._until_s and not self._held:
            self._until_s = now_s + LIMITER_INTERVAL_S
            self._lines.clear()
        bookie = event.bookie
        if self._lines.get(bookie, 0) < _LINES_MAX:
            self._lines[bookie] = self._lines.get(bookie, 0) + 1
            self._write(event)
            return
        if not self._held:
            self._nursery.start_soon(self._end_interval)
        held = self._held.get(bookie)
        self._held[bookie] = event, 0 if held is None else held[1] + 1

    async def _end_interval(self) -> None:
        await trio.sleep_until(self._until_s)
        held, self._held = self._held, {}
        self._until_s = trio.current_time() + LIMITER_INTERVAL_S
        self._lines = dict.fromkeys(held, 1)
        for event, dropped in held.values():
            self._write(event, **({"not_logged": dropped} if dropped else {}))

    def _write(self, event: QuarantineEvent, **facts: int) -> None:
        if isinstance(event, Quarantined):
            self._log.warning(
                "a bookie failed, and is not used until it answers again",
                bookie=event.bookie,
                why=event.why,
                **facts,
            )
        else:
            self._log.info(
                "a bookie that had failed answers, and is used again",
                bookie=event.bookie,
                after_s=round(event.after_s, 1),
                **facts,
            )
