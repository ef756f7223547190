"""Giving an entry back has a constant cost, however many wait for redelivery."""

from typing import Any

from daybook.broker.protocol.dispatch.delayed import Delayed
from daybook.broker.protocol.dispatch.pending import ReplayQueue

N = 2_000


class _Place(tuple[int, int]):
    """A position that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: Any) -> bool:
        _Place.compared += 1
        return tuple.__lt__(self, other)


def test_to_give_back_in_pairs_costs_the_same_however_many_wait() -> None:
    queue = ReplayQueue()
    _Place.compared = 0
    for n in range(N):
        queue.add([_Place((5, n)), _Place((5, 2 * N - n))])
    assert len(queue) == 2 * N
    assert _Place.compared <= 2 * N * 20


def test_what_was_removed_and_comes_again_is_there_once() -> None:
    queue = ReplayQueue()
    queue.add([(5, 3), (5, 1), (5, 2), (5, 1)])
    queue.remove((5, 1))
    queue.remove((5, 2))
    queue.add([(5, 2)])
    assert len(queue) == 2
    assert queue.first(5) == ((5, 2), (5, 3))
    assert queue.first(1) == ((5, 2),)
    queue.remove_up_to((5, 2))
    assert (5, 2) not in queue
    queue.add([(5, 2)])
    assert queue.first(5) == ((5, 2), (5, 3))
    queue.remove((5, 2))
    queue.remove((5, 3))
    assert len(queue) == 0
    assert queue.first(5) == ()


def test_what_is_due_at_once_is_taken_in_several_steps() -> None:
    delayed = Delayed(1_000_000)
    for n in range(5 * N):
        delayed.add(7, (5, n))
    found: list[tuple[int, int]] = []
    while delayed.deadline_ms is not None:
        some = delayed.due(7)
        assert 0 < len(some) <= 1_000
        found += [place for place, _ in some]
    assert found == [(5, n) for n in range(5 * N)]
    assert not delayed.due(8)
