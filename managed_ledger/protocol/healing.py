"""When a ledger whose entries lack a copy is left for a new one.

The first rollover comes soon after a complete ensemble is available.  It does not come at once,
since all logs of a host see the same bookie come back.  While the new ledgers lack copies, too,
rollovers become rarer: a bookie that is registered and takes no entries must not fill the lists
with small ledgers.  When a ledger has kept all its copies for as long as the last pause, the
back-off starts from zero.

    interval 60 s, a bookie that never takes an entry: rollovers after 0, 1, 3, 7, 15, 31, 63, 127
    minutes, and hourly from there on
"""

from dataclasses import dataclass

_DOUBLINGS_MAX = 6
_SPREAD = 0.25  # the share of the interval


@dataclass(frozen=True, slots=True)
class HealingSnapshot:
    rolls: int
    rest_until_s: float
    since_s: float | None


class Healing:
    """The back-off of one log.  `chance`, from 0 to 1, spreads the first rollovers of many logs."""

    def __init__(self, chance: float) -> None:
        self.rolls = 0  # since a ledger was whole for the last time
        self._chance = chance
        self._rest_until_s = float("-inf")
        self._since_s: float | None = None  # since when a complete ensemble is available

    def whole(self, now_s: float) -> None:
        """Note that the present ledger lacks no copies."""
        self._since_s = None
        if now_s >= self._rest_until_s:
            self.rolls = 0

    def due(self, now_s: float, interval_s: float, *, replaceable: bool) -> bool:
        """Return True if a rollover is due now, and count it as begun.

        The present ledger lacks copies.  `replaceable` says that a new one would have all of them,
        as far as is known.
        """
        if not replaceable:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        # Both count: the pause after the last rollover, and the spread after a bookie came back.
        if now_s < max(self._rest_until_s, self._since_s + self._chance * _SPREAD * interval_s):
            return False
        self._rest_until_s = now_s + interval_s * 2 ** min(self.rolls, _DOUBLINGS_MAX)
        self.rolls += 1
        return True

    def snapshot(self) -> HealingSnapshot:
        return HealingSnapshot(self.rolls, self._rest_until_s, self._since_s)

    def restore(self, snapshot: HealingSnapshot) -> None:
        self.rolls = snapshot.rolls
        self._rest_until_s = snapshot.rest_until_s
        self._since_s = snapshot.since_s

    def canonical(self) -> HealingSnapshot:
        return self.snapshot()
