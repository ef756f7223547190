"""When a bookie that is not registered counts as lost.

One bookie that goes may be restarting: it is waited for.  When a second one is missing too, copies
are at stake, and neither is waited for.  What is missing at the first look is waited for however
many they are: a cluster that starts comes up one by one.
"""

from collections.abc import Collection

from daybook.bookie.ledger.protocol.placement import BookieId


class LostBookies:
    """Tell it who is missing, and it says who is lost."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._since: dict[BookieId, float] = {}
        self._lost: set[BookieId] = set()
        self._looked = False

    @property
    def lost(self) -> frozenset[BookieId]:
        return frozenset(self._lost)

    @property
    def waited_for(self) -> tuple[BookieId, ...]:
        return tuple(bookie for bookie in self._since if bookie not in self._lost)

    def look(self, now: float, missing: Collection[BookieId]) -> float | None:
        """Take in who is not registered now; return when to look again at the latest.

        `missing` are bookies that belong to the cluster, or that ledgers name.
        """
        self._since = {b: since for b, since in self._since.items() if b in missing}
        self._lost &= set(missing)
        waited_before = self.waited_for
        fresh = [bookie for bookie in missing if bookie not in self._since]
        for bookie in sorted(fresh):
            self._since[bookie] = now
        if self._looked and fresh and len(fresh) + len(waited_before) > 1:
            self._lost.update(self._since)
        self._looked = True
        for bookie, since in self._since.items():
            if now >= since + self.delay_s:
                self._lost.add(bookie)
        return min((self._since[b] + self.delay_s for b in self.waited_for), default=None)

    def hurry(self) -> None:
        """Somebody has asked for it: nobody is waited for."""
        self._lost.update(self._since)
