"""Topics of a bundle change hands in groups that take about as long as they should."""

from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.protocol.hand_over import Held, PassedOn

TOPICS = [(f"t{number}", number) for number in range(100)]


def test_each_topic_is_in_one_group() -> None:
    topics = PassedOn(TOPICS, target_s=0.25)
    assert not topics.fits_at_once
    seen: list[str] = []
    while group := topics.next_group():
        topics.took(len(group), 0.1)
        seen += group
    assert sorted(seen) == sorted(name for name, _ in TOPICS)


def test_a_topic_is_kept_until_its_group_comes() -> None:
    topics = PassedOn(TOPICS, target_s=0.25)
    group = topics.next_group()
    assert [topics.keeps(name) for name in group] == [False] * 4
    assert topics.keeps("t50")
    assert not topics.keeps("another")
    assert len(topics.hashes) == 96


def test_a_bundle_with_few_topics_needs_no_groups() -> None:
    assert PassedOn(TOPICS[:4], target_s=0.25).fits_at_once
    assert not PassedOn(TOPICS[:5], target_s=0.25).fits_at_once


def test_topics_of_one_hash_change_hands_together() -> None:
    topics = PassedOn([(f"t{number}", number // 10) for number in range(40)], target_s=0.25)
    assert len(topics.next_group()) == 10


def test_slow_groups_become_smaller_and_fast_ones_grow() -> None:
    topics = PassedOn(TOPICS, target_s=0.25)
    assert len(topics.next_group()) == 4
    topics.took(4, 0.01)
    assert len(topics.next_group()) == 8  # not more than twice as many
    topics.took(8, 2.0)
    assert len(topics.next_group()) == 1
    topics.took(1, 9.0)
    assert len(topics.next_group()) == 1  # never none


@given(st.floats(0.001, 1.0))
def test_groups_come_to_take_the_time_that_they_should(cost_s: float) -> None:
    topics = PassedOn([(f"t{number}", number) for number in range(1000)], target_s=0.25)
    took_s: list[float] = []
    while group := topics.next_group():
        took_s.append(len(group) * cost_s)
        topics.took(len(group), took_s[-1])
    fitting = max(0.25, cost_s)
    assert all(each <= fitting + cost_s for each in took_s[1:])
    assert all(each >= min(fitting, 64 * cost_s) - cost_s for each in took_s[8:-1])


def test_nothing_is_loaded_before_the_owner_tells_what_it_serves() -> None:
    held = Held()
    assert not held.begun
    assert not held.may_load(1)
    held.pass_on([1])
    assert not held.may_load(1)


def test_topics_that_the_owner_serves_wait_until_they_are_passed_on() -> None:
    held = Held()
    held.hold([1, 2])
    assert held.begun
    assert [held.may_load(hash_) for hash_ in (1, 2, 3)] == [False, False, True]
    held.pass_on([1])
    assert [held.may_load(hash_) for hash_ in (1, 2, 3)] == [True, False, True]


def test_a_call_that_comes_twice_takes_nothing_back() -> None:
    held = Held()
    held.hold([1])
    held.pass_on([1])
    held.hold([1])
    assert held.may_load(1)


def test_all_topics_that_are_left_may_be_taken_at_once() -> None:
    passed = PassedOn([(f"t{number}", number) for number in range(9)], target_s=1.0)
    passed.next_group()
    assert passed.keeps("t8")
    passed.take_all()
    assert not passed.keeps("t8")
    assert passed.next_group() == []
    assert list(passed.hashes) == []
