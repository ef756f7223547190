"""Threads that call while another one closes are told, and do not wait for ever."""

import threading

import pytest
import trio

from clients.python.portal import Portal


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
    assert [str(error) for error in told] == ["this was closed meanwhile"]
