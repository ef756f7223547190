"""Two variants of the ledger writer: with a deferred sync, and with entry ids given by the caller.

    writer = DeferredLedgerWriter(context, ledger_id, stored, missing)
    writer.append([payload])
    await writer.wait_acknowledged(0)    # an ack quorum of bookies has it, perhaps in memory
    await writer.force()                 # it is on their disks: confirmed, and visible to readers

A deferred entry is kept until it is confirmed, and sent again to the bookie that replaces a failed
one.  `pending_bytes` therefore counts entries that are not forced.  A caller that appends without
forcing has to watch it, and to call `request_force` now and then.

    writer = AdvancedLedgerWriter(await client.create(quorums))
    writer.append(1, [b"second"])     # held back: entry 0 is missing
    writer.append(0, [b"first"])      # both are sent

The ids of a ledger have no gaps, and an entry can be confirmed only after all earlier ones.  The
advanced writer therefore holds an early entry back until the entries before it were appended.  A
crash in between loses it.  The caller bounds `held_bytes`.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import trio

from daybook.bookie.errors import DuplicateEntryError, EntryNotSentError, InDoubtError
from daybook.bookie.ledger.bookie_client import Purpose
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.deferred import (
    AskToForce,
    DeferredProtocol,
    Effect,
    Held,
    Taken,
)
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.writer import ConfirmationWaiters, LedgerWriter
from daybook.wire.transport import Buffer


class DeferredLedgerWriter(LedgerWriter):
    """The only writer of a ledger.  `LedgerClient.create_deferred` makes it."""

    __slots__ = ("_acknowledgement_waiters", "_deferred")
    purpose = Purpose.ADD_DEFERRED

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        stored: StoredMetadata,
        missing: Sequence[BookieId] = (),
    ) -> None:
        super().__init__(context, ledger_id, stored, missing)
        self._deferred = DeferredProtocol(stored.metadata.quorums.ack)
        self._acknowledgement_waiters = ConfirmationWaiters()

    @property
    def last_acknowledged(self) -> int:
        """The newest entry such that an ack quorum of bookies has it and all entries before it."""
        return max(self._deferred.last_acknowledged, self.last_add_confirmed)

    async def wait_acknowledged(self, entry_id: int) -> None:
        """Return when the entry is acknowledged; raise InDoubtError if the writer stopped."""
        if entry_id <= self.last_acknowledged:
            await trio.lowlevel.checkpoint()
            return
        if self.error is None:
            await self._acknowledgement_waiters.wait(entry_id)
        if entry_id > self.last_acknowledged:
            raise InDoubtError(self.ledger_id, entry_id) from self.error

    def request_force(self) -> None:
        """Force everything appended so far, as soon as it is acknowledged."""
        if self.error is None:
            self._perform_deferred(self._deferred.force_up_to(self.last_add_pushed))

    async def force(self) -> int:
        """Return the LAC when everything appended so far is confirmed.

        Raise InDoubtError if the writer stopped before.
        """
        last = self.last_add_pushed
        self.request_force()
        await self.wait_confirmed(last)
        return self.last_add_confirmed

    # -- calls from channels

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        if bookie in self.ensemble:  # A replaced bookie proves nothing any more.
            self._perform_deferred(self._deferred.acknowledged(bookie, first, count))

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        # First of all, forget what the bookie acknowledged: it may have restarted without it.
        self._perform_deferred(self._deferred.lost(bookie))
        if self.pending_entries:  # Otherwise the bookie has nothing to lose.
            super().add_failed(bookie, reason)

    def _perform_deferred(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskToForce(bookie):
                    self._ask_to_force(bookie)
                case Taken(first, count):
                    self._acknowledged(first, count)
                case Held(bookie, first, count):
                    super().added(bookie, first, count)
                case _:
                    assert_never(effect)

    def _ask_to_force(self, bookie: BookieId) -> None:
        channel = self.channel(bookie)
        if channel is not None:
            channel.force(lambda: self._perform_deferred(self._deferred.forced(bookie)))

    def _acknowledged(self, first: int, count: int) -> None:
        self._acknowledgement_waiters.reached(first, first + count - 1)

    def _withdraw(self, reason: str) -> None:
        super()._withdraw(reason)
        self._acknowledgement_waiters.release_all()


class AdvancedLedgerWriter:
    """The only writer of a ledger, by entry id; `writer` is closed or abandoned by the owner."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self.held_bytes = 0
        self._held: dict[int, tuple[Sequence[Buffer], int]] = {}

    @property
    def held_entries(self) -> int:
        return len(self._held)

    @property
    def first_held(self) -> int | None:
        """The first entry that is held back, or None."""
        return min(self._held, default=None)

    def append(self, entry_id: int, payload: Sequence[Buffer]) -> None:
        """Send the entry as soon as all earlier entries were appended.

        Raise DuplicateEntryError, without any effect, if the writer was given an entry with this
        id.
        """
        if self.writer.error is not None:
            raise self.writer.error
        if entry_id <= self.writer.last_add_pushed or entry_id in self._held:
            raise DuplicateEntryError(self.writer.ledger_id, entry_id)
        if entry_id > self.writer.last_add_pushed + 1:
            # A payload that is too large is refused now, not when its turn comes.
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
            assert self.held_bytes >= 0
            self.writer.append(payload)

    async def wait_confirmed(self, entry_id: int) -> None:
        """Return when the entry is confirmed.

        If the writer stopped before, raise InDoubtError, or EntryNotSentError for an entry held
        back.
        """
        try:
            await self.writer.wait_confirmed(entry_id)
        except InDoubtError as error:
            if entry_id > self.writer.last_add_pushed:
                missing = self.writer.last_add_pushed + 1
                raise EntryNotSentError(self.writer.ledger_id, entry_id, missing) from error
            raise
