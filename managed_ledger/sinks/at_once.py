"""Several calls at once, for the many nodes and ledgers of one batch."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

_T = TypeVar("_T")
_AT_ONCE = 16


async def for_each(items: Iterable[_T], act: Callable[[_T], Awaitable[None]]) -> None:
    """Call `act` for all items, several at a time, and raise the first error."""
    errors: list[Exception] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def run(item: _T) -> None:
        async with limiter:
            if not errors:
                try:
                    await act(item)
                except Exception as error:
                    errors.append(error)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(run, item)
    if errors:
        raise errors[0]
