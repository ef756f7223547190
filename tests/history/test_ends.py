"""Topics that end, retention, ledgers: each rule has a history that breaks it, and only it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.history.check import check
from tests.history.events import (
    Attached,
    Belongs,
    Copy,
    Delete,
    Deleted,
    Drained,
    Event,
    LedgerGone,
    LedgerVersion,
    ListGone,
    ListVersion,
    Replicated,
    Run,
    Subscribe,
    Terminate,
    Terminated,
    Trimmed,
)
from tests.history.story import (
    BOOKIES,
    A,
    B,
    D,
    T,
    acked,
    at,
    changed,
    delivered,
    good,
    ledger,
    read,
    rules,
    sent,
    stamp,
    subscribed,
)

# -- the end of a topic


def test_a_terminated_topic_gets_nothing_more() -> None:
    story: list[Event] = [*sent(0, A), Terminate(T), Terminated(T, A[:2])]
    assert rules([*story, *read((0, A))]) == []
    assert rules([*story, *sent(1, B), *read((0, A), (1, B))]) == ["terminated"]
    assert rules([*story, *sent(1, None), *read((0, A), (1, B))]) == ["terminated"]
    again: list[Event] = [Delete(T), Deleted(T)]
    assert rules([*story, *again, *sent(1, B), *read((1, B))]) == []


def test_what_ends_while_it_is_deleted_may_have_been_another_topic() -> None:
    story: list[Event] = [Terminate(T), Delete(T), Terminated(T, (1, 0)), Deleted(T)]
    assert rules([*sent(0, A), *story, *sent(1, D), *read((1, D))]) == []
    story = [Delete(T), Terminate(T), Terminated(T, (1, 0)), Deleted(T)]
    assert rules([*sent(0, A), *story, *sent(1, D), *read((1, D))]) == []
    story = [Delete(T), Deleted(T), Terminate(T), Terminated(T, (1, 0))]
    assert rules([*story, *sent(1, D), *read((1, D))]) == ["terminated"]


# -- retention


def test_retention_lets_go_only_of_what_is_acknowledged() -> None:
    story = [*subscribed(), *sent(0, A), *sent(1, D), delivered(0, A), delivered(1, D)]
    rest = [*acked(1, A, D), Drained(T, "s"), *read((1, D))]
    assert rules([*story, *acked(0, A), Trimmed(T, 2), *rest]) == []
    assert rules([*story, Trimmed(T, 2), *rest]) == ["trimmed-owed"]


def test_a_subscription_is_not_owed_what_was_let_go_before_it_was_there() -> None:
    before, own = [*sent(0, A), *sent(1, D)], [delivered(1, D), *acked(0, D)]
    rest = [Drained(T, "s"), *read((0, A), (1, D))]
    assert rules([*before, Trimmed(T, 2), *subscribed(), *own, *rest]) == []
    assert "undelivered" in rules([*before, *subscribed(), Trimmed(T, 2), *own, *rest])


# -- ledgers

CLOSED = [ledger(0), ledger(1, "CLOSED", 2, 30)]


def fragments(version: int, state: str, *firsts: int) -> LedgerVersion:
    return replace(ledger(version, state), fragments=tuple((first, BOOKIES) for first in firsts))


@pytest.mark.parametrize(
    ("rule", "story"),
    [
        ("ledger-state", [*CLOSED, ledger(2, "OPEN", 2, 30)]),
        ("ledger-state", [*CLOSED, ledger(2, "CLOSED", 1, 20)]),
        ("ledger-state", [ledger(0), replace(ledger(1), quorums=(3, 2, 2))]),
        ("ledger-fragments", [fragments(0, "OPEN", 1)]),
        ("ledger-fragments", [fragments(0, "OPEN", 0, 5, 5)]),
        ("ledger-fragments", [replace(ledger(0), fragments=((0, ("b1", "b1", "b2")),))]),
        ("ledger-fragments", [fragments(0, "OPEN", 0, 5), fragments(1, "OPEN", 0, 4, 5)]),
        ("ledger-fragments", [fragments(0, "OPEN", 0), fragments(1, "IN_RECOVERY", 0, 5)]),
        ("ledger-fragments", [fragments(0, "OPEN", 0), fragments(1, "OPEN", 0, 3, 5)]),
    ],
)
def test_the_metadata_of_a_ledger_obey(rule: str, story: list[Event]) -> None:
    assert rules(story) == [rule]


def numbered(number: int, state: str, last: int = -1) -> LedgerVersion:
    return replace(ledger(0, state, last), ledger=number)


def test_only_the_last_two_ledgers_of_a_list_may_be_open() -> None:
    story: list[Event] = [numbered(1, "OPEN"), numbered(2, "OPEN"), numbered(3, "OPEN")]
    assert rules([*story, ListVersion(T, 0, (2, 3))]) == []
    assert rules([*story, ListVersion(T, 0, (1, 2, 3))]) == ["ledger-list"]


@pytest.mark.parametrize(
    ("after", "broken"),
    [
        ((1, 2, 3), False),
        ((2, 3), False),
        ((2,), False),  # 2 is empty, and 1 was trimmed
        ((1,), False),  # 2 is empty
        ((1, 4), False),
        ((2, 1), True),
        ((4, 1, 2), True),
    ],
)
def test_a_list_grows_at_its_end_and_shrinks_in_front(after: tuple[int, ...], broken: bool) -> None:
    story: list[Event] = [numbered(1, "CLOSED", 5), numbered(2, "CLOSED")]
    story += [ListVersion(T, 0, (1, 2)), ListVersion(T, 1, after)]
    assert rules(story) == (["ledger-list"] if broken else [])


def test_an_empty_ledger_leaves_the_list_when_it_is_closed_and_its_successor_is_there() -> None:
    story: list[Event] = [numbered(1, "CLOSED", 5), numbered(2, "CLOSED"), numbered(4, "OPEN")]
    story += [ListVersion(T, 0, (1, 2)), ListVersion(T, 1, (1, 2, 4)), ListVersion(T, 2, (1, 4))]
    assert rules(story) == []
    late: list[Event] = [ListVersion(T, 2, (1, 2, 4, 5)), ListVersion(T, 3, (1, 4, 5))]
    assert rules([*story[:-1], numbered(4, "CLOSED", 5), *late]) == ["ledger-list"]


def test_a_ledger_with_entries_is_not_dropped_from_the_end_of_a_list() -> None:
    story: list[Event] = [numbered(1, "CLOSED", 5), numbered(2, "CLOSED", 5)]
    story += [ListVersion(T, 0, (1, 2)), ListVersion(T, 1, (1, 3))]
    assert rules(story) == ["ledger-list"]


def spread(version: int, state: str, *ensembles: str) -> LedgerVersion:
    """Return a version with one entry per fragment; `ensembles` have a letter for each bookie."""
    last = len(ensembles) - 1 if state == "CLOSED" else -1
    some = tuple((first, tuple(bookies)) for first, bookies in enumerate(ensembles))
    return LedgerVersion(1, version, state, last, 0, (3, 3, 2), some)


@pytest.mark.parametrize(
    ("state", "after", "broken"),
    [
        ("OPEN", ("xbc", "abd"), []),
        ("OPEN", ("xyc", "abd"), ["ledger-fragments"]),
        ("OPEN", ("xbc", "abe"), ["ledger-fragments"]),
        ("OPEN", ("abc", "xyd"), []),
        ("CLOSED", ("abc", "xbd"), []),
        ("CLOSED", ("xbc", "xbd"), ["ledger-fragments"]),
    ],
)
def test_auto_recovery_replaces_one_bookie_at_a_time(
    state: str, after: tuple[str, ...], broken: list[str]
) -> None:
    story: list[Event] = [spread(0, state, "abc", "abd"), spread(1, state, *after)]
    assert [each.rule for each in check(stamp(story, Run(auto_recovery=True)))] == broken
    allowed = state == "CLOSED" or after[0] == "abc"
    assert [each.rule for each in check(stamp(story))] == ([] if allowed else ["ledger-fragments"])


@pytest.mark.parametrize(
    "end",
    [ListVersion(T, 1, (3,)), ledger(1, "CLOSED", -1)],
    ids=["not in the list", "behind the end"],
)
def test_a_receipt_is_for_an_entry_of_a_ledger_of_the_list(end: Event) -> None:
    story: list[Event] = [ledger(0), ListVersion(T, 0, (1,)), *sent(0, A), end, *read((0, A))]
    assert rules(story) == ["unlisted"]


def test_an_entry_of_a_closed_ledger_is_on_an_ack_quorum_of_the_bookies_named_for_it() -> None:
    def lost(*bookies: str) -> Callable[[Event], Event]:
        def change(event: Event) -> Event:
            if isinstance(event, Copy) and event.entry == 1 and event.bookie in bookies:
                return replace(event, found="no", digest="")
            return event

        return change

    assert rules(changed(lost("b1"))) == []
    assert rules([*changed(lost("b1")), Replicated()]) == ["under-replicated"]
    assert rules([*good(), Replicated()]) == []
    assert rules(changed(lost("b1", "b3"))) == ["under-replicated"]
    elsewhere = changed(
        lambda e: replace(e, bookie=f"x{e.bookie}") if isinstance(e, Copy) and e.entry == 1 else e
    )
    assert rules(elsewhere) == ["under-replicated"]


def test_copies_are_the_same() -> None:
    broken = changed(
        lambda e: replace(e, digest="x") if isinstance(e, Copy) and e.bookie == "b2" else e
    )
    assert rules(broken) == ["copies-differ"]


def test_a_ledger_whose_last_fragment_is_empty_may_have_an_estimated_length() -> None:
    """Seed 950412: no bookie gave the last entry when the ledger was closed."""

    def closed(length: int, *starts: int) -> list[Event]:
        fragments = tuple((start, BOOKIES) for start in (0, *starts))
        return changed(
            lambda e: (
                replace(e, length=length, fragments=fragments)
                if isinstance(e, LedgerVersion) and e.state == "CLOSED"
                else e
            )
        )

    assert "length" not in rules(closed(0, 3))
    assert "length" in rules(closed(31, 3))
    assert "length" in rules(closed(0, 2))


def test_the_length_of_a_ledger_is_that_of_its_entries() -> None:
    broken = changed(lambda e: replace(e, size=11) if isinstance(e, Copy) else e)
    assert rules(broken) == ["length"]


# -- orphans


def test_a_ledger_that_no_list_has_named_holds_nothing() -> None:
    orphan: list[Event] = [Belongs(7, T), ledger_7("OPEN")]
    assert rules([*good(), *orphan, ledger_7("CLOSED")]) == []
    assert rules([*good(), *orphan, ledger_7("CLOSED", 0)]) == ["orphan-written"]
    listed: list[Event] = [ListVersion(T, 1, (1, 7)), ledger_7("CLOSED")]
    assert rules([*good(), *orphan, *listed]) == []


def test_a_ledger_that_no_list_has_named_is_removed_in_the_end() -> None:
    orphan: list[Event] = [Belongs(7, T), ledger_7("OPEN")]
    looked = Run(orphans_removed=True)
    assert rules([*good(), *orphan], looked) == ["orphan-kept"]
    assert rules([*good(), *orphan, LedgerGone(7)], looked) == []
    assert rules([*good(), *orphan, ListGone(T)], looked) == []
    assert rules([*good(), *orphan]) == []


def ledger_7(state: str, last: int = -1) -> LedgerVersion:
    version = 0 if state == "OPEN" else 1
    return LedgerVersion(7, version, state, last, 10 * (last + 1), (3, 3, 2), ((0, BOOKIES),))


# -- the broker that serves


def test_a_broker_delivers_only_from_a_topic_that_it_has_made_its_own() -> None:
    def story(*between: Event) -> list[Event]:
        made: list[Event] = [Belongs(1, T, "one"), ledger(0), ListVersion(T, 0, (1,), "one")]
        subscribe = Subscribe(T, "s", "c", "exclusive", "earliest")
        attached = Attached("c", at(0), T, "two")
        rest = [delivered(0, A), *acked(0, A), Drained(T, "s"), *read((0, A))]
        return [*made, *sent(0, A), *between, subscribe, attached, *rest]

    recovered: list[Event] = [ledger(1, "IN_RECOVERY"), ledger(2, "CLOSED", 0, 10)]
    claimed = ListVersion(T, 1, (1,), "two")
    assert rules(story(*recovered)) == ["early-delivery"]
    assert rules(story(claimed)) == ["early-delivery"]
    assert rules(story(*recovered, claimed)) == []


def test_where_nobody_watches_the_lists_nobody_is_said_to_serve_too_early() -> None:
    subscribe = Subscribe(T, "s", "c", "exclusive", "earliest")
    attached = Attached("c", at(0), T, "two")
    rest = [delivered(0, A), *acked(0, A), Drained(T, "s"), *read((0, A))]
    assert rules([*sent(0, A), subscribe, attached, *rest]) == []
