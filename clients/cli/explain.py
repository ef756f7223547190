"""`daybook explain`: say in words why something does not go on."""

from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.options import OutputFormat, admin_url_option, output_option
from daybook.clients.cli.output import write_record, write_rows
from daybook.clients.cli.watch import watch_option

_BLOCKERS = ("why", "since", "consumer")
_HOLDERS = ("consumer", "address", "unacknowledged", "oldest")


@click.group()
def explain() -> None:
    """Say why something does not go on."""


@explain.command()
@click.argument("name")
@admin_url_option
@output_option
def topic(name: str, admin_url: str, output: OutputFormat) -> None:
    """Say what the topic NAME is doing: served, not in memory, being loaded (in which step).

    The question does not load the topic.  Name a partition if the topic has partitions.
    """
    full = parse_topic(name).full
    found: dict[str, Any] = ask_admin(admin_url, lambda admin: admin.explain_topic(full))
    if output != "json":
        found = {
            "topic": found["topic"],
            "state": found["state"],
            "summary": found["summary"],
            "in this step (s)": found["stepS"],
            "in all (s)": found["totalS"],
        }
    write_record(found, output)


@explain.command()
@click.argument("topic")
@click.argument("name")
@admin_url_option
@output_option
@watch_option
def subscription(topic: str, name: str, admin_url: str, output: OutputFormat) -> None:
    """Say why the subscription NAME of a TOPIC delivers nothing at the moment.

    The answer names what is in the way: which consumer, which message, and since when.  It is
    computed when you ask, so ask again to see whether something moves.

    --output json writes the answer as the broker sends it.
    """
    full = parse_topic(topic).full
    found: dict[str, Any] = ask_admin(
        admin_url, lambda admin: admin.explain_subscription(full, name)
    )
    if output == "json":
        write_record(found, output)
        return
    write_record(
        {
            "topic": found["topic"],
            "subscription": found["subscription"],
            "type": found["type"],
            "summary": found["summary"],
            "backlog (messages)": f"{'' if found['backlogExact'] else '~'}{found['msgBacklog']}",
            "stalled (s)": found["stalledS"],
        },
        output,
    )
    blockers = [
        {"why": each["text"], "since": each["since"], "consumer": each["consumer"]}
        for each in found["blockers"]
    ]
    holders = [
        {
            "consumer": each["consumer"],
            "address": each["address"],
            "unacknowledged": each["unackedMessages"],
            "oldest": each["oldest"],
        }
        for each in found["holders"]
    ]
    for rows, columns in ((blockers, _BLOCKERS), (holders, _HOLDERS)):
        if rows:
            click.echo()
            write_rows(rows, columns, output)
