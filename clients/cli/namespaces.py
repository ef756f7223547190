"""`daybook namespaces`: create, list, show and delete namespaces, and policies of their topics."""

from collections.abc import Mapping
from typing import Any

import click

from daybook.clients.cli import policies as named
from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_namespace
from daybook.clients.cli.bundle_loads import Connected, connected_to
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.namespace_deletion import TIMEOUT_S, delete_until_gone
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import (
    OutputFormat,
    counted,
    output_option,
    write_record,
    write_rows,
)
from daybook.clients.cli.policy_words import words
from daybook.clients.python.admin import Admin

_COLUMNS = ("policy", "value")


@click.group()
def namespaces() -> None:
    """Create, list, show and delete namespaces, and set policies for their topics.

    A namespace is written TENANT/NAME.
    """


@namespaces.command("list")
@click.argument("tenant", default="public")
@admin_url_option
@output_option
def list_(tenant: str, admin_url: str, output: OutputFormat) -> None:
    """List the namespaces of a TENANT, which is public if it is not given."""
    found = ask_admin(admin_url, lambda admin: admin.namespaces(tenant))
    write_rows([{"namespace": name} for name in found], ("namespace",), output)


@namespaces.command()
@click.argument("namespace")
@admin_url_option
@output_option
def create(namespace: str, admin_url: str, output: OutputFormat) -> None:
    """Create a namespace."""
    name = parse_namespace(namespace)
    ask_admin(admin_url, lambda admin: admin.create_namespace(name), changes=True)
    write_record({"namespace": name}, output)


@namespaces.command()
@click.argument("namespace")
@admin_url_option
@output_option
def show(namespace: str, admin_url: str, output: OutputFormat) -> None:
    """Show the state of a NAMESPACE, its topics, and how many clients are connected to them.

    The state is "in use", or "being deleted".  The topics count each partition.  Only a super user
    is told the number of clients; others see a -.
    """
    name = parse_namespace(namespace)

    async def ask(admin: Admin) -> dict[str, object]:
        record: Mapping[str, Any] = await admin.policies(name)
        bundles: Mapping[str, Any] = record.get("bundles") or {}
        topics, clients = await admin.topics(name), await connected_to(admin, admin_url, name)
        return {
            "namespace": name,
            "state": "being deleted" if record.get("deleted") is True else "in use",
            "topics": len(topics),
            "bundles": bundles.get("numBundles"),
            "producers": None if clients is None else clients.producers,
            "consumers": None if clients is None else clients.consumers,
        }

    write_record(ask_admin(admin_url, ask), output)


@namespaces.command()
@click.argument("namespace")
@click.option(
    "--force", is_flag=True, help="Delete its topics, too, with their messages and subscriptions."
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the namespace is gone.",
)
@admin_url_option
@output_option
def delete(
    namespace: str,
    force: bool,
    yes: bool,
    dry_run: bool,
    timeout_s: float,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Delete a namespace that has no topics, and return when it is gone.

    With --force its topics are deleted first, which takes a while if there are thousands.  After a
    --timeout or Ctrl-C the brokers may go on; the same command takes it up again.
    """
    name = parse_namespace(namespace)
    if dry_run or not yes:
        topics, clients = ask_admin(admin_url, lambda admin: _in_use(admin, admin_url, name))
        if dry_run:
            state = "has topics: only with --force" if topics and not force else "would be deleted"
            connected = None if clients is None else clients.total
            record = {
                "namespace": name,
                "topics": topics,
                "producers and consumers": connected,
                "deleted": state,
            }
            write_record(record, output)
            return
        if topics and not force:
            raise UserError(
                f"The namespace {name} has {counted(topics, 'topic')}: delete them first, or add"
                " --force, which deletes their messages, too."
            )
        confirm(_question(name, topics, clients), yes=yes)
    delete_until_gone(admin_url, name, force=force, timeout_s=timeout_s)
    write_record({"namespace": name, "deleted": True}, output)


async def _in_use(admin: Admin, admin_url: str, namespace: str) -> tuple[int, Connected | None]:
    topics = len(await admin.topics(namespace))
    return topics, await connected_to(admin, admin_url, namespace)


def _question(namespace: str, topics: int, clients: Connected | None) -> str:
    with_topics = f", {counted(topics, 'topic')} with all messages" if topics else ""
    connected = ""
    if clients is None and topics:
        connected = " It is not known how many clients are connected."
    elif clients is not None and clients.total:
        connected = (
            f" {counted(clients.producers, 'producer')} and"
            f" {counted(clients.consumers, 'consumer')} are connected."
        )
    return f"Delete the namespace {namespace}{with_topics}, and its policies?{connected}"


@namespaces.group()
def policies() -> None:
    """Show and change policies that count for all topics of a namespace.

    A topic may have a policy of its own, which goes first (`daybook topics policies`).
    """


@policies.command("get")
@click.argument("namespace")
@click.argument("policy", required=False)
@admin_url_option
@output_option
def get(namespace: str, policy: str | None, admin_url: str, output: OutputFormat) -> None:
    """Show what a NAMESPACE says about a POLICY, or about all of them."""
    name = parse_namespace(namespace)
    names = [policy] if policy else [n for n, p in named.POLICIES.items() if p.namespace]
    rows: list[dict[str, object]] = []
    for each in names:
        found, path = named.find(each, "namespace")
        shown = found.shown(path)
        answer = ask_admin(admin_url, lambda admin, p=shown: admin.policy(name, p))  # type: ignore[misc]
        value = found.chosen(answer)
        if value is not None or policy:
            shown_value = value if output == "json" else words(each, value)
            rows.append({"policy": each, "value": shown_value})
    write_rows(rows, _COLUMNS, output)


@policies.command("set", help=f"Set a POLICY of a NAMESPACE.\n\n{named.listing('namespace')}")
@click.argument("namespace")
@click.argument("policy")
@click.argument("values", nargs=-1, required=True, metavar="VALUE...")
@admin_url_option
@output_option
def set_(
    namespace: str, policy: str, values: tuple[str, ...], admin_url: str, output: OutputFormat
) -> None:
    name = parse_namespace(namespace)
    found, path = named.find(policy, "namespace")
    value = named.parse(policy, found, values)
    ask_admin(
        admin_url,
        lambda admin: admin.set_policy(name, path, value, kind=found.kind),
        changes=True,
    )
    shown_value = value if output == "json" else words(policy, value)
    write_record({"namespace": name, "policy": policy, "value": shown_value}, output)


@policies.command("remove")
@click.argument("namespace")
@click.argument("policy")
@admin_url_option
@output_option
def remove(namespace: str, policy: str, admin_url: str, output: OutputFormat) -> None:
    """Remove a POLICY of a NAMESPACE, so that the setting of the brokers counts."""
    name = parse_namespace(namespace)
    found, path = named.find(policy, "namespace")
    ask_admin(
        admin_url, lambda admin: admin.set_policy(name, path, None, kind=found.kind), changes=True
    )
    write_record({"namespace": name, "policy": policy, "value": None}, output)
