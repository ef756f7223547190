"""Shared by `daybook bookie` and `daybook broker`: replace this process by the server.

Options are passed as environment variables, which the server prefers over its settings file.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from daybook.clients.cli.options import (
    check_root,
    check_zookeeper,
    intended_zookeeper,
)

if TYPE_CHECKING:
    from daybook.clients.cli.directory import Directory

Function = TypeVar("Function", bound=Callable[..., object])
_port = click.IntRange(0, 65535)
_OPTIONS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A TOML file with the settings.",
    ),
    click.option("--host", help="The address to listen on."),
    click.option("--advertised-host", help="The host that others connect to.  [default: --host]"),
    click.option("--port", type=_port, help="The port to listen on; 0: any free one."),
    click.option(
        "--http-port",
        type=_port,
        help="The HTTP port for metrics, health and admin; 0: any free one.",
    ),
    click.option(
        "--zookeeper",
        metavar="HOST:PORT,...",
        callback=check_zookeeper,
        help="The addresses of ZooKeeper.",
    ),
    click.option(
        "--zookeeper-tls/--no-zookeeper-tls", default=None, help="Connect to ZooKeeper with TLS."
    ),
    click.option("--zookeeper-user", metavar="NAME", help="The identity for ZooKeeper."),
    click.option(
        "--zookeeper-password-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with the password of that identity.",
    ),
    click.option(
        "--ledgers-root", callback=check_root, help="The path of the ledgers in ZooKeeper."
    ),
    click.option(
        "--metadata",
        metavar="URI",
        help="--zookeeper and --ledgers-root in one, as Apache BookKeeper writes them:"
        " zk+hierarchical://HOST:PORT;HOST:PORT/ledgers",
    ),
)


def service_options(function: Function) -> Function:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def run_service(
    module: str,
    prefix: str,
    options: Mapping[str, object],
    *,
    arguments: Sequence[str] = (),
    directories: Sequence[Path] = (),
) -> None:
    """Replace this process by `module`, which then gets the signals and sets the exit code.

    `directories` are those of the bookie; they may belong to a standalone cluster.
    """
    environ = dict(os.environ)
    options = _with_zookeeper(_with_metadata(options), prefix, directories)
    # -P keeps the current directory out of the path: a folder `broker` there is another one.
    command = [sys.executable, "-P", "-m", module, *arguments]
    for name, value in options.items():
        if name == "config" and value is not None:
            command += ["--config", str(value)]
        elif value is not None:
            text = str(value)
            environ[prefix + name.upper()] = text.lower() if isinstance(value, bool) else text
    sys.stdout.flush()  # execve discards what is buffered
    os.execve(sys.executable, command, environ)  # noqa: S606  the server is a program of Daybook


def _with_metadata(options: Mapping[str, object]) -> dict[str, object]:
    """Replace the option `metadata` by `zookeeper` and `ledgers_root`."""
    told = dict(options)
    uri = told.pop("metadata", None)
    if uri is None:
        return told
    from daybook.clients.ledgers.address import MetadataAddress

    if told.get("zookeeper") is not None or told.get("ledgers_root") is not None:
        raise click.UsageError(
            "--metadata includes --zookeeper and --ledgers-root: leave them out."
        )
    try:
        address = MetadataAddress.parse(str(uri))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--metadata") from error
    return told | {"zookeeper": address.hosts, "ledgers_root": address.root}


def _with_zookeeper(
    options: Mapping[str, object], prefix: str, directories: Sequence[Path]
) -> Mapping[str, object]:
    """Add the address of ZooKeeper if neither the options nor the settings give it.

    It comes from DAYBOOK_ZOOKEEPER, else from the cluster that the directories belong to, else from
    the place where every command looks.  A server must not join the cluster at the usual port if
    the user means another one.
    """
    told = ("zookeeper", "config")
    if any(options.get(name) is not None for name in told) or f"{prefix}ZOOKEEPER" in os.environ:
        return options
    zookeeper = os.environ.get("DAYBOOK_ZOOKEEPER")
    clusters = [found for each in directories if (found := standalone_of(each)) is not None]
    if not zookeeper and clusters:
        saved = clusters[0].load()
        zookeeper = None if saved is None else saved.zookeeper_address
    return {**options, "zookeeper": zookeeper or intended_zookeeper()}


def standalone_of(directory: Path) -> "Directory | None":
    """Return the standalone cluster that contains this directory of a bookie, or None."""
    from daybook.clients.cli.directory import Directory

    cluster = Directory(directory.absolute().parent)
    return None if cluster.load() is None else cluster
