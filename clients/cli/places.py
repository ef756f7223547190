"""Places in a topic as people write them, and where they are.

    earliest, latest         the ends of what the topic holds
    120                      an offset, as `topics stats` and `consume --output json` show it
    56:0, 56:0:-1:3          a message id, LEDGER:ENTRY or as the other commands write it
    2026-11-22T10:00Z, 2h    a time, or an age

A place that does not exist is refused.  To move a subscription to the end because of a typing error
would lose its backlog.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import click

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.times import FORMS, parse_time
from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import NotFoundError
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.stored_entry import StoredMessage
from daybook.wire.topics import TopicName

Place: TypeAlias = Literal["earliest", "latest"] | int | MessageId | datetime
_ID = re.compile(r"(\d{1,18}):(\d{1,18})(?::(-1|\d{1,9})(?::(-1|\d{1,9}))?)?")
_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Found:
    """Where a place is: the first message there, and how many messages are from there on.

    `message_id` is None at the end of the topic.  `offset` and `messages` are None if the entries
    were stored by a broker that does not number them.
    """

    topic: str
    message_id: MessageId | None
    offset: int | None
    messages: int | None


def parse_place(text: str, now: datetime | None = None) -> Place:
    """Return a place.  Raise click.BadParameter if the text is none."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    if (found := _ID.fullmatch(text)) is not None:
        index, partition = int(found[4] or -1), int(found[3] or -1)
        return MessageId(int(found[1]), int(found[2]), index, partition)
    return past_time(text, "no place: write earliest, latest, an offset, a message id", now)


def past_time(text: str, else_: str, now: datetime | None = None) -> datetime:
    """Return a time that has passed.  Raise click.BadParameter."""
    now = now or datetime.now(UTC)
    time = parse_time(text, now)
    if time is None:
        raise click.BadParameter(f"{text!r} is {else_}, or a time: {FORMS}.")
    if time > now:
        raise click.BadParameter(
            f"{text!r} is in the future (now it is {now.isoformat(timespec='seconds')}): write"
            " latest for the end of the topic."
        )
    return time


async def find(admin: Admin, topic: TopicName, place: Place) -> list[Found]:
    """Return where a place is in a topic, or in each of its partitions.  Raise UserError."""
    partitions = 0 if topic.partition >= 0 else await admin.partitions(topic.full)
    if isinstance(place, MessageId):
        return [await _find(admin, _topic_of(topic, place, partitions), place)]
    if not partitions:
        return [await _find(admin, topic, place)]
    if isinstance(place, int):
        raise UserError(
            f"{topic} has partitions, and each has its own offsets: name one, such as"
            f" {topic}-partition-0."
        )
    names = [topic.partition_name(index) for index in range(partitions)]
    return [await _find(admin, name, place) for name in names]


def _topic_of(topic: TopicName, place: MessageId, partitions: int) -> TopicName:
    """Return the topic, or the partition, to which an id belongs."""
    if partitions:
        if not 0 <= place.partition < partitions:
            raise UserError(
                f"{topic} has {partitions} partitions: name one of them, such as"
                f" {topic}-partition-0."
            )
        return topic.partition_name(place.partition)
    if place.partition >= 0 and place.partition != topic.partition:
        raise UserError(f"{place} is a message of partition {place.partition}, and not of {topic}.")
    return topic


async def _find(admin: Admin, topic: TopicName, place: Place) -> Found:
    last = await _at_end(admin, topic, earliest=False)
    if last is None or place == "latest":
        if isinstance(place, int | MessageId):
            raise UserError(f"{topic} holds no messages, so it has none at {place}.")
        return Found(topic.full, None, None, 0)
    if place == "earliest":
        message = await _at_end(admin, topic, earliest=True)
    elif isinstance(place, MessageId):
        message = await message_at(admin, topic, place)
    elif isinstance(place, int):
        message = await message_at(
            admin, topic, await admin.message_id_of_offset(topic.full, place)
        )
    else:
        assert isinstance(place, datetime)
        id_ = await admin.message_id_at(topic.full, round(place.timestamp() * 1000))
        try:
            message = await message_at(admin, topic, id_)
        except NotFoundError:
            message = None  # nothing was published since
    if message is None:
        return Found(topic.full, None, None, 0)
    messages = None
    if message.offset is not None and last.offset is not None:
        messages = last.offset - message.offset + 1
    return Found(topic.full, message.message_id, message.offset, messages)


async def _at_end(admin: Admin, topic: TopicName, *, earliest: bool) -> StoredMessage | None:
    """Return the first or the last message that is stored; None if there is none."""
    try:
        messages = (await admin.examine(topic.full, from_earliest=earliest)).messages
    except NotFoundError as error:
        if "0 entries" not in str(error):
            raise
        return None
    return messages[0 if earliest else -1]


async def message_at(admin: Admin, topic: TopicName, id_: MessageId) -> StoredMessage:
    """Return a stored message; without a batch index, the first of its entry.

    Raise NotFoundError if there is no such entry, and UserError if its batch is smaller.
    """
    entry = await admin.stored_entry(topic.full, id_.ledger_id, id_.entry_id)
    if id_.batch_index < len(entry.messages):
        return entry.messages[max(0, id_.batch_index)]
    if len(entry.messages) == 1:
        return entry.messages[0]  # An encrypted batch cannot be looked into.
    raise UserError(
        f"{topic} has no message {id_}: that batch has the indexes 0 to {len(entry.messages) - 1}."
    )


def total(found: Sequence[Found]) -> int | None:
    """Return how many messages there are from the places on; None if that is not known."""
    counts = [each.messages for each in found]
    return None if None in counts else sum(count or 0 for count in counts)
