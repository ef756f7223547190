"""Where a consumer of one topic begins each time it is attached, and what lies in front of that.

Entries come whole: some messages of the first ones may lie in front of the place that was asked
for.  They are looked through until the place is found.

A reader has no memory at its broker: it looks for its start, and when it comes back it goes on
behind the entry that came last.  For a subscription the broker remembers: here is only the place of
a seek of our own, until it is found, or until somebody else may have moved the subscription.
"""

from datetime import datetime
from typing import TypeAlias

from daybook.clients.python.messages import EARLIEST, LATEST, Message, MessageId, Offset
from daybook.clients.python.protocol.acks_in_doubt import EntryKey

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


class StartPosition:
    """See the module."""

    __slots__ = ("_attachments", "_durable", "_last", "_start", "sought")

    def __init__(self, start: Start, *, durable: bool) -> None:
        self.sought: Start | None = None if durable else start  # not found yet
        self._start = start
        self._durable = durable
        self._attachments = 0  # since the last seek
        self._last: EntryKey | None = None  # the entry that came last, for readers

    # -- what comes

    def came(self, key: EntryKey) -> bool:
        """An entry came to a reader, maybe again: whether it lies behind all that came before."""
        if self._last is not None and key <= self._last:
            return False
        self._last = key
        return True

    def before(self, messages: list[Message]) -> int:
        """The messages (bits) of an entry in front of the place.  It was found if one is not.

        An entry of a subscription that lies in front of it as a whole was not sought by us: who
        else moves the subscription wants it.
        """
        assert self.sought is not None
        for index, message in enumerate(messages):
            if not is_before(message, self.sought):
                self.sought = None
                return (1 << index) - 1
        if self._durable:
            self.sought = None
            return 0
        return (1 << len(messages)) - 1

    # -- where a reader begins

    @property
    def now(self) -> Start:
        """Where a reader that is attached now begins."""
        return self._place if self._last is None else MessageId(*self._last)

    @property
    def at_moving_end(self) -> bool:
        """Whether that is an end which moves on: then `pin` it."""
        return self._last is None and self._place == LATEST

    def pin(self, end: EntryKey) -> None:
        """A reader that comes back goes on here, not at the new end."""
        self._last = end

    @property
    def _place(self) -> Start:
        return self._start if self.sought is None else self.sought

    # -- what happens

    def seek(self, start: Start) -> None:
        self.sought, self._attachments, self._last = start, 0, None

    def seek_failed(self) -> None:
        if self._durable:
            self.sought = None

    def attached(self) -> None:
        self._attachments += 1
        if self._durable and self._attachments > 1:
            self.sought = None  # Once because of our seek; then somebody else may have moved us.
