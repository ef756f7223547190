"""Appends entries whose sync may wait: fast while nobody needs them on disk, then `force`.

    async with await client.create_deferred() as writer:
        for data in many:
            await writer.append(data)      # an ack quorum of bookies has it, perhaps in memory only
        await writer.force()               # it is on their disks: confirmed

What is not forced is not confirmed: readers do not see it, and a crash of bookies or of this writer
may lose it.  What was forced is as safe as any entry.  Who leaves the block forces, and ends the
ledger.

Entries are kept until they are forced, to be sent again when a bookie fails.  So they count against
`Limits.pending_bytes_max` and `pending_entries_max`, and when half of these are taken a force is
begun by itself.
"""

from collections.abc import Callable

from daybook.bookie.ledger.deferred_writer import DeferredLedgerWriter
from daybook.bookie.ledger.lac import LacAnnouncer
from daybook.clients.ledgers.limits import Limits
from daybook.clients.ledgers.turns import Turns
from daybook.clients.ledgers.writer import LedgerHandle, Writer
from daybook.wire.transport import Buffer


class DeferredWriter(Writer):
    """The only writer of a ledger.  Made by `Client.create_deferred`; for any number of tasks."""

    def __init__(
        self,
        writer: DeferredLedgerWriter,
        announcer: LacAnnouncer,
        limits: Limits,
        turns: Turns,
        ended: Callable[[LedgerHandle], None],
    ) -> None:
        super().__init__(writer, announcer, limits, turns, ended)
        self._deferred = writer

    @property
    def last_acknowledged(self) -> int:
        """The newest entry such that an ack quorum of bookies took it and all before it; or -1."""
        return self._deferred.last_acknowledged

    async def append(self, data: Buffer) -> int:
        """Append an entry; return its id when an ack quorum of bookies has taken it.

        Errors as of `Writer.append`.
        """
        entry_id = await self.append_soon(data)
        await self.wait_acknowledged(entry_id)
        return entry_id

    async def append_soon(self, data: Buffer) -> int:
        """Send an entry on its way; return the id that it will have.  As `Writer.append_soon`."""
        entry_id = await super().append_soon(data)
        limits = self._limits
        if (
            2 * self.pending_bytes > limits.pending_bytes_max
            or 2 * self._deferred.pending_entries > limits.pending_entries_max
        ):
            self._deferred.request_force()
        return entry_id

    def _make_room(self) -> None:
        # Again each time: what was appended since the last force makes none by itself.
        self._deferred.request_force()

    async def wait_acknowledged(self, entry_id: int) -> None:
        """Return when the entry, and all before it, were taken.  Errors as of `wait_confirmed`."""
        self._check_appended(entry_id)
        await self._deferred.wait_acknowledged(entry_id)

    async def wait_confirmed(self, entry_id: int) -> None:
        """Force; return when the entry, and all before it, are confirmed."""
        self._check_appended(entry_id)
        self._deferred.request_force()
        await super().wait_confirmed(entry_id)

    async def force(self) -> int:
        """Return when everything that was appended so far is confirmed, that is, on disks.

        Returns `last_add_confirmed`.  InDoubtError, with its cause, if the writer stopped before.
        It waits as long as it takes; `waiting_for` says for what.
        """
        return await self._deferred.force()

    async def flush(self) -> None:
        """As `force`."""
        await self.force()
