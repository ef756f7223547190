"""`daybook topics peek|examine|skip|expire|clear|reset|analyze|truncate`: backlogs and messages."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from daybook.clients.cli.admin_request import ask_admin
from daybook.clients.cli.broker_client import parse_topic
from daybook.clients.cli.by_partition import ask_each
from daybook.clients.cli.confirm import confirm, yes_option
from daybook.clients.cli.errors import UserError
from daybook.clients.cli.options import admin_url_option
from daybook.clients.cli.output import (
    OutputFormat,
    counted,
    output_option,
    write_record,
    write_rows,
)
from daybook.clients.cli.places import Found, Place, find, parse_place, total
from daybook.clients.cli.subscription_stats import backlog_of
from daybook.clients.cli.times import Age
from daybook.clients.cli.watch import watch_option
from daybook.clients.python.admin import Admin
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.stored_entry import StoredEntry, StoredMessage
from daybook.wire.topics import TopicName

_COLUMNS = ("message id", "offset", "key", "data", "properties")
_PUBLISHED = "published (the first)"
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Show what would be acknowledged, and change nothing."
)


@click.command()
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--count",
    "-n",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="How many messages.",
)
@admin_url_option
@output_option
def peek(topic: str, subscription: str, count: int, admin_url: str, output: OutputFormat) -> None:
    """Show the next messages that a subscription has not acknowledged, without consuming them.

    `reset` and `examine` take the message ids and the offsets that are shown.
    """
    name = parse_topic(topic).full

    _show(ask_admin(admin_url, lambda admin: _pending(admin, name, subscription, count)), output)


async def _pending(admin: Admin, topic: str, subscription: str, left: int) -> list[StoredEntry]:
    """Return the first messages that are not acknowledged."""
    analyzed: dict[str, Any] = await admin.analyze_backlog(topic, subscription)
    entries: list[StoredEntry] = []
    for number in range(1, analyzed["entries"] + 1):
        entry = await admin.peek(topic, subscription, number)
        pending = [each for each in entry.messages if not each.acknowledged][:left]
        entries.append(replace(entry, messages=tuple(pending)))
        left -= len(pending)
        if not left:
            break
    return entries


@click.command()
@click.argument("topic")
@click.argument("message", required=False)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="The end of the topic from which messages are numbered.",
)
@click.option(
    "--number",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="The number of the message, from 1.",
)
@admin_url_option
@output_option
def examine(
    topic: str, message: str | None, start: str, number: int, admin_url: str, output: OutputFormat
) -> None:
    """Show a stored message of a TOPIC: by default the last one.

    MESSAGE is an offset or a message id.  Without it, messages are numbered from an end.
    """
    name = parse_topic(topic)
    place = None if message is None else parse_place(message)
    if not isinstance(place, int | MessageId | None):
        raise click.BadParameter(f"{message!r} is neither an offset nor a message id.")

    async def look(admin: Admin) -> StoredEntry:
        if place is not None:
            (found,) = await find(admin, name, place)
            assert found.message_id is not None
            return await _only(admin, found.topic, found.message_id)
        found_entry = await admin.examine(name.full, from_earliest=start == "earliest")
        end = found_entry.messages[0 if start == "earliest" else -1]
        if end.offset is None:
            return await admin.examine(name.full, number, from_earliest=start == "earliest")
        at = end.offset + (number - 1 if start == "earliest" else 1 - number)
        if at < 0:
            raise UserError(f"{name} has no message with the number {number} from its end.")
        return await _only(admin, name.full, await admin.message_id_of_offset(name.full, at))

    _show([ask_admin(admin_url, look)], output)


async def _only(admin: Admin, topic: str, id_: MessageId) -> StoredEntry:
    """Return an entry, with one of its messages only."""
    entry = await admin.stored_entry(topic, id_.ledger_id, id_.entry_id)
    chosen = entry.messages if len(entry.messages) == 1 else entry.messages[id_.batch_index :][:1]
    return replace(entry, messages=chosen)


def _show(entries: list[StoredEntry], output: OutputFormat) -> None:
    if output == "json":
        found = [
            {
                "messageId": entry.message_id,
                "metadata": dict(entry.metadata),
                "messages": [
                    {
                        "id": _id(entry, each),
                        "offset": each.offset,
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
            "message id": _id(entry, each),
            "offset": each.offset,
            "key": each.key,
            "data": each.data.decode(errors="backslashreplace"),
            "properties": ", ".join(f"{k}={v}" for k, v in sorted(each.properties.items())) or None,
        }
        for entry in entries
        for each in entry.messages
    ]
    write_rows(rows, _COLUMNS, output)


def _id(entry: StoredEntry, message: StoredMessage) -> str:
    return entry.message_id if message.message_id is None else str(message.message_id)


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
        name,
        subscription,
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
        name,
        subscription,
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
        name,
        subscription,
        admin_url,
        output,
        dry_run=dry_run,
    )


def _clear(
    act: Callable[[Admin], Awaitable[Any]],
    topic: str,
    subscription: str,
    admin_url: str,
    output: OutputFormat,
    *,
    dry_run: bool,
) -> None:
    """Acknowledge messages, or say which ones would be; the broker decides how many there are."""

    async def ask(admin: Admin) -> dict[str, object]:
        if dry_run:
            found: dict[str, Any] = await act(admin)
            # The messages of a partitioned topic have a last one in each partition, so none here.
            inside = found["messages"] and not found["entries"]
            in_batch = "only messages inside of a batch" if inside else None
            return {
                "dry run": True,
                "messages": found["messages"],
                "whole entries": found["entries"],
                "bytes of these entries": found["bytes"],
                "the last of them": found["through"] or in_batch,
            }
        before = await backlog_of(admin, topic, subscription)
        await act(admin)
        return {
            "topic": topic,
            "subscription": subscription,
            "backlog before (messages)": before,
            "backlog afterwards (messages)": await backlog_of(admin, topic, subscription),
        }

    write_record(ask_admin(admin_url, ask, changes=not dry_run), output)


@click.command()
@click.argument("topic")
@click.argument("subscription")
@click.argument("place")
@click.option(
    "--dry-run", is_flag=True, help="Show where the subscription would go, and change nothing."
)
@admin_url_option
@output_option
def reset(
    topic: str, subscription: str, place: str, dry_run: bool, admin_url: str, output: OutputFormat
) -> None:
    """Move a subscription to PLACE: earliest, latest, an offset, a message id, a time, or an age.

    A message id is LEDGER:ENTRY, or as `peek` and `consume --output json` show it.  A time is
    written as 2026-11-22T10:00Z (UTC without Z), and an age as 2h: then the subscription continues
    with the first message that was published since.  Consumers reconnect and resume there.

    All messages from there on are delivered again, also those that were acknowledged.  A message
    that the topic does not hold, and a time in the future, are refused.
    """
    name, where = parse_topic(topic), parse_place(place)

    async def ask(admin: Admin) -> dict[str, object]:
        before = await backlog_of(admin, name.full, subscription)
        found = await find(admin, name, where)
        await _move(admin, name, subscription, where, [] if dry_run else found)
        afterwards = total(found) if dry_run else await backlog_of(admin, name.full, subscription)
        first = found[0] if len(found) == 1 else None
        return {
            **({"dry run": True} if dry_run else {}),
            "topic": name.full if first is None else first.topic,
            "subscription": subscription,
            "place": place,
            "next message": None if first is None else _next(first),
            "its offset": None if first is None else first.offset,
            "backlog before (messages)": before,
            "backlog afterwards (messages)": afterwards,
        }

    write_record(ask_admin(admin_url, ask, changes=not dry_run), output)


def _next(found: Found) -> str:
    return "none is stored yet" if found.message_id is None else str(found.message_id)


async def _move(
    admin: Admin, name: TopicName, subscription: str, where: Place, found: Sequence[Found]
) -> None:
    """Move a subscription to the places that were found; a dry run names none."""
    if not found:
        return
    if isinstance(where, datetime):
        at_ms = round(where.timestamp() * 1000)
        await admin.reset_subscription_to_time(name.full, subscription, at_ms)
    elif isinstance(where, str):
        await admin.reset_subscription(name.full, subscription, where)
    else:
        (only,) = found
        assert only.message_id is not None
        await admin.reset_subscription(only.topic, subscription, only.message_id)


@click.command()
@click.argument("topic")
@click.argument("subscription")
@admin_url_option
@output_option
@watch_option
def analyze(topic: str, subscription: str, admin_url: str, output: OutputFormat) -> None:
    """Show how far a subscription is behind: messages, entries, bytes, and since when."""
    name = parse_topic(topic).full

    async def ask(admin: Admin) -> dict[str, dict[str, Any]]:
        look = partial(admin.analyze_backlog, subscription=subscription)
        return await ask_each(admin, parse_topic(topic), look)

    by_topic = ask_admin(admin_url, ask)
    if name not in by_topic:
        if output == "json":
            write_record(by_topic, output)
        else:
            rows = [
                {"partition": each, **found, _PUBLISHED: _published(found)}
                for each, found in by_topic.items()
            ]
            columns = ("partition", "messages", "entries", "bytes", "exact", _PUBLISHED)
            write_rows(rows, columns, output)
        return
    found = by_topic[name]
    if output == "json":
        write_record(found, output)
        return
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
            _PUBLISHED: _published(found),
        },
        output,
    )


def _published(found: dict[str, Any]) -> str | None:
    """Return when the first message of a backlog was published; None if there is no backlog."""
    oldest = found.get("oldestPublishTime")
    if oldest is None:
        return None
    return datetime.fromtimestamp(oldest / 1000, UTC).isoformat(timespec="seconds")


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
