"""How often one consumer may subscribe: a pure machine."""

import pytest

from daybook.broker.protocol.subscribe_rate import SubscribeRateLimit


def test_one_period_of_subscribes_may_come_at_once_and_then_as_fast_as_the_rate() -> None:
    limit = SubscribeRateLimit(3, 30.0)
    assert [limit.take("a", 0.0) for _ in range(4)] == [0, 0, 0, pytest.approx(10)]
    assert limit.take("b", 0.0) == 0
    assert limit.take("a", 4.0) == pytest.approx(6)
    assert limit.take("a", 10.0) == 0
    assert limit.take("a", 10.0) == pytest.approx(10)


def test_a_consumer_that_was_idle_for_a_period_is_forgotten() -> None:
    limit = SubscribeRateLimit(1, 30.0)
    for number in range(100):
        limit.take(number, number * 1.0)
    assert len(limit) == 30
    assert limit.take(99, 99.5)


def test_a_flood_of_names_takes_bounded_memory() -> None:
    limit = SubscribeRateLimit(1, 30.0, consumers_max=10)
    for number in range(100):
        assert limit.take(number, 0.0) == 0
    assert len(limit) == 10
    assert limit.take(99, 0.0) > 0
    assert limit.take(0, 0.0) == 0, "it was forgotten"
