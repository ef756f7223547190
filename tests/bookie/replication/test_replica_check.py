"""The checker's rules: how answers about copies are judged, and which actions follow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.ledger.protocol.update import Ruling
from daybook.bookie.replication.protocol.replica_check import (
    BookieStatus,
    Fill,
    FragmentReport,
    Move,
    Replacement,
    ReplicaState,
    SealedFragment,
    apply_entry_list,
    expected_replicas,
    fewest_copies,
    newcomers,
    plan_repairs,
    replace_bookie,
    runs_of,
    sealed_fragments,
)
from daybook.wire.messages.entry_list import group_entries

A, B, C, D, X = (BookieId(name) for name in "abcdx")
ALL = dict.fromkeys((A, B, C, D, X), BookieStatus.WRITABLE)
THREE = SealedFragment(10, 12, (A, B, C))
P, M, Q, G, U, L, N = (
    ReplicaState.PRESENT,
    ReplicaState.MISSING,
    ReplicaState.DOUBTFUL,
    ReplicaState.DAMAGED,
    ReplicaState.NO_ANSWER,
    ReplicaState.LOST,
    ReplicaState.UNREADABLE,
)


def metadata(*fragments: Fragment, quorums: Quorums | None = None) -> LedgerMetadata:
    return LedgerMetadata(quorums=quorums or Quorums(3, 3, 2), fragments=fragments)


TWO_FRAGMENTS = metadata(Fragment(0, (A, B, C)), Fragment(5, (A, B, D)))


# -- which fragments are sealed


def test_all_fragments_of_a_closed_ledger_are_settled() -> None:
    closed = TWO_FRAGMENTS.closed_at(9, 100)
    assert sealed_fragments(closed) == [
        SealedFragment(0, 4, (A, B, C)),
        SealedFragment(5, 9, (A, B, D)),
    ]


def test_the_last_fragment_of_an_open_ledger_is_its_writers() -> None:
    assert sealed_fragments(TWO_FRAGMENTS) == [SealedFragment(0, 4, (A, B, C))]


def test_nothing_of_a_ledger_in_recovery_is_settled() -> None:
    assert sealed_fragments(TWO_FRAGMENTS.in_recovery()) == []


@pytest.mark.parametrize(("end", "lasts"), [(4, [4, 4]), (2, [2, 2]), (-1, [-1, -1])])
def test_a_fragment_behind_the_end_is_empty(end: int, lasts: list[int]) -> None:
    fragments = sealed_fragments(TWO_FRAGMENTS.closed_at(end, 0))
    assert [fragment.last for fragment in fragments] == lasts
    assert fragments[1].count <= 0


# -- whole lists are compared


@given(st.data())
def test_a_whole_list_is_compared_whatever_the_striping(data: st.DataObject) -> None:
    ensemble = data.draw(st.integers(1, 5))
    write = data.draw(st.integers(1, ensemble))
    first, count = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 40))
    position = data.draw(st.integers(0, ensemble - 1))
    quorums = Quorums(ensemble, write, 1)
    fragment = SealedFragment(
        first, first + count - 1, tuple(BookieId(str(n)) for n in range(ensemble))
    )
    there = data.draw(st.sets(st.integers(0, 70)))
    codes = expected_replicas(fragment, quorums, position)
    apply_entry_list(fragment, codes, group_entries(sorted(there)))
    for entry in range(first, first + count):
        code = codes[entry - first]
        if not quorums.holds(position, entry):
            assert code == ReplicaState.NONE
        else:
            assert code == (ReplicaState.PRESENT if entry in there else ReplicaState.NO_ANSWER)


def test_runs_are_ranges_of_entries() -> None:
    assert runs_of(bytes([P, M, M, P, Q]), (M, Q), 10) == [range(11, 13), range(14, 15)]


# -- actions


def judged(
    *copies: list[ReplicaState],
    unfillable: tuple[BookieId, ...] = (),
    spare: bool = True,
    **statuses: BookieStatus,
) -> FragmentReport:
    here = {**ALL, **{BookieId(name): state for name, state in statuses.items()}}
    codes = [bytes(each) for each in copies]
    return plan_repairs(THREE, codes, here, unfillable=unfillable, spare=spare)


def test_whole_is_whole() -> None:
    report = judged([P] * 3, [P] * 3, [P] * 3)
    assert report.whole
    assert report.copies == 3


def test_a_bookie_that_lacks_entries_gets_them_in_place() -> None:
    report = judged([P] * 3, [P, M, M], [Q, P, P])
    assert report.fills == (
        Fill(1, B, (range(11, 13),)),
        Fill(2, C, (range(10, 11),)),
    )
    assert not report.moves
    assert report.copies == 2


def test_an_unheard_copy_is_neither_missing_nor_present() -> None:
    report = judged([P] * 3, [P] * 3, [U] * 3)
    assert not report.fills
    assert not report.moves
    assert not report.whole
    assert report.silent == (C,)
    assert report.copies == 2


def test_the_last_copy_may_be_with_somebody_who_is_silent() -> None:
    report = judged([M] * 3, [L] * 3, [U, P, P], b=BookieStatus.LOST)
    assert report.unknown == (range(10, 11),)
    assert not report.no_copy


def test_no_copy_left_is_a_state_of_its_own() -> None:
    report = judged([M, P, P], [L] * 3, [G, P, P], b=BookieStatus.LOST)
    assert report.no_copy == (range(10, 11),)
    assert not report.unknown
    assert report.copies == 0


def test_a_damaged_copy_moves_for_a_bookie_keeps_its_first_bytes() -> None:
    report = judged([P] * 3, [P, G, P], [P] * 3)
    assert report.moves == (Move(1, B, (range(10, 13),), "it has damaged copies"),)
    assert not report.fills


@pytest.mark.parametrize(
    ("statuses", "moved"),
    [
        (BookieStatus.LOST, True),
        (BookieStatus.LEAVING, True),
        (BookieStatus.AWAY, False),
        (BookieStatus.READONLY, False),
        (BookieStatus.WRITABLE, False),
    ],
)
def test_whose_copies_move_though_none_is_missing(statuses: BookieStatus, moved: bool) -> None:
    report = judged([P] * 3, [P] * 3, [P] * 3, b=statuses)
    assert bool(report.moves) == moved
    assert (report.silent == (B,)) == (statuses is BookieStatus.AWAY)


def test_a_bookie_that_takes_no_entries_is_not_filled() -> None:
    for report in (
        judged([P] * 3, [M] * 3, [P] * 3, b=BookieStatus.READONLY),
        judged([P] * 3, [Q] * 3, [P] * 3, unfillable=(B,)),
    ):
        assert [move.bookie for move in report.moves] == [B]
        assert not report.fills


def test_a_read_only_bookie_is_filled_where_nobody_else_is() -> None:
    lacking = ([P] * 3, [M] * 3, [P] * 3)
    report = judged(*lacking, spare=False, b=BookieStatus.READONLY)
    assert [fill.bookie for fill in report.fills] == [B]
    assert not report.moves
    report = judged(*lacking, spare=False, unfillable=(B,), b=BookieStatus.READONLY)
    assert [move.bookie for move in report.moves] == [B]


def test_what_a_disk_does_not_give_is_written_in_place_first() -> None:
    lacking = ([P] * 3, [P, N, P], [P] * 3)
    report = judged(*lacking)
    assert report.fills == (Fill(1, B, (range(11, 12),)),)
    assert not report.moves
    report = judged(*lacking, unfillable=(B,))
    assert [(move.bookie, move.entries) for move in report.moves] == [(B, (range(10, 13),))]
    assert judged([L] * 3, [P, N, P], [L] * 3).no_copy == (range(11, 12),)


def test_of_an_empty_stretch_only_the_names_matter() -> None:
    empty = SealedFragment(5, 4, (A, B, C))
    assert plan_repairs(empty, [b"", b"", b""], ALL).whole
    report = plan_repairs(empty, [b"", b"", b""], {**ALL, B: BookieStatus.LOST})
    assert report.moves == (Move(1, B, (), "it is gone"),)
    assert not report.no_copy


def test_what_lacks_the_most_comes_first() -> None:
    striped = metadata(Fragment(0, (A, B, C)), quorums=Quorums(3, 2, 2)).closed_at(9, 10)
    assert fewest_copies(striped, {A, B, C}) == 2
    assert fewest_copies(striped, {A, B}) == 1
    assert fewest_copies(striped, {A}) == 0
    assert fewest_copies(TWO_FRAGMENTS, {A, B, C}) == 2


# -- the change of the metadata


CLOSED = TWO_FRAGMENTS.closed_at(9, 100)
FIRST = sealed_fragments(CLOSED)[0]
WANTED = Replacement(FIRST, 2, X)


def test_another_bookie_takes_the_place_and_nothing_else_changes() -> None:
    changed = replace_bookie(WANTED)(CLOSED, 3)
    assert changed == replace(CLOSED, fragments=(Fragment(0, (A, B, X)), Fragment(5, (A, B, D))))
    assert replace_bookie(WANTED)(changed, 4) is Ruling.KEEP


def test_a_settled_fragment_of_an_open_ledger_changes_too() -> None:
    changed = replace_bookie(WANTED)(TWO_FRAGMENTS, 3)
    assert isinstance(changed, LedgerMetadata)
    assert changed.state is LedgerState.OPEN
    assert changed.fragments[0].ensemble == (A, B, X)


@pytest.mark.parametrize(
    "now",
    [
        TWO_FRAGMENTS.in_recovery(),
        metadata(Fragment(0, (A, B, C))),  # the last fragment is the writer's own
        # Another worker has replaced the bookie.
        metadata(Fragment(0, (A, B, D)), Fragment(5, (A, B, D))),
        metadata(Fragment(0, (A, X, C)), Fragment(5, (A, B, D))),  # the new bookie is there already
        # The ledger is longer than the copied part.
        metadata(Fragment(0, (A, B, C))).closed_at(9, 10),
    ],
)
def test_metadata_that_are_others_by_now_stay(now: LedgerMetadata) -> None:
    assert replace_bookie(WANTED)(now, 9) is Ruling.REFUSE


def test_a_bookie_counts_once() -> None:
    assert newcomers(FIRST, [A, X, C, D]) == [X, D]
