"""The rate at which consumers are served: a pure machine."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.broker.protocol.dispatch_rate import DispatchRateLimit, DispatchRates, Room


def limit(
    messages: int, size: int = 0, period_s: float = 1, *, relative: bool = False
) -> DispatchRateLimit:
    return DispatchRateLimit("dispatchRate", messages, size, period_s, 0.0, relative=relative)


def test_one_period_may_pass_at_once_and_then_as_much_as_the_rate() -> None:
    one = limit(10)
    assert one.room(0.0) == Room(10, inf)
    one.take(10, 5_000, 0.0)
    assert one.room(0.0).is_closed
    assert one.wait_s(0.0) == pytest.approx(0.1)
    assert one.closed_s(0.05) == 0.0
    assert one.wait_s(0.05) == pytest.approx(0.05)
    assert one.room(0.1).messages == pytest.approx(1)
    assert one.wait_s(0.1) == 0
    assert one.closed_s(0.1) == 0.1


def test_an_idle_hour_saves_no_more_than_a_period() -> None:
    one = limit(10, period_s=60)
    one.take(10, 0, 0.0)
    assert one.room(3600.0).messages == pytest.approx(10)


def test_what_was_taken_too_much_is_waited_for() -> None:
    one = limit(10)
    one.take(30, 0, 0.0)
    assert one.wait_s(0.0) == pytest.approx(2.1)
    assert one.room(2.0).is_closed
    assert not one.room(2.2).is_closed


def test_a_fast_limit_opens_for_a_step_and_not_for_each_message() -> None:
    one = limit(10_000)
    one.take(10_000, 0, 0.0)
    assert one.room(0.05).is_closed
    assert one.wait_s(0.05) == pytest.approx(0.05)
    assert one.room(0.1).messages == pytest.approx(1_000)


def test_the_stricter_of_messages_and_bytes_counts() -> None:
    one = limit(10, 1_000)
    one.take(1, 3_000, 0.0)
    assert one.room(0.0).is_closed
    assert one.wait_s(0.0) == pytest.approx(2.1)
    assert limit(0, -1).room(0.0) == Room()


def test_the_stricter_of_two_limits_counts_and_both_are_charged() -> None:
    topic, own = limit(100), DispatchRateLimit("subscriptionDispatchRate", 10, 0, 1, 0.0)
    rates = DispatchRates([topic, own])
    assert rates.room(0.0).messages == 10
    assert rates.strictest(0.0) is None
    rates.take(10, 1, 0.0)
    assert rates.strictest(0.0) is own
    assert rates.wait_s(0.0) == pytest.approx(0.1)
    assert topic.room(0.0).messages == 90
    assert str(own) == "subscriptionDispatchRate is 10 messages a second"
    assert str(limit(0, 5, 60, relative=True)).endswith("5 bytes in 60 s more than producers send")


def test_a_relative_limit_adds_what_producers_send() -> None:
    relative, other = limit(10, 100, relative=True), limit(10, 100)
    for one in (relative, other):
        one.publish_rate(40, 400, 0.0)
        one.take(20, 200, 0.0)
    room = relative.room(1.0)
    assert room.messages == pytest.approx(40)
    assert room.bytes == pytest.approx(400)
    assert other.room(1.0).is_closed


def test_a_room_takes_whole_entries_and_at_least_one() -> None:
    room = Room(3, 100)
    assert room.fitting([(2, 1), (2, 1), (2, 1)]) == 2
    assert room.fitting([(1, 99), (1, 99), (1, 99)]) == 2
    assert room.fitting([(50, 900), (1, 1)]) == 1
    assert Room(0, 0).fitting([(1, 1), (1, 1)]) == 1
    assert room.fitting([]) == 0
    assert (room.entries(2), room.entries(9), Room().entries(9), Room(0.2).entries(9)) == (
        2,
        3,
        9,
        1,
    )
    assert (room.size(99), room.size(500), Room(bytes=0.5).size(5)) == (99, 100, 1)


STEPS = st.lists(
    st.tuples(
        st.floats(0, 5),  # seconds until the next read
        st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3_000)), min_size=1, max_size=30),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(
    messages=st.integers(0, 50),
    size=st.integers(0, 5_000),
    period_s=st.integers(1, 30),
    steps=STEPS,
)
def test_no_window_of_time_lets_more_pass_and_nothing_is_ever_stuck(
    messages: int, size: int, period_s: int, steps: list[tuple[float, list[tuple[int, int]]]]
) -> None:
    one = limit(messages, size, period_s)
    now_s = 0.0
    passed: list[tuple[float, int, int]] = []
    for pause_s, entries in steps:
        now_s += pause_s
        if (room := one.room(now_s)).is_closed:
            wait_s = one.wait_s(now_s)
            assert wait_s > 0
            now_s += wait_s
            room = one.room(now_s)
            assert not room.is_closed, "it opens when it said that it would"
        taken = entries[: room.fitting(entries)]
        assert taken
        one.take(sum(m for m, _ in taken), sum(b for _, b in taken), now_s)
        passed.append((now_s, sum(m for m, _ in taken), sum(b for _, b in taken)))
    for amount, which, largest in ((messages, 1, 20), (size, 2, 3_000)):
        if not amount:
            continue
        for first in range(len(passed)):
            total = 0
            for each in passed[first:]:
                total += int(each[which])
                window_s = each[0] - passed[first][0]
                assert total <= amount / period_s * window_s + amount + largest + 1e-3
