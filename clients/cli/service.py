"""What `daybook bookie` and `daybook broker` share: this process becomes the part.

The options go through the environment, which the parts read over their settings file.
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
    zookeeper_of,
)

if TYPE_CHECKING:
    from daybook.clients.cli.directory import Directory

Function = TypeVar("Function", bound=Callable[..., object])
_port = click.IntRange(0, 65535)
_OPTIONS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A settings file (TOML).",
    ),
    click.option("--host", help="Where to listen."),
    click.option("--advertised-host", help="What others connect to.  [default: the host]"),
    click.option("--port", type=_port, help="0: any free one."),
    click.option("--http-port", type=_port, help="Of metrics, health and admin; 0: any free one."),
    click.option(
        "--zookeeper",
        metavar="HOST:PORT,...",
        callback=check_zookeeper,
        help="Where ZooKeeper is.",
    ),
    click.option("--ledgers-root", callback=check_root, help="Where ledgers are in ZooKeeper."),
    click.option(
        "--metadata",
        metavar="URI",
        help="Both, as Apache BookKeeper writes it: zk+hierarchical://HOST:PORT;HOST:PORT/ledgers",
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
    """Does not return: signals and the exit code are the part's own.

    `directories` are its own, which may be those of a standalone cluster.
    """
    environ = dict(os.environ)
    options = _with_zookeeper(_with_metadata(options), prefix, directories)
    # -P: a `broker` in this directory is not ours
    command = [sys.executable, "-P", "-m", module, *arguments]
    for name, value in options.items():
        if name == "config" and value is not None:
            command += ["--config", str(value)]
        elif value is not None:
            environ[prefix + name.upper()] = str(value)
    sys.stdout.flush()
    os.execve(sys.executable, command, environ)  # noqa: S606  the part is a program of ours


def _with_metadata(options: Mapping[str, object]) -> dict[str, object]:
    """`metadata` says what `zookeeper` and `ledgers_root` say."""
    told = dict(options)
    uri = told.pop("metadata", None)
    if uri is None:
        return told
    from daybook.clients.ledgers.address import MetadataAddress

    if told.get("zookeeper") is not None or told.get("ledgers_root") is not None:
        raise click.UsageError("--metadata says both: leave --zookeeper and --ledgers-root away.")
    try:
        address = MetadataAddress.parse(str(uri))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--metadata") from error
    return told | {"zookeeper": address.hosts, "ledgers_root": address.root}


def _with_zookeeper(
    options: Mapping[str, object], prefix: str, directories: Sequence[Path]
) -> Mapping[str, object]:
    """The ZooKeeper that is meant, if neither the options nor the settings name one.

    DAYBOOK_ZOOKEEPER names it, else the cluster that the directories belong to, else what any other
    command takes: a part is not to join the cluster at the usual port when another one is meant.
    """
    told = ("zookeeper", "config")
    if any(options.get(name) is not None for name in told) or f"{prefix}ZOOKEEPER" in os.environ:
        return options
    zookeeper = os.environ.get("DAYBOOK_ZOOKEEPER")
    clusters = [found for each in directories if (found := standalone_of(each)) is not None]
    if not zookeeper and clusters:
        saved = clusters[0].load()
        zookeeper = None if saved is None else zookeeper_of(saved)
    return {**options, "zookeeper": zookeeper or intended_zookeeper()}


def standalone_of(directory: Path) -> "Directory | None":
    """The standalone cluster that this directory of a bookie belongs to."""
    from daybook.clients.cli.directory import Directory

    cluster = Directory(directory.absolute().parent)
    return None if cluster.load() is None else cluster
