"""Run trio so that the same seed gives the same run.

trio shuffles the tasks that are ready, on purpose.  Here it shuffles from a seed; time is virtual
and jumps to the next deadline when nobody can run; and the tasks of one host can be held back,
which is how a host is paused, or killed: a dead host runs nothing again, no `finally`, no
cancellation handler.

The private names of trio are used in this file and nowhere else; `test_determinism` fails on the
day that they change their meaning.  Do not use `wait_all_tasks_blocked` in a simulated run.
"""

import hashlib
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import trio
import trio._core._run

T = TypeVar("T")
_run: Any = trio._core._run

HOST: ContextVar[str] = ContextVar("HOST", default="")
_IDLE_TURNS_MAX = 200


class SimulationStuckError(Exception):
    """Nobody can run and nothing is going to happen, or the run has too many steps."""


class JumpClock(trio.abc.Clock):
    """Virtual time: jumps to the next deadline when nothing is runnable."""

    def __init__(self) -> None:
        self.now = 0.0
        self.idle_turns = 0
        self.on_stuck: Callable[[], None] | None = None

    def start_clock(self) -> None:
        """Time starts at zero."""

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == float("inf"):
            self.idle_turns += 1
            if self.idle_turns > _IDLE_TURNS_MAX and self.on_stuck is not None:
                self.on_stuck()
            return 0
        self.idle_turns = 0
        self.now = max(self.now, deadline)
        return 0


class Policy(random.Random):
    """Takes the place of trio's own generator: orders each batch, and holds hosts back."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.held: dict[str, list[Any]] = {}
        self.steps = 0

    def shuffle(self, x: Any) -> None:
        self.steps += len(x)
        if self.held:
            kept = []
            for task in x:
                host = task.context.get(HOST, "")
                if host in self.held:
                    self.held[host].append(task)
                else:
                    kept.append(task)
            x[:] = kept
        super().shuffle(x)


class Scheduler:
    """The handle on a simulated run: hold hosts back, let them go on, hash what happened."""

    def __init__(self, seed: int, clock: JumpClock) -> None:
        self.policy = Policy(seed)
        self.clock = clock
        self.trace = hashlib.sha256()

    def hold(self, host: str) -> None:
        """Nothing of that host runs from now on."""
        self.policy.held.setdefault(host, [])

    def release(self, host: str) -> None:
        """What was held back runs again, with all its timers overdue."""
        for task in self.policy.held.pop(host, []):
            _run.GLOBAL_RUN_CONTEXT.runner.runq.append(task)

    def record(self, *facts: object) -> None:
        """Add to the hash of the run.  Facts must not depend on addresses: no ids, no sets."""
        self.trace.update(repr((round(self.clock.now * 1e9), *facts)).encode())


class _Steps(trio.abc.Instrument):
    def __init__(self, scheduler: Scheduler, steps_max: int, stop: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._steps_max = steps_max
        self._stop = stop
        self._first: int | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        counter: int = task._counter
        if self._first is None:
            self._first = counter
        self._scheduler.record("step", counter - self._first)
        if self._scheduler.policy.steps > self._steps_max:
            self._stop("too many steps")


def run(
    async_fn: Callable[[Scheduler], Awaitable[T]], *, seed: int, steps_max: int = 5_000_000
) -> T:
    """Run `async_fn` in virtual time.  Raises SimulationStuckError for a deadlock or a livelock."""
    clock = JumpClock()
    scheduler = Scheduler(seed, clock)
    reason: list[str] = []

    async def main() -> T:
        with trio.CancelScope() as scope:

            def stop(why: str) -> None:
                if not reason:
                    reason.append(why)
                    for host in list(scheduler.policy.held):
                        scheduler.release(host)
                    scope.cancel()

            clock.on_stuck = lambda: stop("deadlock: nobody can run, and no deadline is set")
            trio.lowlevel.add_instrument(_Steps(scheduler, steps_max, stop))
            result = await async_fn(scheduler)
            clock.on_stuck = None
            return result
        raise SimulationStuckError(f"seed {seed}: {reason[0] if reason else 'cancelled'}")

    before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = scheduler.policy, True
    try:
        return trio.run(main, clock=clock)
    finally:
        _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = before
