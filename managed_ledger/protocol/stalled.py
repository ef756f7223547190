"""When a ledger that gets no ack quorum any more is left for a new one.

Entries that wait for bookies are confirmed when the bookies come back, and no producer notices.
Leaving the ledger puts these entries in doubt.  So a ledger is left late: only when nothing was
confirmed for a while although enough bookies answer.  It is also left seldom, in case the new
ledgers get no ack quorum either:

    interval 60 s: after 0, 1, 3, 7, 15 minutes and a few seconds, then every quarter of an hour

A log or cursor that leaves no ledger for three times as long as its last pause starts from zero.
"""

from dataclasses import dataclass
from typing import TypeAlias

_DOUBLINGS_MAX = 4
_FORGOTTEN_AFTER = 4  # pauses, the last one included
_PRUNED_MIN = 1000

Key: TypeAlias = tuple[str, ...]  # a log, or a log and one of its cursors


class Stall:
    """Measures how long the same entry has been the next one to be confirmed."""

    def __init__(self) -> None:
        self._confirmed: tuple[int, int] | None = None
        self._since_s = 0.0

    def seconds(self, confirmed: tuple[int, int] | None, now_s: float) -> float:
        """Return the length of the stall so far.

        `confirmed` is the present ledger and the last confirmed entry there; None if no entry is
        pending.
        """
        if confirmed is None or confirmed != self._confirmed:
            self._confirmed, self._since_s = confirmed, now_s
        return now_s - self._since_s


@dataclass(frozen=True, slots=True)
class _Pause:
    number: int
    end_s: float
    forgotten_s: float


class Backoffs:
    """The pauses between two ledgers that a log, or a cursor, leaves.  One instance per host.

    The instance outlives the logs: a log that was opened again and stalls again continues its
    back-off.
    """

    def __init__(self) -> None:
        self._pauses: dict[Key, _Pause] = {}
        self._pruned_at = _PRUNED_MIN  # at so many pauses, those that are forgotten are removed

    def __len__(self) -> int:
        return len(self._pauses)

    def may_leave(self, key: Key, now_s: float, interval_s: float, spread: float) -> bool:
        """Return True if the ledger is to be left now, and count that as done.

        `spread` is 1 or a little more; it separates logs that stalled at the same time.
        """
        pause = self._pauses.get(key)
        if pause is not None and now_s < pause.end_s:
            return False
        number = 0 if pause is None or now_s >= pause.forgotten_s else pause.number + 1
        length_s = interval_s * 2 ** min(number, _DOUBLINGS_MAX) * spread
        self._pause(key, number, now_s, length_s)
        return True

    def was_kept(self, key: Key, now_s: float, interval_s: float) -> None:
        """The ledger was kept.  Retry after one interval without increasing the back-off."""
        self._pause(key, self._pauses[key].number - 1, now_s, interval_s)

    def _pause(self, key: Key, number: int, now_s: float, length_s: float) -> None:
        if len(self._pauses) >= self._pruned_at:
            self._pauses = {k: p for k, p in self._pauses.items() if now_s < p.forgotten_s}
            # The next pruning waits until the rest has doubled, so its cost is amortized.
            self._pruned_at = max(_PRUNED_MIN, 2 * len(self._pauses))
        self._pauses[key] = _Pause(number, now_s + length_s, now_s + _FORGOTTEN_AFTER * length_s)
