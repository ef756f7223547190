"""Times and ages as people write them: `2h` and `2026-11-22T10:00Z`.

Every command that takes a time takes both.  A time without a zone is in UTC.
"""

import re
from datetime import UTC, datetime, timedelta

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d{1,9})([smhdw])")
FORMS = "2026-11-22T10:00Z or 2h"


def parse_age(text: str) -> int | None:
    """Return an age such as 90s, 15m, 2h, 7d or 1w in seconds; None if the text is none."""
    found = _AGE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2]] if found is not None and int(found[1]) else None


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
    """An age such as 90s, 15m, 2h or 7d, in seconds."""

    name = "age"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        age = parse_age(str(value))
        if age is None:
            self.fail(f"{value!r} is not an age: write 90s, 15m, 2h, 7d or 1w.", param, ctx)
        return age
