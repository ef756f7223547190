"""Long lists in pages: `?after=NAME&limit=N`.

A page has the names behind `after`, at most `limit` of them, in the order of the whole list.  A
caller asks for the next page with the last name that it has, until a page is empty.  A name that is
there all the time is in exactly one page, also if others come and go in between.

A list of 100,000 names takes half a second to read and sort.  So the list of which somebody reads
pages is remembered for some seconds, and dropped with its last page.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence

import trio

from daybook.broker.errors import PreconditionError

_REMEMBERED_S = 10.0


class Pages:
    """The list of which somebody reads pages.  One instance per broker."""

    def __init__(self) -> None:
        self._key = ""
        self._names: Sequence[str] = ()
        self._until_s = 0.0

    async def page(
        self, key: str, read: Callable[[], Awaitable[Sequence[str]]], *, after: str, limit: str
    ) -> Sequence[str]:
        """Return a page of the sorted names that `read` returns; all if no limit is given.

        `key` names the list.  Raise PreconditionError if `limit` is not a positive number.
        """
        count = _limit(limit)
        now_s = trio.current_time()
        # The first page is always read, so that a caller sees its own changes.
        if after and key == self._key and now_s < self._until_s:
            names = self._names
        else:
            names = await read()
            if count:
                self._key, self._names, self._until_s = key, names, now_s + _REMEMBERED_S
        found = page(names, after, count)
        if count and len(found) < count and names is self._names:
            self._key, self._names = "", ()
        return found


def page(names: Sequence[str], after: str, count: int) -> Sequence[str]:
    """Return the names behind `after`; with `count`, at most so many."""
    first = bisect_right(names, after) if after else 0
    return names[first : first + count] if count else names[first:]


def _limit(text: str) -> int:
    """Return the number; 0 if there is none."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()) or not int(text):
        raise PreconditionError(f"limit must be a number from 1 on, not {text[:20]!r}")
    return int(text)
