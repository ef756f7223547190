"""`daybook`: the command line."""

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click

from daybook.clients.cli.lazy import LazyCommand, LazyGroup

_COMMANDS = {
    "standalone": LazyCommand("standalone", "Run a whole cluster on this machine."),
    "local": LazyCommand("local", "Show, stop and break the parts of a standalone cluster."),
    "produce": LazyCommand("produce", "Send lines to a topic."),
    "consume": LazyCommand("consume", "Write the messages of a topic to standard output."),
    "topics": LazyCommand("topics", "Create, list, inspect and delete topics."),
    "namespaces": LazyCommand("namespaces", "Create, list and delete namespaces; policies."),
    "schemas": LazyCommand("schemas", "Show, add, check and delete the schemas of topics."),
    "explain": LazyCommand("explain", "Say why a subscription delivers nothing."),
    "ledgers": LazyCommand("ledgers", "List, read, check, recover and delete ledgers."),
    "bookies": LazyCommand(
        "bookies", "List the bookies of a cluster, remove them, bring them back."
    ),
    "cluster": LazyCommand("cluster", "Show or change which ledgers the topics are bound to."),
    "autorecovery": LazyCommand(
        "autorecovery", "Control auto-recovery, which restores lost copies."
    ),
    "bookie": LazyCommand("bookie", "Run a bookie, or check the directory of a stopped one."),
    "broker": LazyCommand("broker", "Run one broker."),
    "completion": LazyCommand("completion", "Write a script for completion in a shell."),
    "version": LazyCommand("version", "Show the version."),
}


class _Commands(LazyGroup):
    lazy: ClassVar[Mapping[str, LazyCommand]] = _COMMANDS


def _print_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    del parameter
    if asked:
        context.invoke(importlib.import_module("daybook.clients.cli.version").version)
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="The same as `daybook version`.",
)
def main() -> None:
    """Daybook: a publish/subscribe message broker whose topics are chains of replicated ledgers."""


if __name__ == "__main__":
    main(prog_name="daybook")
