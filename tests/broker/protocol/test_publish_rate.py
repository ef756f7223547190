"""The rate at which producers of a topic may send: a pure machine."""

import pytest

from daybook.broker.protocol.publish_rate import PublishRateLimit


def test_one_second_of_messages_may_come_at_once_and_then_as_fast_as_the_rate() -> None:
    limit = PublishRateLimit(10, 0, now_s=0.0)
    limit.take(10, 1_000, 0.0)
    assert limit.wait_s(0.0) == 0
    limit.take(1, 1_000, 0.0)
    assert limit.wait_s(0.0) == pytest.approx(0.1)
    assert limit.wait_s(0.05) == pytest.approx(0.05)
    assert limit.wait_s(0.2) == 0
    limit.take(30, 1, 0.2)
    assert limit.wait_s(0.2) == pytest.approx(2.9)


def test_an_idle_hour_saves_no_more_than_a_second() -> None:
    limit = PublishRateLimit(10, 0, now_s=0.0)
    limit.take(1, 1, 0.0)
    limit.take(20, 1, 3600.0)
    assert limit.wait_s(3600.0) == pytest.approx(1.0)


def test_the_stricter_of_messages_and_bytes_counts() -> None:
    limit = PublishRateLimit(10, 1_000, now_s=0.0)
    limit.take(1, 5_000, 0.0)
    assert limit.wait_s(0.0) == pytest.approx(4.0)
    assert PublishRateLimit(-1, 0, 0.0).wait_s(0.0) == 0


def test_a_clock_that_stands_still_gives_nothing() -> None:
    limit = PublishRateLimit(1, 0, now_s=5.0)
    for _ in range(3):
        limit.take(1, 1, 5.0)
    assert limit.wait_s(5.0) == pytest.approx(2.0)
    limit.take(0, 0, 4.0)
    assert limit.wait_s(5.0) == pytest.approx(2.0, abs=1.1)
