"""`daybook local`: show the parts of a standalone cluster, stop them, break them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from daybook.clients.cli.control import ask, ask_for_all
from daybook.clients.cli.directory import Directory
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import LEDGERS_ROOT, dir_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows

_HELP = {
    "kill": "Kill a part (SIGKILL) and keep it down until `start`.",
    "stop": "Stop a part cleanly and keep it down until `start`.",
    "start": "Start a part that is down; returns when it is ready.",
    "pause": "Freeze a part (SIGSTOP) until `resume`.",
    "resume": "Let a frozen part continue (SIGCONT).",
}
_COLUMNS = ("name", "state", "pid", "address", "restarts")
_UNWELL = 3


@click.group()
def local() -> None:
    """Show, stop and break the parts of a standalone cluster.

    Parts are named zookeeper, bookie-1, broker-1 and so on.
    """


@local.command()
@click.argument("name", required=False)
@dir_option
@output_option
def status(name: str | None, directory: Path, output: OutputFormat) -> None:
    """List the parts, or the part NAME, and their states.

    Without NAME the exit code is 3 if nothing can be published: ZooKeeper or all brokers are down,
    or fewer bookies take entries than must store each message.
    """
    answer = ask_for_all(directory.absolute(), "status", name)
    parts: list[dict[str, Any]] = answer["parts"]
    trouble = _why_not_publishing(directory, parts, answer["ack_quorum"]) if name is None else None
    if output == "json":
        record = {"parts": parts} if name else {"parts": parts, "not_publishing": trouble}
        write_record(record, output)
    else:
        write_rows(parts, _COLUMNS, output)
        for part in parts:
            if part["why"]:
                click.echo(f"\n{part['why'].rstrip('.')}.", err=True)
                if part["name"].startswith("bookie"):
                    click.echo(
                        f"`daybook bookies repair {part['name']}` lets it start without the lost"
                        " entries, and copies them back.",
                        err=True,
                    )
    if trouble:
        click.echo(f"\n{trouble}.", err=True)
        sys.exit(_UNWELL)


def _why_not_publishing(
    directory: Path, parts: Sequence[Mapping[str, Any]], ack_quorum: int
) -> str | None:
    """Return the reason why nothing can be published; None if messages can be published."""

    def running(kind: str) -> list[bool]:
        return [part["state"] == "running" for part in parts if part["name"].startswith(kind)]

    # Brokers serve open topics without ZooKeeper.  They open no other topic, and an open topic does
    # not survive its broker.
    if not all(running("zookeeper")):
        return (
            "ZooKeeper is down: topics that are open are served, and no other can be published to."
            "  `daybook local start zookeeper` starts it"
        )
    if not any(running("broker")):
        return (
            "Nothing can be published: no broker runs.  `daybook local start broker-1` starts one"
        )
    # The registration of a bookie that was killed stays until its session ends.
    writable = min(_count_writable(directory), sum(running("bookie")))
    if writable >= ack_quorum:
        return None
    return (
        f"Nothing can be published: {writable} of {len(running('bookie'))} bookies take entries,"
        f" and each message is stored on {ack_quorum} of them before it is acknowledged"
        " (`daybook bookies health` says more)"
    )


def _count_writable(directory: Path) -> int:
    """Return the number of bookies that are registered as writable, which brokers rely on."""
    from daybook.bookie.registry.paths import LedgerPaths
    from daybook.bookie.registry.registrations import writable_bookies
    from daybook.clients.cli.directory_keys import note_keys
    from daybook.clients.cli.metadata import run_with_store

    saved = Directory(directory).load()
    if saved is None:
        raise UserError(f"{directory / 'standalone.json'} is gone: restart the cluster.")
    paths = LedgerPaths(LEDGERS_ROOT)
    note_keys(directory, saved)
    address = saved.zookeeper_address
    return len(run_with_store(address, lambda store: writable_bookies(store, paths)))


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
