"""`daybook local`: look at the parts of a standalone cluster, stop them, break them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from clients.cli.control import ask
from clients.cli.options import OutputFormat, dir_option, output_option
from clients.cli.output import write_record, write_rows

_HELP = {
    "kill": "Kill a part (SIGKILL) and keep it down until `start`.",
    "stop": "Stop a part cleanly and keep it down until `start`.",
    "start": "Start a part that is down; returns when it is ready.",
    "pause": "Freeze a part (SIGSTOP) until `resume`.",
    "resume": "Let a frozen part go on (SIGCONT).",
}
_COLUMNS = ("name", "state", "pid", "address", "restarts")


@click.group()
def local() -> None:
    """Look at, stop and break the parts of a standalone cluster.

    Parts are named zookeeper, bookie-1, broker-1 and so on.
    """


@local.command()
@click.argument("name", required=False)
@dir_option
@output_option
def status(name: str | None, directory: Path, output: OutputFormat) -> None:
    """List the parts, or one of them, and how they are."""
    parts = _ask(directory, "status", name)
    if output == "json":
        write_record({"parts": parts}, output)
    else:
        write_rows(parts, _COLUMNS, output)


def _order(command: str) -> Callable[..., None]:
    def run(name: str, directory: Path, output: OutputFormat) -> None:
        (part,) = _ask(directory, command, name)
        if output == "json":
            write_record(part, output)
        else:
            write_rows([part], _COLUMNS, output)

    return run


def _ask(directory: Path, command: str, name: str | None) -> list[dict[str, Any]]:
    return ask(directory.absolute(), command, name)


for _command, _help in _HELP.items():
    _run = click.argument("name")(dir_option(output_option(_order(_command))))
    local.command(_command, help=_help)(_run)
