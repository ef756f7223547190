"""The tasks of one log: they have a nursery only while they run, and a bug ends no other log's."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from daybook.managed_ledger.log_tasks import LogTasks


class Host:
    """A nursery of a host, in which one log runs tasks."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.bugs: list[Exception] = []
        self.ended: list[str] = []
        self.tasks = LogTasks(nursery, self.bugs.append, lambda: self.ended.append("the log"))

    async def work(self, name: str, until: trio.Event) -> None:
        try:
            await until.wait()
            self.ended.append(name)
        except trio.Cancelled:
            self.ended.append(f"{name} was cancelled")
            raise


async def test_tasks_come_and_go_and_leave_nothing_behind() -> None:
    async with trio.open_nursery() as nursery:
        host = Host(nursery)
        for round_ in "ab":
            first, second = trio.Event(), trio.Event()
            host.tasks.start_soon(host.work, f"{round_}1", first)
            host.tasks.start_soon(host.work, f"{round_}2", second)
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            first.set()
            await wait_all_tasks_blocked()
            second.set()
            await wait_all_tasks_blocked()
            assert not nursery.child_tasks
        assert host.ended == ["a1", "a2", "b1", "b2"]


async def test_a_task_that_comes_as_the_last_one_ends_runs() -> None:
    async with trio.open_nursery() as nursery:
        host, over = Host(nursery), trio.Event()
        over.set()

        async def last() -> None:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.spawn_system_task(next_one)

        async def next_one() -> None:
            host.tasks.start_soon(host.work, "next", over)

        host.tasks.start_soon(last)
        await wait_all_tasks_blocked()
        assert host.ended == ["next"]


@pytest.mark.parametrize("begun", [False, True])
async def test_all_tasks_end_with_the_log(begun: bool) -> None:
    async with trio.open_nursery() as nursery:
        host = Host(nursery)
        host.tasks.start_soon(host.work, "one", trio.Event())
        if begun:
            await wait_all_tasks_blocked()
        host.tasks.cancel()
        host.tasks.start_soon(host.work, "late", trio.Event())  # before the others have ended
        with trio.fail_after(5):
            await wait_all_tasks_blocked()
            while nursery.child_tasks:
                await trio.lowlevel.checkpoint()
        host.tasks.cancel()  # It has ended, and is not told again.
        assert sorted(host.ended) == ["late was cancelled", "one was cancelled", "the log"]
        with pytest.raises(AssertionError, match="begins nothing"):
            host.tasks.start_soon(host.work, "too late", trio.Event())


async def test_a_bug_ends_the_tasks_of_one_log() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async with trio.open_nursery() as nursery:
        bad, good, over = Host(nursery), Host(nursery), trio.Event()
        good.tasks.start_soon(good.work, "good", over)
        bad.tasks.start_soon(bad.work, "bad", trio.Event())
        bad.tasks.start_soon(fail)
        await wait_all_tasks_blocked()
        assert [type(bug) for bug in bad.bugs] == [ExceptionGroup]
        assert bad.tasks.cancelled
        assert sorted(bad.ended) == ["bad was cancelled", "the log"]
        over.set()
        await wait_all_tasks_blocked()
        assert (good.ended, good.bugs) == (["good"], [])
