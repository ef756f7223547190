"""Times and ages as people write them: `2h` and `2026-11-22T10:00Z`.

Every command that takes a time takes both.  A time without a zone is in UTC.
"""

import re
from datetime import UTC, datetime, timedelta

import click

_UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}){unit})?" for unit in _UNITS))
FORMS = "2026-11-22T10:00Z or 2h"


def parse_duration(text: str) -> int | None:
    """Return a duration such as 0s, 90s, 2h30m, 7d or 1w in seconds; None if the text is none."""
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        return None
    return sum(int(found[unit] or 0) * _UNITS[unit] for unit in _UNITS)


def duration_text(seconds: int) -> str:
    """Return seconds as `parse_duration` reads them: 7d, 2h30m, 0s.  Raise ValueError."""
    if seconds < 0:
        raise ValueError("a duration is not negative")
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNITS[unit])
        parts += [f"{count}{unit}"] * bool(count)
    return "".join(parts) or "0s"


def parse_age(text: str) -> int | None:
    """Return an age such as 90s, 2h30m, 7d or 1w in seconds; None if the text is none."""
    return parse_duration(text) or None


def parse_time(text: str, now: datetime) -> datetime | None:
    """Return a time; an age is counted back from `now`.  None if the text is neither."""
    age = parse_age(text)
    try:
        if age is not None:
            return now - timedelta(seconds=age)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


class Age(click.ParamType[int]):
    """An age such as 90s, 15m, 2h30m or 7d, in seconds."""

    name = "age"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        age = parse_age(str(value))
        if age is None:
            self.fail(f"{value!r} is not an age: write 90s, 15m, 2h30m, 7d or 1w.", param, ctx)
        return age
