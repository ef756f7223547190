"""The checks of the traffic find the faults that they are named for."""

from collections.abc import Callable

import pytest

from daybook.clients.python.errors import InDoubtError
from daybook.clients.python.message_id import MessageId
from tests.real.traffic import History


def history() -> History:
    """Return a history of ten messages; number 4 is stored, and delivered, twice."""
    log = [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    places = {MessageId(1, entry): number for entry, number in enumerate(log)}
    delivered = [(number, where) for where, number in places.items()]
    receipts = [each for each in delivered if each[1] != MessageId(1, 4)]
    return History(10, receipts, delivered, [], set(), [], places)


def lose(one: History) -> None:
    del one.stored[MessageId(1, 7)]


def lose_the_copy_that_was_promised(one: History) -> None:
    del one.stored[MessageId(1, 5)]


def overwrite(one: History) -> None:
    one.stored[MessageId(1, 7)] = 7


def swap_in_the_log(one: History) -> None:
    places = list(one.stored.items())
    places[2], places[3] = places[3], places[2]
    one.stored = dict(places)


def swap_receipts(one: History) -> None:
    one.receipts[2:4] = reversed(one.receipts[2:4])


def miss_a_receipt(one: History) -> None:
    one.receipts.pop()


def swap_deliveries(one: History) -> None:
    one.deliveries[2:4] = reversed(one.deliveries[2:4])


def invent(one: History) -> None:
    one.stored[MessageId(1, 11)] = 11


def invent_on_the_way(one: History) -> None:
    one.deliveries.append((3, MessageId(2, 0)))


def leave_out(one: History) -> None:
    one.deliveries = [each for each in one.deliveries if each[1] != MessageId(1, 5)]


def fail(one: History) -> None:
    one.failures.append(InDoubtError("in doubt"))


def come_again(one: History) -> None:
    one.came_again.append(MessageId(1, 3))


def test_what_is_right_passes() -> None:
    history().check()


@pytest.mark.parametrize(
    "wrong",
    [
        lose,
        lose_the_copy_that_was_promised,
        overwrite,
        swap_in_the_log,
        swap_receipts,
        miss_a_receipt,
        swap_deliveries,
        invent,
        invent_on_the_way,
        leave_out,
        fail,
        come_again,
    ],
)
def test_what_is_wrong_is_found(wrong: Callable[[History], None]) -> None:
    one = history()
    wrong(one)
    with pytest.raises(AssertionError):
        one.check()
