"""Run the asynchronous side of a command: turn errors into sentences, end cleanly on signals."""

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import trio

from daybook.clients.cli.errors import UserError

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_async(function: Callable[[], Awaitable[T]], say: Callable[[Exception], str | None]) -> T:
    """Run `function`.  An error becomes a `UserError` if `say` returns a sentence for it."""
    try:
        return trio.run(function)
    except BaseException as raised:
        error = _ungrouped(raised)
        sentence = say(error) if isinstance(error, Exception) else None
        if sentence is not None:
            raise UserError(sentence) from error
        if error is not raised:
            raise error from error.__cause__
        raise


def _ungrouped(raised: BaseException) -> BaseException:
    """Return the one exception inside nested groups, or KeyboardInterrupt if there is one.

    A group of several exceptions is returned as it is.
    """
    error = raised
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        if group.subgroup(KeyboardInterrupt) is not None:
            return KeyboardInterrupt()
        alone, *others = group.exceptions
        if others:
            return raised
        error = alone
    return error


async def until_signal(work: Callable[[], Awaitable[object]]) -> int | None:
    """Do `work` until it ends or a signal (Ctrl-C, SIGTERM) cancels it; return the signal.

    When this returns, signals have their usual effect: a second Ctrl-C interrupts the caller.
    """
    received: list[int] = []

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                received.append(number)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)  # before `work`, so that no signal is missed
        await work()
        nursery.cancel_scope.cancel()
    return received[0] if received else None
