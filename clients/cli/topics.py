"""`daybook topics`: create, list, inspect and delete topics.

The commands use the admin REST; only the offsets in `stats` come from the broker's own port.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import click
import trio

from daybook.clients.cli import topic_admin
from daybook.clients.cli.admin_request import ask_admin as _ask
from daybook.clients.cli.broker_client import LIMITS, check_reachable, parse_namespace, parse_topic
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.many_topics import (
    Chosen,
    ask_many,
    names_argument,
    show_failures,
    show_summary,
)
from daybook.clients.cli.options import admin_url_option, client_arguments
from daybook.clients.cli.output import (
    OutputFormat,
    counted,
    output_option,
    write_record,
    write_rows,
)
from daybook.clients.cli.subscription_stats import subscription_type
from daybook.clients.cli.topic_backlog import COMMANDS
from daybook.clients.cli.topic_lookup import lookup
from daybook.clients.cli.topic_patterns import parse_pattern
from daybook.clients.cli.topic_policies import policies
from daybook.clients.cli.topic_properties import parse_properties, properties
from daybook.clients.cli.topic_rows import (
    DELETION_COLUMNS,
    STATS_COLUMNS,
    clients_of,
    deletion_row,
    stats_row,
)
from daybook.clients.cli.watch import watch_option
from daybook.clients.python.admin import Admin
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import AdminError, BrokerError
from daybook.clients.python.reader import OffsetRange
from daybook.clients.python.tls import is_encrypted
from daybook.wire.topics import TopicName

_Offsets: TypeAlias = Mapping[int, OffsetRange]  # by partition; -1: the topic has no partitions
_IN_USE = 412
_OFFSETS_S = 5.0  # for the broker's own port, which may not be reachable where its HTTP port is
_PARTITION_COLUMNS = ("partition", "stored messages", "offsets")
_SUBSCRIPTION_COLUMNS = (
    "subscription",
    "type",
    "consumers",
    "backlog (messages)",
    "unacknowledged",
)


@click.group()
def topics() -> None:
    """Create, list, inspect and delete topics.

    A topic NAME is short for persistent://public/default/NAME.
    """


for command in (*COMMANDS, *topic_admin.COMMANDS, lookup):
    topics.add_command(command)
topics.add_command(policies)
topics.add_command(properties)


@topics.command()
@names_argument
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="Create a topic with this number of partitions.  [default: no partitions]",
)
@click.option(
    "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A property of the topic."
)
@admin_url_option
@output_option
def create(
    chosen: Chosen,
    partitions: int | None,
    pairs: tuple[str, ...],
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Create a topic, or several.

    With several NAMEs, or names from a file, all topics get the same partitions and properties.  A
    topic that fails does not end the command; its exit code is 1 then.
    """
    found = parse_properties(pairs) or None

    async def ask(admin: Admin, topic: str) -> None:
        await admin.create_topic(topic, partitions=partitions or 0, properties=found)

    if chosen.several:
        outcomes = ask_many(admin_url, "Creating topics", chosen.names, ask, changes=True)
        show_summary(outcomes, "created", output)
        return
    topic = chosen.names[0]
    _ask(admin_url, lambda admin: ask(admin, topic), changes=True)
    none = 0 if output == "json" else None
    write_record({"topic": topic, "partitions": partitions or none}, output)


@topics.command(name="list")
@click.argument("listed", required=False, metavar="[NAMESPACE]")
@click.option(
    "--namespace", metavar="TENANT/NAME", help="The namespace to list.  [default: public/default]"
)
@click.option(
    "--pattern",
    metavar="EXPRESSION",
    help="List only topics with such a name: a regular expression for the whole of NAME, as app-.*,"
    " or of TENANT/NAMESPACE/NAME.",
)
@click.option(
    "--after",
    default="",
    metavar="TOPIC",
    help="List the topics behind this one: the last one of the page before.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="List at most so many.  [default: all]",
)
@admin_url_option
@output_option
def list_(
    listed: str | None,
    namespace: str | None,
    pattern: str | None,
    after: str,
    limit: int | None,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """List the topics of a NAMESPACE, which is public/default if it is not given.

    A partitioned topic is one line with its number of partitions.  In pages, with --after or
    --limit, each partition is a line of its own.
    """
    if listed and namespace and listed != namespace:
        raise UserError(f"{listed} and --namespace {namespace} differ: give one of them.")
    of = parse_namespace(listed or namespace or "public/default")
    matches = None if pattern is None else parse_pattern(pattern)
    behind = _behind(of, after)
    asked = 0 if matches else limit or 0  # The brokers' pages know no pattern.
    names = _ask(admin_url, lambda admin: admin.topics(of, after=behind, limit=asked))
    if matches:
        names = list(filter(matches, names))[:limit]
    if after or limit:
        write_rows([{"topic": name} for name in names], ("topic",), output)
        return
    found = Counter[str]()
    for name in names:
        topic = TopicName.parse(name)
        found[topic.base.full] += topic.partition >= 0
    none = 0 if output == "json" else None
    rows = [{"topic": topic, "partitions": found[topic] or none} for topic in sorted(found)]
    write_rows(rows, ("topic", "partitions"), output)


def _behind(namespace: str, after: str) -> str:
    """Return the full name of a topic of the namespace, which may be given as the name alone."""
    if not after:
        return ""
    found = parse_topic(after if "/" in after else f"{namespace}/{after}")
    if not found.persistent or found.namespace != namespace:
        raise UserError(f"{after} is no topic of {namespace}, which is listed: see --namespace.")
    return found.full


@topics.command()
@names_argument
@admin_url_option
@output_option
@watch_option
def stats(chosen: Chosen, admin_url: str, output: OutputFormat) -> None:
    """Show what a topic holds, what goes through it, and its subscriptions.

    With several NAMEs, or names from a file, each topic is a line, and JSON has the statistics of
    each by its full name.  The question loads topics that are not in memory.

    "messages in" and "messages out" count since the broker loaded the topic: they start at 0 again
    when a broker restarts or the topic moves to another broker.  "stored messages" and "offsets"
    describe what the topic holds.  They come from the port for clients of the broker that serves
    the topic, and a - is shown if this port cannot be reached from here.

    The backlog of a subscription is the number of messages that it has not acknowledged; ~ marks
    an estimate, which it is while bookies do not answer, or after a Pulsar broker had the topic.

    --output json writes the statistics as the broker sends them.
    """
    if chosen.several:
        _stats_of_several(chosen, admin_url, output)
        return
    topic = chosen.names[0]
    if output == "json":
        write_record(_ask(admin_url, lambda admin: admin.stats(topic)), output)
        return
    found, held = _ask(admin_url, lambda admin: _stats_and_offsets(admin, admin_url, topic))
    write_record(_summary(topic, found, held), output)
    if len(held) > 1:
        click.echo()
        rows = [
            {"partition": index, "stored messages": each.next - each.first, "offsets": _span(each)}
            for index, each in held.items()
        ]
        write_rows(rows, _PARTITION_COLUMNS, output)
    subscriptions: Mapping[str, Mapping[str, Any]] = found.get("subscriptions", {})
    if subscriptions:
        click.echo()
        rows = [_subscription(name, subscriptions[name]) for name in sorted(subscriptions)]
        write_rows(rows, _SUBSCRIPTION_COLUMNS, output)


def _stats_of_several(chosen: Chosen, admin_url: str, output: OutputFormat) -> None:
    outcomes = ask_many(
        admin_url, "Asking for statistics", chosen.names, lambda admin, name: admin.stats(name)
    )
    if output == "json":
        write_record(outcomes.done, output)
    else:
        rows = [stats_row(name, found) for name, found in outcomes.done.items()]
        write_rows(rows, STATS_COLUMNS, output)
    show_failures(outcomes)


@topics.command()
@names_argument
@click.option(
    "--force", is_flag=True, help="Delete the topic even if producers or consumers are connected."
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@admin_url_option
@output_option
def delete(
    chosen: Chosen, force: bool, yes: bool, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Delete a topic, or several, with their messages and subscriptions.

    Several NAMEs, or names from a file, are one question with their number.  A topic that fails
    does not end the command; its exit code is 1 then.
    """
    if chosen.several:
        _delete_several(chosen, admin_url, output, force=force, yes=yes, dry_run=dry_run)
        return
    parsed = chosen.topics[0]
    topic = parsed.full
    found: dict[str, Any] = {}
    if dry_run or not yes:
        found = _ask(admin_url, lambda admin: admin.stats(topic))
    names = sorted(found.get("subscriptions", {}))
    if dry_run:
        connected = clients_of(found)
        record = {
            "dry run": True,
            "topic": topic,
            "stored bytes": found.get("storageSize"),
            "subscriptions": names if output == "json" else ", ".join(names) or None,
            "producers and consumers": connected,
            "deleted": "only with --force" if connected and not force else "would be deleted",
        }
        write_record(record, output)
        return

    part = f", a partition of {parsed.base}," if parsed.partition >= 0 else ""
    confirm(
        f"Delete {topic}{part} with {counted(found.get('storageSize', 0), 'stored byte')} and"
        f" {counted(len(names), 'subscription')}?",
        yes=yes,
    )

    _ask(admin_url, lambda admin: _delete(admin, topic, force=force), changes=True)
    write_record({"deleted": topic}, output)


async def _delete(admin: Admin, topic: str, *, force: bool) -> None:
    try:
        await admin.delete_topic(topic, force=force)
    except AdminError as error:
        if error.status != _IN_USE or force:
            raise
        raise UserError(f"{error}: --force deletes it nevertheless.") from error


def _delete_several(
    chosen: Chosen, admin_url: str, output: OutputFormat, *, force: bool, yes: bool, dry_run: bool
) -> None:
    if dry_run:
        held = ask_many(
            admin_url, "Asking for statistics", chosen.names, lambda admin, name: admin.stats(name)
        )
        rows = [deletion_row(name, found, force=force) for name, found in held.done.items()]
        write_rows(rows, DELETION_COLUMNS, output)
        show_failures(held)
        return
    connected = ", although producers and consumers may be connected" if force else ""
    confirm(
        f"Delete {chosen.shown()} with all messages and subscriptions{connected}?",
        yes=yes,
    )
    outcomes = ask_many(
        admin_url,
        "Deleting topics",
        chosen.names,
        lambda admin, name: _delete(admin, name, force=force),
        changes=True,
    )
    show_summary(outcomes, "deleted", output)


@topics.command()
@click.option(
    "--namespace",
    default="public/default",
    show_default=True,
    metavar="TENANT/NAME",
    help="The namespace to change.",
)
@click.option(
    "--minutes",
    type=click.IntRange(-1),
    required=True,
    help="How long messages are kept; -1: forever.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(-1),
    required=True,
    help="How much each topic keeps; -1: without limit.",
)
@admin_url_option
@output_option
def retention(
    namespace: str, minutes: int, megabytes: int, admin_url: str, output: OutputFormat
) -> None:
    """Set how long the topics of a namespace keep acknowledged messages.

    Messages are kept until one of the two limits is reached; with 0 and 0 none is kept.  Messages
    that a subscription has not acknowledged are always kept.
    """
    name = parse_namespace(namespace)
    _ask(
        admin_url,
        lambda admin: admin.set_retention(name, minutes=minutes, megabytes=megabytes),
        changes=True,
    )
    write_record({"namespace": name, "minutes": minutes, "megabytes": megabytes}, output)


@topics.command()
@click.argument("state", type=click.Choice(["on", "off", "inherit"]))
@click.option(
    "--namespace",
    default="public/default",
    show_default=True,
    metavar="TENANT/NAME",
    help="The namespace to change.",
)
@click.option("--topic", metavar="TOPIC", help="The topic to change, instead of a namespace.")
@admin_url_option
@output_option
def deduplication(
    state: str, namespace: str, topic: str | None, admin_url: str, output: OutputFormat
) -> None:
    """Store each message of a producer once, even if it is sent again.

    Repeats are found by the name of the producer and the sequence id of the message.  A topic
    overrides its namespace, and a namespace overrides the setting of the brokers; "inherit" removes
    the override.  Clients of a topic for which it changes attach again, which takes a moment.
    """
    enabled = None if state == "inherit" else state == "on"
    if topic is not None:
        name = topic
        _ask(admin_url, lambda admin: admin.set_topic_deduplication(name, enabled), changes=True)
        write_record({"topic": name, "deduplication": state}, output)
        return
    name = parse_namespace(namespace)
    _ask(admin_url, lambda admin: admin.set_deduplication(name, enabled), changes=True)
    write_record({"namespace": name, "deduplication": state}, output)


_POLL_S = 0.5


@topics.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Return when the compaction has ended.")
@admin_url_option
@output_option
def compact(name: str, wait: bool, admin_url: str, output: OutputFormat) -> None:
    """Compact a topic: keep only the last message of each key.

    The messages of the topic stay where they are.  Readers that ask for the compacted topic get the
    last message of each key from then on.  All partitions of a topic are compacted.

    Without --wait the command returns when the compaction has started.  Interrupting the command
    does not stop the compaction.
    """
    topic = parse_topic(name).full
    _ask(admin_url, lambda admin: admin.compact(topic), changes=True)
    state: Mapping[str, Any] = {"status": "RUNNING"}

    async def ask_later(admin: Admin) -> Mapping[str, Any]:
        await trio.sleep(_POLL_S)
        found: Mapping[str, Any] = await admin.compaction(topic)
        return found

    while wait and state["status"] == "RUNNING":
        state = _ask(admin_url, ask_later)
    if state["status"] == "ERROR":
        raise UserError(f"{topic} was not compacted: {state.get('lastError')}")
    write_record({"topic": topic, "status": state["status"]}, output)


async def _stats_and_offsets(
    admin: Admin, admin_url: str, topic: str
) -> tuple[dict[str, Any], _Offsets]:
    found: dict[str, Any] = await admin.stats(topic)
    # Only partitions that have statistics: asking a partition that was never used would create it.
    partitions = [TopicName.parse(name) for name in found.get("partitions", {})]
    names = sorted(partitions or [TopicName.parse(topic)], key=lambda name: name.partition)
    # The admin REST counts entries, not messages: the offsets come from the broker's own protocol.
    with suppress(BrokerError, ValueError), trio.move_on_after(_OFFSETS_S):
        where: Mapping[str, Any] = await admin.lookup(names[0].full)
        urls = [where.get("brokerUrl"), where.get("brokerUrlTls")]
        url = str(next(filter(None, reversed(urls) if is_encrypted(admin_url) else urls)))
        await check_reachable(url)
        async with connect(url, limits=LIMITS, **client_arguments(admin_url, url)) as client:
            return found, {name.partition: await client.offsets(name.full) for name in names}
    return found, {}


def _span(held: OffsetRange) -> str:
    if held.first == held.next:
        return f"none, the next is {held.next}"
    return f"{held.first} to {held.next - 1}"


def _summary(topic: str, found: Mapping[str, Any], held: _Offsets) -> dict[str, object]:
    ranges = list(held.values())
    return {
        "topic": topic,
        "partitions": len(found.get("partitions", {})) or None,
        "producers": len(found.get("publishers", [])),
        "stored messages": sum(each.next - each.first for each in ranges) if ranges else None,
        "offsets": _span(ranges[0]) if len(ranges) == 1 else None,
        "stored bytes": found.get("storageSize"),
        "messages in (since the topic was loaded)": found.get("msgInCounter"),
        "messages out (since the topic was loaded)": found.get("msgOutCounter"),
        "messages/s in": _rate(found.get("msgRateIn")),
        "bytes/s in": _rate(found.get("msgThroughputIn")),
        "messages/s out": _rate(found.get("msgRateOut")),
        "bytes/s out": _rate(found.get("msgThroughputOut")),
    }


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"


def _backlog(found: Mapping[str, Any]) -> str | None:
    """Return the number of messages, with ~ if it is an estimate."""
    messages = found.get("msgBacklog")
    if messages is None:
        return None
    return str(messages) if found.get("backlogExact", True) else f"~{messages}"


def _subscription(name: str, found: Mapping[str, Any]) -> dict[str, object]:
    return {
        "subscription": name,
        "type": subscription_type(found),
        "consumers": len(found.get("consumers", [])),
        "backlog (messages)": _backlog(found),
        "unacknowledged": found.get("unackedMessages"),
    }
