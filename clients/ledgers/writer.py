"""Appends entries to a ledger, in order, many at a time.

    async with await client.create() as writer:
        entry_id = await writer.append(b"...")          # it is on an ack quorum of disks
        for data in many:
            await writer.append_soon(data)              # waits only while too much is under way
        await writer.flush()                            # now all of them are

The end of the block closes the ledger behind everything that was appended.  An error in the block
leaves the ledger open instead, as a crash would: a later open with recovery finds all confirmed
entries.

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
    """The common base of both kinds of writers."""

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
        self._room: trio.Event | None = None  # set when a task waits for it
        self._abandoned = False
        writer.set_listener(self._confirmed, self._withdrawn)

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata with all ensemble changes so far; after the close, with the end."""
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The newest entry that an ack quorum has on disk with all entries before it; or -1."""
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The newest entry that was sent; -1 for none."""
        return self._writer.last_add_pushed

    @property
    def length(self) -> int:
        """The number of bytes that are confirmed."""
        return self._writer.length

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that were sent and are not confirmed."""
        return self._writer.pending_bytes

    @property
    def error(self) -> LedgerError | None:
        """The reason why no entry can be appended any more; None while one can."""
        return self._writer.error

    @property
    def waiting_for(self) -> str:
        """The reason why appends are not confirmed now, in words; empty if there is none."""
        return self._writer.waiting_for

    async def flush(self) -> None:
        """Return when everything that was sent so far is confirmed, that is, on disks.

        Raise InDoubtError, with its cause, if the writer stopped before.  The call waits as long as
        it takes; `waiting_for` gives the reason.
        """
        await self._writer.wait_confirmed(self._writer.last_add_pushed)

    async def close(self) -> None:
        """Flush, then close the ledger: it never changes again.  A second close does nothing.

        Raise LedgerFencedError if another client has taken the ledger over and decides where it
        ends.  Raise MetadataUnavailableError if the metadata store does not answer: close again, or
        leave the end to a later recovery.  Raise MetadataInDoubtError if the writer is abandoned,
        or the client ends, meanwhile.
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

        A later open with recovery decides which entries the ledger keeps: all confirmed ones, and a
        prefix of the others.
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
        self._wake_waiters()

    def _confirmed(self, first: int, last: int) -> None:
        self._announcer.confirmed()
        self._wake_waiters()

    def _withdrawn(self, error: LedgerError) -> None:
        self._stop()

    def _wake_waiters(self) -> None:
        """Wake the tasks that wait for room; they look again."""
        room, self._room = self._room, None
        if room is not None:
            room.set()

    async def _wait_woken(self) -> None:
        if self._room is None:
            self._room = trio.Event()
        await self._room.wait()

    def _has_room(self, size: int) -> bool:
        """Return True if one more entry fits; a single one always does.

        Raise the error of the writer if it has stopped.
        """
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
    """The only writer of a ledger; `Client.create` makes it.  Any number of tasks may use it."""

    def __init__(
        self,
        writer: LedgerWriter,
        announcer: LacAnnouncer,
        limits: Limits,
        turns: Turns,
        ended: Callable[[LedgerHandle], None],
    ) -> None:
        super().__init__(writer, announcer, limits, turns, ended)
        self._queue = trio.Lock()  # tasks that wait for room are served in order
        self._queued = 0  # how many tasks wait for room, or for the lock

    async def append(self, data: Buffer) -> int:
        """Append an entry; return its id when it is confirmed.

        Raise LedgerFencedError, WriterWithdrawnError or LedgerClosedError if the entry was not even
        sent, InDoubtError if the writer stopped before the entry was confirmed.
        """
        entry_id = await self.append_soon(data)
        await self._writer.wait_confirmed(entry_id)
        return entry_id

    async def append_soon(self, data: Buffer) -> int:
        """Send an entry; return the id that it will have once it is confirmed.

        The call waits while more is pending than `Limits` allow.  The entry is confirmed when
        `wait_confirmed`, or a later `flush` or `close`, returns.  The errors are those of `append`.
        """
        payload = bytes(data)  # this copies nothing if the data are bytes already
        size = len(payload)
        if self._turns.ended_by(size):
            await trio.lowlevel.checkpoint()
        if not self._queued and self._has_room(size):
            return self._writer.append([payload])
        self._queued += 1
        try:
            async with self._queue:
                while not self._has_room(size):
                    self._make_room()
                    await self._wait_woken()
                return self._writer.append([payload])
        finally:
            self._queued -= 1

    def _make_room(self) -> None:
        """Confirmations come by themselves; whoever has to ask for them does it here."""

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry and all entries before it are confirmed.

        Raise InDoubtError if the writer stopped before: the ledger may keep the entry, or not.
        """
        self._check_appended(entry_id)
        await self._writer.wait_confirmed(entry_id)

    def _check_appended(self, entry_id: int) -> None:
        if not 0 <= entry_id <= self.last_add_pushed:
            raise ValueError(f"this writer has not appended entry {entry_id}")


class AdvancedWriter(LedgerHandle):
    """The only writer of a ledger, for callers that number the entries themselves.

    `Client.create_advanced` makes it.  Ids may come in any order, from any number of tasks, and
    each id once.  Entries are confirmed in order, so each one waits for all entries before it.  The
    writer keeps early entries in memory, within a limit; `append_soon` waits for room.
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
        """The number of entries that wait for a missing entry before them."""
        return self._advanced.held_entries

    async def append(self, entry_id: int, data: Buffer) -> None:
        """Append an entry; return when it and all entries before it are confirmed.

        Raise DuplicateEntryError if the id was given before, EntryNotSentError if the writer
        stopped while an earlier entry was missing, or the errors of `Writer.append`.
        """
        await self.append_soon(entry_id, data)
        await self._advanced.wait_confirmed(entry_id)

    async def append_soon(self, entry_id: int, data: Buffer) -> None:
        """Send an entry, or hold it until all entries before it are given."""
        if entry_id < 0:
            raise ValueError(f"an entry id must be at least 0, not {entry_id}")
        payload = bytes(data)
        if self._turns.ended_by(len(payload)):
            await trio.lowlevel.checkpoint()
        while not self._may_take(entry_id, len(payload)):
            await self._wait_woken()
        before = self.last_add_pushed
        self._advanced.append(entry_id, [payload])
        if self.last_add_pushed > before:
            self._wake_waiters()  # A waiting task may have its turn now.

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry and all entries before it are confirmed.

        The entry may not even be given yet.
        """
        await self._advanced.wait_confirmed(entry_id)

    async def close(self) -> None:
        """Close as `Writer.close` does, then raise EntryNotSentError if entries were held."""
        await super().close()
        first_held = self._advanced.first_held
        if first_held is not None:
            raise EntryNotSentError(self.ledger_id, first_held, self.last_add_pushed + 1)

    def _may_take(self, entry_id: int, size: int) -> bool:
        """Return True if the entry may be taken; the next in turn never waits for later ones."""
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
