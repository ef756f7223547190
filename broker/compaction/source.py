"""The source of subscriptions with `readCompacted`: the compacted ledger, and then the log.

A subscription reads the compacted ledger up to the horizon at which it began, and then the log.  A
compaction that finishes meanwhile changes nothing for it: a reader that has seen a key must also
see the tombstone that removes it, and a compacted ledger has no tombstones.  Only if the log has
been trimmed behind that horizon, the reader goes on in the newest compacted ledger.

Entries may lie before everything that the log still has.  A cursor cannot stand there, so this
object remembers where the subscription stands, and what is acknowledged there.  Both are lost with
the topic's owner; the subscription then reads that part again.
"""

from collections.abc import Callable, Sequence

from daybook.broker.compaction.topic_compaction import TopicCompaction
from daybook.broker.dispatch.entries import EntryHead
from daybook.broker.topics.topic_log import TopicCursor, TopicLog
from daybook.managed_ledger.ack_set import ENTRIES_MAX, AckSet
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry


class Standing:
    """Where a subscription stands in the part of the topic that only the compacted ledger has."""

    def __init__(self, start: Position | None) -> None:
        self.start = start  # the first entry to read; None: the cursor knows
        self.read = AckSet()  # the entries that were read
        self.acked = AckSet()  # those of them that are acknowledged


def _nothing() -> None:
    """Ignore the call."""


class CompactedSource:
    """One instance per subscription.

    `start` is the position of the first entry to read if that is before everything that the log
    has; None if the cursor knows.  A reader that `resumes` has received everything before its
    start, so it gets every message behind it that the log still has.

    `standing` is what consumers that have left since have acknowledged.  `on_passed` is called when
    the cursor knows where the subscription stands.
    """

    def __init__(
        self,
        log: TopicLog,
        cursor: TopicCursor,
        compaction: TopicCompaction,
        start: Position | None = None,
        *,
        resumes: bool = False,
        standing: "Standing | None" = None,
        on_passed: Callable[[], None] = _nothing,
    ) -> None:
        self._log = log
        self._cursor = cursor
        self._compaction = compaction
        self.standing = standing if standing is not None and start is None else Standing(start)
        self._known_from = log.before_first.ledger_id  # the cursor knows of these ledgers
        self._kept = AckSet()  # the entries that were read of which the log has the original
        self._on_passed = on_passed
        self._at_end = False  # all entries up to `_through` were read
        self._through: Position | None = None  # the compacted ledger is read up to here
        self._behind = Position(0, 0)  # the entry of the log behind that
        if self.standing.start is not None or not resumes:
            self._adopt_horizon()

    def _adopt_horizon(self) -> None:
        """Read the compacted ledger up to its present horizon.

        The log has everything behind the present horizon, so the next entry is known now.
        """
        self._through = self._compaction.horizon
        self._at_end = False
        if self._through is not None:
            self._behind = self._log.next_position(self._through)

    @property
    def through(self) -> Position | None:
        """The position up to which the subscription reads the compacted ledger."""
        return self._through

    @property
    def read_start(self) -> Position:
        return self._cursor.read_start if self.standing.start is None else self.standing.start

    async def read(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        log = self._log
        while True:
            through = self._through
            if through is not None and start <= through:
                found = await self._compaction.read(
                    start, through, max_entries=max_entries, max_bytes=max_bytes
                )
                if found:
                    self._note_read(found)
                    # Behind the end of the log nobody reads.
                    self._at_end |= found[-1].position == through
                    return found
                start = self._behind
            if through is not None and not self._at_end:
                self._at_end = True
                self._note_acked()
            horizon = self._compaction.horizon
            # No checkpoint between this and the read, so nothing more can be trimmed.
            if horizon is None or start > horizon or start.ledger_id >= log.before_first.ledger_id:
                break
            self._adopt_horizon()
        if start > log.last_confirmed:
            return []
        return await log.read(start, max_entries=max_entries, max_bytes=max_bytes)

    async def last_message(
        self, of_log: tuple[Position, int] | None
    ) -> tuple[Position, int] | None:
        """Return the last entry, and the index of its last message that was not removed.

        `of_log` is what the log has as its last one.  The index is -1 if the entry is no batch.
        """
        through = self._through
        if of_log is not None and (through is None or of_log[0] > through):
            return of_log
        # A log that is empty may have been trimmed behind the horizon of this subscription.
        through = through if of_log is not None else self._compaction.horizon
        return None if through is None else await self._compaction.last_message(through)

    def _note_read(self, entries: Sequence[LogEntry]) -> None:
        first = self._log.before_first.ledger_id
        for entry in entries:
            position = entry.position
            if 0 <= position.entry_id < ENTRIES_MAX:
                (self.standing.read if position.ledger_id < first else self._kept).add(position)

    def next_position(self, position: Position) -> Position:
        if self._through is not None and position <= self._through:
            return position.next_in_ledger()
        return self._log.next_position(position)

    def may_be_acked(self, position: Position) -> bool:
        del position
        return True

    def is_acked(self, position: Position) -> bool:
        if position in self.standing.acked:
            return True
        return position.ledger_id >= self._known_from and self._cursor.is_acked(position)

    def left_of(self, entry: EntryHead) -> int | None:
        """Return the messages of a batch that compaction left, as bits; None for all of them."""
        return entry.left

    def acked(self, positions: Sequence[Position]) -> None:
        for position in positions:
            # A client may name any position; what was not delivered must not take memory.
            if position in self.standing.read:
                self.standing.acked.add(position)
        self._note_acked()

    def _note_acked(self) -> None:
        standing = self.standing
        all_acked = self._at_end and len(standing.acked) == len(standing.read)
        if standing.start is not None and all_acked:
            self._pass_into_log()
        self._skip_removed()

    def acked_up_to(self, position: Position) -> None:
        self.standing.acked.discard_through(position)
        self.standing.read.discard_through(position)
        if self.standing.start is not None and position >= self.standing.start:
            if position.ledger_id < self._known_from:
                self.standing.start = position.next_in_ledger()
            else:
                self._pass_into_log()
        self._skip_removed()

    def _pass_into_log(self) -> None:
        """Note that everything is acknowledged that only the compacted ledger has."""
        self.standing.start = None
        self._on_passed()

    def _skip_removed(self) -> None:
        """Acknowledge what compaction has removed, up to the next entry that it has kept.

        Nobody gets these entries, so nobody else would acknowledge them.
        """
        through, cursor, kept = self._through, self._cursor, self._kept
        if through is None or self.standing.start is not None:
            return
        while (at := cursor.mark_delete) < through:
            kept.discard_through(at)
            run = next(kept.ranges(), None)
            if run is not None:
                end = self._log.previous_position(Position(run[0], run[1]))
            elif self._at_end:
                end = through
            else:
                return
            if end <= at:
                return
            cursor.ack_cumulative(end)
            if cursor.mark_delete <= at:
                return
