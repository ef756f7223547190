"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import click

DEFAULT_DIRECTORY = "daybook-data"
SERVICE_URL = "pulsar://127.0.0.1:6650"
ADMIN_URL = "http://127.0.0.1:8080"
ZOOKEEPER = "127.0.0.1:2181"
LEDGERS_ROOT = "/ledgers"

OutputFormat: TypeAlias = Literal["table", "json"]
Function = TypeVar("Function", bound=Callable[..., object])


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
        envvar="DAYBOOK_DIR",
        help="Where the cluster keeps its data.",
    )
    return option(function)


def service_url_option(function: Function) -> Function:
    """Adds `--service-url`."""
    option = click.option(
        "--service-url",
        default=SERVICE_URL,
        show_default=True,
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
        default=ADMIN_URL,
        show_default=True,
        show_envvar=True,
        envvar="DAYBOOK_ADMIN_URL",
        metavar="URL",
        help="HTTP of the brokers: http://HOST:PORT,HOST:PORT,...",
    )
    return option(function)


def zookeeper_options(function: Function) -> Function:
    """Adds `--zookeeper` and `--ledgers-root` (or `--root`), as `zookeeper` and `root`."""
    zookeeper = click.option(
        "--zookeeper",
        default=ZOOKEEPER,
        show_default=True,
        show_envvar=True,
        envvar="DAYBOOK_ZOOKEEPER",
        metavar="HOST:PORT,...",
        help="Where ZooKeeper is.",
    )
    root = click.option(
        "--ledgers-root",
        "--root",
        "root",
        default=LEDGERS_ROOT,
        show_default=True,
        metavar="PATH",
        help="Where ledgers are in ZooKeeper.",
    )
    return zookeeper(root(function))
