"""Times and ages in commands."""

from datetime import UTC, datetime, timedelta

import pytest

from daybook.clients.cli.times import duration_text, parse_age, parse_duration, parse_time

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("7d", 604_800),
        ("1w", 604_800),
        ("2h30m", 9000),
        ("1d2s", 86_402),
    ],
)
def test_ages(text: str, seconds: int) -> None:
    assert parse_age(text) == seconds
    assert parse_time(text, NOW) == NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", "0h", "-2h", "2 h", "2H", "1.5h", "30m2h", "2h2h", "2h30", "٣h", "9999999999d"],
)
def test_what_is_no_age(text: str) -> None:
    assert parse_age(text) is None
    assert parse_time(text, NOW) is None


@pytest.mark.parametrize("seconds", [0, 1, 59, 60, 9000, 86_400, 604_800, 694_861])
def test_a_duration_is_written_as_it_is_read(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


def test_times_have_a_zone() -> None:
    assert parse_time("2026-11-22T10:00Z", NOW) == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert parse_time("2026-11-22T10:00", NOW) == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert parse_time("2026-11-22T10:00+02:00", NOW) == datetime(2026, 11, 22, 8, tzinfo=UTC)
    assert parse_time("999999999w", NOW) is None
    assert parse_time("yesterday", NOW) is None
