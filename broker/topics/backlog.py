"""How far a subscription is behind: in messages, entries and bytes.

Messages behind the mark-delete position are counted by offsets.  The offset there is read from the
log when somebody asks for statistics; else it is an estimate, if the log has batches.  Of entries
that are acknowledged above mark-delete nobody remembers how many messages they had: each counts as
many as the mean.  A batch of which some messages are acknowledged counts whole.  `exact` says if
none of this came in.
"""

from dataclasses import dataclass
from typing import Protocol

from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class BacklogSize:
    """`exact`: is `messages` a count?  `bytes` is an estimate in any case."""

    messages: int
    entries: int
    bytes: int
    exact: bool


class BacklogTopic(Protocol):
    """What is needed of the topic."""

    @property
    def log(self) -> TopicLog: ...

    async def offset_before(self, position: Position) -> int:
        """Raises BrokerError."""
        ...


class Backlog:
    """Of one subscription."""

    def __init__(self, topic: BacklogTopic, cursor: TopicCursor) -> None:
        self._topic = topic
        self._cursor = cursor
        self._read: tuple[Position, int] | None = None  # a mark-delete position, and its offset

    async def look(self) -> None:
        """Find out what lies behind the mark-delete position, by reading one entry at most."""
        mark_delete = self._cursor.mark_delete
        known = self._read is not None and self._read[0] == mark_delete
        if not known and not self._topic.log.behind(mark_delete).exact:
            self._read = mark_delete, await self._topic.offset_before(mark_delete)

    def size(self, *, partly_acked: bool) -> BacklogSize:
        """`partly_acked`: are there batches of which some messages are acknowledged?"""
        log, cursor = self._topic.log, self._cursor
        behind = log.behind(cursor.mark_delete)
        messages, exact = behind.messages, behind.exact
        if not exact and self._read is not None and self._read[0] == cursor.mark_delete:
            messages, exact = max(0, log.confirmed_offset - self._read[1]), True
        entries = min(cursor.backlog_entries, behind.entries)
        if not entries:
            return BacklogSize(0, 0, 0, exact=True)
        if messages != behind.entries:
            exact = exact and entries == behind.entries
        share = entries / behind.entries
        return BacklogSize(
            max(entries, round(messages * share)),
            entries,
            round(behind.bytes * share),
            exact and not partly_acked,
        )
