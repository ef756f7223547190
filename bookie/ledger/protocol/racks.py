"""Ensembles of bookies in racks that may fail as a whole.

A rack is a name; bookies in the same rack may fail together.  Each write set should span at least
`least` racks (or WQ, if that is less), so that no entry is held by one rack only.  Beyond that, an
ensemble takes the same number of bookies from each rack, as far as possible.

    E = 4, WQ = 2, racks r1 (a b) and r2 (c d)     a c b d spans two racks with each write set,
                                                   a b c d does not: entry 0 would be on a and b

Random choices are made beforehand: candidates come in random order, and the first one is taken
where nothing else matters.  The same order thus gives the same ensemble.

The racks of absent members do not count, since entries are not sent there (`missing`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Quorums

DEFAULT_RACK = "/default-rack"  # bookies whose rack is unknown
_TRIES_MAX = 2000  # search steps before a weaker arrangement is accepted


@dataclass(frozen=True, slots=True)
class RackRule:
    """The racks that each write set has to span; as far as possible, unless `enforced`."""

    least: int = 2
    enforced: bool = False

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"a write set must span at least one rack, not {self.least}")


class Racks:
    """The racks of bookies, as far as they are known."""

    def __init__(self, of: Mapping[BookieId, str]) -> None:
        self._of = of

    def rack(self, bookie: BookieId) -> str:
        return self._of.get(bookie) or DEFAULT_RACK

    def spanned(
        self, ensemble: Sequence[BookieId], quorums: Quorums, missing: Collection[BookieId] = ()
    ) -> int:
        """Return the smallest number of racks that a write set spans."""
        return min(
            len({self.rack(ensemble[p]) for p in write_set if ensemble[p] not in missing})
            for write_set in quorums.write_sets()
        )

    # -- a new ensemble

    def arranged(
        self, candidates: Sequence[BookieId], quorums: Quorums, rule: RackRule
    ) -> Ensemble | None:
        """Return an ensemble of these candidates.

        Return None if there are too few, or if the rule is enforced and cannot be met.
        """
        if len(candidates) < quorums.ensemble:
            return None
        wanted = min(rule.least, quorums.write)
        rack_count = min(len({self.rack(bookie) for bookie in candidates}), quorums.ensemble)
        if rule.enforced and rack_count < wanted:
            return None
        members = self._spread(candidates, quorums.ensemble)
        for least in range(min(wanted, rack_count), 1, -1):
            if rule.enforced and least < wanted:
                return None
            search = _Search(self, members, quorums, least)
            if search.place([]):
                return tuple(search.found)
        return None if rule.enforced and wanted > 1 else tuple(members)

    def _spread(self, candidates: Sequence[BookieId], count: int) -> list[BookieId]:
        """Return `count` candidates, evenly spread over the racks, those of one rack far apart."""
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
        """Return the spare that fits the position best, or None if none may take it.

        `missing` are other members of the ensemble that have failed and were not replaced yet.
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
            # More racks for the weakest write set come first, then the rack used least.
            value = (-least, others[self.rack(spare)])
            if best is None or value < best[0]:
                best = (value, spare)
        return None if best is None else best[1]


class _Search:
    """A depth-first search for positions such that each write set has enough racks."""

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
        if self._tries > _TRIES_MAX or not self._can_succeed(placed):
            return False
        if len(placed) == self._quorums.ensemble:
            self.found = placed
            return True
        return any(self.place([*placed, b]) for b in self._members if b not in placed)

    def _can_succeed(self, placed: Sequence[BookieId]) -> bool:
        """Return True if each write set has enough racks, or free positions for them."""
        for write_set in self._quorums.write_sets():
            racks = {self._racks.rack(placed[p]) for p in write_set if p < len(placed)}
            free = sum(p >= len(placed) for p in write_set)
            if len(racks) + free < self._least:
                return False
        return True
