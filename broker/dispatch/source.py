"""SEAM: what a dispatcher reads for its subscription.

`LogSource` is the log behind the cursor.  `broker.compaction.source` is a compacted topic.
"""

from collections.abc import Sequence
from typing import Protocol

from daybook.broker.dispatch.entries import EntryHead
from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry


class Source(Protocol):
    """Entries in the order of their positions."""

    @property
    def read_start(self) -> Position:
        """The position of the first entry that is not acknowledged, if nothing is delivered."""
        ...

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        """Return entries from `start` on; none if there is none now."""
        ...

    def next_position(self, position: Position) -> Position:
        """Return where to read on behind an entry."""
        ...

    def may_be_acked(self, position: Position) -> bool:
        """Return False if neither this position nor any behind it is acknowledged."""
        ...

    def is_acked(self, position: Position) -> bool: ...

    def left_of(self, entry: EntryHead) -> int | None:
        """Return the messages of an entry that are there, as bits; None for all of them."""
        ...

    def acked(self, positions: Sequence[Position]) -> None:
        """Note acknowledgements, which the cursor has, too."""
        ...

    def acked_up_to(self, position: Position) -> None: ...


class LogSource:
    """Everything that the log has behind the cursor."""

    def __init__(self, log: TopicLog, cursor: TopicCursor) -> None:
        self._log = log
        self._cursor = cursor

    @property
    def read_start(self) -> Position:
        return self._cursor.read_start

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        return await self._log.read(start, max_entries=max_entries, max_bytes=max_bytes)

    def next_position(self, position: Position) -> Position:
        return self._log.next_position(position)

    def may_be_acked(self, position: Position) -> bool:
        return bool(self._cursor.acked_above) or position <= self._cursor.mark_delete

    def is_acked(self, position: Position) -> bool:
        return self._cursor.is_acked(position)

    def left_of(self, entry: EntryHead) -> int | None:
        del entry
        return None

    def acked(self, positions: Sequence[Position]) -> None:
        pass

    def acked_up_to(self, position: Position) -> None:
        pass
