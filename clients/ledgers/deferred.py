"""Appends entries whose sync may wait: fast while nobody needs them on disk, then `force`.

    async with await client.create_deferred() as writer:
        for data in many:
            await writer.append(data)      # an ack quorum of bookies has it, perhaps in memory only
        await writer.force()               # it is on their disks: confirmed

An entry that is not forced is not confirmed: readers do not see it, and a crash of bookies or of
this writer may lose it.  A forced entry is as safe as any other.  The end of the block forces all
entries and closes the ledger.

The writer keeps entries until they are forced, to send them again if a bookie fails.  So they count
against `Limits.pending_bytes_max` and `pending_entries_max`.  When half of these limits is used,
the writer begins a force by itself.
"""

from collections.abc import Callable

from daybook.bookie.ledger.deferred_writer import DeferredLedgerWriter
from daybook.bookie.ledger.lac import LacAnnouncer
from daybook.clients.ledgers.limits import Limits
from daybook.clients.ledgers.turns import Turns
from daybook.clients.ledgers.writer import LedgerHandle, Writer
from daybook.wire.transport import Buffer


class DeferredWriter(Writer):
    """The only writer of a ledger; `Client.create_deferred` makes it.

    Any number of tasks may use it.
    """

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
        """The newest entry that an ack quorum of bookies took with all entries before it; or -1."""
        return self._deferred.last_acknowledged

    async def append(self, data: Buffer) -> int:
        """Append an entry; return its id when an ack quorum of bookies has taken it.

        The errors are those of `Writer.append`.
        """
        entry_id = await self.append_soon(data)
        await self.wait_acknowledged(entry_id)
        return entry_id

    async def append_soon(self, data: Buffer) -> int:
        """Send an entry, and return the id that it will have; see `Writer.append_soon`."""
        entry_id = await super().append_soon(data)
        limits = self._limits
        if (
            2 * self.pending_bytes > limits.pending_bytes_max
            or 2 * self._deferred.pending_entries > limits.pending_entries_max
        ):
            self._deferred.request_force()
        return entry_id

    def _make_room(self) -> None:
        # Forced anew each time: entries appended since the last force cause no force by themselves.
        self._deferred.request_force()

    async def wait_acknowledged(self, entry_id: int) -> None:
        """Return when an ack quorum has taken the entry and all entries before it.

        The errors are those of `wait_confirmed`.
        """
        self._check_appended(entry_id)
        await self._deferred.wait_acknowledged(entry_id)

    async def wait_confirmed(self, entry_id: int) -> None:
        """Force; return when the entry and all entries before it are confirmed."""
        self._check_appended(entry_id)
        self._deferred.request_force()
        await super().wait_confirmed(entry_id)

    async def force(self) -> int:
        """Return `last_add_confirmed` when everything appended so far is on disks.

        Raise InDoubtError, with its cause, if the writer stopped before.  The call waits as long as
        it takes; `waiting_for` gives the reason.
        """
        return await self._deferred.force()

    async def flush(self) -> None:
        """Do the same as `force`."""
        await self.force()
