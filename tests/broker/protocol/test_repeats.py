"""A command that is refused repeatedly is answered later each time; no other command is delayed."""

import pytest

from daybook.broker.protocol.refusals import (
    DELAY_MAX_S,
    DELAY_MIN_S,
    FORGOTTEN_AFTER_S,
    PACE_BURST,
    PACE_PER_S,
    RefusalPace,
    Repeats,
    repeated_as,
)
from daybook.wire.proto import pulsar_pb2 as pb

T = pb.BaseCommand


def test_the_delay_doubles_up_to_its_bound() -> None:
    repeats, now_s = Repeats(), 0.0
    delays: list[float] = []
    for _ in range(12):
        delays.append(repeats.delay_s("a", now_s))
        now_s += delays[-1]
    assert delays[:4] == [0.0, DELAY_MIN_S, 2 * DELAY_MIN_S, 4 * DELAY_MIN_S]
    assert delays[-1] == delays[-2] == DELAY_MAX_S


def test_another_command_does_not_wait() -> None:
    repeats = Repeats()
    for _ in range(9):
        repeats.delay_s("a", 0.0)
    assert repeats.delay_s("b", 0.0) == 0.0


def test_a_command_that_was_not_refused_for_a_while_does_not_wait() -> None:
    repeats = Repeats()
    repeats.delay_s("a", 0.0)
    answered_s = 1.0 + repeats.delay_s("a", 1.0)
    assert repeats.delay_s("a", answered_s + FORGOTTEN_AFTER_S) == 0.0


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    for number in range(5_000):
        repeats.delay_s(number, 0.0)
    assert len(repeats) <= 1_000
    assert repeats.delay_s(4_999, 0.0) == DELAY_MIN_S


def test_refusals_come_at_once_until_there_are_too_many() -> None:
    pace = RefusalPace()
    assert not any(pace.delay_s(100.0) for _ in range(PACE_BURST))
    delays = [pace.delay_s(100.0) for _ in range(3)]
    assert delays == pytest.approx([1 / PACE_PER_S, 2 / PACE_PER_S, 3 / PACE_PER_S])


def test_a_client_that_is_refused_now_and_then_does_not_wait() -> None:
    pace = RefusalPace()
    assert not any(pace.delay_s(2 * number / PACE_PER_S) for number in range(5 * PACE_BURST))


def test_a_repeat_has_another_request_id_and_the_same_subject() -> None:
    one = pb.CommandGetSchema(request_id=1, topic="a")
    again = pb.CommandGetSchema(request_id=2, topic="a")
    other = pb.CommandGetSchema(request_id=3, topic="b")
    assert repeated_as(T.GET_SCHEMA, one) == repeated_as(T.GET_SCHEMA, again)
    assert repeated_as(T.GET_SCHEMA, one) != repeated_as(T.GET_SCHEMA, other)
    assert repeated_as(T.GET_SCHEMA, one) != repeated_as(T.LOOKUP, one)
    seek, elsewhere = (pb.CommandSeek(request_id=n, consumer_id=n) for n in (1, 2))
    assert repeated_as(T.SEEK, seek) != repeated_as(T.SEEK, elsewhere)


def test_a_long_name_is_not_kept() -> None:
    name = "x" * 5_000_000
    one = repeated_as(T.LOOKUP, pb.CommandLookupTopic(request_id=1, topic=name))
    again = repeated_as(T.LOOKUP, pb.CommandLookupTopic(request_id=2, topic=name))
    other = repeated_as(T.LOOKUP, pb.CommandLookupTopic(request_id=3, topic=name + "y"))
    assert one == again != other
    assert isinstance(one, tuple)
    assert sum(len(str(each)) for each in one) < 1_000
