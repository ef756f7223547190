"""Places in a topic: where a subscription or a reader starts, where a consumer seeks to."""

from datetime import datetime
from typing import TypeAlias

from daybook.clients.python.messages import EARLIEST, LATEST, Message, MessageId, Offset

Start: TypeAlias = MessageId | Offset | datetime
"""A place in a topic: a message, its number, or the first message published at a time or later."""


def parse_start(start: Start | int | str) -> Start:
    """A place to start at; `earliest`, `latest` and plain numbers are short for some."""
    match start:
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case int():
            return Offset(start)
        case str():
            raise ValueError(f"'earliest', 'latest', an offset, an id or a time, not {start!r}")
        case MessageId() | Offset() | datetime():
            return start
        case _:
            raise TypeError(
                "start is 'earliest', 'latest', an offset, a MessageId or a datetime, not"
                f" {type(start).__name__}"
            )


def is_before(message: Message, start: Start) -> bool:
    match start:
        case Offset():
            return message.offset is not None and message.offset < start.value
        case datetime():
            return message.publish_time_ms < milliseconds(start)
        case MessageId():
            if start in (EARLIEST, LATEST):
                return False
            entry = message.entry
            here = (entry.ledger_id, entry.entry_id, message.batch_index)
            return here < (start.ledger_id, start.entry_id, start.batch_index)


def milliseconds(when: datetime) -> int:
    return max(0, round(when.timestamp() * 1000))
