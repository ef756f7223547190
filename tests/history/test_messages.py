"""Rules about stored messages, their order and number: each has a history that breaks only it."""

from dataclasses import replace

import pytest

from tests.history.events import (
    Delete,
    Deleted,
    Deliver,
    Error,
    Event,
    Fault,
    FaultEnd,
    LedgerVersion,
    ListVersion,
    Ok,
    Overloaded,
    Read,
    ReadEnd,
    Run,
    Send,
    Unknown,
)
from tests.history.story import (
    A,
    B,
    C,
    D,
    T,
    changed,
    good,
    ledger,
    read,
    rules,
    sent,
)


def test_a_good_history_breaks_no_rule() -> None:
    assert rules(good()) == []


# -- stored messages


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


NOWHERE = (-1, -1, -1)  # the position in the receipt for a repeat


def test_a_receipt_for_a_repeat_says_that_the_message_is_stored() -> None:
    run = Run(deduplicated=(T,))
    assert rules([*sent(0, NOWHERE), *read((0, A))], run) == []
    assert rules([*sent(0, NOWHERE), *sent(1, A), *read((1, A))], run) == ["lost-write"]
    assert rules([*sent(0, A), *sent(1, NOWHERE), *read((0, A), (1, B))], run) == []
    assert rules([*sent(0, B), *sent(1, NOWHERE), *read((1, A), (0, B))], run) != []


def test_only_a_deduplicated_topic_has_receipts_for_repeats() -> None:
    assert rules([*sent(0, NOWHERE), *read((0, A))]) == ["position"]


# -- one bookie that is silent


def test_one_bookie_alone_delays_nobody() -> None:
    def story(*wrong: Event, seconds: int = 2) -> list[Event]:
        send, ok = sent(0, A)
        waiting: list[Event] = [FaultEnd(f"other {number}") for number in range(seconds)]
        return [ledger(0), *wrong, send, *waiting, ok, *read((0, A))]

    silent = Fault("f", "", bookie="b1")
    assert rules(story(silent)) == ["delayed"]
    assert rules(story(silent, Fault("g", "", bookie="b1"))) == ["delayed"]
    assert rules(story(silent, Fault("g", "", bookie="b2"))) == []
    assert rules(story(silent, Fault("g", ""))) == []
    assert rules(story()) == []
    two = LedgerVersion(1, 0, "OPEN", -1, 0, (2, 2, 2), ((0, ("b1", "b2")),))
    assert rules([two, *story(silent)[1:]]) == []
    late = [two, *story(silent, seconds=8)[1:]]
    assert rules(late) == ["delayed"]
    assert rules(late, Run(bookies=3)) == ["delayed"]
    assert rules(late, Run(bookies=2)) == []  # no bookie can replace the silent one
    assert rules(story(silent), Run(bookies=3)) == ["delayed"]


def test_a_bookie_that_was_overloaded_is_not_well_for_a_while() -> None:
    limits = Run(settle_s=2.0, in_flight_s=1.0)

    def story(*before: Event, seconds_before: int = 0, seconds: int = 2) -> list[Event]:
        send, ok = sent(0, A)
        pause: list[Event] = [FaultEnd(f"before {number}") for number in range(seconds_before)]
        waiting: list[Event] = [FaultEnd(f"other {number}") for number in range(seconds)]
        silent = Fault("f", "", bookie="b1")
        return [ledger(0), silent, *before, *pause, send, *waiting, ok, *read((0, A))]

    assert rules(story(), limits) == ["delayed"]
    assert rules(story(Overloaded("b2")), limits) == []
    # The bookie with the fault is the only one that is not well.
    assert rules(story(Overloaded("b1")), limits) == ["delayed"]
    # The refusal was too long ago.
    assert rules(story(Overloaded("b2"), seconds_before=1), limits) == []
    assert rules(story(Overloaded("b2"), seconds_before=2), limits) == ["delayed"]
    # The refusal came after the receipt.
    late = [*story(), Overloaded("b2")]
    assert rules(late, limits) == ["delayed"]


def test_a_bookie_that_was_overloaded_excuses_delays_only() -> None:
    send, ok = sent(0, A)
    lost: list[Event] = [ledger(0), Overloaded("b1"), Overloaded("b2"), send, ok]
    assert rules([*lost, *read()]) == ["lost-write"]


def test_a_send_that_waits_for_a_new_owner_may_wait_for_one_slow_read() -> None:
    def story(*meanwhile: Event, seconds: int) -> list[Event]:
        send, ok = sent(0, D)
        rest: list[Event] = [FaultEnd(f"other {n}") for n in range(seconds - len(meanwhile))]
        before: list[Event] = [ledger(0), ListVersion(T, 0, (1,)), Fault("f", "", bookie="b1")]
        return [*before, send, *meanwhile, *rest, ok, *read((0, D))]

    closed = ledger(1, "CLOSED")
    second = replace(ledger(0), ledger=2)
    listed = ListVersion(T, 1, (1, 2))
    opened: list[Event] = [closed, second, listed]
    assert rules(story(*opened, seconds=4)) == ["delayed"]
    limits = Run(in_flight_s=4.0, slow_read_s=2.0)
    assert rules(story(*opened, seconds=5), limits) == []
    assert rules(story(*opened, seconds=7), limits) == ["delayed"]
    # The old ledger takes entries until a rollover has happened.
    assert rules(story(second, listed, closed, seconds=5), limits) == ["delayed"]
    # The opening was over when the send began.
    earlier: list[Event] = [ledger(0), ListVersion(T, 0, (1,)), *opened, *story(seconds=5)[2:]]
    assert rules(earlier, limits) == ["delayed"]
