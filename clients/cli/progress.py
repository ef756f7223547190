"""Report on a long command: its progress, or what it waits for.

    open_progress       a bar on a terminal; elsewhere a line every ten seconds
    waiting_for         a line after waiting for two seconds, then one every ten seconds
    report_waiting      the same, if the command waits for different things in turn

All reports go to standard error, so that the output of the command can be piped.
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

Advance: TypeAlias = Callable[[float, float, object], None]
"""A callback with the amount done, the total, and a text on the current step.

The text may be an object whose `str` changes with the time: it is asked for each line.
"""

_SILENT_S = 2.0  # a shorter wait is not reported
_AGAIN_S = 10.0
_LOOK_S = 0.5


# -- waiting


@dataclass(frozen=True, slots=True)
class Waiting:
    """A command waits for `what` until `until` by trio's clock (None: forever).

    `why` is the error of the last attempt, if there was one.
    """

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
    """Report that the block waits for `what`, for `timeout_s` at most; `why` returns the reason."""
    until = trio.current_time() + timeout_s
    async with report_waiting(lambda: Waiting(what, until, why())):
        yield


@asynccontextmanager
async def report_waiting(
    waits: Callable[[], Waiting | None], *, silent_s: float = _SILENT_S
) -> AsyncGenerator[None]:
    """Report while the block waits.  `waits` returns what it waits for now; None: for nothing."""

    async def report() -> None:
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

    async with _beside(report):
        yield


# -- progress


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
    """Writes lines where a bar cannot be drawn, for instance into logs."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._part: tuple[str, object] | None = None  # how much is done, and the text
        self._due = trio.current_time() + _AGAIN_S

    def advance(self, done: float, total: float, now: object) -> None:
        self._part = f"{100 * min(done, total) / total:.0f} %" if total else "", now
        self._say_if_due()  # here as well: some work never yields to `run`

    async def run(self) -> None:
        while True:
            await trio.sleep_until(self._due)
            self._say_if_due()

    def _say_if_due(self) -> None:
        if trio.current_time() >= self._due:
            self._due = trio.current_time() + _AGAIN_S
            _say(self._line())

    def _line(self) -> str:
        if self._part is None:
            return f"{self._what} ..."
        percent, now = self._part
        return f"{self._what}: {', '.join(filter(None, (percent, str(now))))}."


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

        def advance(done: float, total: float, now: object) -> None:
            progress.update(task, completed=done, total=total, now=now)

        yield advance


@asynccontextmanager
async def _beside(task: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Run `task` for the length of the block.  The block's exception is not wrapped in a group."""
    error: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            try:
                yield
            except Exception as caught:
                error = caught  # raised outside of the nursery, which would wrap it
            nursery.cancel_scope.cancel()
    finally:
        if error is not None:  # also if the nursery is being cancelled: the error is the cause
            raise error


def _say(line: str) -> None:
    """Write a line to standard error.  A closed standard error does not end the work."""
    with suppress(OSError):
        click.echo(line, err=True)
