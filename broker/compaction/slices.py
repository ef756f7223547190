"""Long work on the messages of an entry, with turns for other tasks in between."""

from collections.abc import Generator
from typing import TypeVar, cast

import trio

ResultT = TypeVar("ResultT")


async def in_slices(work: Generator[None, None, ResultT]) -> ResultT:
    """Carry out the work, and let other tasks run after each slice of it."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("ResultT", end.value)
        await trio.lowlevel.checkpoint()
