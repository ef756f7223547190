"""Appends entries whose ids the caller gives: in any order, confirmed in the order of the ids.

    writer = AdvancedLedgerWriter(await client.create(quorums))
    writer.append(1, [b"second"])     # held: entry 0 is missing
    writer.append(0, [b"first"])      # both are sent

The ids of a ledger have no gaps: an entry can be confirmed only when all before it are.  So one
that comes early is held here, and sent when those before it have been given; a crash in between
leaves nothing of it.  `held_bytes` is for whoever gives entries to bound.
"""

from collections.abc import Sequence

from daybook.bookie.errors import DuplicateEntryError, EntryNotSentError, InDoubtError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.transport import Buffer


class AdvancedLedgerWriter:
    """The only writer of a ledger, by entry id.  Closing and abandoning are the writer's."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self.held_bytes = 0
        self._held: dict[int, tuple[Sequence[Buffer], int]] = {}

    @property
    def held_entries(self) -> int:
        return len(self._held)

    @property
    def first_held(self) -> int | None:
        """The first entry that waits for one before it."""
        return min(self._held, default=None)

    def append(self, entry_id: int, payload: Sequence[Buffer]) -> None:
        """Send the entry as soon as those before it were given.

        DuplicateEntryError, and nothing happens, if there is one of that id.
        """
        if self.writer.error is not None:
            raise self.writer.error
        if entry_id <= self.writer.last_add_pushed or entry_id in self._held:
            raise DuplicateEntryError(self.writer.ledger_id, entry_id)
        if entry_id > self.writer.last_add_pushed + 1:
            size = self.writer.check_size(payload)
            self._held[entry_id] = payload, size
            self.held_bytes += size
            return
        self.writer.append(payload)
        while self.writer.error is None:
            held = self._held.pop(self.writer.last_add_pushed + 1, None)
            if held is None:
                return
            payload, size = held
            self.held_bytes -= size
            self.writer.append(payload)

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry is confirmed.

        When the writer stopped before: InDoubtError, or EntryNotSentError for one that never left.
        """
        try:
            await self.writer.wait_confirmed(entry_id)
        except InDoubtError as error:
            if entry_id > self.writer.last_add_pushed:
                missing = self.writer.last_add_pushed + 1
                raise EntryNotSentError(self.writer.ledger_id, entry_id, missing) from error
            raise
