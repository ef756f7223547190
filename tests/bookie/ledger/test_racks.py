"""Ensembles over racks: no arrangement is better or more even."""

from collections import Counter
from itertools import permutations, product
from random import Random

import pytest

from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.ledger.protocol.racks import DEFAULT_RACK, RackRule, Racks

STRICT = RackRule(2, enforced=True)
QUORUMS = [Quorums(e, w, 1) for e in range(1, 6) for w in range(1, e + 1)]
SIZES = [sizes for sizes in product(range(4), repeat=3) if sorted(sizes, reverse=True) == [*sizes]]


def racks_of(*sizes: int) -> tuple[Racks, list[BookieId]]:
    """Return so many bookies in each rack: a1 a2 ..., b1 b2 ..."""
    names = [f"{rack}{n}" for rack, size in zip("abcdef", sizes, strict=False) for n in range(size)]
    bookies = [BookieId(name) for name in names]
    return Racks({bookie: f"/{bookie[0]}" for bookie in bookies}), bookies


def spans(ensemble: str, quorums: Quorums) -> int:
    return min(len({ensemble[p] for p in write_set}) for write_set in quorums.write_sets())


@pytest.mark.parametrize("least", [2, 3])
@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_an_arrangement_is_found_if_there_is_one(quorums: Quorums, least: int) -> None:
    for sizes in SIZES:
        racks, bookies = racks_of(*sizes)
        letters = "".join(bookie[0] for bookie in bookies)
        wanted = min(least, quorums.write)
        there_is = any(
            spans("".join(order), quorums) >= wanted
            for order in set(permutations(letters, quorums.ensemble))
        )
        found = racks.arranged(bookies, quorums, RackRule(least, enforced=True))
        assert (found is not None) == there_is, sizes
        if found is not None:
            assert len(set(found)) == quorums.ensemble
            assert racks.spanned(found, quorums) >= wanted


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_without_enforcing_there_is_an_ensemble_whenever_there_are_enough(quorums: Quorums) -> None:
    for sizes in SIZES:
        racks, bookies = racks_of(*sizes)
        strict = racks.arranged(bookies, quorums, STRICT)
        found = racks.arranged(bookies, quorums, RackRule())
        assert (found is not None) == (len(bookies) >= quorums.ensemble)
        if strict is not None:
            assert found == strict
        if found is not None:
            used = Counter(bookie[0] for bookie in found)
            there = Counter(bookie[0] for bookie in bookies)
            fullest = max(used.values())
            assert all(used[r] >= fullest - 1 or used[r] == there[r] for r in there), "even"


def test_an_order_of_candidates_gives_one_ensemble_and_another_order_others() -> None:
    racks, bookies = racks_of(3, 3, 3)
    quorums = Quorums(3, 3, 2)
    drawn: set[tuple[BookieId, ...]] = set()
    for seed in range(300):
        candidates = Random(seed).sample(bookies, 9)
        ensemble = racks.arranged(candidates, quorums, RackRule())
        assert ensemble == racks.arranged(candidates, quorums, RackRule())
        assert ensemble is not None
        drawn.add(tuple(sorted(ensemble)))
    assert len(drawn) == 27, "any of each rack"


def test_a_large_cluster_is_arranged_at_once() -> None:
    racks, bookies = racks_of(40, 40, 40, 40, 40)
    for quorums in (Quorums(20, 3, 2), Quorums(30, 5, 3)):
        found = racks.arranged(bookies, quorums, RackRule(3, enforced=True))
        assert found is not None
        assert racks.spanned(found, quorums) >= 3


def test_who_is_in_no_rack_is_in_the_default_one() -> None:
    racks = Racks({BookieId("a"): "/a", BookieId("b"): ""})
    assert racks.rack(BookieId("b")) == racks.rack(BookieId("c")) == DEFAULT_RACK
    with pytest.raises(ValueError, match="at least one rack"):
        RackRule(0)


# -- changes


def replaced(
    ensemble: str, position: int, spares: str, rule: RackRule, *, write: int = 3, missing: str = ""
) -> str | None:
    """Return the replacement; bookies are named by their racks, and a digit."""
    members = [BookieId(name) for name in ensemble.split()]
    others = [BookieId(name) for name in spares.split()]
    racks = Racks({bookie: bookie[0] for bookie in members + others})
    away = [BookieId(name) for name in missing.split()]
    quorums = Quorums(len(members), write, 1)
    return racks.replacement(members, position, others, quorums, rule, away)


@pytest.mark.parametrize(
    ("ensemble", "spares", "expected"),
    [
        ("a1 b1 c1", "b2 c2 a2 a3", "a2"),  # the rack that is empty now
        ("a1 b1 c1", "b2 c2", "b2"),  # the first of several equally good ones
        ("a1 a2 b1", "b2 a3 c1", "c1"),  # a new rack rather than either
        ("a1 b1 b2", "b3 a2", "a2"),  # two racks rather than one
    ],
)
def test_the_spare_is_taken_that_spreads_best(ensemble: str, spares: str, expected: str) -> None:
    assert replaced(ensemble, 0, spares, RackRule()) == expected
    assert replaced(ensemble, 0, spares, STRICT) == expected


def test_if_nobody_fits_anybody_does_unless_it_is_enforced() -> None:
    assert replaced("a1 b1 b2", 0, "b3", RackRule()) == "b3"
    assert replaced("a1 b1 b2", 0, "b3", STRICT) is None
    assert replaced("a1 b1 b2", 0, "", RackRule()) is None


def test_neighbours_in_the_ring_are_looked_at() -> None:
    """With WQ = 2, a place between two bookies of a rack needs another rack; the ring is closed."""
    assert replaced("a1 b1 a2 b2", 1, "a3 c1", STRICT, write=2) == "c1"
    assert replaced("a1 b1 a2 b2", 3, "a3 b3", STRICT, write=2) == "b3"


def test_members_that_are_away_do_not_count() -> None:
    assert replaced("a1 b1 c1", 0, "b2 c2", RackRule(), missing="a1 c1") == "c2"
    assert replaced("a1 b1 c1", 0, "b2", STRICT, missing="a1 c1") is None
