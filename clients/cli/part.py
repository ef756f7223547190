"""What `daybook bookie` and `daybook broker` share: this process becomes the part.

The options go through the environment, which the parts read over their settings file.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click

from clients.cli.options import check_root, check_zookeeper, zookeeper_meant

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


def part_options(function: Function) -> Function:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def run_part(
    module: str, prefix: str, options: Mapping[str, object], *, arguments: Sequence[str] = ()
) -> None:
    """Does not return: signals and the exit code are the part's own."""
    environ = dict(os.environ)
    options = _with_zookeeper(_with_metadata(options), prefix)
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
    from clients.ledgers.address import MetadataAddress

    if told.get("zookeeper") is not None or told.get("ledgers_root") is not None:
        raise click.UsageError("--metadata says both: leave --zookeeper and --ledgers-root away.")
    try:
        address = MetadataAddress.parse(str(uri))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--metadata") from error
    return told | {"zookeeper": address.hosts, "ledgers_root": address.root}


def _with_zookeeper(options: Mapping[str, object], prefix: str) -> Mapping[str, object]:
    """The ZooKeeper that DAYBOOK_ZOOKEEPER or DAYBOOK_DIR names, if nothing else names one.

    A part that is started with either of them is not to join the cluster at the usual port.
    """
    told = ("zookeeper", "config")
    if any(options.get(name) is not None for name in told) or f"{prefix}ZOOKEEPER" in os.environ:
        return options
    if any(name in os.environ for name in ("DAYBOOK_ZOOKEEPER", "DAYBOOK_DIR")):
        return {**options, "zookeeper": os.environ.get("DAYBOOK_ZOOKEEPER") or zookeeper_meant()}
    return options
