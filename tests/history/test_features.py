"""The rules about features of topics: each has a history that breaks it, and its edge."""

from collections.abc import Sequence

from tests.history.compaction_events import (
    Compacted,
    LatestEnd,
    LatestFollows,
    LatestRead,
    ViewChange,
)
from tests.history.events import (
    Attached,
    Copy,
    Drained,
    Event,
    Fault,
    FaultEnd,
    Nack,
    Ok,
    Position,
    Quiet,
    Read,
    ReadEnd,
    Run,
    Send,
    Trimmed,
    Unsubscribe,
)
from tests.history.policy_events import Expired, MayEvict, MayExpire
from tests.history.route_events import Arrived, Offer, Route, RouteEnd, Settled, Taken
from tests.history.story import A, B, C, D, T, acked, at, delivered, read, rules, sent, subscribed


def _keyed(
    seq: int, position: Position | None, key: str = "k", *, empty: bool = False
) -> list[Event]:
    send = Send(T, "p", seq, f"p/{seq}", f"d{seq}", key, empty)
    return [send] if position is None else [send, Ok(T, "p", seq, position)]


def _latest(*messages: tuple[int, Position]) -> list[Event]:
    reads = [LatestRead(T, "l", place, f"p/{seq}", f"d{seq}") for seq, place in messages]
    return [LatestFollows(T, "l"), *reads]


def _rules(events: Sequence[Event]) -> list[str]:
    return rules(list(events), Run(in_flight_s=100.0))


ALL = read((0, A), (1, B), (2, C))
SENT = [*_keyed(0, A), *_keyed(1, B, "other"), *_keyed(2, C)]


def test_a_replaced_message_may_be_passed() -> None:
    assert _rules([*SENT, *_latest((1, B), (2, C)), LatestEnd(T, "l"), *ALL]) == []


def test_a_message_is_not_passed_before_a_later_one_of_its_key_was_sent() -> None:
    early = [*_keyed(0, A), *_keyed(1, B, "other"), *_latest((1, B)), *_keyed(2, C)]
    assert _rules([*early, *ALL]) == ["latest-lost"]
    doubtful = [*_keyed(0, A), *_keyed(3, None), *_keyed(1, B, "other"), *_latest((1, B))]
    assert _rules([*doubtful, *_keyed(2, C), *ALL]) == []


def test_a_tombstone_and_a_message_without_a_key_may_be_passed() -> None:
    events = [*_keyed(0, A, empty=True), *_keyed(1, B, ""), *_keyed(2, C, "other")]
    assert _rules([*events, *_latest((2, C)), LatestEnd(T, "l"), *ALL]) == []


def test_a_reader_of_the_latest_does_not_go_back() -> None:
    assert _rules([*SENT, *_latest((1, B), (0, A), (2, C)), *ALL]) == ["latest-order"]


def test_the_newest_message_of_each_key_is_there_in_the_end() -> None:
    assert _rules([*SENT, *_latest((0, A), (1, B)), LatestEnd(T, "l"), *ALL]) == ["latest-missing"]
    assert _rules([*SENT, *_latest((0, A), (1, B)), Quiet(("l",)), *ALL]) == ["latest-missing"]
    assert _rules([*SENT, *_latest((0, A), (1, B)), Quiet(), *ALL]) == []


def test_a_compacted_ledger_keeps_what_is_trimmed_later() -> None:
    end = [*_latest((3, D)), LatestEnd(T, "l"), *read((3, D))]
    events = [*SENT, *_keyed(3, D, "third")]
    kept: list[Event] = [Compacted(T, (1, 2)), Trimmed(T, 2)]
    assert _rules([*events, *kept, *end]) == ["latest-lost", "latest-missing"]
    assert _rules([*events, *reversed(kept), *end]) == []


def test_a_view_does_not_go_back() -> None:
    def shown(*seqs: int) -> list[Event]:
        return [LatestFollows(T, "v"), *(ViewChange(T, "v", "k", f"p/{seq}") for seq in seqs)]

    events = [*_keyed(0, A), *_keyed(1, B), *_keyed(2, C)]
    assert _rules([*events, *shown(0, 2), Quiet(("v",)), *ALL]) == []
    assert _rules([*events, *shown(2, 0), *ALL]) == ["view-back"]
    assert _rules([*events, *shown(1), Quiet(("v",)), *ALL]) == ["latest-missing"]


def test_a_subscription_gets_the_newest_of_each_key_in_any_order_and_perhaps_again() -> None:
    def consumed(*messages: tuple[int, Position]) -> list[Event]:
        reads = [LatestRead(T, "w", place, f"p/{seq}", f"d{seq}") for seq, place in messages]
        return [LatestFollows(T, "w", durable=True), *reads]

    assert _rules([*SENT, *consumed((2, C), (1, B), (2, C)), Quiet(("w.3",)), *ALL]) == []
    missing = [*SENT, *consumed((0, A), (1, B)), Quiet(("w.3",)), *ALL]
    assert _rules(missing) == ["latest-missing"]
    assert _rules([MayExpire(T, 1000.0), *missing]) == ["latest-missing"]
    assert _rules([MayExpire(T, 0.0), *missing]) == []  # seed 20587


def test_the_partitions_of_a_compacted_topic_are_looked_at_one_by_one() -> None:
    parts = [f"{T}-partition-{index}" for index in range(2)]

    def story(*reads: tuple[int, Position, int]) -> list[Event]:
        sends: list[Event] = []
        for seq, place, part in ((0, A, 0), (1, B, 0), (2, C, 1)):
            key = f"k{part}"
            sends += [
                Send(T, "p", seq, f"p/{seq}", f"d{seq}", key),
                Ok(parts[part], "p", seq, place),
            ]
        got = [LatestRead(parts[p], "l", at, f"p/{seq}", f"d{seq}") for seq, at, p in reads]
        whole: list[Event] = [
            Read(parts[0], "r0", A, "p/0", "d0", 0),
            Read(parts[0], "r0", B, "p/1", "d1", 1),
        ]
        whole += [
            ReadEnd(parts[0], "r0"),
            Read(parts[1], "r1", C, "p/2", "d2", 0),
            ReadEnd(parts[1], "r1"),
        ]
        return [*sends, LatestFollows(T, "l"), *got, Quiet(("l",)), *whole]

    assert _rules(story((2, C, 1), (1, B, 0))) == []
    assert _rules(story((2, C, 1))) == ["latest-missing"]
    assert _rules(story((1, B, 0), (0, A, 0), (2, C, 1))) == ["latest-order"]


def test_a_view_may_show_a_copy_that_retention_has_deleted_since() -> None:
    """Seed 920451: an owner died, the message was sent again, and the first copy was trimmed."""
    change = ViewChange(T, "v", "k", "p/0")
    view: list[Event] = [LatestFollows(T, "v"), change, change]
    send = Send(T, "p", 0, "p/0", "d0", "k")
    twice: list[Event] = [send, Fault("f", ""), FaultEnd("f"), Ok(T, "p", 0, D)]
    assert _rules([*twice, *view, Trimmed(T, 2), *read((0, D))]) == []
    assert _rules([*twice, *view, *read((0, D))]) == ["view-back"]
    once: list[Event] = [send, Ok(T, "p", 0, D)]
    assert _rules([*once, *view, Trimmed(T, 2), *read((0, D))]) == ["view-back"]


# -- policies; one second passes with each event


def _expiring(*policy: Event) -> list[Event]:
    events = [*subscribed(), *sent(0, A), *sent(1, B), *policy]
    return [*events, delivered(1, B), *acked(0, B), Drained(T, "s"), *read((0, A), (1, B))]


def test_only_what_is_old_enough_expires() -> None:
    assert rules(_expiring()) == ["poll-skip", "undelivered"]
    assert rules(_expiring(MayExpire(T, 3.0))) == []
    assert rules(_expiring(MayExpire(T, 5.5))) == ["poll-skip"]  # it is older in the end
    assert rules(_expiring(MayExpire(T, 100.0))) == ["poll-skip", "undelivered"]
    assert rules(_expiring(MayExpire(T, 3.0, "other"))) == ["poll-skip", "undelivered"]


def test_an_expiry_by_hand_happens_once() -> None:
    def by_hand(age_s: float) -> list[Event]:
        return [MayExpire(T, age_s, "s"), Expired(T, age_s, "s")]

    assert rules(_expiring(*by_hand(4.0))) == []
    assert rules(_expiring(*by_hand(6.0))) == ["poll-skip", "undelivered"]


def test_an_eviction_leaves_what_the_quota_has_room_for() -> None:
    copies = [Copy(1, entry, "b1", "yes", f"d{entry}", 10) for entry in range(3)]
    sends = [*subscribed(), *sent(0, A), *sent(1, B), *sent(2, C)]
    rest = [delivered(2, C), *acked(0, C), Drained(T, "s"), *ALL, *copies]
    assert "undelivered" not in rules([*sends, MayEvict(T, 10), *rest])
    assert "undelivered" in rules([*sends, MayEvict(T, 31), *rest])


def test_retention_may_remove_what_has_expired() -> None:
    def trimmed(*policy: Event) -> list[Event]:
        events = [*subscribed(), *sent(0, A), *policy, Trimmed(T, 2), *sent(1, D)]
        return [*events, delivered(1, D), *acked(0, D), Drained(T, "s"), *read((1, D))]

    assert rules(trimmed()) == ["trimmed-owed"]
    assert rules(trimmed(MayExpire(T, 1.0))) == []


# -- routes


def _route(*arrivals: tuple[str, int, str], taken: int = 3, **facts: bool) -> list[str]:
    """Send three values, of which these arrive: place, number, digest."""
    events: list[Event] = [Route("r", "pipe", **facts)]
    for number in range(3):
        events.append(Offer("r", "s", f"v{number}", "d"))
    events += [Taken("r", f"v{number}") for number in range(taken)]
    events += [Arrived("r", place, f"v{number}", digest) for place, number, digest in arrivals]
    return rules([*events, RouteEnd("r")])


def test_a_value_with_a_receipt_arrives_at_one_place_at_least() -> None:
    assert _route(("a", 0, "d"), ("b", 1, "d"), ("a", 2, "d")) == []
    assert _route(("a", 0, "d"), taken=1) == []
    assert _route(("a", 0, "d")) == ["route-lost"]
    assert _route(("a", 0, "d"), lossy=True) == []


def test_a_value_arrives_as_it_was_sent_and_only_what_was_sent() -> None:
    assert _route(("a", 0, "d"), ("a", 1, "x"), ("a", 2, "d")) == ["route-changed"]
    assert _route(("a", 0, "d"), ("a", 7, "d"), taken=1) == ["route-phantom"]


def test_values_of_a_sender_arrive_in_order_where_they_have_to() -> None:
    back = ("a", 1, "d"), ("a", 0, "d"), ("a", 2, "d")
    assert _route(*back, ordered=True) == ["route-order"]
    assert _route(*back) == []
    again = ("a", 0, "d"), ("a", 1, "d"), ("a", 0, "d"), ("a", 2, "d")
    assert _route(*again, ordered=True) == []
    assert _route(*again, ordered=True, once=True) == ["route-twice"]


def test_a_value_arrives_on_the_route_that_it_was_sent_on() -> None:
    """Two topics of a run have a route each: an exchange of their messages is no arrival."""
    events: list[Event] = [Route(name, "many topics", ordered=True) for name in "ab"]
    for name in "ab":
        events += [Offer(name, "s", f"{name}/0", "d"), Taken(name, f"{name}/0")]
    right: list[Event] = [Arrived("a", "reader", "a/0", "d"), Arrived("b", "reader", "b/0", "d")]
    wrong: list[Event] = [Arrived("b", "reader", "a/0", "d"), Arrived("a", "reader", "b/0", "d")]
    assert rules([*events, *right, RouteEnd("a"), RouteEnd("b")]) == []
    assert rules([*events, *wrong]) == ["route-phantom"]
    found = rules([*events, *wrong, RouteEnd("a"), RouteEnd("b")])
    assert found == ["route-lost", "route-phantom"]


def test_a_place_does_not_get_a_message_again_that_it_has_acknowledged() -> None:
    def story(*copies: str, place: str = "s", settled: str = "1:0") -> list[str]:
        events: list[Event] = [Route("r", "many topics"), Offer("r", "p", "v", "d")]
        events += [Arrived("r", "s", "v", "d", "1:0"), Settled("r", "s", settled)]
        events += [Arrived("r", place, "v", "d", copy) for copy in copies]
        return rules([*events, RouteEnd("r")])

    assert story("1:0") == ["route-again"]
    assert story("1:0", settled="1:1") == []  # It had acknowledged another message.
    assert story("1:1") == []  # The value was stored twice.
    assert story("1:0", place="reader") == []


def test_a_key_waits_for_the_message_that_its_consumer_keeps() -> None:
    def story(key: str) -> list[Event]:
        events: list[Event] = [*subscribed(kind="key_shared"), *_keyed(0, A), *_keyed(1, B, key)]
        end = [*acked(0, A, B), Drained(T, "s"), *read((0, A), (1, B))]
        return [*events, delivered(0, A), Quiet(("c",)), *end]

    assert rules(story("k")) == []
    assert rules(story("other")) == ["stalled"]


def test_a_message_that_was_given_back_waits_while_its_key_moves() -> None:
    """Seed 3000090: a consumer keeps a later message of the key, which now belongs to another."""

    def story(*refused: Event, key: str = "k", first: bool = False) -> list[Event]:
        newcomer = subscribed("d", "key_shared")
        before, later = (newcomer, []) if first else ([], newcomer)
        got = [delivered(0, A), *refused, *before, *_keyed(1, B, key), delivered(1, B), *later]
        events = [*subscribed(kind="key_shared"), *_keyed(0, A), *got]
        end = [*acked(0, A, B), Drained(T, "s"), *read((0, A), (1, B))]
        return [*events, Quiet(("c", "d")), delivered(0, A, "d"), *end]

    back = Nack("c", T, A)
    assert rules(story(back)) == []
    assert rules(story(back, key="other")) == ["stalled"]
    # The newcomer was attached before the later message was delivered: the key does not move.
    assert rules(story(back, first=True)) == ["stalled"]
    # The consumer was attached again, and did not get the message: nobody gave it back.
    assert rules(story(Attached("c", at(5)))) == ["stalled"]


def test_a_key_waits_also_for_a_message_from_before_an_end_that_was_refused() -> None:
    """Seed 950041: another consumer could not end the subscription, and its name may be new."""

    def story(key: str) -> list[Event]:
        events: list[Event] = [*subscribed(kind="key_shared"), *_keyed(0, A), delivered(0, A)]
        ended: list[Event] = [Unsubscribe(T, "s"), *subscribed("d", "key_shared")]
        end = [*acked(0, A, B), Drained(T, "s"), *read((0, A), (1, B))]
        return [*events, *ended, *_keyed(1, B, key), Quiet(("c", "d")), *end]

    assert rules(story("k")) == []
    assert rules(story("other")) == ["stalled"]


def test_a_delayed_message_is_not_delivered_early() -> None:
    def story(kind: str, due_s: float) -> list[Event]:
        send = Send(T, "p", 0, "p/0", "d0", due_ns=round(due_s * 1e9))
        events = [*subscribed(kind=kind), send, Ok(T, "p", 0, A), delivered(0, A)]
        return [*events, *acked(0, A), Drained(T, "s"), *read((0, A))]

    assert rules(story("shared", 5.0)) == []
    assert rules(story("shared", 5.5)) == ["early"]
    assert rules(story("exclusive", 5.5)) == []
