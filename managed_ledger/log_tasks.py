"""The tasks of one log, in the nursery of the host.

A log that runs nothing has no task and no nursery of its own: a host has many such logs.  The
nursery opens with the first task, and closes behind the last one.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

Ts = TypeVarTuple("Ts")


class LogTasks:
    """Runs the tasks of one log until they end or `cancel` is called.

    An error that nobody expected cancels all tasks of this log, and is given to `on_bug`.  The
    tasks of other logs go on.  `on_end` is called once, when the log has ended.
    """

    def __init__(
        self,
        host: trio.Nursery,
        on_bug: Callable[[Exception], None],
        on_end: Callable[[], object],
    ) -> None:
        self.cancelled = False  # for good
        self._host = host
        self._on_bug = on_bug
        self._on_end = on_end
        self._nursery: trio.Nursery | None = None  # while it takes tasks
        self._running = 0
        self._first: list[Callable[[trio.Nursery], None]] = []  # start tasks when there is one

    def start_soon(self, task: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run a task.  Once the log has ended, that is allowed only until its tasks have."""

        def start(nursery: trio.Nursery) -> None:
            nursery.start_soon(self._run, lambda: task(*args), name=task)

        if self._nursery is not None:
            start(self._nursery)
        else:
            if not self._first:
                assert not self.cancelled, "a log that has ended begins nothing"
                self._host.start_soon(self._hold)
            self._first.append(start)
        self._running += 1

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            self._on_end()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _hold(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self.cancelled:
                    nursery.cancel_scope.cancel()
                first, self._first = self._first, []
                for start in first:
                    start(nursery)
        except Exception as bug:
            self.cancel()
            self._on_bug(bug)

    async def _run(self, act: Callable[[], Awaitable[object]]) -> None:
        try:
            await act()
        finally:
            self._running -= 1
            if not self._running:
                self._nursery = None  # It closes; a task that comes later has another one.
