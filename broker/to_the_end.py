"""What is begun for somebody, and goes on if that one stops waiting."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from daybook.broker.errors import BrokerError

T = TypeVar("T")


def to_the_end(
    nursery: trio.Nursery,
    act: Callable[[], Awaitable[T]],
    *,
    over: Callable[[], None],
    ended: BrokerError,
) -> Callable[[], Awaitable[T]]:
    """Begin `act` in the nursery; what is returned waits for the outcome, and has to be called.

    `over` is for others who wait.  It is called when all is done: in the turn in which the one who
    asked goes on, so that this one is first, or at once if nobody waits for the outcome any more.
    The outcome is the error `ended` if the nursery was stopped meanwhile.
    """
    done, left = trio.Event(), trio.Event()
    results: list[T] = []
    errors: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await act())
        except Exception as error:  # It is raised where somebody waits.
            errors.append(error)
        finally:
            done.set()
            if left.is_set():
                over()

    async def outcome() -> T:
        try:
            await done.wait()
        finally:
            if done.is_set():
                over()
            left.set()
        if errors:
            raise errors[0]
        if not results:
            raise ended
        return results[0]

    nursery.start_soon(run)
    return outcome
