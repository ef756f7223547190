"""The topic as the consumers of one subscription see it: whole, or compacted (`readCompacted`).

The compacted ledger may have entries that lie before everything in the log.  A cursor cannot stand
there, so `before_log` says where the subscription stands in that part.  A durable subscription also
stores that it does, as a property of its cursor.
"""

from collections.abc import Sequence
from itertools import repeat

from daybook.broker.compaction.source import CompactedSource
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.dispatch.source import LogSource, Source
from daybook.broker.protocol.dispatch.interface import Entry
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.broker.topics.topic_log import TopicCursor, translated
from daybook.managed_ledger.position import EARLIEST, Position

# A property of the cursor: 1 if the subscription stands before everything that the log has, in the
# part of the topic that only the compacted ledger has.
BEFORE_LOG = "daybook.before-log"


class TopicView:
    """One instance per subscription."""

    def __init__(self, topic: StoredTopic, cursor: TopicCursor, *, durable: bool) -> None:
        self._topic = topic
        self._cursor = cursor
        self._durable = durable
        # Where the subscription stands if that is before everything that the log has.
        self.before_log: Position | None = None
        if durable and cursor.properties.get(BEFORE_LOG):
            self.before_log = topic.compaction.before_log(EARLIEST)
        # For consumers with `readCompacted`, since the first of them came.
        self.compacted: CompactedSource | None = None

    def begin_compacted(self, *, resumes: bool) -> None:
        """Read the compacted topic, as it is now, for consumers that want that."""
        start, self.before_log = self.before_log, None
        self.compacted = CompactedSource(
            self._topic.log,
            self._cursor,
            self._topic.compaction,
            start,
            resumes=resumes,
            standing=None if self.compacted is None else self.compacted.standing,
            on_passed=self._passed_into_log,
        )

    def _passed_into_log(self) -> None:
        """Store that the subscription stands where its cursor stands."""
        cursor = self._cursor
        if self._durable and cursor.properties.get(BEFORE_LOG):
            cursor.advance(cursor.mark_delete, {**cursor.properties, BEFORE_LOG: 0})

    def begin_move(self, start: Position) -> dict[str, int]:
        """Stand at another entry.  Return the properties that the cursor must have there."""
        self.before_log = self._topic.compaction.before_log(start)
        self.compacted = None  # It knows of deliveries before the move.
        if self.before_log is None and BEFORE_LOG not in self._cursor.properties:
            return {}
        return {BEFORE_LOG: int(self.before_log is not None)}

    def source_for(self, consumer: Consumer | None) -> Source:
        """Return what is read for the active consumer; None stands for all of them."""
        if consumer is None or not consumer.read_compacted or self.compacted is None:
            return LogSource(self._topic.log, self._cursor)
        return self.compacted

    def pending_of(self, entries: Sequence[Entry]) -> Sequence[int | None] | None:
        """Return the messages of each entry that are pending and not compacted away.

        None stands for all messages, of one entry or of all entries.
        """
        pending: list[int | None] | None = None
        if self._cursor.partly_acked:
            pending = [self._cursor.pending_of(Position(*entry.place)) for entry in entries]
        if self.compacted is None:
            return pending
        return [
            _both(entry.left, each)
            for entry, each in zip(entries, pending or repeat(None), strict=False)
        ]

    # -- questions of one consumer

    def position_of_id(self, consumer: Consumer, position: Position) -> Position:
        """Return the entry at which a consumer that seeks a message continues."""
        before = None
        if consumer.read_compacted:
            before = self._topic.compaction.before_log(position)
        return before or self._topic.position_of_id(position)

    async def position_of_time(self, consumer: Consumer, publish_ms: int) -> Position:
        """Return the entry at which a consumer that seeks a time continues.

        The compacted ledger is not searched: it is read from its first entry if the log does not go
        back so far.
        """
        log = self._topic.log
        found = await self._topic.position_of_time(publish_ms)
        before = None
        if consumer.read_compacted and found <= log.next_position(log.before_first):
            before = self._topic.compaction.before_log(EARLIEST)
        return before or found

    async def last_message(self, consumer: Consumer) -> tuple[Position, int] | None:
        """Return the last entry that the consumer can get, and the index of its last message.

        The index is -1 if the entry is no batch.  Return None if there is no entry.
        """
        found = await self._topic.last_message()
        if not consumer.read_compacted or self.compacted is None:
            return found
        with translated(self._topic.name):
            return await self.compacted.last_message(found)

    def mark_delete_of(self, consumer: Consumer) -> Position:
        """Return the position behind which the consumer reads."""
        mark_delete = self._cursor.mark_delete
        if consumer.read_compacted and self.compacted is not None:
            start = self.compacted.read_start
            return min(mark_delete, Position(start.ledger_id, start.entry_id - 1))
        return mark_delete


def _both(left: int | None, pending: int | None) -> int | None:
    """Return the messages of an entry that are in both; None stands for all messages."""
    if left is None or pending is None:
        return pending if left is None else left
    return left & pending
