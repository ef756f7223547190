"""How far a subscription is behind: in messages, entries and bytes, and since when.

    acknowledged | holes, which the cursor counts | nothing acknowledged
                mark-delete                      top               end of the log

The cursor knows the size of the holes (`managed_ledger.protocol.holes`).  The entry behind the top
states its offset and the length of its ledger, so one read tells exactly what lies behind the top,
in messages and bytes.  The first entry that is not acknowledged tells since when the subscription
is behind.  Both entries are read when somebody asks, and again only when the subscription has moved
on.

Before they are read, and while some holes are uncounted, the numbers are estimates: `exact` and
`bytes_exact` say so.
"""

from contextlib import suppress
from dataclasses import dataclass

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.broker.topics.topic_log import TopicCursor
from daybook.managed_ledger.behind import EntryStart
from daybook.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class BacklogSize:
    """`exact` is True if `messages` is a count, and `bytes_exact` if `bytes` is.

    `oldest_ms` is the publish time of the first message that is not acknowledged; None if there is
    none, or it was not read yet.
    """

    messages: int
    entries: int
    bytes: int
    exact: bool
    bytes_exact: bool = True
    oldest_ms: int | None = None


class Backlog:
    """One instance per subscription."""

    def __init__(self, topic: StoredTopic, cursor: TopicCursor) -> None:
        self._topic = topic
        self._log = topic.log
        self._cursor = cursor
        self._behind: EntryStart | None = None  # the entry behind the top, when it was read
        self._oldest: EntryStart | None = None  # the first entry that is not acknowledged
        self._recounted: trio.Event | None = None  # set when the count that is under way has ended

    async def read(self) -> None:
        """Make the size exact, as far as the log can be read.  Raise BrokerError."""
        if self._cursor.uncounted:
            await self._recount()
        log = self._log
        for _ in range(2):  # Acknowledgements may come during a read.
            first, behind = self._first, self._first_behind
            if first <= log.last_confirmed and not _is_at(self._oldest, first):
                self._oldest = await self._topic.entry_start(first)
            if behind <= log.last_confirmed and not _is_at(self._behind, behind):
                self._behind = (
                    self._oldest if first == behind else await self._topic.entry_start(behind)
                )
            if (first, behind) == (self._first, self._first_behind):
                return

    async def _recount(self) -> None:
        """Wait until the holes are counted.  That continues when the caller stops waiting."""
        if self._recounted is None:
            self._recounted = trio.Event()
            self._topic.start_task(self._count)
        await self._recounted.wait()

    async def _count(self) -> None:
        assert self._recounted is not None
        try:
            with suppress(BrokerError):  # The size stays an estimate.
                await self._topic.recount(self._cursor)
        finally:
            self._recounted.set()
            self._recounted = None

    @property
    def _first(self) -> Position:
        return self._log.next_position(self._cursor.mark_delete)

    @property
    def _first_behind(self) -> Position:
        return self._log.next_position(self._cursor.holes_top)

    def size(self) -> BacklogSize:
        """Return the size as it is known now."""
        log, cursor = self._log, self._cursor
        entries = cursor.backlog_entries
        if entries <= 0:
            return BacklogSize(0, 0, 0, exact=True)
        messages, size = cursor.holes
        behind = log.behind(cursor.holes_top)
        start = self._behind
        exact = bytes_exact = True
        if not behind.entries:
            pass
        elif start is not None and start.position == self._first_behind:
            messages += log.confirmed_offset + 1 - start.first_offset
            size += log.bytes_after(start)
        else:
            messages, exact = messages + behind.messages, behind.exact
            size, bytes_exact = size + behind.bytes, False
        if uncounted := len(cursor.uncounted):
            # As many as the other entries have, on average.
            counted = entries - uncounted
            messages += uncounted * messages // counted if counted > 0 else uncounted
            size += uncounted * size // counted if counted > 0 else 0
            exact = bytes_exact = False
        oldest = self._oldest
        known = oldest is not None and oldest.position == self._first
        return BacklogSize(
            messages=max(messages, 0),
            entries=entries,
            bytes=max(size, 0),
            exact=exact,
            bytes_exact=bytes_exact,
            oldest_ms=oldest.publish_ms if oldest is not None and known else None,
        )


def _is_at(start: EntryStart | None, position: Position) -> bool:
    return start is not None and start.position == position
