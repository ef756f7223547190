"""Which ledgers of a log may go: those that every durable cursor *and* retention have let go.

Only from the front, and never the ledger that is being written.  A cursor holds what lies behind
its *stored* position, not behind the one in memory: after a crash the stored one is what counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daybook.managed_ledger.position import Position

DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """Acknowledged data stay this long, and up to this size; None is for ever."""

    time_ms: int | None = 7 * DAY_MS
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """A ledger that is written no more."""

    ledger_id: int
    entries: int
    bytes: int
    closed_ms: int


def trimmable(
    sealed: Sequence[Sealed], stored: Iterable[Position], retention: Retention, now_ms: int
) -> list[int]:
    """The ids of the ledgers at the front that may go, in order.

    Time and size limit each on its own what is kept beyond the cursors' need: a ledger goes when it
    is too old, or when those behind it fill the size.  With neither limit everything stays.
    """
    slowest = min(stored, default=None)
    total = sum(ledger.bytes for ledger in sealed)
    gone: list[int] = []
    for ledger in sealed:
        consumed = slowest is None or slowest >= Position(ledger.ledger_id, ledger.entries - 1)
        too_old = retention.time_ms is not None and now_ms - ledger.closed_ms >= retention.time_ms
        over_size = retention.bytes is not None and total - ledger.bytes >= retention.bytes
        if not consumed or not (too_old or over_size):
            break
        total -= ledger.bytes
        gone.append(ledger.ledger_id)
    return gone
