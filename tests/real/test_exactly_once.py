"""An exactly-once query survives a kill of each of its parts; `exactly_once` plays more rounds."""

from pathlib import Path

import pytest

from tests.real.exactly_once import EVENTS, differences, draw_events, play

pytestmark = [pytest.mark.real]


def test_every_row_is_copied_once_when_parts_are_killed(tmp_path: Path) -> None:
    """pulsar-spark 181: rows were lost and repeated after a failure."""
    events = ("worker", "broker", "driver")
    outcome = play(tmp_path, events, seed=1, bookies=3, brokers=2)  # One broker is killed.
    assert [each.event for each in outcome.rounds] == list(events)
    assert outcome.rows > 0
    assert outcome.problems == []


def test_the_comparison_finds_lost_repeated_and_exchanged_rows() -> None:
    source = {"k": [b"0", b"1", b"2"]}
    assert differences(source, {"k": [b"0", b"1", b"2"]}) == []
    assert differences(source, {"k": [b"0", b"2"]}) == ["k: 1 rows are lost, such as b'1'"]
    assert differences(source, {"k": [b"0", b"1", b"1", b"2"]}) == [
        "k: 1 rows are there too often, such as b'1'"
    ]
    assert differences(source, {"k": [b"0", b"2", b"1"]}) == [
        "k: row 1 is b'2', and b'1' in the source"
    ]
    assert differences({}, {"k": [b"0"]}) == ["k: 1 rows are there too often, such as b'0'"]


def test_each_kind_of_event_is_drawn_as_often_as_the_others() -> None:
    events = draw_events(50, seed=3)
    assert {events.count(each) for each in EVENTS} == {12, 13}
