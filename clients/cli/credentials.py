"""The token that a command shows to brokers: `--token`, `--token-file`, or their variables.

A token on the command line can be seen by other users of the machine, so files and variables are
better.  Without any, a command that finds a secure cluster by its directory shows the token of its
admin.  No command prints a token that it was given.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from daybook.clients.cli.errors import UserError

Function = TypeVar("Function", bound=Callable[..., object])
_TOKEN = "daybook.clients.cli.token"  # noqa: S105  a key of the context
_FILE = "daybook.clients.cli.token-file"


def token_options(function: Function) -> Function:
    """Add `--token` and `--token-file`; `given_token` returns what they say."""
    token = click.option(
        "--token",
        expose_value=False,
        envvar="DAYBOOK_TOKEN",
        show_envvar=True,
        metavar="TOKEN",
        callback=_note(_TOKEN),
        help="The token that proves who you are.",
    )
    file = click.option(
        "--token-file",
        expose_value=False,
        envvar="DAYBOOK_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_note(_FILE),
        help="A file with the token.",
    )
    return token(file(function))


def _note(key: str) -> Callable[[click.Context, click.Parameter, object], None]:
    def note(context: click.Context, _: click.Parameter, value: object) -> None:
        context.meta[key] = value or None

    return note


def given_token() -> str | None:
    """Return the token of this command, a URL of its file, or None.  Raise UserError for both."""
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    token: str | None = context.meta.get(_TOKEN)
    file: Path | None = context.meta.get(_FILE)
    if token is not None and file is not None:
        raise UserError("There are a token and a file with a token: give one of them.")
    if token is None and file is None:
        from daybook.clients.cli.directory_keys import directory_keys

        keys = directory_keys()
        file = None if keys is None else keys.admin_token
    return token if file is None else file.absolute().as_uri()
