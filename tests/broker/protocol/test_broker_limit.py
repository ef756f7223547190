"""The limit of unacknowledged messages of a broker: which subscriptions wait, and for how long."""

import random

import pytest

from daybook.broker.protocol.dispatch.broker_limit import BrokerLimit


def limit_of(messages_max: int = 100, share: float = 0.16) -> BrokerLimit[str]:
    return BrokerLimit(messages_max, share)


def blocked(limit: BrokerLimit[str], *names: str) -> list[str]:
    found = [name for name in names if limit.blocks(name)]
    assert limit.blocked == len(found)
    return found


def test_when_the_broker_is_full_those_with_more_than_their_share_wait() -> None:
    limit = limit_of()
    limit.count("large", 70)
    limit.count("share", 16)
    limit.count("small", 13)
    assert not limit.full
    assert blocked(limit, "large", "share", "small") == []
    limit.count("small", 14)
    assert limit.full
    assert blocked(limit, "large", "share", "small") == ["large"]


def test_a_subscription_with_just_its_share_goes_on_until_it_has_more() -> None:
    limit = limit_of()
    limit.count("large", 84)
    limit.count("share", 16)
    assert limit.full
    assert blocked(limit, "large", "share") == ["large"]
    assert limit.count("share", 17) == ()
    assert blocked(limit, "large", "share") == ["large", "share"]


def test_a_subscription_at_half_of_its_share_goes_on_alone() -> None:
    limit = limit_of()
    limit.count("large", 90)
    limit.count("other", 20)
    assert limit.count("other", 9) == ()
    assert blocked(limit, "large", "other") == ["large", "other"]
    assert limit.count("other", 8) == ("other",)
    assert blocked(limit, "large", "other") == ["large"]
    assert limit.count("other", 7) == ()  # It is told once.


def test_at_half_of_the_limit_everybody_goes_on() -> None:
    limit = limit_of()
    limit.count("large", 80)
    limit.count("other", 20)
    assert limit.count("large", 31) == ()
    assert limit.full
    assert sorted(limit.count("large", 30)) == ["large", "other"]
    assert not limit.full
    assert blocked(limit, "large", "other") == []
    # It is full again at the limit, not at half of it.
    limit.count("large", 79)
    assert blocked(limit, "large", "other") == []


def test_without_a_limit_nobody_waits_and_all_is_counted() -> None:
    limit = limit_of(0)
    limit.count("one", 10**9)
    limit.count("two", 5)
    assert limit.messages == 10**9 + 5
    assert not limit.full
    assert blocked(limit, "one", "two") == []


def test_a_subscription_that_is_gone_is_forgotten() -> None:
    limit = limit_of()
    limit.count("large", 120)
    assert limit.count("large", 0) == ["large"]
    assert (limit.messages, limit.messages_of("large"), limit.full) == (0, 0, False)


@pytest.mark.parametrize("seed", range(20))
def test_at_any_time_who_waits_follows_from_the_counts(seed: int) -> None:
    """Compare with a model that looks at all subscriptions after each step."""
    rng = random.Random(seed)
    most, share = rng.choice((1, 7, 40)), rng.choice((0.01, 0.16, 0.5, 1.0))
    limit = limit_of(most, share)
    has = dict.fromkeys("abcdef", 0)
    full, waiting = False, set[str]()
    for _ in range(2_000):
        name = rng.choice("abcdef")
        has[name] = max(0, has[name] + rng.randint(-6, 6))
        freed = set(limit.count(name, has[name]))
        before, total, part = set(waiting), sum(has.values()), int(most * share)
        became_full = not full and total >= most
        full = total >= most or (full and total > most // 2)
        if not full:
            waiting = set()
        else:
            looked_at = has if became_full else [name]
            waiting |= {each for each in looked_at if has[each] > part}
            waiting -= {each for each in (name,) if not became_full and has[each] <= part // 2}
        assert (limit.messages, limit.full) == (total, full)
        assert {each for each in has if limit.blocks(each)} == waiting
        assert freed == before - waiting
    for name in has:
        limit.count(name, 0)
    assert (limit.messages, limit.blocked, limit.full) == (0, 0, False)
