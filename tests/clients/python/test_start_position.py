"""The start of a consumer, and the messages before it."""

from weakref import ref

from daybook.clients.python.message_id import EARLIEST, LATEST, MessageId, Offset
from daybook.clients.python.messages import Entry, Message
from daybook.clients.python.start_position import StartPosition
from daybook.wire.batch import SingleMetadata


class _End:
    """A consumer's end that entries come to."""


_END = _End()


def entry_of(count: int, first_offset: int, *, entry_id: int = 0) -> list[Message]:
    entry = Entry("t", -1, 1, entry_id, 0, 0, None, "p", 0, first_offset, True, ref(_END), 0)
    single = SingleMetadata(0, None, False, None, (), 0, None, False, False)
    return [Message(b"", entry, index, single) for index in range(count)]


def test_messages_in_front_of_the_place_are_left_out_until_it_is_found() -> None:
    point = StartPosition(Offset(12), durable=False)
    assert point.before(entry_of(5, 5)) == 0b11111
    assert point.sought == Offset(12)
    assert point.before(entry_of(5, 10)) == 0b00011
    assert point.sought is None


def test_a_subscription_looks_for_its_own_seek_in_the_first_entry_only() -> None:
    point = StartPosition(EARLIEST, durable=True)
    assert point.sought is None
    point.seek(MessageId(1, 7, 2))
    assert point.before(entry_of(3, 0, entry_id=3)) == 0  # another consumer sought further back
    assert point.sought is None


def test_a_seek_that_failed_is_not_looked_for_by_a_subscription() -> None:
    durable, reader = StartPosition(EARLIEST, durable=True), StartPosition(EARLIEST, durable=False)
    for point in (durable, reader):
        point.seek(Offset(3))
        point.seek_failed()
    assert durable.sought is None
    assert reader.sought == Offset(3)  # the reader starts there when it reconnects


def test_a_subscription_that_comes_back_again_may_have_been_moved_by_others() -> None:
    point = StartPosition(EARLIEST, durable=True)
    point.seek(Offset(3))
    point.attached()
    assert point.sought == Offset(3)
    point.attached()
    assert point.sought is None


def test_a_reader_goes_on_behind_what_came_last_and_takes_nothing_twice() -> None:
    point = StartPosition(EARLIEST, durable=False)
    assert point.now == EARLIEST
    assert point.is_new((1, 0))
    assert point.is_new((1, 4))
    assert not point.is_new((1, 4))
    assert not point.is_new((1, 2))
    assert point.now == MessageId(1, 4)
    point.seek(Offset(0))
    assert point.now == Offset(0)
    assert point.is_new((1, 0))


def test_an_end_that_moves_on_is_pinned() -> None:
    point = StartPosition(LATEST, durable=False)
    assert point.at_moving_end
    point.pin((2, 9))
    assert not point.at_moving_end
    assert point.now == MessageId(2, 9)
    assert not StartPosition(EARLIEST, durable=False).at_moving_end
