"""`daybook topics peek|examine|skip|expire|clear|reset|analyze|truncate`: backlogs and messages."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.options import OutputFormat, admin_url_option, output_option
from daybook.clients.cli.output import counted, write_record, write_rows
from daybook.clients.cli.subscription_stats import backlog_of
from daybook.clients.cli.times import FORMS, Age, parse_time
from daybook.clients.cli.watch import watch_option
from daybook.clients.python.admin import Admin
from daybook.clients.python.messages import MessageId
from daybook.clients.python.stored_entry import StoredEntry

_ID = re.compile(r"(\d+):(\d+)")
_COLUMNS = ("message id", "key", "data", "properties")
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Show what would be acknowledged, and change nothing."
)


@click.command()
@click.argument("topic")
@click.argument("subscription")
@click.option("--count", "-n", default=1, type=click.IntRange(1, 100), help="How many entries.")
@admin_url_option
@output_option
def peek(topic: str, subscription: str, count: int, admin_url: str, output: OutputFormat) -> None:
    """Show the next messages of a subscription, without consuming them.

    A batch is one entry, and all its messages are shown, also those that are acknowledged already.
    """
    name = parse_topic(topic).full

    async def look(admin: Admin) -> list[StoredEntry]:
        analyzed: dict[str, Any] = await admin.analyze_backlog(name, subscription)
        numbers = range(1, min(count, analyzed["entries"]) + 1)
        return [await admin.peek(name, subscription, number) for number in numbers]

    _show(ask_admin(admin_url, look), output)


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="The end of the topic from which entries are numbered.",
)
@click.option(
    "--number", default=1, type=click.IntRange(1), help="The number of the entry, from 1."
)
@admin_url_option
@output_option
def examine(topic: str, start: str, number: int, admin_url: str, output: OutputFormat) -> None:
    """Show a stored message of a topic: by default the last one."""
    name = parse_topic(topic).full
    found = ask_admin(
        admin_url, lambda admin: admin.examine(name, number, from_earliest=start == "earliest")
    )
    _show([found], output)


def _show(entries: list[StoredEntry], output: OutputFormat) -> None:
    if output == "json":
        found = [
            {
                "messageId": entry.message_id,
                "metadata": dict(entry.metadata),
                "messages": [
                    {
                        "data": each.data.decode(errors="backslashreplace"),
                        "key": each.key,
                        "properties": dict(each.properties),
                    }
                    for each in entry.messages
                ],
            }
            for entry in entries
        ]
        write_record({"entries": found}, output)
        return
    rows = [
        {
            "message id": entry.message_id,
            "key": each.key,
            "data": each.data.decode(errors="backslashreplace"),
            "properties": ", ".join(f"{k}={v}" for k, v in sorted(each.properties.items())) or None,
        }
        for entry in entries
        for each in entry.messages
    ]
    write_rows(rows, _COLUMNS, output)


@click.command()
@click.argument("topic")
@click.argument("subscription")
@click.argument("count", type=click.IntRange(1))
@_dry_run
@admin_url_option
@output_option
def skip(
    topic: str, subscription: str, count: int, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Acknowledge the next COUNT messages of a subscription.

    On a partitioned topic these are COUNT messages of each partition.  They cannot be brought back,
    except by `reset` while they are retained.
    """
    name = parse_topic(topic).full
    _clear(
        lambda admin: admin.skip_messages(name, subscription, count, dry_run=dry_run),
        {"topic": name, "subscription": subscription, "skipped": count},
        admin_url,
        output,
        dry_run=dry_run,
    )


@click.command()
@click.argument("topic")
@click.argument("subscription")
@click.argument("age", type=Age())
@_dry_run
@admin_url_option
@output_option
def expire(
    topic: str, subscription: str, age: int, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Acknowledge messages of a subscription that are older than AGE, such as 90s, 15m, 2h, 7d."""
    name = parse_topic(topic).full
    _clear(
        lambda admin: admin.expire_messages(name, subscription, age, dry_run=dry_run),
        {"topic": name, "subscription": subscription, "expired (older than, s)": age},
        admin_url,
        output,
        dry_run=dry_run,
    )


@click.command()
@click.argument("topic")
@click.argument("subscription")
@yes_option
@_dry_run
@admin_url_option
@output_option
def clear(
    topic: str,
    subscription: str,
    yes: bool,
    dry_run: bool,
    admin_url: str,
    output: OutputFormat,
) -> None:
    """Acknowledge all messages of a subscription."""
    name = parse_topic(topic).full
    if not (yes or dry_run):
        found = ask_admin(admin_url, lambda admin: backlog_of(admin, name, subscription))
        confirm(
            f"Acknowledge all messages of the subscription {subscription} of {name}, which are"
            f" {found:,}?",
            yes=yes,
        )
    _clear(
        lambda admin: admin.clear_backlog(name, subscription, dry_run=dry_run),
        {"topic": name, "subscription": subscription, "cleared": True},
        admin_url,
        output,
        dry_run=dry_run,
    )


def _clear(
    act: Callable[[Admin], Awaitable[Any]],
    done: dict[str, object],
    admin_url: str,
    output: OutputFormat,
    *,
    dry_run: bool,
) -> None:
    found: dict[str, Any] | None = ask_admin(admin_url, act, changes=not dry_run)
    if not dry_run or found is None:
        write_record(done, output)
        return
    write_record(
        {
            "dry run": True,
            "messages": found["messages"],
            "entries": found["entries"],
            "bytes": found["bytes"],
            "up to": found["through"],
        },
        output,
    )


@click.command()
@click.argument("topic")
@click.argument("subscription")
@click.argument("place")
@_dry_run
@admin_url_option
@output_option
def reset(
    topic: str, subscription: str, place: str, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Move a subscription to PLACE: earliest, latest, a message id, a time, or an age.

    A message id is LEDGER:ENTRY.  A time is written as 2026-11-22T10:00Z (UTC without Z), and
    an age as 2h: then the subscription continues with the first message that was published since.
    Consumers reconnect and resume there.
    """
    name = parse_topic(topic).full
    act = _move_to(name, subscription, place)
    if dry_run:
        found: dict[str, Any] = ask_admin(
            admin_url, lambda admin: admin.analyze_backlog(name, subscription)
        )
        write_record(
            {"dry run": True, "place": place, "backlog now (messages)": found["messages"]}, output
        )
        return
    ask_admin(admin_url, act, changes=True)
    write_record({"topic": name, "subscription": subscription, "place": place}, output)


def _move_to(name: str, subscription: str, place: str) -> Callable[[Admin], Awaitable[None]]:
    if place in ("earliest", "latest"):
        return lambda admin: admin.reset_subscription(name, subscription, place)
    if (found := _ID.fullmatch(place)) is not None:
        message_id = MessageId(int(found[1]), int(found[2]), -1, parse_topic(name).partition)
        return lambda admin: admin.reset_subscription(name, subscription, message_id)
    time = parse_time(place, datetime.now(UTC))
    if time is None:
        raise click.BadParameter(
            f"{place!r} is no place: write earliest, latest, LEDGER:ENTRY, {FORMS}."
        )
    at_ms = round(time.timestamp() * 1000)
    return lambda admin: admin.reset_subscription_to_time(name, subscription, at_ms)


@click.command()
@click.argument("topic")
@click.argument("subscription")
@admin_url_option
@output_option
@watch_option
def analyze(topic: str, subscription: str, admin_url: str, output: OutputFormat) -> None:
    """Show how far a subscription is behind: messages, entries, bytes, and since when."""
    name = parse_topic(topic).full
    found: dict[str, Any] = ask_admin(
        admin_url, lambda admin: admin.analyze_backlog(name, subscription)
    )
    if output == "json":
        write_record(found, output)
        return
    oldest = found["oldestPublishTime"]
    write_record(
        {
            "topic": name,
            "subscription": subscription,
            "messages": found["messages"],
            "entries": found["entries"],
            "bytes": found["bytes"],
            "exact": found["exact"],
            "first message": found["firstMessageId"],
            "last message": found["lastMessageId"],
            "published (the first)": None
            if oldest is None
            else datetime.fromtimestamp(oldest / 1000, UTC).isoformat(timespec="seconds"),
        },
        output,
    )


@click.command()
@click.argument("topic")
@yes_option
@click.option("--dry-run", is_flag=True, help="Show what would be dropped, and change nothing.")
@admin_url_option
@output_option
def truncate(topic: str, yes: bool, dry_run: bool, admin_url: str, output: OutputFormat) -> None:
    """Drop all messages of a topic, even those that are retained or not acknowledged."""
    name = parse_topic(topic).full
    if dry_run or not yes:
        found: dict[str, Any] = ask_admin(admin_url, lambda admin: admin.stats(name))
        backlogs = [each["msgBacklog"] for each in found.get("subscriptions", {}).values()]
        size, backlog = found.get("storageSize", 0), max(backlogs, default=0)
        if dry_run:
            write_record(
                {
                    "dry run": True,
                    "topic": name,
                    "stored bytes": size,
                    "largest backlog (messages)": backlog,
                },
                output,
            )
            return
        confirm(
            f"Drop everything that {name} holds: {counted(size, 'byte')}, and a backlog of up to"
            f" {counted(backlog, 'message')}?",
            yes=yes,
        )
    ask_admin(admin_url, lambda admin: admin.truncate_topic(name), changes=True)
    write_record({"topic": name, "truncated": True}, output)


COMMANDS = (peek, examine, skip, expire, clear, reset, analyze, truncate)
