"""Each rule has a history that breaks it, and only it; a good history breaks none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.history.check import check
from tests.history.events import (
    Ack,
    Acked,
    Attached,
    Copy,
    Delete,
    Deleted,
    Deliver,
    Detach,
    Drained,
    Error,
    Event,
    Fault,
    FaultEnd,
    HistoryError,
    Leave,
    LedgerVersion,
    ListVersion,
    Nack,
    Ok,
    Read,
    ReadEnd,
    Replicated,
    Run,
    Seek,
    Send,
    Sought,
    Subscribe,
    Terminate,
    Terminated,
    Trimmed,
    Unknown,
    Unsubscribe,
    Unsubscribed,
)
from tests.history.story import (
    BOOKIES,
    A,
    B,
    C,
    T,
    acked,
    at,
    delivered,
    good,
    ledger,
    read,
    sent,
    stamp,
    subscribed,
)

D = (2, 0, -1)


def rules(events: list[Event], run: Run | None = None) -> list[str]:
    """Which rules it breaks, each once."""
    return sorted({violation.rule for violation in check(stamp(events, run))})


def without(*kinds: type[Event]) -> list[Event]:
    return [event for event in good() if not isinstance(event, kinds)]


def changed(change: Callable[[Event], Event | None]) -> list[Event]:
    return [event for event in map(change, good()) if event is not None]


def test_a_good_history_breaks_no_rule() -> None:
    assert rules(good()) == []


# -- what is stored


def test_a_receipt_for_what_nobody_finds_is_a_loss() -> None:
    assert rules([*sent(0, A), *sent(1, B), *read((0, A))]) == ["lost-write"]


def test_what_a_reader_has_seen_and_the_last_one_has_not_is_a_loss() -> None:
    seen = read((0, A), (1, B), reader="tail")[:-1]
    assert rules([*sent(0, A), *sent(1, None), *seen, *read((0, A))]) == ["lost-write"]


def test_a_receipt_that_names_another_position_is_found() -> None:
    assert rules([*sent(0, A), *read((0, B))]) == ["position"]


def test_a_topic_that_nobody_reads_in_the_end_is_not_checked() -> None:
    assert rules(sent(0, A)) == ["unread"]


def test_what_goes_with_a_deleted_topic_is_no_loss() -> None:
    assert rules([*sent(0, A), Delete(T), Deleted(T), *sent(1, D), *read((1, D))]) == []
    assert rules([*sent(0, A), Delete(T), Deleted(T), *sent(1, D), *read()]) == ["lost-write"]


def test_what_nobody_sent_is_a_phantom() -> None:
    assert rules([*sent(0, A), *read((0, A), (7, B))]) == ["phantom"]


def test_what_was_said_to_have_failed_is_a_phantom() -> None:
    assert rules([*sent(0, None), Error("p", 0), *read((0, A))]) == ["phantom"]


def test_what_has_an_unknown_outcome_may_be_there_or_not() -> None:
    assert rules([*sent(0, None), Unknown("p", 0), *read((0, A))]) == []
    assert rules([*sent(0, None), Unknown("p", 0), *read()]) == []


def test_what_comes_back_as_something_else_has_changed() -> None:
    broken = changed(lambda e: replace(e, digest="x") if isinstance(e, Deliver) else e)
    assert rules(broken) == ["changed"]


# -- order


def test_receipts_come_in_the_order_of_the_sends() -> None:
    story = [*sent(0, None), *sent(1, None), Ok(T, "p", 1, B), Ok(T, "p", 0, A)]
    assert rules([*story, *read((0, A), (1, B))]) == ["receipts"]


def test_a_producer_s_messages_are_stored_in_the_order_of_its_sends() -> None:
    story = [*sent(0, None), *sent(1, None)]
    assert rules([*story, *read((1, A), (0, B))]) == ["nonmonotonic-send"]


def test_what_was_acknowledged_before_another_was_sent_is_stored_before_it() -> None:
    story = [*sent(0, B), Send(T, "q", 0, "q/0"), Ok(T, "q", 0, A)]
    reads: list[Event] = [Read(T, "r", A, "q/0"), Read(T, "r", B, "p/0", "d0"), ReadEnd(T, "r")]
    assert rules([*story, *reads]) == ["realtime"]


def test_one_position_has_one_message() -> None:
    story = [*sent(0, A), *sent(1, None), *read((1, A), reader="other")[:-1]]
    assert rules([*story, *read((0, A))]) == ["inconsistent"]


def test_two_receipts_do_not_name_one_position() -> None:
    assert "inconsistent" in rules([*sent(0, A), *sent(1, A), *read((0, A))])


@pytest.mark.parametrize(
    "order", [((0, A), (2, C)), ((1, B), (0, A))], ids=["skipping", "going back"]
)
def test_a_reader_reads_everything_in_order(
    order: tuple[tuple[int, tuple[int, int, int]], ...],
) -> None:
    everything = [*sent(0, A), *sent(1, B), *sent(2, C)]
    story = [*everything, *read(*order, reader="tail")[:-1], *read((0, A), (1, B), (2, C))]
    assert rules(story) == ["read-order"]


def test_offsets_count() -> None:
    def change(event: Event) -> Event:
        if isinstance(event, Read) and event.position == C:
            return replace(event, offset=7)
        return event

    assert rules(changed(change)) == ["read-order"]


# -- duplicates

TWICE = read((0, A), (0, B))


def test_nothing_is_stored_twice_in_peace() -> None:
    assert rules([*sent(0, A), *TWICE]) == ["duplicate"]


def test_what_may_have_been_sent_again_may_be_stored_twice() -> None:
    broken: list[Event] = [Fault("f", "a broker is killed"), *sent(0, A), FaultEnd("f")]
    assert rules([*broken, *TWICE]) == []
    assert rules([*sent(0, None), Unknown("p", 0), *TWICE]) == []


def test_with_deduplication_nothing_is_ever_stored_twice() -> None:
    broken: list[Event] = [Fault("f", "a broker is killed"), *sent(0, A), FaultEnd("f")]
    assert rules([*broken, *TWICE], Run(deduplicated=(T,))) == ["duplicate"]


# -- subscriptions


def test_a_subscription_that_is_not_drained_is_not_checked() -> None:
    assert rules(without(Drained)) == ["undrained"]


def test_what_is_never_acknowledged_was_skipped() -> None:
    broken = changed(lambda e: None if isinstance(e, Ack | Acked) and e.ack == 1 else e)
    assert rules(broken) == ["undelivered"]


def test_from_latest_a_subscription_owes_only_what_is_sent_later() -> None:
    story = [*sent(0, A), *subscribed(start="latest"), *sent(1, B)]
    rest = [Drained(T, "s"), *read((0, A), (1, B))]
    assert rules([*story, delivered(1, B), *acked(0, B), *rest]) == []
    assert rules([*story, *rest]) == ["undelivered"]
    assert rules([*story, delivered(0, A), *acked(0, A), *acked(1, B), *rest]) == ["not-new"]


def test_who_is_refused_may_have_made_the_subscription_where_it_wanted_it() -> None:
    refused: list[Event] = [Subscribe(T, "s", "d", "exclusive", "latest"), Detach("d")]
    story = [*subscribed(), *sent(1, B), delivered(1, B), *acked(0, B), Drained(T, "s")]
    end = read((0, A), (1, B))
    assert rules([*sent(0, A), *refused, *story, *end]) == []
    assert rules([*sent(0, A), *story, *end]) == ["poll-skip", "undelivered"]


def test_a_delivery_does_not_pass_over_what_is_owed() -> None:
    broken = changed(lambda e: None if isinstance(e, Deliver) and e.position == B else e)
    assert rules(broken) == ["poll-skip"]


def test_a_delivery_does_not_go_back_for_nothing() -> None:
    story = [*subscribed(), *sent(0, A), *sent(1, B), delivered(0, A), delivered(1, B)]
    rest = [delivered(0, A), delivered(1, B), *acked(0, A, B), Drained(T, "s")]
    end = read((0, A), (1, B))
    assert rules([*story, *rest, *end]) == ["poll-order"]
    assert rules([*story, Nack("c", T, A), *rest, *end]) == []
    assert rules([*story, Attached("c", at(7)), *rest, *end]) == []


# `a` has taken over from `b`, as its name comes first; when it has left, `b` starts over.
TAKEN_OVER = [
    *subscribed("b", kind="failover"),
    *sent(0, A),
    *sent(1, B),
    delivered(0, A, "b"),
    *subscribed("a", kind="failover", since=8),
    delivered(1, B, "b"),  # it was on its way
    delivered(0, A, "a"),
]
BACK = [delivered(0, A, "b"), delivered(1, B, "b")]
TAKEN_OVER_END = [*acked(0, A, B, consumer="b"), Drained(T, "s"), *read((0, A), (1, B))]


@pytest.mark.parametrize(
    ("rest", "broken"),
    [
        pytest.param([Leave("a"), Detach("a"), *BACK], [], id="after it has left"),
        pytest.param([Leave("a"), *BACK, Detach("a")], [], id="while it leaves"),
        pytest.param([*BACK, Leave("a"), Detach("a")], ["poll-order"], id="before it leaves"),
        pytest.param([*BACK, Detach("a")], ["poll-order"], id="nobody was about to leave"),
        pytest.param([Leave("a"), *BACK, *BACK, Detach("a")], ["poll-order"], id="twice"),
        pytest.param([Leave("a"), *BACK, Detach("a"), *BACK], ["poll-order"], id="once more"),
    ],
)
def test_who_leaves_makes_others_start_over_once(rest: list[Event], broken: list[str]) -> None:
    assert rules([*TAKEN_OVER, *rest, *TAKEN_OVER_END]) == broken


def test_each_who_leaves_is_a_reason_of_its_own() -> None:
    other = subscribed("aa", kind="failover")
    rest = [Leave("a"), Leave("aa"), *BACK, *BACK, Detach("aa"), Detach("a")]
    assert rules([*other, *TAKEN_OVER, *rest, *TAKEN_OVER_END]) == []
    assert rules([*other, *TAKEN_OVER, *rest, *BACK, *TAKEN_OVER_END]) == ["poll-order"]


def test_shared_consumers_get_messages_in_any_order() -> None:
    story = [*subscribed(kind="shared"), *sent(0, A), *sent(1, B), delivered(1, B), delivered(0, A)]
    assert rules([*story, *acked(0, A, B), Drained(T, "s"), *read((0, A), (1, B))]) == []


RECEIVED = [*subscribed(), *sent(0, A), delivered(0, A)]
END: list[Event] = [Drained(T, "s"), *read((0, A))]


def test_what_has_a_receipt_does_not_come_again_after_a_takeover() -> None:
    fault: list[Event] = [Fault("f", "a broker is killed"), Attached("c", at(9)), delivered(0, A)]
    assert rules([*RECEIVED, *acked(0, A), *fault, *END]) == ["acked-again"]


def test_what_was_on_its_way_when_the_receipt_came_may_come_again() -> None:
    story = [
        *subscribed(kind="shared"),
        *sent(0, A),
        delivered(0, A),
        *acked(0, A),
        delivered(0, A),
    ]
    assert rules([*story, *END], Run(in_flight_s=1.5)) == []
    assert rules([*story, *END], Run(in_flight_s=0.5)) == ["acked-again"]


def test_without_a_receipt_it_comes_again_only_if_something_broke() -> None:
    told: list[Event] = [Ack("c", 0, T, (A,))]
    again: list[Event] = [Attached("c", at(12)), delivered(0, A), *END]
    peace: list[Event] = [Drained("other", "s")] * 5
    late: list[Event] = [*peace, Fault("f", "too late")]
    soon: list[Event] = [Fault("f", "a broker is killed"), *peace]
    assert rules([*RECEIVED, *told, *late, *again]) == ["acked-again"]
    assert rules([*RECEIVED, *told, *soon, *again]) == []


def test_a_hand_over_loses_only_the_acknowledgements_that_were_in_flight() -> None:
    told: list[Event] = [Ack("c", 0, T, (A,))]
    peace: list[Event] = [Drained("other", "s")] * 5
    again: list[Event] = [Attached("c", at(14)), delivered(0, A), *END]
    unload: list[Event] = [Fault("f", "an unload", clean=True), FaultEnd("f")]
    later: list[Event] = [*peace[:2], *unload, *peace]
    assert rules([*RECEIVED, *told, *later, *again]) == ["acked-again"]
    assert rules([*RECEIVED, *told, *unload, *peace, *again]) == []


def test_a_part_of_a_batch_may_come_again_until_the_whole_entry_is_acknowledged() -> None:
    first, second = (1, 0, 0), (1, 0, 1)
    story = [*subscribed(), *sent(0, first), *sent(1, second)]
    story += [delivered(0, first), delivered(1, second)]
    moved: list[Event] = [Attached("c", at(11)), delivered(0, first)]
    rest = [delivered(1, second), *acked(7, second), Drained(T, "s")]
    rest += read((0, first), (1, second))
    assert rules([*story, *acked(0, first), *moved, *rest]) == []
    strict = Run(batch_acks_durable=True)
    assert rules([*story, *acked(0, first), *moved, *rest], strict) == ["acked-again"]
    assert rules([*story, *acked(0, first, second), *moved, *rest]) == ["acked-again"]


def test_a_cumulative_acknowledgement_covers_what_lies_before() -> None:
    story = [*subscribed(), *sent(0, A), *sent(1, B), delivered(0, A), delivered(1, B)]
    story += [Ack("c", 0, T, (B,), cumulative=True), Acked("c", 0)]
    rest = [Drained(T, "s"), *read((0, A), (1, B))]
    assert rules([*story, *rest]) == []
    assert rules([*story, Attached("c", at(11)), delivered(0, A), *rest]) == ["acked-again"]


def test_a_seek_makes_everything_behind_it_owed_again() -> None:
    seek: list[Event] = [Seek(T, "s", 1, "earliest"), Sought(1), Attached("c", at(9))]
    again = [delivered(0, A), *acked(1, A)]
    assert rules([*RECEIVED, *acked(0, A), *seek, *again, *END]) == []
    assert rules([*RECEIVED, *acked(0, A), *seek, *END]) == ["undelivered"]


def test_what_is_acknowledged_while_a_seek_is_under_way_may_be_of_the_time_after_it() -> None:
    story = [*RECEIVED, Seek(T, "s", 1, "earliest"), delivered(0, A), *acked(1, A), Sought(1)]
    assert rules([*story, *END]) == []


def test_a_seek_of_somebody_else_leaves_out_what_was_acknowledged_of_an_unfinished_batch() -> None:
    first, second = (1, 0, 0), (1, 0, 1)
    story = [*subscribed(), *sent(0, first), *sent(1, second), delivered(0, first)]
    again = [delivered(1, second), *acked(1, second), Drained(T, "s")]
    end = read((0, first), (1, second))
    admin: list[Event] = [Seek(T, "s", 1, "earliest"), Sought(1)]
    own: list[Event] = [Seek(T, "s", 1, "earliest", consumer="c"), Sought(1)]
    assert rules([*story, *acked(0, first), *admin, *again, *end]) == []
    assert "undelivered" in rules([*story, *acked(0, first), *own, *again, *end])


def test_several_seeks_of_somebody_else_leave_out_as_much_as_one() -> None:
    first, second = (1, 0, 0), (1, 0, 1)
    story = [*subscribed(), *sent(0, first), *sent(1, second), delivered(0, first)]
    seeks: list[Event] = [each for n in (1, 2) for each in (Seek(T, "s", n, "earliest"), Sought(n))]
    own: list[Event] = [Seek(T, "s", 3, "earliest", consumer="c"), Sought(3)]
    again = [delivered(1, second), *acked(1, second), Drained(T, "s")]
    end = read((0, first), (1, second))
    assert rules([*story, *acked(0, first), *seeks, *again, *end]) == []
    assert "undelivered" in rules([*story, *acked(0, first), *seeks, *own, *again, *end])


def test_the_last_acknowledgement_of_a_batch_speaks_for_all_of_it_even_after_a_seek() -> None:
    first, second = (1, 0, 0), (1, 0, 1)
    story = [*subscribed(), *sent(0, first), *sent(1, second), delivered(0, first)]
    story = [*story, *acked(0, first), delivered(1, second), Seek(T, "s", 1, "earliest")]
    end = [Drained(T, "s"), *read((0, first), (1, second))]
    assert rules([*story, *acked(1, second), Sought(1), *end]) == []
    assert "undelivered" in rules([*story, Sought(1), *end])


def test_a_seek_leaves_out_what_was_acknowledged_of_a_batch_that_somebody_else_finished() -> None:
    first, second = (1, 0, 0), (1, 0, 1)
    story = [*subscribed("c", "shared"), *subscribed("d", "shared")]
    story += [*sent(0, first), *sent(1, second), delivered(0, first), delivered(1, second)]
    both = [*story, *acked(0, first, second)]
    story += [*acked(0, first), delivered(1, second, "d"), *acked(0, second, consumer="d")]
    admin: list[Event] = [Seek(T, "s", 1, "earliest"), Sought(1)]
    end = [*admin, Drained(T, "s"), *read((0, first), (1, second))]
    assert rules([*story, *end]) == []
    assert rules([*both, *end]) == ["undelivered"]


def test_a_seek_lets_go_of_what_lies_before_it() -> None:
    story = [*subscribed(), *sent(0, A), *sent(1, B), Seek(T, "s", 1, B), Sought(1)]
    story += [Attached("c", at(8)), delivered(1, B), *acked(0, B)]
    assert rules([*story, Drained(T, "s"), *read((0, A), (1, B))]) == []


def test_a_seek_to_the_end_owes_only_what_is_sent_later() -> None:
    story = [*RECEIVED, Seek(T, "s", 1, "latest"), Sought(1), Attached("c", at(7)), *sent(1, B)]
    rest = [Drained(T, "s"), *read((0, A), (1, B))]
    assert rules([*story, delivered(1, B), *acked(0, B), *rest]) == []
    assert rules([*story, *rest]) == ["undelivered"]


def test_of_seeks_at_one_time_any_may_be_the_last() -> None:
    story = [*subscribed(), *sent(0, A), *sent(1, B), *sent(2, C)]
    first, second = Seek(T, "s", 1, A), Seek(T, "s", 2, B)
    end = [Drained(T, "s"), *read((0, A), (1, B), (2, C))]
    rest = [delivered(1, B), delivered(2, C), *acked(0, B, C), *end]
    assert rules([*story, first, second, Sought(2), Sought(1), *rest]) == []
    assert rules([*story, second, first, Sought(2), Sought(1), *rest]) == []
    assert "undelivered" in rules([*story, second, Sought(2), first, Sought(1), *rest])
    assert rules([*story, first, second, Sought(2), Sought(1), *end]) == ["undelivered"]


def test_a_seek_to_a_time_may_go_anywhere() -> None:
    story = [*RECEIVED, *acked(0, A), Seek(T, "s", 1, "time"), Sought(1), Attached("c", at(8))]
    assert rules([*story, *END]) == []
    assert rules([*story, delivered(0, A), *acked(1, A), *END]) == []
    later = [*sent(1, B), Drained(T, "s"), *read((0, A), (1, B))]
    assert rules([*story, *later]) == ["undelivered"]


def test_a_seek_without_an_answer_excuses_what_it_may_have_caused() -> None:
    seek: list[Event] = [Seek(T, "s", 1, "earliest"), Attached("c", at(9))]
    assert rules([*RECEIVED, *acked(0, A), *seek, delivered(0, A), *END]) == []


def test_a_subscription_that_is_ended_owes_nothing_and_a_new_one_owes_everything() -> None:
    ended: list[Event] = [Unsubscribe(T, "s"), Unsubscribed(T, "s")]
    assert rules([*RECEIVED, *ended, *read((0, A))]) == []
    assert rules([*RECEIVED, *ended, *subscribed("d"), *END]) == ["undelivered"]
    assert rules([*RECEIVED, ended[0], *subscribed("d"), *END]) == []


def test_a_seek_that_is_under_way_may_reach_the_subscription_that_comes_next() -> None:
    """Seed 640083, once."""
    seek: list[Event] = [Seek(T, "s", 1, B, consumer="c")]
    anew: list[Event] = [Unsubscribe(T, "s"), Unsubscribed(T, "s"), *subscribed("d")]
    end = [delivered(1, B, "d"), *acked(0, B, consumer="d"), Drained(T, "s")]
    sent_both = [*sent(0, A), *sent(1, B)]
    rest = [*end, *read((0, A), (1, B))]
    assert rules([*subscribed(), *sent_both, *seek, *anew, Sought(1), *rest]) == []
    before = [*subscribed(), *sent_both, *seek, Sought(1), *anew, *rest]
    assert rules(before) == ["poll-skip", "undelivered"]


def test_a_seek_that_is_under_way_may_have_reached_the_subscription_before() -> None:
    """Seed 652397, once."""
    seek: list[Event] = [Seek(T, "s", 1, "earliest", consumer="c")]
    anew: list[Event] = [Unsubscribe(T, "s"), Unsubscribed(T, "s")]
    anew += subscribed("d", start="latest", since=20)
    story = [*subscribed(), *sent(0, A), *seek, *anew, Sought(1)]
    assert rules([*story, Drained(T, "s"), *read((0, A))]) == []
    again: list[Event] = [Seek(T, "s", 2, "earliest", consumer="d"), Sought(2)]
    assert rules([*story, *again, Drained(T, "s"), *read((0, A))]) == ["undelivered"]


def test_who_is_still_there_may_make_a_subscription_again_that_was_ended() -> None:
    """Seed 705230, once: it had come back, and left, before anybody was told."""
    before = [*subscribed("c", start="latest"), *sent(0, A)]
    anew: list[Event] = [Unsubscribe(T, "s"), Unsubscribed(T, "s")]
    end = [*subscribed("d", since=20), Drained(T, "s"), *read((0, A))]
    assert rules([*before, *anew, Detach("c"), *end]) == []
    assert rules([*before, Detach("c"), *anew, *end]) == ["undelivered"]


def test_an_acknowledgement_without_a_receipt_may_reach_the_subscription_that_comes_next() -> None:
    """Seed 670335, once."""
    story = [*subscribed(), *sent(0, A), delivered(0, A), Ack("c", 0, T, (A,))]
    story += [Unsubscribe(T, "s"), Unsubscribed(T, "s"), *subscribed("d")]
    end = [Drained(T, "s"), *read((0, A))]
    assert rules([*story, Attached("c", at(9)), *end]) == []
    assert rules([*story, *end]) == ["undelivered"]


def test_who_comes_back_while_a_subscription_is_ended_may_lose_it_again() -> None:
    """Seed 101040, once."""
    story: list[Event] = [*subscribed(start="latest"), Unsubscribe(T, "s"), Attached("c", at(1))]
    ended: list[Event] = [Unsubscribed(T, "s"), Detach("c"), *sent(0, A)]
    again = subscribed("d", start="latest", since=20)
    rest = [*sent(1, B), delivered(1, B, "d"), *acked(0, B, consumer="d"), Drained(T, "s")]
    end = read((0, A), (1, B))
    assert rules([*story, *ended, *again, *rest, *end]) == []
    assert rules([*story, *ended[1:], *again, *rest, *end]) == ["poll-skip", "undelivered"]


def test_a_subscription_that_comes_back_with_its_consumer_is_not_new_to_the_next_one() -> None:
    story = [*subscribed("c", start="latest"), Delete(T), Deleted(T), Attached("c", at(4))]
    story += [*sent(0, A), Detach("c"), *subscribed("d", start="latest", since=8)]
    end = [delivered(0, A, "d"), *acked(0, A, consumer="d"), Drained(T, "s"), *read((0, A))]
    assert rules([*story, *end]) == []


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
    """One entry each; `ensembles` have a letter for each bookie."""
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


def test_the_length_of_a_ledger_is_that_of_its_entries() -> None:
    broken = changed(lambda e: replace(e, size=11) if isinstance(e, Copy) else e)
    assert rules(broken) == ["length"]


# -- what is no history


def test_a_history_begins_with_its_run_and_has_one_outcome_a_send() -> None:
    with pytest.raises(HistoryError, match="begins"):
        check(stamp(good())[1:])
    with pytest.raises(HistoryError, match="two outcomes"):
        rules([*sent(0, A), Error("p", 0)])
    with pytest.raises(HistoryError, match="sent twice"):
        rules([*sent(0, A), *sent(0, B)])
    with pytest.raises(HistoryError, match="no send"):
        rules([Unknown("p", 0)])
    with pytest.raises(HistoryError, match="seek to"):
        rules([*RECEIVED, Seek(T, "s", 1, "middle"), Sought(1), *END])


def test_partitions_are_parts_of_the_topic_that_was_subscribed_to() -> None:
    part = f"{T}-partition-3"
    story: list[Event] = [
        Subscribe(T, "s", "c", "shared", "earliest"),
        Attached("c", 0),
        Send(T, "p", 0, "p/0"),
        Ok(part, "p", 0, A),
        Read(part, "r", A, "p/0"),
        ReadEnd(part, "r"),
    ]
    told: list[Event] = [Deliver("c", part, A, "p/0"), Ack("c", 0, part, (A,))]
    assert rules([*story, *told, Drained(T, "s")]) == []
    assert rules([*story, Drained(T, "s")]) == ["undelivered"]
