"""`--yes` for commands that destroy something, such as messages, a topic or a ledger.

On a terminal they say what will be lost, and ask.  Without a terminal there is nobody to ask: they
change nothing, and exit with 1, unless --yes is given.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

import click

from daybook.clients.cli.errors import UserError

Function = TypeVar("Function", bound=Callable[..., object])


def yes_option(function: Function) -> Function:
    """Add `--yes`, as the parameter `yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(function)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees.  The question begins with what will be destroyed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{question} Nothing was changed, because there is no terminal to ask at: add --yes."
        )
    click.confirm(question, abort=True, err=True)
