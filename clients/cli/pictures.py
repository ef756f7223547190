"""The option `--picture` of commands on Spark."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic  # noqa: TID251  work in a thread has no clock of trio's
from typing import TypeAlias

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import Function

_FORMATS = (".svg", ".png")

Report: TypeAlias = Callable[[int, int, int], None]
"""Takes the number of rows so far, and how much is done of a total."""


def _picture(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn: a command may run for days before it draws."""
    del context, parameter
    if value is None:
        return None
    if value.suffix.lower() not in _FORMATS:
        raise click.BadParameter(f"{value} is neither FILE.svg nor FILE.png.")
    if not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {value.parent}.")
    if find_spec("matplotlib") is None:
        raise UserError(
            "Pictures need matplotlib, which is not installed: install it with"
            " pip install 'daybook-mq[pictures]'."
        )
    return value


def picture_option(function: Function) -> Function:
    """Add `--picture`, as `picture`."""
    return click.option(
        "--picture",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_picture,
        metavar="FILE",
        help="Draw messages per second and messages behind into FILE.svg or FILE.png, at the end"
        " and every minute.",
    )(function)


@contextmanager
def drawn_reports(picture: Path | None, title: str) -> Generator[Callable[[Report], Report]]:
    """Draw what work in steps reports: every minute, and at the end of the block.

    The block gets a function that returns a report which is drawn, too.  Work that is done again
    and again has one for each time, and all of them are one run of the picture.
    """
    if picture is None:
        yield lambda report: report
        return
    from daybook.clients.pipelines.history import History
    from daybook.clients.pipelines.picture import Picture

    history, began_s = History(), monotonic()
    drawn = Picture(picture, title, lambda line: click.echo(line, err=True))

    def watched(report: Report) -> Report:
        before = history.points[-1].read

        def both(rows: int, done: int, total: int) -> None:
            history.add(monotonic() - began_s, before + rows, total - done)
            drawn.update(history)
            report(rows, done, total)

        return both

    try:
        yield watched
    finally:
        drawn.write(history)
