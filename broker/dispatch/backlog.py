"""How far a subscription is behind: in messages, entries and bytes.

Messages behind the mark-delete position are counted by offsets.  The offset at that position is
read from the log when statistics are asked for.  Before that, the number is an estimate if the log
has batches.

The broker does not remember how many messages an entry had that is acknowledged above mark-delete.
Each such entry counts as the mean of all entries behind mark-delete.  A batch that is acknowledged
in part counts whole.  `exact` is True if the number depends on none of these estimates.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class BacklogSize:
    """`exact` is True if `messages` is a count.  `bytes` is always an estimate."""

    messages: int
    entries: int
    bytes: int
    exact: bool


class Backlog:
    """One instance per subscription.

    `offset_before` returns the offset of the last message at or before a position.
    """

    def __init__(
        self,
        log: TopicLog,
        cursor: TopicCursor,
        offset_before: Callable[[Position], Awaitable[int]],
    ) -> None:
        self._log = log
        self._cursor = cursor
        self._offset_before = offset_before
        self._read: tuple[Position, int] | None = None  # a mark-delete position, and its offset

    async def read(self) -> None:
        """Find the offset at the mark-delete position, by reading one entry at most."""
        mark_delete = self._cursor.mark_delete
        known = self._read is not None and self._read[0] == mark_delete
        if not known and not self._log.behind(mark_delete).exact:
            self._read = mark_delete, await self._offset_before(mark_delete)

    def size(self, *, partly_acked: bool) -> BacklogSize:
        """Return the size.

        `partly_acked` tells whether some batches are acknowledged in part.
        """
        log, cursor = self._log, self._cursor
        behind = log.behind(cursor.mark_delete)
        messages, exact = behind.messages, behind.exact
        if not exact and self._read is not None and self._read[0] == cursor.mark_delete:
            messages, exact = max(0, log.confirmed_offset - self._read[1]), True
        entries = min(cursor.backlog_entries, behind.entries)
        if not entries:
            return BacklogSize(0, 0, 0, exact=True)
        if messages != behind.entries:  # Some entries are batches, so the mean is needed.
            exact = exact and entries == behind.entries
        share = entries / behind.entries
        return BacklogSize(
            max(entries, round(messages * share)),
            entries,
            round(behind.bytes * share),
            exact and not partly_acked,
        )
