"""A place where one task waits until it is woken.  It costs less than an event for each wait.

    while not self._groups:            # the condition, looked at by the one who waits
        await self._parking.park()

    self._groups.append(group)         # somebody else makes it true, and then wakes
    self._parking.wake()

A wake-up is not kept: if nobody is parked, `wake` does nothing.  So the task looks at its condition
right before it parks, without a checkpoint in between, and again when it returns.
"""

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task


class Parking:
    """A place for one task at a time."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: Task | None = None

    def wake(self) -> None:
        """Let the parked task run in the next turn of the loop, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def park(self) -> None:
        """Return after the next `wake`.  This is a trio checkpoint."""
        assert self._task is None, "another task is parked here"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._leave)

    def _leave(self, _: RaiseCancelT) -> Abort:
        self._task = None
        return Abort.SUCCEEDED
