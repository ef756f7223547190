"""Which ledgers of a log may be dropped: those that neither a durable cursor nor retention needs.

Ledgers are dropped only from the front, and the present ledger is never dropped.  A cursor holds
what lies behind its *stored* position, not behind the one in memory: after a crash the cursor is
back at the stored one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daybook.managed_ledger.position import Position

DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """Acknowledged data are kept for this time and up to this size; None means forever."""

    time_ms: int | None = 7 * DAY_MS
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SealedLedger:
    """A closed ledger.  `last_offset` is None if it is not known, or the ledger is empty."""

    ledger_id: int
    entries: int
    bytes: int
    closed_ms: int
    last_offset: int | None = None

    @property
    def last(self) -> Position:
        return Position(self.ledger_id, self.entries - 1)


def trimmable(
    sealed: Sequence[SealedLedger], stored: Iterable[Position], retention: Retention, now_ms: int
) -> list[int]:
    """Return the ids of the ledgers at the front that may be dropped, in order.

    `stored` are the positions of the durable cursors.  The time limit and the size limit each bound
    what is kept beyond the cursors' need: a ledger is dropped when it is too old, or when the
    ledgers behind it fill the size.  With neither limit everything stays.
    """
    slowest = min(stored, default=None)
    total = sum(ledger.bytes for ledger in sealed)  # the ledgers that stay
    gone: list[int] = []
    for ledger in sealed:
        consumed = slowest is None or slowest >= ledger.last
        too_old = retention.time_ms is not None and now_ms - ledger.closed_ms >= retention.time_ms
        over_size = retention.bytes is not None and total - ledger.bytes >= retention.bytes
        if not consumed or not (too_old or over_size):
            break  # A later ledger must not leave a gap.
        total -= ledger.bytes
        gone.append(ledger.ledger_id)
    return gone
