"""The flusher: what is sent together leaves in one flush, and nobody is woken for it."""

import ast
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from daybook.wire.outbox import Flushable, Flusher
from tests.test_architecture import MODULES, ROOT


@dataclass
class Sender:
    """Something that sends, and notes what left in each flush."""

    flusher: Flusher
    taken: bool = True  # The peer takes everything at once.
    also_marks: Flushable | None = None
    error: Exception | None = None
    queued: list[str] = field(default_factory=list[str])
    flushes: list[str] = field(default_factory=list[str])
    drained: bool = False

    def send(self, text: str) -> None:
        if not self.queued:
            self.flusher.mark(self)
        self.queued.append(text)

    def send_and_fail(self, text: str) -> None:
        self.send(text)
        raise KeyError(text)

    def flush(self) -> bool:
        self.flushes.append("".join(self.queued))
        self.queued.clear()
        if self.error is not None:
            raise self.error
        if self.also_marks is not None:
            self.flusher.mark(self.also_marks)
        return self.taken

    async def drain(self) -> None:
        await trio.lowlevel.checkpoint()
        self.drained = True


class Steps(trio.abc.Instrument):
    """Counts how often the flusher's task runs."""

    def __init__(self) -> None:
        self.flusher = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.flusher += task.name.endswith("Flusher.run")


@asynccontextmanager
async def running(flusher: Flusher) -> AsyncIterator[Steps]:
    steps = Steps()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        yield steps
        trio.lowlevel.remove_instrument(steps)
        nursery.cancel_scope.cancel()


async def test_sends_of_one_turn_leave_in_the_next_one() -> None:
    flusher = Flusher()
    sender = Sender(flusher)
    async with running(flusher) as steps:
        sender.send("a")
        sender.send("b")
        assert sender.flushes == []
        await wait_all_tasks_blocked()
        assert sender.flushes == ["ab"]
        assert steps.flusher == 1


async def test_what_is_sent_together_leaves_at_the_end_of_the_block_and_wakes_nobody() -> None:
    flusher = Flusher()
    one, other = Sender(flusher), Sender(flusher)
    async with running(flusher) as steps:
        with flusher.together():
            one.send("a")
            other.send("b")
            one.send("c")
            assert one.flushes == other.flushes == []
        assert one.flushes == ["ac"]
        assert other.flushes == ["b"]
        await wait_all_tasks_blocked()
        assert steps.flusher == 0


async def test_a_block_within_a_block_sends_with_the_outer_one() -> None:
    flusher = Flusher()
    sender = Sender(flusher)
    async with running(flusher):
        with flusher.together():
            with flusher.together():
                sender.send("a")
            assert sender.flushes == []
            sender.send("b")
        assert sender.flushes == ["ab"]


async def test_a_block_that_fails_has_sent_what_it_had() -> None:
    flusher = Flusher()
    sender = Sender(flusher)
    async with running(flusher):
        with pytest.raises(KeyError), flusher.together():
            sender.send_and_fail("a")
        assert sender.flushes == ["a"]
        sender.send("b")  # The flusher is woken again.
        await wait_all_tasks_blocked()
        assert sender.flushes == ["a", "b"]


async def test_a_flush_that_fails_leaves_the_others_to_the_flusher() -> None:
    flusher = Flusher()
    bad, good = Sender(flusher, error=KeyError("bad")), Sender(flusher)

    def send_both() -> None:
        with flusher.together():
            bad.send("a")
            good.send("b")

    async with running(flusher):
        with pytest.raises(KeyError):
            send_both()
        await wait_all_tasks_blocked()
        assert good.flushes == ["b"]
        good.send("c")
        await wait_all_tasks_blocked()
        assert good.flushes == ["b", "c"]


async def test_what_a_flush_sends_leaves_with_it_and_a_rest_is_drained() -> None:
    flusher = Flusher()
    last = Sender(flusher, taken=False)
    first = Sender(flusher, also_marks=last)
    async with running(flusher) as steps:
        with flusher.together():
            first.send("a")
        assert last.flushes == [""]
        await wait_all_tasks_blocked()
        assert last.drained
        assert steps.flusher == 0


async def test_what_is_sent_before_the_flusher_runs_leaves_when_it_begins() -> None:
    flusher = Flusher()
    sender = Sender(flusher)
    with flusher.together():
        sender.send("a")
    assert sender.flushes == []
    async with running(flusher):
        assert sender.flushes == ["a"]


async def test_a_flusher_that_is_cancelled_takes_no_later_wake_up() -> None:
    flusher = Flusher()
    sender = Sender(flusher)
    async with running(flusher):
        pass
    sender.send("a")
    with flusher.together():
        sender.send("b")
    await wait_all_tasks_blocked()
    assert sender.flushes == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_block_that_sends_together_does_not_wait(module: Path) -> None:
    """Other tasks would run during an `await`, and nobody would flush what they send."""
    source = (ROOT / module).read_text()
    if "together()" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With) and "together()" in ast.unparse(node).partition("\n")[0]:
            waits = ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield | ast.YieldFrom
            assert not [each for each in ast.walk(node) if isinstance(each, waits)], (
                f"{module}:{node.lineno}: the block waits"
            )
