"""`--watch`: run a command that only looks again and again, until Ctrl-C.

On a terminal the result replaces the one before it.  Elsewhere each result is one line of JSON, so
that the output can be piped.  A refresh that fails is reported, and the next one follows; only the
first one ends the command.
"""

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import wraps
from typing import Any, TypeVar, cast

import click

from daybook.clients.cli.times import Age

Function = TypeVar("Function", bound=Callable[..., None])


def watch_option(function: Function) -> Function:
    """Add `--watch` and `--every` to a command that has `--output`."""

    @wraps(function)
    def run(*, watch: bool, every: int, **options: Any) -> None:  # noqa: ANN401
        if not watch:
            function(**options)
            return
        if not sys.stdout.isatty():
            options["output"] = "json"
        with suppress(KeyboardInterrupt):  # It is the usual end.
            _repeat(lambda: function(**options), every)

    run = click.option(
        "--every",
        type=Age(),
        default="2s",
        show_default=True,
        metavar="AGE",
        help="How long --watch waits between two looks, such as 2s or 1m.",
    )(run)
    help_ = "Look again and again until Ctrl-C.  Without a terminal, each look is a line of JSON."
    run = click.option("--watch", is_flag=True, help=help_)(run)
    return cast("Function", run)


def _repeat(look: Callable[[], None], every_s: int) -> None:
    first = True
    while True:
        shown = io.StringIO()
        try:
            with redirect_stdout(shown):
                look()
        except click.ClickException as error:
            if first:
                raise
            error.show()
        else:
            if sys.stdout.isatty():
                click.clear()  # at the last moment, so that nothing flickers
            click.echo(shown.getvalue(), nl=False)
            sys.stdout.flush()
        first = False
        time.sleep(every_s)
