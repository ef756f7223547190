"""What a command says while it takes long: how far it is, or what it waits for.

    open_progress       a bar where people look; elsewhere a line every ten seconds
    waiting_for         a line when something has not come after two seconds, then every ten
    report_waiting             the same, where what is waited for changes

All of it goes to standard error, so that what a command writes can be piped.
"""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

import click
import trio

Advance: TypeAlias = Callable[[float, float, str], None]
"""How much is done, of how much, and what is done at the moment."""

_SILENT_S = 2.0  # what takes no longer needs no word
_AGAIN_S = 10.0
_LOOK_S = 0.5


# -- what is waited for


@dataclass(frozen=True, slots=True)
class Waiting:
    """For what, until when by trio's clock (None: without end), and how the last attempt ended."""

    what: str
    until: float | None
    why: object = None

    def line(self, now: float) -> str:
        until = self.until
        left = "" if until is None or now >= until else f", for {ceil(until - now)} s more"
        why = "" if self.why is None else f": {self.why}"
        return f"Waiting for {self.what}{left}{why}."


@asynccontextmanager
async def waiting_for(
    what: str, timeout_s: float, why: Callable[[], object] = lambda: None
) -> AsyncGenerator[None]:
    """The block waits for `what` and ends after `timeout_s`; `why` says why it is not there yet."""
    until = trio.current_time() + timeout_s
    async with report_waiting(lambda: Waiting(what, until, why())):
        yield


@asynccontextmanager
async def report_waiting(
    waits: Callable[[], Waiting | None], *, silent_s: float = _SILENT_S
) -> AsyncGenerator[None]:
    """`waits` is asked again and again what the block waits for; None: for nothing."""

    async def tell() -> None:
        due: float | None = None
        while True:
            waiting, now = waits(), trio.current_time()
            if waiting is None:
                due = None
            elif due is None:
                due = now + silent_s
            elif now >= due:
                _say(waiting.line(now))
                due = now + _AGAIN_S
            await trio.sleep(_LOOK_S)

    async with _beside(tell):
        yield


# -- how far work is


@asynccontextmanager
async def open_progress(what: str) -> AsyncGenerator[Advance]:
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar(what) as advance:
            yield advance
        return
    lines = _Lines(what)
    async with _beside(lines.run):
        yield lines.advance


class _Lines:
    """Where nobody looks, or a bar cannot be drawn: in logs, for instance."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._line = f"{what} ..."
        self._due = trio.current_time() + _AGAIN_S

    def advance(self, done: float, total: float, now: str) -> None:
        percent = f"{100 * min(done, total) / total:.0f} %" if total else ""
        self._line = f"{self._what}: {', '.join(filter(None, (percent, now)))}."
        self._say_if_due()  # work that lets no other task run is told of, too

    async def run(self) -> None:
        while True:
            await trio.sleep_until(self._due)
            self._say_if_due()

    def _say_if_due(self) -> None:
        if trio.current_time() >= self._due:
            self._due = trio.current_time() + _AGAIN_S
            _say(self._line)


@contextmanager
def _bar(what: str) -> Generator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(what, total=None, now="")

        def advance(done: float, total: float, now: str) -> None:
            progress.update(task, completed=done, total=total, now=now)

        yield advance


@asynccontextmanager
async def _beside(task: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Runs it for the length of the block.  What the block raises is not in a group."""
    error: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            try:
                yield
            except Exception as caught:
                error = caught
            nursery.cancel_scope.cancel()
    finally:
        if error is not None:  # It counts, also when all of this is being cancelled.
            raise error


def _say(line: str) -> None:
    """On standard error; that nobody can be told ends no work."""
    with suppress(OSError):
        click.echo(line, err=True)
