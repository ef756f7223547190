"""The rule when a bookie that is not registered counts as lost.

A single missing bookie may be restarting: it counts as lost after a delay.  When a second bookie is
missing too, copies are at stake, and both count as lost without a delay.  All bookies missing at
the first look get the delay, however many there are: bookies of a starting cluster come up one by
one.
"""

from collections.abc import Collection

from daybook.bookie.ledger.protocol.placement import BookieId


class LostBookies:
    """The lost bookies, from the missing ones at each look."""

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
        """Record the bookies missing now; return when to look again at the latest.

        `missing` bookies belong to the cluster, or ledgers name them.
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
        """Count all missing bookies as lost now, because an audit was requested."""
        self._lost.update(self._since)
