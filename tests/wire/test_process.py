"""A process returns memory when most of many connections have gone."""

from daybook.wire.process import Crowd


def test_memory_is_given_back_when_most_of_many_connections_have_gone() -> None:
    given_back: list[int] = []
    crowd = Crowd(lambda: given_back.append(left))
    for left in reversed(range(5000)):
        crowd.left(left)
    assert given_back == [2500, 1250, 250]


def test_a_few_connections_that_come_and_go_are_no_reason_to_collect() -> None:
    given_back: list[int] = []
    crowd = Crowd(lambda: given_back.append(left))
    for peak in (999, 500, 999):
        for left in reversed(range(peak)):
            crowd.left(left)
    assert given_back == []


def test_many_that_stay_are_no_reason_to_collect() -> None:
    given_back: list[int] = []
    crowd = Crowd(lambda: given_back.append(left))
    for left in reversed(range(2600, 5000)):
        crowd.left(left)
    assert given_back == []
