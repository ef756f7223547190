"""Batches with some acknowledged messages."""

from daybook.broker.dispatch.partial_acks import PartialAcks


def test_an_entry_is_done_when_all_its_messages_are() -> None:
    partial = PartialAcks(10_000)
    assert not partial.ack((5, 0), 0b1110)
    assert partial.pending((5, 0)) == 0b1110
    assert not partial.ack((5, 0), 0b0111)
    assert partial.pending((5, 0)) == 0b0110
    assert partial.ack((5, 0), 0b1001)
    assert partial.pending((5, 0)) is None
    assert not partial


def test_what_is_done_is_forgotten() -> None:
    partial = PartialAcks(10_000)
    for n in range(5):
        partial.ack((5, n), 1)
    partial.done([(5, 4), (5, 9)])
    partial.done_up_to((5, 1))
    assert [n for n in range(5) if partial.pending((5, n))] == [2, 3]


def test_a_move_keeps_what_it_names() -> None:
    partial = PartialAcks(10_000)
    partial.ack((5, 0), 1)
    partial.keep_only((5, 2), 0b10)
    assert partial.pending((5, 0)) is None
    assert partial.pending((5, 2)) == 0b10
    partial.keep_only((5, 3), None)
    assert not partial


def test_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    partial = PartialAcks(1_000_000)
    for n in range(1000):
        partial.ack((5, n), 1 << 200_000)  # 25 kB each
    kept = [n for n in range(1000) if partial.pending((5, n)) is not None]
    assert kept == list(range(1000 - len(kept), 1000))
    assert 30 <= len(kept) <= 40
