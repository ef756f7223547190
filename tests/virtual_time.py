"""Virtual time that stands still while threads work.

A clock with `autojump_threshold` jumps when no task can run.  A task that waits for a thread cannot
run either, so the clock would jump over the work of that thread: by how far depends on the machine.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock

_Run = Callable[..., Awaitable[Any]]


def keep_time_for_threads(run_sync: _Run = trio.to_thread.run_sync) -> _Run:
    """Return a `trio.to_thread.run_sync` in which a mock clock jumps only when the thread is done.

    A call that the thread makes back into trio runs in real time, too: it must not wait for the
    mock clock.
    """
    working: dict[MockClock, tuple[int, float]] = {}  # the threads, and the threshold before them

    async def run_sync_in_real_time(*arguments: Any, **options: Any) -> Any:
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, MockClock):
            return await run_sync(*arguments, **options)
        threads, threshold_s = working.get(clock, (0, clock.autojump_threshold))
        working[clock] = threads + 1, threshold_s
        clock.autojump_threshold = math.inf
        try:
            return await run_sync(*arguments, **options)
        finally:
            threads, threshold_s = working.pop(clock)
            if threads > 1:
                working[clock] = threads - 1, threshold_s
            else:
                clock.autojump_threshold = threshold_s

    return run_sync_in_real_time
