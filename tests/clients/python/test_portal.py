"""Threads that call while another one closes get an error, and do not wait forever."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
import trio

from daybook.clients.python import portal as portal_module
from daybook.clients.python.portal import Portal


def test_a_call_behind_the_end_is_told() -> None:
    portal = Portal()
    portal.close()
    portal._closed = False  # as the caller saw it, a moment ago
    with pytest.raises(trio.ClosedResourceError, match="closed meanwhile"):
        portal.call(trio.lowlevel.checkpoint)


def test_a_call_that_arrives_while_the_loop_ends_is_told() -> None:
    portal = Portal()
    ending, may_end = threading.Event(), threading.Event()
    told: list[BaseException] = []

    async def linger() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ending.set()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(may_end.wait)

    async def begin() -> None:
        trio.lowlevel.spawn_system_task(linger)
        await trio.lowlevel.checkpoint()

    def call() -> None:
        try:
            portal.call(trio.lowlevel.checkpoint)
        except trio.ClosedResourceError as error:
            told.append(error)

    portal.call(begin)
    portal._token.run_sync_soon(portal._nursery.cancel_scope.cancel)
    assert ending.wait(10)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(10)
    may_end.set()
    portal.close()
    assert [str(error) for error in told] == ["the client was closed meanwhile"]


class Interrupted:
    """A token in whose next call the caller is interrupted: before anything was done, or after."""

    def __init__(self, portal: Portal, *, before: bool) -> None:
        self._token = portal._token
        self._before = before
        self._left = 1

    def run_sync_soon(self, function: Callable[..., object], *arguments: object) -> None:
        self._left -= 1
        if not self._left and self._before:
            raise KeyboardInterrupt
        self._token.run_sync_soon(function, *arguments)
        if not self._left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_while_something_is_handed_over_stops_nothing_that_comes_later(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal = Portal()
    done = [threading.Event(), threading.Event()]
    monkeypatch.setattr(portal, "_token", Interrupted(portal, before=before))
    with pytest.raises(KeyboardInterrupt):
        portal.soon(done[0].set)
    portal.soon(done[1].set)
    assert all(event.wait(10) for event in done)
    portal.close()


def test_an_interrupt_just_before_the_caller_waits_cancels_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portal = Portal()
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    monkeypatch.setattr(portal, "_token", Interrupted(portal, before=False))
    with pytest.raises(KeyboardInterrupt):
        portal.call(work)
    assert cancelled.wait(10)
    portal.close()


class InterruptedAtTheEnd(Future[str]):
    """A future whose caller is interrupted when the result exists and is not returned yet."""

    def result(self, timeout: float | None = None) -> str:
        found = super().result(timeout)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return found


@pytest.mark.parametrize("late", [True, False])
def test_what_an_interrupted_caller_does_not_get_is_given_up(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes before the work is done, which cannot be cancelled, or just behind it."""
    portal = Portal()
    unwanted: Future[str] = Future()

    async def work() -> str:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        return "made"

    if late:
        monkeypatch.setattr(portal_module, "Future", InterruptedAtTheEnd)
    else:
        monkeypatch.setattr(portal, "_token", Interrupted(portal, before=False))
    with pytest.raises(KeyboardInterrupt):
        portal.call(work, unwanted=unwanted.set_result)
    assert unwanted.result(10) == "made"
    monkeypatch.undo()
    portal.close()


def test_an_interrupt_that_another_thread_receives_ends_the_call() -> None:
    """The kernel may choose any thread, and only the main thread acts on the signal."""
    portal = Portal()  # Its thread begins before the signal is blocked here, so it receives it.
    waited_to_the_end = False

    async def interrupt_and_wait() -> None:
        nonlocal waited_to_the_end
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep(20)
        waited_to_the_end = True

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.call(interrupt_and_wait)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    portal.close()
    assert not waited_to_the_end
