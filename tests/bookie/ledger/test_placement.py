"""The thresholds, for every small configuration, compared with their definition."""

from itertools import combinations, product

import pytest

from daybook.bookie.ledger.protocol.placement import (
    BookieId,
    Fragment,
    Quorums,
    fragment_at,
    with_fragment,
)

ALL = [Quorums(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


def test_write_sets_go_round() -> None:
    quorums = Quorums(4, 3, 2)
    assert [quorums.write_set(entry) for entry in (0, 1, 2, 7)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 0),
        (3, 0, 1),
    ]
    assert quorums.write_set(2**40 + 1) == (1, 2, 3)


@pytest.mark.parametrize("quorums", ALL, ids=str)
def test_a_position_holds_the_entries_in_whose_write_set_it_is(quorums: Quorums) -> None:
    for position, entry_id in product(range(quorums.ensemble), range(20)):
        assert quorums.holds(position, entry_id) == (position in quorums.write_set(entry_id))


@pytest.mark.parametrize("quorums", ALL, ids=str)
def test_covered_means_that_no_ack_quorum_could_still_accept(quorums: Quorums) -> None:
    positions = range(quorums.ensemble)
    for size in range(quorums.ensemble + 1):
        for answered in combinations(positions, size):
            could = any(
                not set(ack_quorum) & set(answered)
                for write_set in quorums.write_sets()
                for ack_quorum in combinations(write_set, quorums.ack)
            )
            assert quorums.is_covered(answered) == (not could)


@pytest.mark.parametrize("quorums", ALL, ids=str)
def test_absent_means_that_no_ack_quorum_can_hold_it(quorums: Quorums) -> None:
    for denials in range(quorums.write + 1):
        could = quorums.write - denials >= quorums.ack
        assert (denials >= quorums.absent) == (not could)


@pytest.mark.parametrize("quorums", ALL, ids=str)
def test_entries_can_be_confirmed_if_each_write_set_has_an_ack_quorum(quorums: Quorums) -> None:
    for size in range(quorums.ensemble + 1):
        for live in combinations(range(quorums.ensemble), size):
            can = all(
                any(set(q) <= set(live) for q in combinations(write_set, quorums.ack))
                for write_set in quorums.write_sets()
            )
            assert quorums.can_confirm(live) == can


def test_quorums_that_contradict_each_other_are_refused() -> None:
    for numbers in [(3, 2, 3), (2, 3, 1), (3, 3, 0), (0, 0, 0)]:
        with pytest.raises(ValueError, match="quorums"):
            Quorums(*numbers)


def test_an_entry_belongs_to_the_last_fragment_that_does_not_start_behind_it() -> None:
    one, two = (BookieId("b1"),), (BookieId("b2"),)
    fragments = (Fragment(0, one), Fragment(5, two))
    assert fragment_at(fragments, 4).ensemble == one
    assert fragment_at(fragments, 5).ensemble == two
    with pytest.raises(ValueError, match="no fragment"):
        fragment_at(fragments, -1)


def test_a_fragment_is_appended_or_takes_the_place_of_one_that_starts_there() -> None:
    one, two = (BookieId("b1"),), (BookieId("b2"),)
    fragments = (Fragment(0, one),)
    assert with_fragment(fragments, Fragment(0, two)) == (Fragment(0, two),)
    assert with_fragment(fragments, Fragment(3, two)) == (Fragment(0, one), Fragment(3, two))
    with pytest.raises(ValueError, match="before"):
        with_fragment((Fragment(0, one), Fragment(3, two)), Fragment(2, one))
