"""`daybook context`: clusters by name, so that commands need no addresses and no credentials."""

import re
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from daybook.clients.cli.chosen import complete_names
from daybook.clients.cli.context_checks import check
from daybook.clients.cli.contexts import NAME_FORM, Context, changed, contexts_file, load
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import LEDGERS_ROOT, Function, check_root, check_zookeeper
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COLUMNS = ("context", "in_use", "service_url", "admin_url", "zookeeper")
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
@click.option(
    "--ledgers-root",
    metavar="PATH",
    callback=check_root,
    help=f"The path of the ledgers in ZooKeeper.  [default: {LEDGERS_ROOT}]",
)
@click.option(
    "--tls-trusted",
    type=_FILE,
    help="The authorities that are trusted, in PEM form; for brokers, ZooKeeper and bookies.",
)
@click.option("--tls-certificate", type=_FILE, help="The certificate of this client, for the same.")
@click.option("--tls-key", type=_FILE, help="The private key of that certificate.")
@click.option(
    "--tls-verify-host/--tls-no-verify-host",
    default=True,
    help="Check that certificates of servers are made out to their hosts (default).",
)
@click.option("--token-file", type=_FILE, help="A file with the token; the token is not kept.")
@click.option("--basic-user", metavar="USER", help="A user instead of a token.")
@click.option("--basic-password-file", type=_FILE, help="A file with the password of that user.")
@click.option("--zookeeper-tls", is_flag=True, help="Connect to ZooKeeper with TLS.")
@click.option("--zookeeper-user", metavar="NAME", help="The user for ZooKeeper.")
@click.option("--zookeeper-password-file", type=_FILE, help="A file with its password.")
@click.option("--bookie-tls", is_flag=True, help="Connect to bookies with TLS, never without it.")
@click.option("--bookie-user", metavar="NAME", help="The user for bookies.")
@click.option("--bookie-password-file", type=_FILE, help="A file with its password.")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on.")
@click.option("--replace", is_flag=True, help="Replace the context if there is one of that NAME.")
@output_option
def add(
    name: str,
    use_it: bool,
    replace: bool,
    output: OutputFormat,
    **values: "str | bool | Path | None",
) -> None:
    """Add a context NAME.

    Credentials stay in their files, and only the paths of these files are kept. The files have to
    be there, and to be what the options say. Those of TLS serve brokers, ZooKeeper and bookies.
    """
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} is not a name: {NAME_FORM}.")
    made = msgspec.convert({field: _kept(value) for field, value in values.items()}, Context)
    for warning in check(made):
        click.echo(f"Warning: {warning}", err=True)
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


def _kept(value: "str | bool | Path | None") -> "str | bool | None":
    return str(value.absolute()) if isinstance(value, Path) else value
