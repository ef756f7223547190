"""Waiters for entries, and the memory left by waits that were given up."""

import trio
from trio.abc import Clock

from daybook.bookie.ledger.writer import ConfirmationWaiters


async def test_a_wait_that_was_given_up_leaves_nothing(autojump_clock: Clock) -> None:
    """A program that polls each second for the progress of a writer without bookies does this."""
    waiters, told = ConfirmationWaiters(), trio.Event()

    async def wait() -> None:
        await waiters.wait(7)
        told.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for entry_id in (7, 7, 8, 8):
            with trio.move_on_after(1):
                await waiters.wait(entry_id)
        assert [(entry_id, len(left)) for entry_id, left in waiters._events.items()] == [(7, 1)]
        waiters.reached(7, 7)
    assert told.is_set()
    assert not waiters._events
