"""Appends entries whose sync may wait: the shell of `DeferredProtocol` around a `LedgerWriter`.

    writer = DeferredLedgerWriter(context, ledger_id, stored, missing)
    writer.append([payload])
    await writer.wait_acknowledged(0)    # an ack quorum of bookies has it, perhaps in memory
    await writer.force()                 # it is on their disks: confirmed, and readers may see it

An entry is kept until it is confirmed, and sent again to whoever has to take the place of a bookie
that fails; so `pending_bytes` counts what was not forced, too.  Who appends for ever without
forcing has to watch it, and `request_force` now and then.

FROM advanced: Appends entries whose ids the caller gives.

    writer = AdvancedLedgerWriter(await client.create(quorums))
    writer.append(1, [b"second"])     # held: entry 0 is missing
    writer.append(0, [b"first"])      # both are sent

The ids of a ledger have no gaps: an entry can be confirmed only when all before it are.  So one
that comes early is held here, and sent when those before it have been given; a crash in between
leaves nothing of it.  `held_bytes` is for whoever gives entries to bound.
"""

from collections.abc import Sequence
from typing import assert_never

import trio

from daybook.bookie.errors import DuplicateEntryError, EntryNotSentError, InDoubtError
from daybook.bookie.ledger.bookie_client import Purpose
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol.deferred import (
    Acknowledged,
    AskToForce,
    DeferredProtocol,
    Event,
    Forced,
    ForceUpTo,
    Held,
    Lost,
    Taken,
)
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.writer import ConfirmationWaiters, LedgerWriter
from daybook.wire.transport import Buffer


class DeferredLedgerWriter(LedgerWriter):
    """The only writer of a ledger.  Made by `LedgerClient.create_deferred`."""

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
        self._takers = ConfirmationWaiters()

    @property
    def last_acknowledged(self) -> int:
        """The newest entry such that an ack quorum of bookies has it and all before it."""
        return max(self._deferred.acknowledged, self.last_add_confirmed)

    async def wait_acknowledged(self, entry_id: int) -> None:
        """Return when bookies have taken the entry; InDoubtError if the writer stopped before."""
        if entry_id <= self.last_acknowledged:
            await trio.lowlevel.checkpoint()
            return
        if self.error is None:
            await self._takers.wait(entry_id)
        if entry_id > self.last_acknowledged:
            raise InDoubtError(self.ledger_id, entry_id) from self.error

    def request_force(self) -> None:
        """Have everything that was appended so far on disk, as soon as it was taken."""
        if self.error is None:
            self._step(ForceUpTo(self.last_add_pushed))

    async def force(self) -> int:
        """Return when all that was appended so far is confirmed, with the LAC.

        InDoubtError if the writer stopped before.
        """
        last = self.last_add_pushed
        self.request_force()
        await self.wait_confirmed(last)
        return self.last_add_confirmed

    # -- what bookies say

    def added(self, bookie: BookieId, first: int, count: int) -> None:
        if bookie in self.ensemble:
            self._step(Acknowledged(bookie, first, count))

    def add_failed(self, bookie: BookieId, reason: str) -> None:
        self._step(Lost(bookie))
        if self.pending_entries:  # else there is nothing that it could have lost
            super().add_failed(bookie, reason)

    def _step(self, event: Event) -> None:
        for effect in self._deferred.step(event):
            match effect:
                case AskToForce(bookie):
                    self._ask_to_force(bookie)
                case Taken(first, count):
                    self._taken(first, count)
                case Held(bookie, first, count):
                    super().added(bookie, first, count)
                case _:
                    assert_never(effect)

    def _ask_to_force(self, bookie: BookieId) -> None:
        channel = self.channel(bookie)
        if channel is not None:
            channel.force(lambda: self._step(Forced(bookie)))

    def _taken(self, first: int, count: int) -> None:
        self._takers.reached(first, first + count - 1)

    def _withdraw(self, reason: str) -> None:
        super()._withdraw(reason)
        self._takers.release_all()


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
