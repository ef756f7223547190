"""The credentials that a command shows to brokers.

    --token-file FILE                                    DAYBOOK_TOKEN_FILE
    --token TOKEN                                        DAYBOOK_TOKEN
    --basic-user USER --basic-password-file FILE         DAYBOOK_BASIC_USER, ..._PASSWORD_FILE

A token on the command line can be seen by other users of the machine, so files and variables are
better.  No command prints credentials that it was given.  Those of a context are for its addresses.
Without any, a command that finds a secure cluster by its directory shows the token of its admin.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from daybook.clients.cli.chosen import context_of
from daybook.clients.cli.errors import UserError

if TYPE_CHECKING:
    from daybook.clients.python.credentials import PasswordFile

Function = TypeVar("Function", bound=Callable[..., object])
_TOKEN = "daybook.clients.cli.token"  # noqa: S105  a key of the context
_FILE = "daybook.clients.cli.token-file"
_USER = "daybook.clients.cli.basic-user"
_PASSWORD = "daybook.clients.cli.basic-password-file"  # noqa: S105  the same


class Given(NamedTuple):
    """The arguments `token` and `basic` of a client; a file of a token is a URL."""

    token: str | None = None
    basic: "PasswordFile | None" = None


def credential_options(function: Function) -> Function:
    """Add the options; `given_credentials` returns what they say."""
    path = click.Path(dir_okay=False, path_type=Path)
    options = (
        click.option(
            "--token-file",
            expose_value=False,
            envvar="DAYBOOK_TOKEN_FILE",
            show_envvar=True,
            type=path,
            callback=_note(_FILE),
            help="A file with the token that proves who you are.",
        ),
        click.option(
            "--token",
            expose_value=False,
            envvar="DAYBOOK_TOKEN",
            show_envvar=True,
            metavar="TOKEN",
            callback=_note(_TOKEN),
            help="The token itself, which others may see in the list of processes.",
        ),
        click.option(
            "--basic-user",
            expose_value=False,
            envvar="DAYBOOK_BASIC_USER",
            show_envvar=True,
            metavar="USER",
            callback=_note(_USER),
            help="A user instead of a token.",
        ),
        click.option(
            "--basic-password-file",
            expose_value=False,
            envvar="DAYBOOK_BASIC_PASSWORD_FILE",
            show_envvar=True,
            type=path,
            callback=_note(_PASSWORD),
            help="A file with the password of that user.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _note(key: str) -> Callable[[click.Context, click.Parameter, object], None]:
    def note(context: click.Context, _: click.Parameter, value: object) -> None:
        context.meta[key] = value or None

    return note


def given_credentials(url: str) -> Given:
    """Return the credentials of this command for an address.

    They are those of its options and variables, else those of the context, or of the secure
    cluster's directory, that has the address.  Raise UserError for two kinds at once.
    """
    running = click.get_current_context(silent=True)
    meta = {} if running is None else running.meta
    found = credentials_of(meta.get(_TOKEN), meta.get(_FILE), meta.get(_USER), meta.get(_PASSWORD))
    if found != Given():
        return found
    chosen = context_of(url)
    if chosen is None:
        from daybook.clients.cli.directory_keys import directory_keys

        keys = directory_keys(url)
        return found if keys is None else Given(keys.admin_token.as_uri())
    own = chosen.context
    file, password = (
        None if path is None else Path(path) for path in (own.token_file, own.basic_password_file)
    )
    return credentials_of(None, file, own.basic_user, password)


def credentials_of(
    token: str | None, file: Path | None, user: str | None, password: Path | None
) -> Given:
    """Return the credentials that these are.  Raise UserError for two kinds, or half of one."""
    kinds = [each for each in (token, file, user or password) if each is not None]
    if len(kinds) > 1:
        raise UserError(
            "There are several credentials, of --token, --token-file, --basic-user and their"
            " variables: give one of them."
        )
    if (user is None) != (password is None):
        raise UserError("--basic-user and --basic-password-file need each other: give both.")
    if user is not None and password is not None:
        from daybook.clients.python.credentials import PasswordFile

        try:
            return Given(basic=PasswordFile(user, str(password.absolute())))
        except ValueError as error:
            raise UserError(f"{error}.") from None
    return Given(token if file is None else file.absolute().as_uri())
