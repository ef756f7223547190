"""`daybook topics terminate|unload|add-partitions`, and `daybook topics subscriptions`."""

from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.by_partition import ask_each
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import (
    OutputFormat,
    counted,
    output_option,
    write_record,
    write_rows,
)
from daybook.clients.cli.subscription_stats import backlog_of, subscription_type
from daybook.clients.python.admin import Admin
from daybook.clients.python.message_id import MessageId

_COLUMNS = ("subscription", "type", "consumers", "backlog (messages)")


@click.command()
@click.argument("topic")
@yes_option
@click.option("--dry-run", is_flag=True, help="Show the last message, and change nothing.")
@admin_url_option
@output_option
def terminate(topic: str, yes: bool, dry_run: bool, admin_url: str, output: OutputFormat) -> None:
    """End a topic for good: it takes no more messages, and consumers learn that it has ended.

    The stored messages stay.  A topic cannot be opened for messages again.
    """
    name = parse_topic(topic)
    if not dry_run:
        confirm(f"End {name} for good?  It takes no messages any more.", yes=yes)

    async def ask(admin: Admin) -> dict[str, MessageId]:
        act = admin.last_message_id if dry_run else admin.terminate_topic
        return await ask_each(admin, name, act)

    found = ask_admin(admin_url, ask, changes=not dry_run)
    state = "would be terminated" if dry_run else "terminated"
    if name.full not in found:
        rows = [
            {"partition": each, "state": state, "last message": _id(found[each])} for each in found
        ]
        write_rows(rows, ("partition", "state", "last message"), output)
        return
    last = _id(found[name.full])
    write_record({"topic": name.full, "state": state, "last message": last}, output)


def _id(last: MessageId) -> str | None:
    return None if last.entry_id < 0 else str(last)


@click.command()
@click.argument("topic")
@admin_url_option
@output_option
def unload(topic: str, admin_url: str, output: OutputFormat) -> None:
    """Have the broker close a topic.  Its clients reconnect, which opens the topic again."""
    name = parse_topic(topic).full
    ask_admin(admin_url, lambda admin: admin.unload_topic(name), changes=True)
    write_record({"topic": name, "unloaded": True}, output)


@click.command("add-partitions")
@click.argument("topic")
@click.argument("partitions", type=click.IntRange(1))
@admin_url_option
@output_option
def add_partitions(topic: str, partitions: int, admin_url: str, output: OutputFormat) -> None:
    """Raise the number of partitions of a topic to PARTITIONS.

    The number cannot fall.  Keys move to other partitions, so the order of a key holds within the
    messages before the change, and within those after it.
    """
    name = parse_topic(topic).full
    ask_admin(admin_url, lambda admin: admin.add_partitions(name, partitions), changes=True)
    write_record({"topic": name, "partitions": partitions}, output)


@click.group()
def subscriptions() -> None:
    """List, create and delete the subscriptions of a topic."""


@subscriptions.command("list")
@click.argument("topic")
@admin_url_option
@output_option
def list_(topic: str, admin_url: str, output: OutputFormat) -> None:
    """List the subscriptions of a TOPIC."""
    name = parse_topic(topic).full
    stats: dict[str, Any] = ask_admin(admin_url, lambda admin: admin.stats(name))
    found: dict[str, Any] = stats.get("subscriptions", {})
    rows = [
        {
            "subscription": each,
            "type": subscription_type(found[each]),
            "consumers": len(found[each].get("consumers", [])),
            "backlog (messages)": found[each].get("msgBacklog"),
        }
        for each in sorted(found)
    ]
    write_rows(rows, _COLUMNS, output)


@subscriptions.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Where the subscription starts.  `daybook topics reset` moves it anywhere else.",
)
@admin_url_option
@output_option
def create(topic: str, name: str, start: str, admin_url: str, output: OutputFormat) -> None:
    """Create the subscription NAME of a TOPIC, so that it misses nothing from now on."""
    parsed = parse_topic(topic)
    full = parsed.full

    async def ask(admin: Admin) -> None:
        if parsed.persistent:
            # The request below would create a topic that does not exist, as Pulsar's does.
            await admin.partitions(parsed.base.full)
        await admin.create_subscription(full, name, start=start)

    ask_admin(admin_url, ask, changes=True)
    write_record({"topic": full, "subscription": name, "from": start}, output)


@subscriptions.command()
@click.argument("topic")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete the subscription even if it has consumers.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Show what would be lost, and delete nothing.")
@admin_url_option
@output_option
def delete(
    topic: str,
    name: str,
    force: bool,
    yes: bool,
    dry_run: bool,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Delete the subscription NAME of a TOPIC, with its position."""
    full = parse_topic(topic).full
    backlog = 0
    if dry_run or not yes:
        backlog = ask_admin(admin_url, lambda admin: backlog_of(admin, full, name))
    if dry_run:
        write_record({"dry run": True, "subscription": name, "backlog (messages)": backlog}, output)
        return
    confirm(
        f"Delete the subscription {name} of {full} with its position, and"
        f" {counted(backlog, 'message')} that it has not acknowledged?",
        yes=yes,
    )
    ask_admin(
        admin_url, lambda admin: admin.delete_subscription(full, name, force=force), changes=True
    )
    write_record({"topic": full, "subscription": name, "deleted": True}, output)


COMMANDS = (terminate, unload, add_partitions, subscriptions)
