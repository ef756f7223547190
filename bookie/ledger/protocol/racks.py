"""Which bookies make an ensemble when they stand in racks that fail as a whole.

A rack is a name: bookies of the same one may fail together.  Each write set is to span at least
`least` racks (or WQ, if that is less), so that no rack is all that holds an entry; beyond that, an
ensemble takes as many from each rack as from any other, as far as there are.

    E = 4, WQ = 2, racks r1 (a b) and r2 (c d)     a c b d spans two racks with each write set,
                                                   a b c d does not: entry 0 would be on a and b

What has to be drawn by lot is drawn before: candidates come in an order, and who is first in it is
taken first where nothing else matters.  So the same order gives the same ensemble.

Racks of bookies that are away count for nothing: entries are not sent there (`missing`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Quorums

DEFAULT_RACK = "/default-rack"  # of bookies of which nothing is known
_TRIES_MAX = 2000  # steps of the search for an arrangement, before a weaker one will do


@dataclass(frozen=True, slots=True)
class RackRule:
    """At least so many racks for each write set.  Not `enforced`: as far as it can be had."""

    least: int = 2
    enforced: bool = False

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"a write set spans at least one rack, not {self.least}")


class Racks:
    """Where bookies are, as far as is known."""

    def __init__(self, of: Mapping[BookieId, str]) -> None:
        self._of = of

    def rack(self, bookie: BookieId) -> str:
        return self._of.get(bookie) or DEFAULT_RACK

    def spanned(
        self, ensemble: Sequence[BookieId], quorums: Quorums, missing: Collection[BookieId] = ()
    ) -> int:
        """How many racks each write set has, at least."""
        return min(
            len({self.rack(ensemble[p]) for p in write_set if ensemble[p] not in missing})
            for write_set in quorums.write_sets()
        )

    # -- a new ensemble

    def arranged(
        self, candidates: Sequence[BookieId], quorums: Quorums, rule: RackRule
    ) -> Ensemble | None:
        """An ensemble of these; None if there are too few, or the rule is enforced and fails."""
        if len(candidates) < quorums.ensemble:
            return None
        wanted = min(rule.least, quorums.write)
        members = self._spread(candidates, quorums.ensemble)
        there_are = len({self.rack(bookie) for bookie in members})
        for least in range(min(wanted, there_are), 1, -1):
            if rule.enforced and least < wanted:
                return None
            search = _Search(self, members, quorums, least)
            if search.place([]):
                return tuple(search.found)
        return None if rule.enforced and wanted > 1 else tuple(members)

    def _spread(self, candidates: Sequence[BookieId], count: int) -> list[BookieId]:
        """So many of them, as even over the racks as can be, and those of a rack far apart."""
        used: Counter[str] = Counter()
        rounds: list[tuple[int, int, BookieId]] = []
        for order, bookie in enumerate(candidates):
            rack = self.rack(bookie)
            rounds.append((used[rack], order, bookie))
            used[rack] += 1
        return [bookie for _, _, bookie in sorted(rounds)[:count]]

    # -- a change

    def replacement(
        self,
        ensemble: Sequence[BookieId],
        position: int,
        spares: Sequence[BookieId],
        quorums: Quorums,
        rule: RackRule,
        missing: Collection[BookieId] = (),
    ) -> BookieId | None:
        """Who of the spares takes that place best; None if nobody may.

        `missing`: other members that have failed, and are still in the ensemble.
        """
        best: tuple[tuple[int, int], BookieId] | None = None
        wanted = min(rule.least, quorums.write)
        neighbours = [w for w in quorums.write_sets() if position in w]
        others = Counter(
            self.rack(b) for p, b in enumerate(ensemble) if p != position and b not in missing
        )
        for spare in spares:
            racks = [
                {
                    self.rack(spare if p == position else ensemble[p])
                    for p in write_set
                    if p == position or ensemble[p] not in missing
                }
                for write_set in neighbours
            ]
            least = min(wanted, *map(len, racks))
            if rule.enforced and least < wanted:
                continue
            value = (-least, others[self.rack(spare)])
            if best is None or value < best[0]:
                best = (value, spare)
        return None if best is None else best[1]


class _Search:
    """Puts members on positions so that each write set has enough racks, first come first."""

    def __init__(
        self, racks: Racks, members: Sequence[BookieId], quorums: Quorums, least: int
    ) -> None:
        self.found: list[BookieId] = []
        self._racks = racks
        self._members = members
        self._quorums = quorums
        self._least = least
        self._tries = 0

    def place(self, placed: list[BookieId]) -> bool:
        self._tries += 1
        if self._tries > _TRIES_MAX or not self._may_do(placed):
            return False
        if len(placed) == self._quorums.ensemble:
            self.found = placed
            return True
        return any(self.place([*placed, b]) for b in self._members if b not in placed)

    def _may_do(self, placed: Sequence[BookieId]) -> bool:
        """Each write set has enough racks, or places that are free for them."""
        for write_set in self._quorums.write_sets():
            racks = {self._racks.rack(placed[p]) for p in write_set if p < len(placed)}
            free = sum(p >= len(placed) for p in write_set)
            if len(racks) + free < self._least:
                return False
        return True
