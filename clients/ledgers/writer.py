"""Appends entries to a ledger, in order, many at a time.

    async with await client.create() as writer:
        entry_id = await writer.append(b"...")          # it is on an ack quorum of disks
        for data in many:
            await writer.append_soon(data)              # waits only while too much is under way
        await writer.flush()                            # now all of them are

Who leaves the block ends the ledger, behind everything that was appended.  An error in the block
leaves it open instead, as a crash would: whoever opens it with recovery finds what was confirmed.

An entry has from 0 to about 5 MB (`EntryTooLargeError` says how many bytes fit).  A cancelled
`append` is not undone once it was sent: the entry keeps its id, and may yet be confirmed.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import trio

from daybook.bookie.errors import EntryNotSentError, LedgerClosedError, LedgerError
from daybook.bookie.ledger.deferred_writer import AdvancedLedgerWriter
from daybook.bookie.ledger.lac import LacAnnouncer
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.clients.ledgers.errors import translated
from daybook.clients.ledgers.limits import Limits
from daybook.clients.ledgers.turns import Turns
from daybook.wire.transport import Buffer


class LedgerHandle:
    """What both kinds of writers have in common."""

    def __init__(
        self,
        writer: LedgerWriter,
        announcer: LacAnnouncer,
        limits: Limits,
        turns: Turns,
        ended: Callable[["LedgerHandle"], None],
    ) -> None:
        self._writer = writer
        self._announcer = announcer
        self._limits = limits
        self._turns = turns
        self._ended = ended
        self._room: trio.Event | None = None  # somebody waits for it
        self._abandoned = False
        writer.set_listener(self._confirmed, self._withdrawn)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """With every ensemble change so far, and, once it is closed, the end."""
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The newest entry such that it and all before it are on an ack quorum of disks; or -1."""
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The newest entry that was sent; -1 for none."""
        return self._writer.last_add_pushed

    @property
    def length(self) -> int:
        """Bytes that are confirmed."""
        return self._writer.length

    @property
    def pending_bytes(self) -> int:
        """Bytes that were sent and are not confirmed."""
        return self._writer.pending_bytes

    @property
    def error(self) -> LedgerError | None:
        """Why nothing can be appended any more; None while it can."""
        return self._writer.error

    @property
    def waiting_for(self) -> str:
        """Why appends are not confirmed now, in words; empty if nothing is in the way."""
        return self._writer.waiting_for

    async def flush(self) -> None:
        """Return when everything that was sent so far is confirmed, that is, on disks.

        InDoubtError, with its cause, if the writer stopped before.  It waits as long as it takes;
        `waiting_for` says for what.
        """
        await self._writer.wait_confirmed(self._writer.last_add_pushed)

    async def close(self) -> None:
        """Flush, then end the ledger: it never changes again.  Closing again is fine.

        LedgerFencedError if another client has taken the ledger over: it decides on the end.
        MetadataUnavailableError if the metadata store does not answer: close again, or leave the
        end to whoever opens the ledger with recovery.  MetadataInDoubtError if it is abandoned, or
        the client ends, meanwhile.
        """
        if self._abandoned:
            raise LedgerClosedError(f"ledger {self.ledger_id} was abandoned by its owner")
        if self._writer.error is None:
            await self.flush()
        try:
            with translated():
                await self._writer.close()
        finally:
            self._stop()

    def abandon(self) -> None:
        """Stop at once, and leave the ledger open, as a crash would.

        Whoever opens it with recovery decides what it keeps: all that was confirmed, and of the
        rest a prefix.
        """
        self._abandoned = True
        self._writer.abandon()
        self._stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abandon()
            return
        try:
            await self.close()
        except BaseException:
            self.abandon()
            raise

    def _stop(self) -> None:
        self._announcer.stop()
        self._ended(self)
        self._tell()

    def _confirmed(self, first: int, last: int) -> None:
        self._announcer.confirmed()
        self._tell()

    def _withdrawn(self, error: LedgerError) -> None:
        self._stop()

    def _tell(self) -> None:
        """Whoever waits for room looks again."""
        room, self._room = self._room, None
        if room is not None:
            room.set()

    async def _wait_told(self) -> None:
        if self._room is None:
            self._room = trio.Event()
        await self._room.wait()

    def _has_room(self, size: int) -> bool:
        """For one entry more; a single one always fits.  A writer that has stopped says so."""
        writer, limits = self._writer, self._limits
        pending = writer.last_add_pushed - writer.last_add_confirmed
        return (
            (
                pending < limits.pending_entries_max
                and writer.pending_bytes + size <= limits.pending_bytes_max
            )
            or not pending
            or writer.error is not None
        )


class Writer(LedgerHandle):
    """The only writer of a ledger.  Made by `Client.create`; for any number of tasks."""

    def __init__(
        self,
        writer: LedgerWriter,
        announcer: LacAnnouncer,
        limits: Limits,
        turns: Turns,
        ended: Callable[[LedgerHandle], None],
    ) -> None:
        super().__init__(writer, announcer, limits, turns, ended)
        self._queue = trio.Lock()  # whoever waits for room is served in order

    async def append(self, data: Buffer) -> int:
        """Append an entry; return its id when it is confirmed.

        LedgerFencedError, WriterWithdrawnError or LedgerClosedError if it was not even sent,
        InDoubtError if the writer stopped before it was confirmed.
        """
        entry_id = await self.append_soon(data)
        await self._writer.wait_confirmed(entry_id)
        return entry_id

    async def append_soon(self, data: Buffer) -> int:
        """Send an entry on its way; return the id that it will have once it is confirmed.

        Waits while more than `Limits` allow is under way.  It is confirmed when `wait_confirmed`,
        or a later `flush` or `close`, returns.  Errors as of `append`.
        """
        payload = bytes(data)  # which copies nothing if it is bytes already
        size = len(payload)
        if self._turns.ended_by(size):
            await trio.lowlevel.checkpoint()
        if self._has_room(size) and not self._queue.locked():
            return self._writer.append([payload])
        async with self._queue:
            while not self._has_room(size):
                self._make_room()
                await self._wait_told()
            return self._writer.append([payload])

    def _make_room(self) -> None:
        """Confirmations come by themselves; whoever has to ask for them does it here."""

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry, and all before it, are confirmed.

        InDoubtError if the writer stopped before: the ledger may keep the entry, or not.
        """
        self._check_appended(entry_id)
        await self._writer.wait_confirmed(entry_id)

    def _check_appended(self, entry_id: int) -> None:
        if not 0 <= entry_id <= self.last_add_pushed:
            raise ValueError(f"entry {entry_id} was not appended")


class AdvancedWriter(LedgerHandle):
    """The only writer of a ledger, for callers who number the entries themselves.

    Made by `Client.create_advanced`.  Ids may come in any order, from any number of tasks, and each
    once; they are confirmed in order, so each waits for all those before it.  What is early is kept
    in memory, bounded; `append_soon` waits for room.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        announcer: LacAnnouncer,
        limits: Limits,
        turns: Turns,
        ended: Callable[[LedgerHandle], None],
    ) -> None:
        super().__init__(writer, announcer, limits, turns, ended)
        self._advanced = AdvancedLedgerWriter(writer)

    @property
    def held_entries(self) -> int:
        """Entries that wait for one before them which was not given."""
        return self._advanced.held_entries

    async def append(self, entry_id: int, data: Buffer) -> None:
        """Append an entry; return when it is confirmed, and so all before it.

        DuplicateEntryError if it was given before; EntryNotSentError if the writer stopped while
        one before it was missing; else errors as of `Writer.append`.
        """
        await self.append_soon(entry_id, data)
        await self._advanced.wait_confirmed(entry_id)

    async def append_soon(self, entry_id: int, data: Buffer) -> None:
        """Send an entry on its way, or keep it until those before it are given."""
        if entry_id < 0:
            raise ValueError(f"no entry has the id {entry_id}")
        payload = bytes(data)
        if self._turns.ended_by(len(payload)):
            await trio.lowlevel.checkpoint()
        while not self._may_take(entry_id, len(payload)):
            await self._wait_told()
        before = self.last_add_pushed
        self._advanced.append(entry_id, [payload])
        if self.last_add_pushed > before:
            self._tell()  # It may be the turn of somebody who waits.

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry, and all before it, are confirmed; it may yet have to be given."""
        await self._advanced.wait_confirmed(entry_id)

    async def close(self) -> None:
        """As `Writer.close`.  EntryNotSentError, after that, if entries were held."""
        await super().close()
        first_held = self._advanced.first_held
        if first_held is not None:
            raise EntryNotSentError(self.ledger_id, first_held, self.last_add_pushed + 1)

    def _may_take(self, entry_id: int, size: int) -> bool:
        """The next one in turn is never kept waiting by those behind it."""
        if not self._has_room(size):
            return False
        held, limits = self._advanced, self._limits
        return (
            self.error is not None
            or entry_id <= self.last_add_pushed + 1
            or not held.held_entries
            or (
                held.held_entries < limits.held_entries_max
                and held.held_bytes + size <= limits.held_bytes_max
            )
        )
