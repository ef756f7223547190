"""A task that is parked: how it is woken, cancelled and ended by an error beside it."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from daybook.wire.parking import Parking


class Visitor:
    """A task that parks again and again, as long as nothing was brought."""

    def __init__(self) -> None:
        self.parking = Parking()
        self.brought: list[int] = []
        self.wakes = 0

    async def run(self) -> None:
        while not self.brought:
            await self.parking.park()
            self.wakes += 1


async def test_a_parked_task_is_woken_once() -> None:
    visitor = Visitor()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await wait_all_tasks_blocked()
            visitor.parking.wake()
            visitor.parking.wake()  # The place is empty by now.
            await wait_all_tasks_blocked()
            assert visitor.wakes == 1
            visitor.brought.append(1)
            visitor.parking.wake()
    assert visitor.wakes == 2


async def test_a_wake_up_without_a_parked_task_is_not_kept() -> None:
    visitor = Visitor()
    visitor.parking.wake()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(visitor.run)
        await wait_all_tasks_blocked()
        assert visitor.wakes == 0
        nursery.cancel_scope.cancel()


async def test_a_task_that_is_cancelled_while_parked_leaves_the_place_free() -> None:
    visitor = Visitor()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    visitor.parking.wake()
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await wait_all_tasks_blocked()
            visitor.brought.append(1)
            visitor.parking.wake()
    assert visitor.wakes == 1


async def test_a_task_that_is_woken_and_cancelled_in_one_turn_returns() -> None:
    parking, after = Parking(), list[str]()

    async def parks() -> None:
        await parking.park()
        after.append("woken")
        await trio.lowlevel.checkpoint()
        after.append("went on")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(parks)
        await wait_all_tasks_blocked()
        parking.wake()
        nursery.cancel_scope.cancel()
    assert after == ["woken"]


async def test_an_error_beside_a_parked_task_ends_it() -> None:
    visitor = Visitor()

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor.run)
            await wait_all_tasks_blocked()
            raise KeyError("beside")

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert caught.group_contains(KeyError)
    visitor.parking.wake()
    assert visitor.wakes == 0


async def test_a_second_task_may_not_park_in_the_same_place() -> None:
    visitor = Visitor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(visitor.run)
        await wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="another task"):
            await visitor.parking.park()
        visitor.brought.append(1)
        visitor.parking.wake()
    assert visitor.wakes == 1
