"""`daybook tokens revoke` and `check`: the list of revoked tokens that brokers read.

A token is read from a file or from standard input.  It is never an argument, because others can see
those in the list of processes.  The file is replaced in one step by whole lines: brokers never see
half a line, for which the former list would stay in force.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.key_files import exclusive, replace
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.times import FORMS, parse_time
from daybook.wire.changing_files import read_regular
from daybook.wire.clock import SystemClock

_FILE = click.Path(path_type=Path, dir_okay=False)
_COLUMNS = ("line", "problem")


@click.command()
@click.argument("file", type=_FILE)
@click.option(
    "--token-file",
    type=_FILE,
    metavar="FILE",
    help="The file with the token. [default: read standard input]",
)
@click.option("--id", "token_id", metavar="ID", help="The id (`jti`) of the token instead.")
@click.option("--role", metavar="ROLE", help="All tokens of ROLE that were issued until now.")
@click.option(
    "--before",
    metavar="TIME",
    help=f"With --role: those that were issued before this time, as {FORMS}. [default: now]",
)
@output_option
def revoke(
    file: Path,
    token_file: Path | None,
    token_id: str | None,
    role: str | None,
    before: str | None,
    output: OutputFormat,
) -> None:
    """Write a line to FILE, the revoked_tokens_file of brokers, that revokes a token.

    The token comes from --token-file or standard input; its id is written, or its digest if it has
    none. FILE is made if it is not there. Brokers read a changed file at once: each reads its own,
    so copy it to the machines of all.
    """
    if sum(each is not None for each in (token_file, token_id, role)) > 1:
        raise click.UsageError("Give one of --token-file, --id and --role.")
    if before is not None and role is None:
        raise click.UsageError("--before needs --role.")
    if role is not None:
        line = f"role {role} {_time(before)}"
    elif token_id is not None:
        line = f"id {token_id}"
    else:
        line = _line_of(_token(token_file))
    _check_line(line, token_id, role)
    state = _append(file, line)
    write_record({"line": line, "revoked_tokens_file": str(file), "state": state}, output)


@click.command()
@click.argument("file", type=_FILE)
@output_option
def check(file: Path, output: OutputFormat) -> None:
    """Check FILE, a list of revoked tokens, line by line.

    The exit code is 1 if a line is wrong: brokers then keep the former list in force.
    """
    from daybook.broker.security.revoked import parse, problems

    content = _read(file)
    found = problems(content)
    if found:
        rows = [{"line": number, "problem": why} for number, why in sorted(found.items())]
        write_rows(rows, _COLUMNS, output)
        sys.exit(1)
    revoked = parse(content)
    record = {
        "revoked_tokens_file": str(file),
        "tokens": len(revoked.ids) + len(revoked.digests),
        "roles": len(revoked.before_s),
    }
    write_record(record, output)


def _token(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text().strip()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UserError(f"{file} cannot be read: {why} (--token-file).") from None
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True)).strip()
    return sys.stdin.read().strip()


def _line_of(token: str) -> str:
    """Return the line for a token.  Its signature is not checked.  Raise UserError."""
    from daybook.broker.security.revoked import parse
    from daybook.broker.security.tokens import WrongCredentialsError, digest_of, unverified

    try:
        _, claims = unverified(token)
    except WrongCredentialsError as error:
        raise UserError(f"{error}: nothing was revoked.") from None
    token_id = claims.get("jti")
    if token_id is not None and str(token_id).isprintable() and str(token_id).strip():
        line = f"id {token_id}"
        if parse(f"{line}\n".encode()).ids == frozenset((str(token_id),)):
            return line
    return f"digest {digest_of(token).hex()}"


def _time(before: str | None) -> str:
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    time = now if before is None else parse_time(before, now)
    if time is None:
        raise UserError(f"--before must be a time such as {FORMS}, not {before!r}.")
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _check_line(line: str, token_id: str | None, role: str | None) -> None:
    """Raise UserError unless a broker would read just this id or this role in the line."""
    from daybook.broker.security.revoked import Revoked, parse

    try:
        found = parse(f"{line}\n".encode())
    except ValueError:
        found = Revoked()
    if (role is not None and role not in found.before_s) or (
        token_id is not None and token_id not in found.ids
    ):
        what = "role" if role is not None else "id"
        raise UserError(
            f"{(role or token_id)!r} is no {what} that a line can hold: it has"
            " no spaces around it and no line feeds, and is not empty."
        )


def _append(file: Path, line: str) -> str:
    """Add a line; return added, or known if the list has covered that before.  Raise UserError."""
    from daybook.broker.security.revoked import FILE_BYTES_MAX, parse

    target = file.resolve()
    with exclusive(target):
        content = _read(target, named=file) if target.exists() else b""
        new = content + f"{line}\n".encode()
        try:
            known = parse(content) == parse(new) and target.exists()
        except ValueError as error:
            raise UserError(
                f"{file} is not a list of revoked tokens, so brokers do not use it, and nothing was"
                f" written: {error}. `daybook tokens check {file}` names all wrong lines."
            ) from None
        if known:
            return "known"
        if len(new) > FILE_BYTES_MAX:
            raise UserError(
                f"{file} would be larger than {FILE_BYTES_MAX:,} bytes, and brokers would not use"
                " it: remove lines of tokens that have expired, or revoke by --role."
            )
        replace(target, new, like=True)
    return "added"


def _read(file: Path, named: Path | None = None) -> bytes:
    """Return the content of a file that brokers would read.  Raise UserError."""
    from daybook.broker.security.revoked import FILE_BYTES_MAX

    try:
        return read_regular(file, FILE_BYTES_MAX)
    except OSError as error:
        raise UserError(f"{named or file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{named or file} is not used by brokers: {error}.") from None
