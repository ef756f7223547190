"""The newest entries of a log, read and looked into once for all who wait for them.

One `Newest` is made for each confirmation, and lives until all readers that waited for it were
called.  Ten subscriptions of a topic mostly want the same entries at that moment.  A subscription
that wants others makes a read of its own.
"""

from collections.abc import Hashable, Sequence

from daybook.broker.protocol.dispatch.interface import Entry
from daybook.broker.topics.topic_log import TopicLog
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry

READ_BYTES_MIN = 64 << 10  # A read may always bring so many bytes, however little room there is.


class Newest:
    """The entries that one confirmation has added to a log."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._raw: Sequence[LogEntry] = ()
        self._bytes = 0
        self._made: dict[Hashable, Sequence[Entry]] = {}

    def read(self, start: Position, *, max_entries: int, max_bytes: int) -> Sequence[LogEntry]:
        """Return what the log has in memory from `start` on."""
        raw = self._raw
        fits = len(raw) <= max_entries and self._bytes <= max_bytes
        if raw and raw[0].position == start and fits:
            self._log.count_read(len(raw))
            return raw
        raw = self._log.read_now(start, max_entries=max_entries, max_bytes=max_bytes)
        self._raw, self._bytes = raw, sum(len(each.data) for each in raw)
        self._made.clear()
        return raw

    def small(self, start: Position, max_entries: int) -> Sequence[LogEntry]:
        """Return the last read once more if it begins there, and any read may bring so much."""
        raw = self._raw
        if not raw or self._bytes > READ_BYTES_MIN or len(raw) > max_entries:
            return ()
        if raw[0].position != start:
            return ()
        self._log.count_read(len(raw))
        return raw

    def made(self, raw: Sequence[LogEntry], kind: Hashable) -> Sequence[Entry] | None:
        """Return what was made of this read for a subscription of that kind."""
        assert raw is self._raw
        return self._made.get(kind)

    def keep(self, raw: Sequence[LogEntry], kind: Hashable, made: Sequence[Entry]) -> None:
        """Keep entries for other subscriptions of that kind; nobody may change them any more."""
        assert raw is self._raw
        self._made[kind] = made
