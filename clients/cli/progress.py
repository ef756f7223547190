"""Progress of long work: a bar for people, nothing where nobody looks.

Bars go to standard error, so that what a command writes can be piped.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

Advance: TypeAlias = Callable[[float, float, str], None]
"""How much is done, of how much, and what is done at the moment."""


@contextmanager
def progress_bar(what: str) -> Generator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None, now="")

        def advance(done: float, total: float, now: str) -> None:
            progress.update(task, completed=done, total=total, now=now)

        yield advance
