"""When a ledger that gets no ack quorum any more is left for a new one.

Entries that wait for bookies are confirmed when these come back, and nobody notices; whoever leaves
the ledger puts them in doubt.  So it is left late: when nothing was confirmed for a while, though
enough bookies answer.  And seldom, when the new ledgers get no ack quorum either:

    interval 60 s: after 0, 1, 3, 7, 15 minutes and a few seconds, and every quarter of an hour then

Whoever needs no such help for three times as long as the last pause begins anew.
"""

from dataclasses import dataclass
from typing import TypeAlias

_DOUBLINGS_MAX = 4
_FORGOTTEN_AFTER = 4  # pauses, the last one itself included
_PRUNED_MIN = 1000

Key: TypeAlias = tuple[str, ...]  # a log, or a log and one of its cursors


class Stall:
    """How long the same entry has been the next one to be confirmed, for whoever looks at times."""

    def __init__(self) -> None:
        self._confirmed: tuple[int, int] | None = None
        self._since_s = 0.0

    def seconds(self, confirmed: tuple[int, int] | None, now_s: float) -> float:
        """`confirmed`: present ledger and last entry there; None if nothing waits."""
        if confirmed is None or confirmed != self._confirmed:
            self._confirmed, self._since_s = confirmed, now_s
        return now_s - self._since_s


@dataclass(frozen=True, slots=True)
class _Pause:
    number: int
    end_s: float
    forgotten_s: float


class Pauses:
    """Between two times that a log, or a cursor, leaves a ledger.  One for all of a host.

    It outlives the logs: who was opened anew, and is stuck again, is still known.
    """

    def __init__(self) -> None:
        self._pauses: dict[Key, _Pause] = {}
        self._pruned_at = _PRUNED_MIN  # so many; then what is forgotten goes

    def __len__(self) -> int:
        return len(self._pauses)

    def may_leave(self, key: Key, now_s: float, interval_s: float, spread: float) -> bool:
        """Whether to leave the ledger now; that is taken to be done.

        `spread`, 1 or a little more, keeps those apart that were stuck together.
        """
        pause = self._pauses.get(key)
        if pause is not None and now_s < pause.end_s:
            return False
        number = 0 if pause is None or now_s >= pause.forgotten_s else pause.number + 1
        length_s = interval_s * 2 ** min(number, _DOUBLINGS_MAX) * spread
        self._pause(key, number, now_s, length_s)
        return True

    def was_kept(self, key: Key, now_s: float, interval_s: float) -> None:
        """It was not left after all: ask again after an interval; that does not count."""
        self._pause(key, self._pauses[key].number - 1, now_s, interval_s)

    def _pause(self, key: Key, number: int, now_s: float, length_s: float) -> None:
        if len(self._pauses) >= self._pruned_at:
            self._pauses = {k: p for k, p in self._pauses.items() if now_s < p.forgotten_s}
            self._pruned_at = max(_PRUNED_MIN, 2 * len(self._pauses))
        self._pauses[key] = _Pause(number, now_s + length_s, now_s + _FORGOTTEN_AFTER * length_s)
