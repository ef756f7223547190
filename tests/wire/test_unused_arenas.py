"""A pool gives memory back that nobody needed for some seconds, and nothing that is in use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.wire import arena as arena_module
from daybook.wire.arena import ARENA_BYTES, Arena, ArenaPool, new_arena
from tests.wire.test_receive_memory import Served, frame, serving

ARENA = 64 << 10
KEPT = 2 * ARENA
TWO_LOOKS_S = 10.1


@asynccontextmanager
async def running(pool: ArenaPool) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def taken(pool: ArenaPool, count: int) -> list[Arena]:
    arenas = [arena for _ in range(count) if (arena := pool.try_acquire(1)) is not None]
    assert len(arenas) == count
    return arenas


def use(pool: ArenaPool, count: int) -> None:
    """Take so many arenas at once, and give them back."""
    arenas = taken(pool, count)
    while arenas:
        pool.release(arenas.pop())


async def test_arenas_that_nobody_needed_go_except_for_two(autojump_clock: MockClock) -> None:
    pool = ArenaPool(arena_bytes=ARENA)
    async with running(pool):
        for _ in range(2):  # The rule holds again after a pause in which nothing woke up.
            use(pool, 20)
            pool.release(arena := pool.try_acquire(3 * ARENA) or pytest.fail("no memory"))
            del arena
            assert pool.total_bytes == 23 * ARENA
            await trio.sleep(TWO_LOOKS_S)
            assert pool.total_bytes == KEPT
            await trio.sleep(3600)
        use(pool, 2)
        assert pool.total_bytes == KEPT


async def test_arenas_that_were_needed_between_two_looks_stay(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    made: list[int] = []

    def count(size: int) -> Arena:
        made.append(size)
        return new_arena(size)

    monkeypatch.setattr(arena_module, "new_arena", count)
    pool = ArenaPool(arena_bytes=ARENA)
    async with running(pool):
        use(pool, 20)
        for _ in range(100):
            use(pool, 7)
            await trio.sleep(0.9)
    assert len(made) == 20
    assert pool.total_bytes == 7 * ARENA


async def test_a_large_arena_is_used_again_if_it_fits_and_nothing_needs_it(
    autojump_clock: MockClock,
) -> None:
    pool = ArenaPool(arena_bytes=ARENA)
    async with running(pool):

        def take(size: int) -> int:
            """Return how many bytes of new arenas this size needs."""
            before = pool.total_bytes
            arena = pool.try_acquire(size)
            assert arena is not None
            assert len(arena) >= size
            views.append(memoryview(arena)[:1])
            pool.release(arena)
            return pool.total_bytes - before

        views: list[memoryview] = []
        assert take(4 * ARENA) == 4 * ARENA
        assert take(3 * ARENA) == 3 * ARENA
        views.clear()
        assert take(3 * ARENA) == 0  # the larger one, which came back first
        assert take(3 * ARENA) == 0
        assert take(2 * ARENA) == 2 * ARENA  # Both have views.
        views.clear()
        assert take(ARENA + 1) == 0
        views.clear()
        await trio.sleep(TWO_LOOKS_S)
        assert pool.total_bytes == 0


async def test_an_arena_with_views_stays_as_it_is_and_goes_after_them(
    autojump_clock: MockClock,
) -> None:
    pool = ArenaPool(arena_bytes=ARENA)
    async with running(pool):
        arenas = taken(pool, 5)
        views = [memoryview(arena)[10:20] for arena in arenas]
        for number, view in enumerate(views):
            view[:] = bytes([number] * 10)
        while arenas:
            pool.release(arenas.pop())
        await trio.sleep(60)
        assert pool.total_bytes == 5 * ARENA
        for other in taken(pool, 5):
            other[:] = b"x" * ARENA
            pool.release(other)
        del other
        assert [bytes(view) for view in views] == [bytes([n] * 10) for n in range(5)]
        views.clear()
        del view
        await trio.sleep(TWO_LOOKS_S)
        assert pool.total_bytes == KEPT


async def test_connections_that_fell_silent_give_their_arenas_back(
    autojump_clock: MockClock,
) -> None:
    """Nobody else needs memory, so nobody asks them for it."""
    pool = ArenaPool()
    many = [Served(pool) for _ in range(10)]
    async with running(pool), serving(*many):
        for each in many:
            each.stream.feed(frame(300_000) * 3)
        await trio.sleep(0.1)
        assert pool.total_bytes == 10 * ARENA_BYTES
        await trio.sleep(TWO_LOOKS_S)
        assert pool.total_bytes == 2 * ARENA_BYTES
        for each in many:
            each.stream.feed(frame(300_000) * 3)
        await trio.sleep(0.1)
        assert all(each.sizes == [300_000] * 6 for each in many)


class _Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("ArenaPool.run")


async def test_a_pool_with_few_arenas_wakes_nobody(autojump_clock: MockClock) -> None:
    pool = ArenaPool(arena_bytes=ARENA)
    steps = _Steps()
    async with running(pool):
        trio.lowlevel.add_instrument(steps)
        use(pool, 2)
        await trio.sleep(3600)
        assert steps.count == 0
        use(pool, 3)
        await trio.sleep(3600)
        assert 0 < steps.count < 5
        trio.lowlevel.remove_instrument(steps)


async def test_much_memory_goes_in_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(arena_module, "_DROPPED_BYTES_MAX", 4 * ARENA)
    pool = ArenaPool(arena_bytes=ARENA)
    async with running(pool):
        use(pool, 30)
        sizes = [pool.total_bytes]
        await trio.sleep(10)  # until the second look
        while sizes[-1] > KEPT:  # Two turns of `run` may lie between two of this task.
            sizes.append(pool.total_bytes)
            await trio.lowlevel.checkpoint()
    assert sizes[0] == 30 * ARENA
    assert max(before - after for before, after in pairwise(sizes)) <= 8 * ARENA
