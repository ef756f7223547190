"""When a missing bookie counts as lost, and the rate limit of copying."""

import pytest

from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.replication.bookie_watcher import LostBookies
from daybook.bookie.replication.worker import Progress
from daybook.wire.rate_limit import RateLimit

A, B, C = (BookieId(name) for name in "abc")


def test_one_that_goes_is_waited_for() -> None:
    bookies = LostBookies(60)
    assert bookies.look(0, []) is None
    assert bookies.look(10, [A]) == 70
    assert not bookies.lost
    assert bookies.waited_for == (A,)
    assert bookies.look(70, [A]) is None
    assert bookies.lost == {A}


def test_one_that_comes_back_is_forgotten() -> None:
    bookies = LostBookies(60)
    bookies.look(0, [])
    bookies.look(10, [A])
    assert bookies.look(20, []) is None
    assert bookies.look(69, [A]) == 129
    assert not bookies.lost
    bookies.look(129, [A])
    assert bookies.lost == {A}
    bookies.look(130, [])
    assert not bookies.lost


def test_when_a_second_one_goes_neither_is_waited_for() -> None:
    bookies = LostBookies(60)
    bookies.look(0, [])
    bookies.look(10, [A])
    assert bookies.look(20, [A, B]) is None
    assert bookies.lost == {A, B}


def test_one_after_another_was_lost_long_ago_is_waited_for() -> None:
    bookies = LostBookies(60)
    bookies.look(0, [A])
    bookies.look(60, [A])
    assert bookies.look(100, [A, B]) == 160
    assert bookies.lost == {A}


def test_a_cluster_that_starts_comes_up_one_by_one() -> None:
    bookies = LostBookies(60)
    assert bookies.look(0, [A, B, C]) == 60
    assert not bookies.lost
    assert bookies.look(5, [A]) == 60
    assert bookies.look(60, [A]) is None
    assert bookies.lost == {A}


def test_without_a_delay_nobody_is_waited_for() -> None:
    bookies = LostBookies(0)
    assert bookies.look(0, [A]) is None
    assert bookies.lost == {A}


def test_nobody_is_waited_for_when_somebody_asks() -> None:
    bookies = LostBookies(60)
    bookies.look(0, [A])
    bookies.hurry()
    assert bookies.lost == {A}


def test_the_rate_is_kept_whatever_the_pieces() -> None:
    pace = RateLimit(100, burst=50)
    now = 1000.0
    used = 0
    for piece in (10, 200, 5, 85, 300):
        now += pace.take(piece, now)
        used += piece
    assert used - 50 <= (now - 1000) * 100 + 1e-6
    assert (now - 1000) * 100 == pytest.approx(550)


def test_what_was_not_used_is_not_saved_up() -> None:
    pace = RateLimit(100, burst=50)
    assert pace.take(50, 1000) == 0
    assert pace.take(100, 5000) == pytest.approx(0.5)


def test_progress_and_when_it_will_be_done() -> None:
    assert Progress(25, 100, 10, 20).share == 0.25
    assert Progress(25, 100, 10, 20).eta_s == 30
    assert Progress(0, 100, 10, 20).eta_s is None
    assert Progress(0, 0, 10, 10).share == 1
    assert Progress(120, 100, 10, 20).eta_s == 0
    assert Progress(120, 100, 10, 20).share == 1
