"""Where a consumer of one topic starts each time it is attached, and which messages come before.

Entries are delivered whole, so some messages of the first entries may lie before the position that
was asked for.  Messages are checked until the position is found.

The broker remembers nothing for a reader: a reader looks for its start, and when it is attached
again, it resumes behind the last entry that arrived.  For a subscription the broker remembers the
position; only the target of our own seek is kept here, until it is found, or until another client
may have moved the subscription.
"""

from datetime import datetime
from typing import TypeAlias

from daybook.clients.python.message_id import EARLIEST, LATEST, MessageId, Offset
from daybook.clients.python.messages import Message
from daybook.clients.python.protocol.acks_in_doubt import EntryKey

Start: TypeAlias = MessageId | Offset | datetime
"""A position: a message, an offset, or a time (of the first message published then or later)."""


def parse_start(start: Start | int | str) -> Start:
    """Return the position for `start`: `earliest`, `latest` and offsets may be given as such."""
    match start:
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case int():
            return Offset(start)
        case str():
            raise ValueError(
                "start must be 'earliest', 'latest', an offset, a message id or a time, not"
                f" {start!r}"
            )
        case MessageId() | Offset() | datetime():
            return start
        case _:
            raise TypeError(
                "start must be 'earliest', 'latest', an Offset, a MessageId or a datetime, not"
                f" {type(start).__name__}"
            )


def is_before(message: Message, start: Start) -> bool:
    """Return True if the message lies before the position."""
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
    """Return the time in milliseconds since 1970, at least 0."""
    return max(0, round(when.timestamp() * 1000))


class StartPosition:
    """One instance per topic consumer."""

    __slots__ = ("_attachments", "_durable", "_last", "_start", "sought")

    def __init__(self, start: Start, *, durable: bool) -> None:
        self.sought: Start | None = None if durable else start  # not found yet
        self._start = start
        self._durable = durable
        self._attachments = 0  # since the last seek
        self._last: EntryKey | None = None  # the entry that came last, for readers

    # -- what comes

    def is_new(self, key: EntryKey) -> bool:
        """Note an entry that came to a reader; return False if it came before."""
        if self._last is not None and key <= self._last:
            return False
        self._last = key
        return True

    def before(self, messages: list[Message]) -> int:
        """Return the messages (as bits) of an entry that lie before the position.

        The position is found with the first message that does not.  If all messages of an entry of
        a subscription lie before it, another client has moved the subscription since: then the
        application gets the whole entry.
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
        """The position at which a reader that is attached now starts."""
        return self._place if self._last is None else MessageId(*self._last)

    @property
    def resumes(self) -> bool:
        """Return True if the reader goes on behind what it has received."""
        return self._last is not None

    @property
    def at_moving_end(self) -> bool:
        """Return True if the reader starts at the end of the topic, which moves: then `pin` it."""
        return self._last is None and self._place == LATEST

    def pin(self, end: EntryKey) -> None:
        """Have the reader resume behind this entry, not at the new end of the topic."""
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
            # The first attachment follows our seek; before a later one, another client may have
            # moved the subscription.
            self.sought = None
