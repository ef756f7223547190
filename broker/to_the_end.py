"""Changes that a client requests, and that are completed even if the client stops waiting."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.errors import BrokerError
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.wire.metadata.store import MetadataError

T = TypeVar("T")
_EXPECTED = (BrokerError, LedgerError, ManagedLedgerError, MetadataError)


def _ignore(_: Exception) -> None:
    """Leave the error to the caller."""


def to_the_end(
    start_task: Callable[[Callable[[], Awaitable[None]]], None],
    act: Callable[[], Awaitable[T]],
    *,
    over: Callable[[], None],
    ended: BrokerError,
    on_bug: Callable[[Exception], None] = _ignore,
) -> Callable[[], Awaitable[T]]:
    """Begin `act` in a task of its own, and return a function that waits for its outcome.

    The caller has to call that function, and may be cancelled in it.  `over` wakes other tasks that
    wait for the change.  It is called when `act` is done: in the turn of the event loop in which
    the caller continues, so that the caller is first, or at once if the caller no longer waits.
    The function raises `ended` if the task was stopped before the end of `act`.  `on_bug` is told
    of an error that nobody expected, as it may have left half a change.
    """
    done, left = trio.Event(), trio.Event()
    results: list[T] = []
    errors: list[Exception] = []

    async def run() -> None:
        try:
            results.append(await act())
        except Exception as error:  # The caller raises it.
            errors.append(error)
            if not isinstance(error, _EXPECTED):
                on_bug(error)
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

    start_task(run)
    return outcome
