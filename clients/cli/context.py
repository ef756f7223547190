"""`daybook context`: clusters by name, so that commands need no addresses and no credentials."""

import re
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from daybook.clients.cli.chosen import complete_names
from daybook.clients.cli.contexts import NAME_FORM, Context, changed, contexts_file, load
from daybook.clients.cli.credentials import Given, credentials_of
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import Function, check_zookeeper
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COLUMNS = ("context", "in_use", "service_url", "admin_url", "zookeeper")
_ADDRESSES = ("service_url", "admin_url", "zookeeper")
_PARTS_OF_TOKEN = 3
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def context() -> None:
    """Keep clusters by name: their addresses, and the files of TLS and of credentials.

    Commands take what they are not told from the context in use, or from --context NAME. The
    credentials of a context are shown to its own addresses only.
    """


def _name(function: Function) -> Function:
    return click.argument("name", shell_complete=complete_names)(function)


@context.command()
@click.argument("name")
@click.option("--service-url", metavar="URL", help="pulsar://HOST:PORT,... or pulsar+ssl://...")
@click.option("--admin-url", metavar="URL", help="http://HOST:PORT,... or https://...")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT,...",
    callback=check_zookeeper,
    help="The addresses of ZooKeeper, for commands about ledgers and bookies.",
)
@click.option("--tls-trusted", type=_FILE, help="The authorities that are trusted, in PEM form.")
@click.option("--tls-certificate", type=_FILE, help="The certificate of this client.")
@click.option("--tls-key", type=_FILE, help="The private key of that certificate.")
@click.option(
    "--tls-verify-host/--tls-no-verify-host",
    default=True,
    help="Check that certificates of brokers are made out to their hosts (default).",
)
@click.option("--token-file", type=_FILE, help="A file with the token; the token is not kept.")
@click.option("--basic-user", metavar="USER", help="A user instead of a token.")
@click.option("--basic-password-file", type=_FILE, help="A file with the password of that user.")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on.")
@click.option("--replace", is_flag=True, help="Replace the context if there is one of that NAME.")
@output_option
def add(
    name: str,
    service_url: str | None,
    admin_url: str | None,
    zookeeper: str | None,
    tls_trusted: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_verify_host: bool,
    token_file: Path | None,
    basic_user: str | None,
    basic_password_file: Path | None,
    use_it: bool,
    replace: bool,
    output: OutputFormat,
) -> None:
    """Add a context NAME.

    Credentials stay in their files, and only the paths of these files are kept. The files have to
    be there, and to be what the options say.
    """
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} is not a name: {NAME_FORM}.")
    made = Context(
        service_url=service_url,
        admin_url=admin_url,
        zookeeper=zookeeper,
        tls_trusted=_absolute(tls_trusted),
        tls_certificate=_absolute(tls_certificate),
        tls_key=_absolute(tls_key),
        tls_verify_host=tls_verify_host,
        token_file=_absolute(token_file),
        basic_user=basic_user,
        basic_password_file=_absolute(basic_password_file),
    )
    _check(made)
    with changed() as contexts:
        if name in contexts.contexts and not replace:
            raise UserError(f"There is a context {name} already: add --replace.")
        contexts.contexts[name] = made
        if use_it:
            contexts.in_use = name
        shown = _record(name, made, contexts.in_use)
    write_record(shown, output)


@context.command()
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--none", "no_one", is_flag=True, help="Use no context from now on.")
@output_option
def use(name: str | None, no_one: bool, output: OutputFormat) -> None:
    """Use the context NAME in commands that are not told another one."""
    if (name is None) != no_one:
        raise click.UsageError("Name a context, or give --none.")
    with changed() as contexts:
        if name is not None:
            contexts.get(name)
        contexts.in_use = name or ""
    write_record({"in_use": name}, output)


@context.command("list")
@output_option
def list_(output: OutputFormat) -> None:
    """List the contexts."""
    contexts = load()
    rows = [
        _record(name, found, contexts.in_use) for name, found in sorted(contexts.contexts.items())
    ]
    write_rows([{name: row.get(name) for name in _COLUMNS} for row in rows], _COLUMNS, output)


@context.command()
@click.argument("name", required=False, shell_complete=complete_names)
@output_option
def show(name: str | None, output: OutputFormat) -> None:
    """Show the context NAME, or the one in use: paths of credentials, and not their content."""
    contexts = load()
    wanted = name or contexts.in_use
    if not wanted:
        raise UserError("No context is in use: name one, or choose one with `daybook context use`.")
    write_record(_record(wanted, contexts.get(wanted), contexts.in_use), output)


@context.command()
@_name
@output_option
def remove(name: str, output: OutputFormat) -> None:
    """Remove the context NAME.  The files that it names stay."""
    with changed() as contexts:
        contexts.get(name)
        del contexts.contexts[name]
        if contexts.in_use == name:
            contexts.in_use = ""
    write_record({"context": name, "removed": True, "file": str(contexts_file())}, output)


def _record(name: str, found: Context, in_use: str) -> Mapping[str, object]:
    return {"context": name, "in_use": name == in_use, **msgspec.to_builtins(found)}


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _check(made: Context) -> None:
    """Raise UserError for a context that no command could use."""
    from daybook.clients.python.admin import parse_admin_url
    from daybook.clients.python.pool import parse_service_url
    from daybook.clients.python.tls import is_encrypted

    urls = [url for url in (made.service_url, made.admin_url) if url is not None]
    if not urls and made.zookeeper is None:
        raise UserError("Give an address at least: --service-url, --admin-url or --zookeeper.")
    for url in filter(None, (getattr(made, field) for field in _ADDRESSES)):
        if "@" in url:
            raise UserError("An address has no user and no password: give --basic-user and a file.")
    try:
        if made.service_url is not None:
            parse_service_url(made.service_url)
        if made.admin_url is not None:
            parse_admin_url(made.admin_url)
    except ValueError as error:
        raise UserError(f"{error}.") from None
    of_tls = (made.tls_trusted, made.tls_certificate, made.tls_key)
    if (any(of_tls) or not made.tls_verify_host) and not any(map(is_encrypted, urls)):
        raise UserError(
            "The options of TLS are for pulsar+ssl:// and https://, and no URL begins like that."
        )
    token, password = made.token_file, made.basic_password_file
    given = credentials_of(
        None,
        None if token is None else Path(token),
        made.basic_user,
        None if password is None else Path(password),
    )
    _check_files(made, given)


def _check_files(made: Context, given: Given) -> None:
    """Raise UserError for files that cannot be read, or are not what the options say.

    Otherwise each command would say so later, and it would not be clear that the context is wrong.
    """
    from daybook.clients.cli.broker_client import in_options
    from daybook.clients.python.credentials import Credentials
    from daybook.clients.python.errors import CredentialsError, TlsError
    from daybook.clients.python.tls import TlsOptions, check_files

    try:
        if given.token is not None:
            parts = Credentials(given.token).data().split(b".")
            if len(parts) != _PARTS_OF_TOKEN:
                raise UserError(
                    f"{made.token_file} holds no token, which has three parts with dots in between"
                    " (--token-file)."
                )
        if given.basic is not None:
            given.basic()
        if made.tls_trusted or made.tls_certificate or made.tls_key:
            check_files(TlsOptions(made.tls_trusted, made.tls_certificate, made.tls_key))
    except (CredentialsError, TlsError) as error:
        raise UserError(f"{in_options(error)}.") from None
