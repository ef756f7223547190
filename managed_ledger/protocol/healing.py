"""When a ledger of which entries lack a copy is left for a new one.

The first time soon after a whole ensemble could be had: not at once, since all logs of a host see
the same bookie come back.  Then, while the new ledgers turn out to lack copies, too, less and less
often: a bookie that is registered and takes nothing must not fill the lists with small ledgers.
When a ledger has stayed whole for as long as the pause was, all is forgotten.

    interval 60 s, a bookie that never takes anything: rolls after 0, 1, 3, 7, 15, 31, 63, 127 ...
    minutes, and hourly from there on
"""

from dataclasses import dataclass

_DOUBLINGS_MAX = 6
_SPREAD = 0.25  # of the interval


@dataclass(frozen=True, slots=True)
class Snapshot:
    rolls: int
    rest_until_s: float
    since_s: float | None


class Healing:
    """`chance`, from 0 to 1, spreads the first rolls of many logs."""

    def __init__(self, chance: float) -> None:
        self.rolls = 0  # that have not helped so far
        self._chance = chance
        self._rest_until_s = float("-inf")
        self._since_s: float | None = None  # a whole ensemble could be had

    def whole(self, now_s: float) -> None:
        """The present ledger lacks nothing."""
        self._since_s = None
        if now_s >= self._rest_until_s:
            self.rolls = 0

    def due(self, now_s: float, interval_s: float, *, replaceable: bool) -> bool:
        """Whether to go over to a new ledger now; the present one lacks copies.

        `replaceable`: a new one would be whole, as far as is known.  A roll that is due is taken
        to be begun.
        """
        if not replaceable:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if now_s < max(self._rest_until_s, self._since_s + self._chance * _SPREAD * interval_s):
            return False
        self._rest_until_s = now_s + interval_s * 2 ** min(self.rolls, _DOUBLINGS_MAX)
        self.rolls += 1
        return True

    def snapshot(self) -> Snapshot:
        return Snapshot(self.rolls, self._rest_until_s, self._since_s)

    def restore(self, snapshot: Snapshot) -> None:
        self.rolls = snapshot.rolls
        self._rest_until_s = snapshot.rest_until_s
        self._since_s = snapshot.since_s

    def canonical(self) -> Snapshot:
        return self.snapshot()
