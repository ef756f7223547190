"""`daybook`: the command line."""

import importlib
import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import ClassVar

import click

from daybook.clients.cli.lazy import LazyCommand, LazyGroup

_COMMANDS = {
    "standalone": LazyCommand("standalone", "Run a whole cluster on this machine."),
    "local": LazyCommand("local", "Show, stop and break the parts of a standalone cluster."),
    "produce": LazyCommand("produce", "Send lines to a topic."),
    "consume": LazyCommand("consume", "Write the messages of a topic to standard output."),
    "topics": LazyCommand("topics", "Create, list, inspect and delete topics."),
    "tenants": LazyCommand("tenants", "Create, list and delete tenants."),
    "namespaces": LazyCommand("namespaces", "Create, list and delete namespaces; policies."),
    "bundles": LazyCommand("bundles", "List, move and split the parts of namespaces."),
    "brokers": LazyCommand("brokers", "List brokers and their loads; drain one."),
    "schemas": LazyCommand("schemas", "Show, add, check and delete the schemas of topics."),
    "sinks": LazyCommand("sinks", "Show exactly-once batches; decide about blocked ones."),
    "pipeline": LazyCommand(
        "pipelines", "Run whole jobs around topics on Spark: copies, steps, archives, replays."
    ),
    "doctor": LazyCommand("doctor", "Look at a whole cluster: what needs attention, and why."),
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
    "tokens": LazyCommand("tokens", "Make keys and tokens; show, check and revoke tokens."),
    "certificates": LazyCommand("certificates", "Make an authority and certificates; show them."),
    "permissions": LazyCommand("permissions", "Grant, revoke and list the rights of roles."),
    "context": LazyCommand("context", "Keep clusters by name, with the files of credentials."),
    "completion": LazyCommand("completion", "Write a script for completion in a shell."),
    "version": LazyCommand("version", "Show the version."),
}


# Commands read these variables, and services those that begin with a prefix.
_VARIABLES = frozenset(
    (
        *("DAYBOOK_DIR", "DAYBOOK_SERVICE_URL", "DAYBOOK_ADMIN_URL", "DAYBOOK_ZOOKEEPER"),
        *("DAYBOOK_ZOOKEEPER_TLS", "DAYBOOK_ZOOKEEPER_USER", "DAYBOOK_ZOOKEEPER_PASSWORD_FILE"),
        *("DAYBOOK_BOOKIES_TLS", "DAYBOOK_BOOKIES_USER", "DAYBOOK_BOOKIES_PASSWORD_FILE"),
        *("DAYBOOK_CONTEXT", "DAYBOOK_TOKEN", "DAYBOOK_TOKEN_FILE"),
        *("DAYBOOK_BASIC_USER", "DAYBOOK_BASIC_PASSWORD_FILE"),
        *("DAYBOOK_TLS_TRUSTED", "DAYBOOK_TLS_CERTIFICATE", "DAYBOOK_TLS_KEY"),
        "DAYBOOK_TLS_VERIFY_HOST",
        *("DAYBOOK_MAVEN_URL", "DAYBOOK_BENCH_DIR"),
    )
)
_PREFIXES = ("DAYBOOK_BROKER_", "DAYBOOK_BOOKIE_", "DAYBOOK_AUTORECOVERY_")


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
    for name in sorted(os.environ):
        if name.startswith("DAYBOOK_") and not (name in _VARIABLES or name.startswith(_PREFIXES)):
            close = get_close_matches(name, _VARIABLES, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            click.echo(f"{name} is ignored: no command knows this variable.{hint}", err=True)


if __name__ == "__main__":
    main(prog_name="daybook")
