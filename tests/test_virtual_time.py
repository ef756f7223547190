"""Virtual time stands still while threads work, and goes on after them."""

import time

import trio
from trio.testing import MockClock


async def test_the_clock_does_not_jump_over_the_work_of_a_thread(
    autojump_clock: MockClock,
) -> None:
    began_s = trio.current_time()

    async def work() -> float:
        await trio.to_thread.run_sync(time.sleep, 0.01)
        return trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1000)
        nursery.start_soon(work)
        assert await work() == began_s
        nursery.start_soon(work)
    assert trio.current_time() == began_s + 1000
    assert autojump_clock.autojump_threshold == 0


async def test_a_thread_that_raises_lets_the_clock_go_on(autojump_clock: MockClock) -> None:
    began_s = trio.current_time()
    try:
        await trio.to_thread.run_sync(int, "no number")
    except ValueError:
        await trio.sleep(10)
    assert trio.current_time() == began_s + 10
    assert autojump_clock.autojump_threshold == 0
