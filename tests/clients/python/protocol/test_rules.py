"""The rules of the client, without any network: tables that can be checked by eye."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybook.clients.python.protocol.acks import AckTracker, NackTracker
from daybook.clients.python.protocol.acks_in_doubt import AcksInDoubt, AckTuple
from daybook.clients.python.protocol.batching import BatchBuilder
from daybook.clients.python.protocol.permits import Permits
from daybook.clients.python.protocol.retry import Backoff
from daybook.clients.python.protocol.routing import Router, murmur3
from daybook.clients.python.protocol.sends import PendingSend, PendingSends, Surprise
from daybook.wire.batch import iter_batch

E1, E2, E3 = (1, 1), (1, 2), (2, 0)


# -- acknowledgements


def test_an_entry_is_told_once_all_its_messages_are_done() -> None:
    acks = AckTracker()
    assert acks.delivered(E1, 3, None) == 0b111
    acks.ack(E1, 0)
    assert acks.take(10) == (None, [(1, 1, 0b110)])
    acks.ack(E1, 2)
    acks.ack(E1, 1)
    assert acks.take(10) == (None, [(1, 1, None)])
    assert acks.take(10) == (None, [])


def test_what_comes_again_leaves_out_what_is_done() -> None:
    acks = AckTracker()
    acks.delivered(E1, 3, None)
    acks.ack(E1, 1)
    assert acks.delivered(E1, 3, None) == 0b101
    assert acks.delivered(E1, 3, 0b011) == 0b001
    assert acks.delivered(E2, 3, 0b100) == 0b100


def test_of_a_batch_that_is_not_here_nothing_is_told() -> None:
    acks = AckTracker()
    acks.ack(E1, 0)  # Its other messages may be with another consumer.
    assert acks.waiting == 0
    acks.ack(E1, -1)
    assert acks.take(10) == (None, [(1, 1, None)])


def test_a_cumulative_ack_up_to_what_was_done_before_acknowledges_what_lies_before_it() -> None:
    """Found by the simulator: it was ignored as done, and the earlier messages came again."""
    acks = AckTracker()
    for key in (E1, E2, E3):
        acks.delivered(key, 2, None)
    acks.ack(E2, 0)
    acks.ack(E2, 1)
    cumulative, single = acks.take(10)
    assert (cumulative, single) == (None, [(1, 2, None)])
    acks.confirmed(cumulative, single)
    acks.ack_cumulative(E2, 1)
    assert acks.take(10) == ((1, 1, None), [])
    assert not acks.arrived(E1)
    acks.ack_cumulative(E3, 0)  # The second message of its batch is not done.
    assert acks.take(10) == ((2, 0, 0b10), [])
    acks.ack_cumulative(E3, 1)
    acks.take(10)
    acks.ack_cumulative((3, 0), 0)  # It was delivered to another consumer, or before a restart.
    assert acks.take(10) == ((3, -1, None), [])


def test_a_flush_repeats_no_older_cumulative_ack_in_place_of_a_newer_one() -> None:
    """Found by the simulator: acknowledged messages came again after the receipt of a flush."""
    acks = AckTracker()
    acks.delivered(E1, 3, None)
    acks.ack_cumulative(E1, 0)
    acks.note_sent(*acks.take(10))  # It is in doubt from now on.
    acks.ack_cumulative(E1, 2)
    assert acks.take_all(10) == [((1, 1, None), [])]


_SIZE = 3  # messages of each entry
_WHERE = st.tuples(st.sampled_from([E1, E2, E3]), st.integers(0, _SIZE - 1))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ack"), _WHERE),
            st.tuples(st.just("cumulative"), _WHERE),
            st.tuples(st.sampled_from(["sent", "lost", "flushed", "attached", "failed"]), _WHERE),
        ),
        max_size=14,
    )
)
def test_after_a_flush_the_broker_has_all_that_was_acknowledged(
    steps: list[tuple[str, tuple[tuple[int, int], int]]],
) -> None:
    """A group that is sent may be lost.  A flush is confirmed, or gives its groups back."""
    acks = AckTracker()
    wanted = {key: acks.delivered(key, _SIZE, None) for key in (E1, E2, E3)}
    held = dict(wanted)  # The broker would deliver these again.

    def arrive(cumulative: AckTuple | None, single: Sequence[AckTuple]) -> None:
        if cumulative is not None:
            for key in [each for each in held if each < cumulative[:2]]:
                held[key] = 0
        told = [*single] if cumulative is None else [cumulative, *single]
        for ledger_id, entry_id, pending in told:
            if (ledger_id, entry_id) in held:
                held[ledger_id, entry_id] &= pending or 0

    for what, (key, index) in [*steps, ("flushed", (E1, 0))]:
        match what:
            case "ack":
                acks.ack(key, index)
                wanted[key] &= ~(1 << index)
            case "cumulative":
                acks.ack_cumulative(key, index)
                wanted |= {each: 0 for each in wanted if each < key}
                wanted[key] &= -1 << (index + 1)
            case "sent" | "lost":
                while acks.waiting:
                    group = acks.take(2)
                    acks.note_sent(*group)
                    if what == "sent":
                        arrive(*group)
            case "attached":
                acks.in_doubt.attached()
                acks.recall()
            case "failed":
                for group in acks.take_all(2):
                    acks.give_back(*group)
            case _:
                for group in acks.take_all(2):
                    arrive(*group)
                    acks.confirmed(*group)
                assert {key: held[key] & ~wanted[key] for key in held} == dict.fromkeys(held, 0)
                assert {key: wanted[key] & ~held[key] for key in held} == dict.fromkeys(held, 0)


def test_a_cumulative_ack_swallows_what_lies_before_it() -> None:
    acks = AckTracker()
    for key in (E1, E2, E3):
        acks.delivered(key, 2, None)
    acks.ack(E1, 0)
    acks.ack(E3, 1)
    acks.ack_cumulative(E2, 0)
    assert acks.take(10) == ((1, 2, 0b10), [(2, 0, 0b01)])
    acks.ack_cumulative(E2, 1)
    acks.ack_cumulative(E1, -1)  # An older position is no step back.
    assert acks.take(10) == ((1, 2, None), [])


def test_what_was_not_heard_is_told_again_as_it_is_now() -> None:
    acks = AckTracker()
    acks.delivered(E1, 2, None)
    acks.ack(E1, 0)
    acks.ack(E2, -1)
    told = acks.take(10)
    acks.ack(E1, 1)
    acks.give_back(*told)
    assert acks.take(10) == (None, [(1, 1, None), (1, 2, None)])


def test_what_comes_again_is_not_wanted_while_it_waits_or_is_done() -> None:
    acks = AckTracker()
    assert acks.arrived(E1)
    assert not acks.arrived(E1)
    assert acks.taken(E1)
    acks.delivered(E1, 1, None)
    assert acks.arrived(E1)  # It came again before the application acknowledged it ...
    acks.ack(E1, 0)
    assert not acks.taken(E1)  # ... but now it is acknowledged.
    assert not acks.arrived(E1)
    _, told = acks.take(10)
    assert not acks.arrived(E1)
    acks.give_back(None, told)
    assert acks.unsent() == (None, [(1, 1, None)])
    acks.confirmed(*acks.take(10))
    assert acks.arrived(E1)  # The broker redelivers it for a reason.
    acks.dropped()
    assert acks.arrived(E1)
    acks.ack_cumulative(E2, -1)
    assert not acks.taken(E1)
    assert not acks.arrived(E2)
    assert acks.arrived(E3)


def test_what_comes_again_after_a_cumulative_ack_was_confirmed_is_wanted() -> None:
    """An administrator has reset the cursor; without this nobody would ever get it again."""
    acks = AckTracker()
    acks.ack_cumulative(E2, -1)
    told = acks.take(10)
    assert not acks.arrived(E1)
    acks.ack_cumulative(E3, -1)
    acks.confirmed(*told)
    assert not acks.arrived(E1)  # The later one is not confirmed.
    acks.confirmed(*acks.take(10))
    assert acks.arrived(E1)
    assert acks.arrived(E2)


def test_what_is_forgotten_while_it_is_told_is_not_told_again() -> None:
    tracker = AckTracker()
    for n in range(4):
        assert tracker.arrived((1, n))
        assert tracker.taken((1, n))
    tracker.delivered((1, 3), 2, None)
    tracker.ack_cumulative((1, 1), -1)
    tracker.ack((1, 2), -1)
    tracker.ack((1, 3), 0)
    cumulative, single = tracker.take(10)
    assert cumulative == (1, 1, None)
    assert len(single) == 2
    tracker.forget()
    tracker.give_back(cumulative, single)
    assert tracker.unsent() == (None, [])
    assert all(tracker.arrived((1, n)) for n in range(4))


def test_a_receipt_covers_what_its_attachment_told_before_it_and_nothing_else() -> None:
    doubt = AcksInDoubt(10)
    doubt.note(None, [(*E1, None)])
    doubt.attached()
    doubt.note(None, [(*E2, None)])
    number = doubt.last_group
    doubt.note((*E2, None), [(*E3, 0b10)])
    doubt.settled(number)
    assert (E1 in doubt, E2 in doubt, E3 in doubt, len(doubt)) == (True, False, True, 3)
    recalled = doubt.recall()
    assert (recalled.cumulative, recalled.whole, recalled.parts) == ((*E2, None), [E1], [E3])
    assert not doubt


def test_a_receipt_of_an_earlier_attachment_covers_nothing() -> None:
    doubt = AcksInDoubt(10)
    doubt.note(None, [(*E1, None)])
    number = doubt.last_group
    doubt.attached()
    doubt.settled(number)
    assert E1 in doubt


def test_a_part_that_is_told_later_does_not_cover_the_whole_entry() -> None:
    doubt = AcksInDoubt(10)
    doubt.note(None, [(*E1, None)])
    doubt.attached()
    doubt.note(None, [(*E1, 0b10)])
    doubt.settled(doubt.last_group)
    assert doubt.recall().whole == [E1]


def test_a_place_that_is_told_later_does_not_cover_one_behind_it() -> None:
    doubt = AcksInDoubt(10)
    doubt.note((*E3, None), [])
    doubt.attached()
    doubt.note((*E1, None), [])
    doubt.settled(doubt.last_group)
    assert doubt.recall().cumulative == (*E3, None)


def test_what_is_crowded_out_of_doubt_is_lost_with_its_attachment() -> None:
    doubt = AcksInDoubt(1)
    doubt.note(None, [(*E1, None), (*E2, None)])
    assert (len(doubt), doubt.lost) == (1, 0)
    doubt.settled(doubt.last_group)
    doubt.attached()
    assert doubt.lost == 0
    doubt.note(None, [(*E1, None), (*E2, None)])
    doubt.attached()
    assert doubt.lost == 1
    doubt.note(None, [(*E3, None)])  # Crowds out E2, of the earlier attachment.
    assert doubt.lost == 2


def test_what_is_recalled_is_told_as_it_is_now() -> None:
    acks = AckTracker()
    acks.delivered(E1, 3, None)
    acks.delivered(E2, 2, None)
    acks.ack(E1, 0)
    acks.ack(E2, 0)
    acks.note_sent(*acks.take(10))
    acks.ack(E1, 1)
    acks.ack(E2, 1)
    assert acks.take_all(10) == [(None, [(*E2, None), (*E1, 0b100)])]


def test_a_place_within_a_batch_is_recalled_without_what_was_done_since() -> None:
    acks = AckTracker()
    acks.delivered(E2, 3, None)
    acks.ack_cumulative(E2, 0)
    acks.note_sent(*acks.take(10))
    acks.ack(E2, 1)
    assert acks.take_all(10) == [((*E2, 0b100), [])]
    acks = AckTracker()
    acks.delivered(E2, 2, None)
    acks.ack_cumulative(E2, 0)
    acks.note_sent(*acks.take(10))
    acks.ack(E2, 1)
    assert acks.take_all(10) == [((*E1, None), [(*E2, None)])]


def test_batches_that_may_be_with_others_are_forgotten_at_a_bound() -> None:
    acks = AckTracker(given_back_max=1)
    for key in (E1, E2, E3):
        acks.delivered(key, 2, None)
    acks.ack(E1, 0)
    acks.given_back([E1, E2])  # The broker must be told about E1 first.
    assert acks.pending_batches == 2
    assert acks.take(10) == (None, [(*E1, 0b10)])
    acks.dropped()
    assert acks.pending_batches == 1
    acks.delivered(E3, 2, None)  # It has come back, and is kept.
    acks.dropped()
    assert acks.pending_batches == 1


@given(st.data())
def test_no_ack_is_covered_that_the_broker_may_have_lost(data: st.DataObject) -> None:
    """A broker loses the last acknowledgements of an attachment; after a recall it has all."""
    acks, has, told = AckTracker(), set[tuple[int, int]](), list[tuple[int, tuple[int, int]]]()
    done = set[tuple[int, int]]()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["ack", "tell", "settle", "lose"])):
            case "ack":
                key = (1, data.draw(st.integers(0, 5)))
                acks.ack(key, -1)
                done.add(key)
            case "tell":
                group = acks.take(data.draw(st.integers(1, 3)))
                acks.note_sent(*group)
                told += [(acks.in_doubt.last_group, each[:2]) for each in group[1]]
            case "settle":
                number = acks.in_doubt.last_group
                has |= {key for _, key in told}
                acks.in_doubt.settled(number)
            case _:
                kept = data.draw(st.integers(0, len(told)))
                has |= {key for _, key in told[:kept]}
                told.clear()
                acks.in_doubt.attached()
    for _, single in acks.take_all(10):
        has |= {each[:2] for each in single}
    assert has == done


def test_groups_have_a_limit() -> None:
    acks = AckTracker()
    for n in range(5):
        acks.ack((1, n), -1)
    assert [len(acks.take(2)[1]) for _ in range(3)] == [2, 2, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_every_message_done_means_every_entry_told_exactly_once(
    done: list[tuple[int, int]],
) -> None:
    acks = AckTracker()
    for entry in range(4):
        acks.delivered((0, entry), 4, None)
    told: list[tuple[int, int]] = []
    for entry, index in done:
        acks.ack((0, entry), index)
        told += [(ledger, e) for ledger, e, pending in acks.take(100)[1] if pending is None]
    complete = {e for e in range(4) if {i for n, i in done if n == e} == {0, 1, 2, 3}}
    assert sorted(told) == [(0, e) for e in sorted(complete)]


def test_nacks_are_due_after_their_delay_and_in_order() -> None:
    nacks = NackTracker(10)
    nacks.nack(E3, 0)
    nacks.nack(E1, 1)
    nacks.nack(E3, 5)  # It is waiting already.
    assert nacks.deadline == 10
    assert nacks.due(9.9) == []
    assert nacks.due(11) == [E1, E3]
    assert nacks.deadline is None
    nacks.nack(E3, 20)
    nacks.forget()
    assert nacks.due(99) == []


# -- sends


def send(first: int, last: int, deadline: float = 0) -> PendingSend:
    return PendingSend(first, last, last - first + 1, 10, (b"", b""), deadline)


def test_receipts_are_for_the_head_of_the_queue() -> None:
    sends = PendingSends()
    assert sends.receipt(0) is Surprise.OLD
    one, two, three = send(0, 4), send(5, 5), send(6, 9)
    for each in (one, two, three):
        sends.push(each)
    assert (sends.size, sends.oldest) == (30, 0)
    assert sends.receipt(5) is Surprise.LOST_ONE
    assert sends.receipt(0) is one
    assert sends.receipt(0) is Surprise.OLD
    assert sends.refused(9) is three  # Its last id is refused before its turn.
    assert sends.refused(9) is None
    assert sends.all() == [two]
    assert sends.clear() == [two]
    assert (len(sends), sends.size, sends.oldest) == (0, 0, None)


def test_sends_expire_from_the_head() -> None:
    sends = PendingSends()
    for n in range(3):
        sends.push(send(n, n, deadline=n))
    assert sends.deadline == 0
    assert [each.sequence_id for each in sends.expired(1)] == [0, 1]
    assert sends.deadline == 2


# -- batches


def test_a_batch_is_full_by_count_or_by_size() -> None:
    by_count = BatchBuilder(3, 10_000)
    assert [by_count.add(b"x", None, n) for n in range(3)] == [False, False, True]
    batch = by_count.take()
    assert (batch.count, batch.sequence_id, batch.highest_sequence_id) == (3, 0, 2)
    by_size = BatchBuilder(1000, 100)
    assert [by_size.add(bytes(40), None, n) for n in range(3)] == [False, False, True]


messages = st.tuples(
    st.binary(max_size=30),
    st.none() | st.text(max_size=5) | st.binary(max_size=5),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.none() | st.integers(1, 1 << 40),
)


@given(st.lists(messages, min_size=1, max_size=20))
def test_what_goes_into_a_batch_comes_out(
    sent: list[tuple[bytes, str | bytes | None, dict[str, str], int | None]],
) -> None:
    builder = BatchBuilder(1000, 1 << 20)
    for n, (data, key, properties, event_time) in enumerate(sent):
        if properties or event_time is not None:
            builder.add_special(data, key, properties, event_time, n)
        else:
            builder.add(data, key, n)
    batch = builder.take()
    assert len(batch.body) > 0
    assert builder.count == builder.size == 0
    out = list(iter_batch(batch.body, batch.count))
    assert [data for _, data in out] == [data for data, *_ in sent]
    for (single, _), (_, key, properties, event_time) in zip(out, sent, strict=True):
        assert dict(single.properties) == properties
        assert single.event_time_ms == (event_time or 0)
        assert single.key_is_base64 == isinstance(key, bytes)
        assert (single.key is None) == (key is None)
        if isinstance(key, str):
            assert single.key == key


# -- permits, routes, waits


def test_permits_are_renewed_at_half() -> None:
    permits = Permits(100, 1 << 30)
    assert permits.restart() == 64  # The size of messages is not known yet.
    assert [permits.taken(1, 10) for _ in range(13)] == [0] * 13
    assert permits.taken(1, 10) == 50  # 100, less the 50 that are left
    assert permits.restart() == 100


def test_large_messages_get_fewer_permits() -> None:
    permits = Permits(1000, 1 << 20)
    permits.restart()
    for _ in range(200):
        permits.taken(1, 1 << 18)
    assert permits.target == 4
    for _ in range(200):
        permits.taken(1, 1 << 24)
    assert permits.target == 1


def test_a_batch_above_the_permits_is_paid_back() -> None:
    permits = Permits(10, 1 << 20)
    assert permits.restart() == 10
    assert permits.taken(500, 500) == 500


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_is_that_of_others(data: bytes, expected: int) -> None:
    assert murmur3(data) == expected


def test_messages_without_a_key_take_turns_by_batch() -> None:
    router = Router(3, first=4)
    assert router.turn == 1
    router.batch_ended(2)  # A batch with a key is not this turn's.
    assert router.turn == 1
    router.batch_ended(1)
    router.batch_ended(2)
    assert router.turn == 0
    before = [router.for_key(f"{n}") for n in range(100)]
    assert before == [router.for_key(f"{n}".encode()) for n in range(100)]
    assert set(before) == {0, 1, 2}
    router.grow(4)
    assert {router.for_key(f"{n}") for n in range(100)} == {0, 1, 2, 3}


def test_waits_double_up_to_a_bound_and_start_over() -> None:
    backoff, chance = Backoff(1, 10), random.Random(1)
    waits = [backoff.next(chance.random()) for _ in range(50)]
    for wait, ceiling in zip(waits, [1, 2, 4, 8, 10, 10, 10], strict=False):
        assert ceiling / 2 <= wait <= ceiling
    backoff.reset()
    assert backoff.next(chance.random()) <= 1


def test_only_entries_that_were_never_sent_are_taken_back() -> None:
    sends = PendingSends()
    one, two, chunk, more, last, after = (
        PendingSend(number, number, count, 10, (b"", b""), 5.0, sent=sent)
        for number, count, sent in (
            (0, 1, True),
            (1, 1, True),
            (2, 0, True),
            (2, 0, False),
            (2, 1, False),
            (3, 1, False),
        )
    )
    one.sent, one.sent_before = False, True
    for send in (one, two, chunk, more, last, after):
        sends.push(send)
    assert sends.take_unsent() == [after]
    assert (sends.all(), sends.size) == ([one, two, chunk, more, last], 50)
    assert sends.take_unsent() == []
    assert (len(sends), sends.size) == (5, 50)
