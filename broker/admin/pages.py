"""Long lists in pages: `?after=NAME&limit=N`.

A page has the names behind `after`, at most `limit` of them, in the order of the whole list.  A
caller asks for the next page with the last name that it has, until a page is empty.  A name that is
there all the time is in exactly one page, also if others come and go in between.
"""

from bisect import bisect_right
from collections.abc import Sequence

from daybook.broker.errors import PreconditionError


def page(names: Sequence[str], after: str, limit: str) -> Sequence[str]:
    """Return a page of sorted names; all of them if neither `after` nor `limit` is given.

    Raise PreconditionError if `limit` is not a positive number.
    """
    first = bisect_right(names, after) if after else 0
    if not limit:
        return names[first:]
    if not (limit.isascii() and limit.isdecimal()) or not int(limit):
        raise PreconditionError(f"limit must be a number from 1 on, not {limit[:20]!r}")
    return names[first : first + int(limit)]
