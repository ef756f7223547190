"""Run trio so that the same seed gives the same run.

trio shuffles the runnable tasks on purpose.  Here the order comes from a seed; time is virtual and
jumps to the next deadline when no task can run; and the tasks of one host can be held back, which
is how a host is paused or killed: a dead host runs nothing again, no `finally`, no cancellation
handler.

Code that belongs to no host (the wires, the disks, the metadata store) needs no tasks:
`Scheduler.at` calls a function at an instant, `soon` before the next task runs.

The private names of trio are used in this file and nowhere else; `test_determinism` fails if their
meaning changes.  Do not use `wait_all_tasks_blocked` in a simulated run.
"""

import hashlib
import random
from array import array
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol, TypeVar

import trio
import trio._core._run

T = TypeVar("T")
_run: Any = trio._core._run

HOST: ContextVar[str] = ContextVar("HOST", default="")
_IDLE_TURNS_MAX = 200
_HASHED_AT_ONCE = 1 << 12
_ASKED_EVERY = 500  # turns between looks at the outside world


class SimulationStuckError(Exception):
    """No task can run and no timer is due, or the run has too many steps."""


class Timers(Protocol):
    """Calls functions at an instant, in no task; they must not wait or raise."""

    def at(self, when: float, call: Callable[[], object]) -> None: ...


class JumpClock(trio.abc.Clock):
    """Virtual time: jumps to the next deadline, or call, when no task is runnable."""

    def __init__(self) -> None:
        self.now = 0.0
        self.idle_turns = 0
        self.on_stuck: Callable[[], None] | None = None
        self.due: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = count()

    def start_clock(self) -> None:
        """Start time at zero."""

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if self.due and self.due[0][0] <= deadline:
            deadline = self.due[0][0]
        if deadline == inf:
            self.idle_turns += 1
            if self.idle_turns > _IDLE_TURNS_MAX and self.on_stuck is not None:
                self.on_stuck()
            if self.idle_turns > 10 * _IDLE_TURNS_MAX and self.on_stuck is not None:
                raise SimulationStuckError("deadlock: a task waits that cannot be cancelled")
            return 0
        self.idle_turns = 0
        self.now = max(self.now, deadline)
        self.call_due()
        return 0

    def at(self, when: float, call: Callable[[], object]) -> None:
        heappush(self.due, (when, next(self._serial), call))

    def call_due(self) -> None:
        due, now = self.due, self.now
        while due and due[0][0] <= now:
            heappop(due)[2]()


class Policy(random.Random):
    """Replaces trio's own generator: orders each batch of tasks, and holds hosts back.

    It is called for every step, so it only notes the tasks; `take_ran` is called now and then.
    """

    def __init__(self, seed: int, clock: JumpClock, on_full: Callable[[], None]) -> None:
        super().__init__(seed)
        self.held: dict[str, list[Any]] = {}
        self._clock = clock
        self._on_full = on_full
        self._ran: list[int] = []
        self._first = -1  # the first task; task numbers continue from run to run
        self._steps = 0

    @property
    def steps(self) -> int:
        return self._steps + len(self._ran)

    def take_ran(self) -> bytes:
        """Return the tasks that have run since the last call, in order."""
        ran, self._ran = self._ran, []
        if self._first < 0 and ran:
            self._first = ran[0]
        self._steps += len(ran)
        return array("q", [counter - self._first for counter in ran]).tobytes()

    def shuffle(self, x: Any) -> None:
        """Choose the tasks that run now; trio takes them from the end."""
        due = self._clock.due
        if due and due[0][0] <= self._clock.now:
            self._clock.call_due()
        if self.held:
            self._hold_back(x)
        if len(x) == 1:  # the usual case
            self._ran.append(x[0]._counter)
        elif x:
            super().shuffle(x)
            self._ran += [task._counter for task in x]
        if len(self._ran) >= _HASHED_AT_ONCE:
            self._on_full()

    def _hold_back(self, x: Any) -> None:
        kept: list[Any] = []
        for task in x:
            host = task.context.get(HOST, "")
            self.held.get(host, kept).append(task)
        x[:] = kept


class Scheduler:
    """The handle on a simulated run: holds hosts back, lets them go on, hashes the run."""

    def __init__(self, seed: int, clock: JumpClock, steps_max: int) -> None:
        self.policy = Policy(seed, clock, self._flush)
        self.clock = clock
        self.stop: Callable[[str], None] = lambda reason: None
        self._steps_max = steps_max
        self._hash = hashlib.sha256()
        self._facts: list[tuple[float, tuple[object, ...]]] = []

    # -- hosts

    def hold(self, host: str) -> None:
        """Hold back all tasks of that host from now on."""
        self.policy.held.setdefault(host, [])

    def release(self, host: str) -> None:
        """Let the host run again, with all its timers overdue."""
        for task in self.policy.held.pop(host, []):
            _run.GLOBAL_RUN_CONTEXT.runner.runq.append(task)

    # -- time

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call a function at an instant, in no task.  It must not raise."""
        self.clock.at(when, call)

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function before the next task runs; the caller first goes on to its checkpoint."""
        self.clock.at(self.clock.now, call)

    async def sleep(self, seconds: float) -> None:
        """Sleep like `trio.sleep`, at a lower cost."""
        task, over = trio.lowlevel.current_task(), False

        def wake() -> None:
            if not over:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal over
            over = True
            return trio.lowlevel.Abort.SUCCEEDED

        self.at(self.clock.now + seconds, wake)
        await trio.lowlevel.wait_task_rescheduled(abort)

    # -- the hash of the run

    @property
    def trace(self) -> "hashlib._Hash":
        self._flush()
        return self._hash

    def record(self, *facts: object) -> None:
        """Add to the hash of the run.  Facts must not depend on addresses: no ids, no sets."""
        self._facts.append((self.clock.now, facts))

    def _flush(self) -> None:
        """Hash both at once: calls are most of what the hash costs."""
        self._hash.update(self.policy.take_ran())
        self._hash.update(repr(self._facts).encode())
        self._facts = []
        if self.policy.steps > self._steps_max:
            self.stop("too many steps")


def _look_away() -> None:
    """Ask the operating system seldom, for Ctrl-C only: no outside events happen in a simulated
    run.

    Instruments are off, too; trio asks for them several times in each step.
    """
    runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
    runner.instruments = {}
    manager = runner.io_manager
    usual, turns = type(manager), count(1)

    def get_events(self: Any, timeout: float) -> Any:
        return [] if next(turns) % _ASKED_EVERY else usual.get_events(self, timeout)

    manager.__class__ = type("Seldom", (usual,), {"__slots__": (), "get_events": get_events})


def run(
    async_fn: Callable[[Scheduler], Awaitable[T]], *, seed: int, steps_max: int = 5_000_000
) -> T:
    """Run `async_fn` in virtual time.  Raise SimulationStuckError for a deadlock or a livelock."""
    clock = JumpClock()
    scheduler = Scheduler(seed, clock, steps_max)
    reason: list[str] = []

    async def main() -> T:
        _look_away()
        with trio.CancelScope() as scope:

            def stop(why: str) -> None:
                if not reason:
                    reason.append(why)
                    for host in list(scheduler.policy.held):
                        scheduler.release(host)
                    scope.cancel()

            clock.on_stuck = lambda: stop("deadlock: no task can run, and no deadline is set")
            scheduler.stop = stop
            result = await async_fn(scheduler)
            clock.on_stuck = None
            return result
        raise SimulationStuckError(f"seed {seed}: {reason[0] if reason else 'cancelled'}")

    before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = scheduler.policy, True
    try:
        return trio.run(main, clock=clock)
    except trio.TrioInternalError as error:
        if isinstance(error.__cause__, SimulationStuckError):
            raise SimulationStuckError(f"seed {seed}: {error.__cause__}") from error
        raise
    finally:
        _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = before
