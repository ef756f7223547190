"""One seed gives one run: twice in a process, in another process, with another hash seed."""

import gc

import pytest
import trio

from tests.simulation import scheduler
from tests.simulation.nemesis import draw_plan
from tests.simulation.run import simulate
from tests.simulation.scheduler import HOST, Scheduler, SimulationStuckError
from tests.simulation.twin import Twin

SEED = 1


def test_one_seed_is_one_run_also_in_another_process_with_another_hash_seed() -> None:
    first, second = simulate(draw_plan(SEED)), simulate(draw_plan(SEED))
    assert first.line == second.line
    assert first.events == second.events
    with Twin() as twin:
        assert twin.line(SEED) == first.line
        assert twin.line(SEED) == first.line  # earlier runs change nothing


def test_another_seed_is_another_run() -> None:
    async def race(handle: Scheduler) -> str:
        order: list[int] = []

        async def runner(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(runner, number)
        handle.record(*order)
        return handle.trace.hexdigest()

    traces = {seed: scheduler.run(race, seed=seed) for seed in range(5)}
    assert len(set(traces.values())) == 5
    assert all(scheduler.run(race, seed=seed) == trace for seed, trace in traces.items())


# -- the behavior of trio's private names that the scheduler relies on


def test_a_host_that_is_held_does_nothing_and_goes_on_with_its_timers_overdue() -> None:
    async def main(handle: Scheduler) -> list[tuple[str, float]]:
        woke: list[tuple[str, float]] = []

        async def host(name: str, seconds: float) -> None:
            HOST.set(name)
            await trio.sleep(seconds)
            woke.append((name, trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(host, "a", 3.0)
            nursery.start_soon(host, "b", 4.0)
            await trio.sleep(1.0)
            handle.hold("a")
            await trio.sleep(9.0)
            handle.release("a")
        return woke

    assert scheduler.run(main, seed=1) == [("b", 4.0), ("a", 10.0)]


def test_calls_come_at_their_instant_and_between_steps() -> None:
    async def main(handle: Scheduler) -> list[tuple[str, float]]:
        called: list[tuple[str, float]] = []

        def call(what: str) -> None:
            called.append((what, handle.clock.now))

        handle.at(2.0, lambda: call("later"))
        handle.soon(lambda: call("soon"))
        call("first")
        await trio.lowlevel.checkpoint()
        call("after a step")
        await handle.sleep(3.0)
        with trio.move_on_after(1.0):
            await handle.sleep(100.0)
        call("in the end")
        return called

    assert scheduler.run(main, seed=1) == [
        ("first", 0.0),
        ("soon", 0.0),
        ("after a step", 0.0),
        ("later", 2.0),
        ("in the end", 4.0),
    ]


def test_a_deadlock_is_reported() -> None:
    async def main(_: Scheduler) -> None:
        await trio.sleep_forever()

    with pytest.raises(SimulationStuckError, match="deadlock"):
        scheduler.run(main, seed=1)


# The tasks that it leaves raise warnings when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deadlock_of_somebody_who_cannot_be_cancelled_is_reported_too() -> None:
    async def main(_: Scheduler) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    with pytest.raises(SimulationStuckError, match="cannot be cancelled"):
        scheduler.run(main, seed=1)
    gc.collect()  # here, and in no other test


def test_a_loop_that_lets_no_time_pass_is_stopped() -> None:
    async def main(_: Scheduler) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(SimulationStuckError, match="too many steps"):
        scheduler.run(main, seed=1, steps_max=10_000)
