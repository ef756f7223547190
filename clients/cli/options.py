"""Options that several commands have.

Where the cluster is: what the option says, else the environment, else the cluster of the data
directory that is used here (daybook-data, or DAYBOOK_DIR), else the usual ports of this machine.
So what runs where `daybook standalone` runs finds all of its brokers, also when one is away.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import click

if TYPE_CHECKING:
    from clients.cli.directory import Saved

DEFAULT_DIRECTORY = "daybook-data"
SERVICE_URL = "pulsar://127.0.0.1:6650"
ADMIN_URL = "http://127.0.0.1:8080"
ZOOKEEPER = "127.0.0.1:2181"
_HOST = "127.0.0.1"
LEDGERS_ROOT = "/ledgers"
_HOST_PORT = re.compile(r"([^\s:\[\]]+|\[[^\s\[\]]+\])(:(?P<port>\d+))?")
_PORT_MAX = 65535

OutputFormat: TypeAlias = Literal["table", "json"]
Function = TypeVar("Function", bound=Callable[..., object])


def _saved() -> "Saved | None":
    """What the cluster of the directory that is used here listens on; None if there is none."""
    from clients.cli.directory import Directory

    return Directory(Path(os.environ.get("DAYBOOK_DIR", DEFAULT_DIRECTORY))).load()


def _service_url() -> str:
    saved = _saved()
    if saved is None:
        return SERVICE_URL
    return "pulsar://" + ",".join(f"{_HOST}:{broker.port}" for broker in saved.brokers)


def _admin_url() -> str:
    saved = _saved()
    if saved is None:
        return ADMIN_URL
    return "http://" + ",".join(f"{_HOST}:{broker.http_port}" for broker in saved.brokers)


def _zookeeper() -> str:
    saved = _saved()
    if saved is None:
        return ZOOKEEPER
    return saved.zookeeper or f"{_HOST}:{saved.zookeeper_port}"


def _or_that_of(usual: str) -> str:
    return f"the cluster in {DEFAULT_DIRECTORY}, else {usual}"


def output_option(function: Function) -> Function:
    """Adds `--output table|json`, as the parameter `output`."""
    option = click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For people, or for programs.",
    )
    return option(function)


def dir_option(function: Function) -> Function:
    """Adds `--dir`, as the parameter `directory`."""
    option = click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=DEFAULT_DIRECTORY,
        show_default=True,
        show_envvar=True,
        envvar="DAYBOOK_DIR",
        help="Where the cluster keeps its data.",
    )
    return option(function)


def service_url_option(function: Function) -> Function:
    """Adds `--service-url`."""
    option = click.option(
        "--service-url",
        default=_service_url,
        show_default=_or_that_of(SERVICE_URL),
        show_envvar=True,
        envvar="DAYBOOK_SERVICE_URL",
        metavar="URL",
        help="The brokers: pulsar://HOST:PORT,HOST:PORT,...",
    )
    return option(function)


def admin_url_option(function: Function) -> Function:
    """Adds `--admin-url`."""
    option = click.option(
        "--admin-url",
        default=_admin_url,
        show_default=_or_that_of(ADMIN_URL),
        show_envvar=True,
        envvar="DAYBOOK_ADMIN_URL",
        metavar="URL",
        help="HTTP of the brokers: http://HOST:PORT,HOST:PORT,...",
    )
    return option(function)


def check_zookeeper(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """HOST:PORT,...; of an address with a scheme the message says what to write instead."""
    if value is None:
        return None
    if "://" in value:
        from clients.ledgers.address import MetadataAddress

        try:
            address = MetadataAddress.parse(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
        raise click.BadParameter(
            f"write that as --zookeeper {address.hosts} --ledgers-root {address.root}."
        )
    for host in value.partition("/")[0].split(","):
        found = _HOST_PORT.fullmatch(host.strip())
        if found is None or int(found["port"] or 0) > _PORT_MAX:
            raise click.BadParameter(f"{host!r} is not HOST:PORT.")
    return value


def check_root(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """An absolute path, as ZooKeeper has them."""
    if value is None:
        return None
    first, *names = value.split("/")
    if first or not names or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise click.BadParameter(f"{value!r} is no path in ZooKeeper: one looks like /ledgers.")
    return value


def zookeeper_options(function: Function) -> Function:
    """Adds `--zookeeper` and `--ledgers-root` (or `--root`), as `zookeeper` and `root`."""
    zookeeper = click.option(
        "--zookeeper",
        default=_zookeeper,
        show_default=_or_that_of(ZOOKEEPER),
        show_envvar=True,
        envvar="DAYBOOK_ZOOKEEPER",
        metavar="HOST:PORT,...",
        callback=check_zookeeper,
        help="Where ZooKeeper is.",
    )
    root = click.option(
        "--ledgers-root",
        "--root",
        "root",
        default=LEDGERS_ROOT,
        show_default=True,
        metavar="PATH",
        callback=check_root,
        help="Where ledgers are in ZooKeeper.",
    )
    return zookeeper(root(function))
