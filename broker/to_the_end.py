"""What is begun for somebody, and goes on if that one stops waiting."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from daybook.broker.errors import BrokerError

T = TypeVar("T")


def to_the_end(
    nursery: trio.Nursery, act: Callable[[], Awaitable[T]], ended: BrokerError
) -> Callable[[], Awaitable[T]]:
    """Begin `act` in the nursery; what is returned waits for the outcome, and may be left alone.

    The outcome is the error `ended` if the nursery was stopped meanwhile.
    """
    done = trio.Event()
    results: list[T] = []
    errors: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await act())
        except Exception as error:  # It is raised where somebody waits.
            errors.append(error)
        finally:
            done.set()

    async def outcome() -> T:
        await done.wait()
        if errors:
            raise errors[0]
        if not results:
            raise ended
        return results[0]

    nursery.start_soon(run)
    return outcome
