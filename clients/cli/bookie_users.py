"""`daybook bookies password`: the lines of `users_file`, by which bookies know who may enter.

A password is typed on a terminal, or comes from a file or from standard input.  It is never an
argument, because others can see those in the list of processes.
"""

import base64
import os
import sys
from pathlib import Path

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import exclusive, replace, write_new
from daybook.clients.cli.output import OutputFormat, output_option, write_record
from daybook.wire.changing_files import read_regular
from daybook.wire.digest_md5 import REALM, USER_CHARS_MAX
from daybook.wire.digest_users import USERS_BYTES_MAX, parse_users, user_line

_FILE = click.Path(path_type=Path, dir_okay=False)
_RANDOM_BYTES = 24
_HASH = f":{REALM}:"


@click.command()
@click.argument("file", type=_FILE)
@click.argument("user")
@click.option(
    "--password-file",
    type=_FILE,
    metavar="FILE",
    help="The file with the password. [default: ask on the terminal, or read standard input]",
)
@click.option(
    "--generate",
    type=_FILE,
    metavar="FILE",
    help="Make a password, and write it to this new file, which only you can read.",
)
@click.option("--remove", is_flag=True, help="Remove the user instead.")
@output_option
def password(
    file: Path,
    user: str,
    password_file: Path | None,
    generate: Path | None,
    remove: bool,
    output: OutputFormat,
) -> None:
    """Write the line of USER to FILE, the users_file of bookies, or replace it.

    FILE is made if it is not there. Bookies read a changed file at the next connection. Clients
    show the password with bookie_user and bookie_password_file.
    """
    if sum((password_file is not None, generate is not None, remove)) > 1:
        raise click.UsageError("Give one of --password-file, --generate and --remove.")
    if not 0 < len(user) <= USER_CHARS_MAX or not user.isprintable() or user.startswith("#"):
        raise UserError(f"{user!r} is no user: write a name that can be printed.")
    if ":" in user and not remove:
        raise UserError(
            f"{user!r} is no user: colons separate the parts of a line, so a name has none."
        )
    _lines(file)  # before a password is asked for
    line = "" if remove else user_line(user, _password(user, password_file, generate))
    with exclusive(file):
        lines = _lines(file)
        kept = _without(user, lines)
        known = len(kept) < len(lines)
        if remove:
            if not known:
                raise UserError(f"{file} has no user {user!r}.")
            state = "removed"
        else:
            kept.append(line)
            state = "changed" if known else "added"
        _write(file, "".join(f"{each}\n" for each in kept))
    write_record({"user": user, "users_file": str(file), "state": state}, output)


def _without(user: str, lines: list[str]) -> list[str]:
    return [line for line in lines if not line.strip().startswith(f"{user}{_HASH}")]


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of users; none if it is not there.  Raise UserError."""
    try:
        text = read_regular(file, USERS_BYTES_MAX).decode()
        parse_users(text)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # also a text that is not in UTF-8, which must not be quoted
        why = "it is not a text in UTF-8" if isinstance(error, UnicodeError) else str(error)
        raise UserError(f"{file} is not a file of users: {why}.") from None
    if os.geteuid() not in (0, file.stat().st_uid):
        raise UserError(f"{file} belongs to another user: run this command as that user.")
    return text.splitlines()


def _password(user: str, file: Path | None, generate: Path | None) -> str:
    """Return the password that the options say.  Raise UserError."""
    if generate is not None:
        random = os.urandom(_RANDOM_BYTES)  # noqa: TID251  a password comes from the system only
        found = base64.urlsafe_b64encode(random).decode()
        write_new(generate, f"{found}\n".encode())
        return found
    if file is None and sys.stdin.isatty():
        found = click.prompt(
            f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True
        )
        return str(found)
    try:
        text = sys.stdin.read() if file is None else file.read_text()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror} (--password-file).") from None
    except UnicodeError:
        raise UserError("The password is not a text in UTF-8.") from None
    # Clients take the first line, too.
    found = text.partition("\n")[0].rstrip("\r")
    if not found:
        raise UserError("The password is empty.")
    return found


def _write(file: Path, text: str) -> None:
    """Replace the file in one step; it goes on belonging to its owner."""
    target = file.resolve()
    replace(target, text.encode(), like=True)
