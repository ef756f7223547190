"""`daybook explain`: say in words why something does not go on."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.by_partition import ask_each
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import OutputFormat, output_option, write_record, write_rows
from daybook.clients.cli.subscription_stats import subscription_type
from daybook.clients.cli.watch import watch_option
from daybook.clients.python.admin import Admin

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

    The line `broker` names the broker that owns the bundle of the topic, and answers.  The question
    does not load the topic.  Each partition of a topic with partitions is a line.
    """
    full = parse_topic(name).full
    by_topic: dict[str, dict[str, Any]] = ask_admin(
        admin_url, lambda admin: ask_each(admin, parse_topic(name), admin.explain_topic)
    )
    if full not in by_topic:
        _show_partitions(by_topic, ("partition", "state", "summary"), output)
        return
    found = by_topic[full]
    if output != "json":
        found = _topic_record(found)
    write_record(found, output)


def _topic_record(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines for people.  Only a topic that is being loaded has a step and times."""
    record = {"topic": found["topic"], "state": found["state"], "summary": found["summary"]}
    if found.get("broker"):
        record["broker"] = found["broker"]
    if found["state"] == "loading" and found["stepS"] is not None:
        record |= {"in this step (s)": found["stepS"], "in all (s)": found["totalS"]}
    return record


@explain.command()
@click.argument("topic")
@click.argument("name")
@admin_url_option
@output_option
@watch_option
def subscription(topic: str, name: str, admin_url: str, output: OutputFormat) -> None:
    """Say why the subscription NAME of a TOPIC delivers nothing at the moment.

    The answer names what is in the way: which consumer, which message, and since when.  It is
    computed when you ask, so ask again to see whether something moves.  Each partition
    of a topic with partitions is a line; name one to see everything about it.

    --output json writes the answer as the broker sends it.
    """
    full = parse_topic(topic).full

    async def ask(admin: Admin) -> dict[str, dict[str, Any]]:
        look = partial(admin.explain_subscription, subscription=name)
        return await ask_each(admin, parse_topic(topic), look)

    by_topic = ask_admin(admin_url, ask)
    if full not in by_topic:
        _show_partitions(by_topic, ("partition", "type", "msgBacklog", "summary"), output)
        return
    found = by_topic[full]
    if output == "json":
        write_record(found, output)
        return
    write_record(
        {
            "topic": found["topic"],
            "subscription": found["subscription"],
            "type": subscription_type(found),
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


def _show_partitions(
    found: Mapping[str, Mapping[str, Any]], columns: Sequence[str], output: OutputFormat
) -> None:
    if output == "json":
        write_record(found, output)
        return
    rows = [
        {"partition": name, **each, "type": subscription_type(each)} for name, each in found.items()
    ]
    write_rows(rows, columns, output)
