"""Appends entries whose sync may wait: the shell of `DeferredProtocol` around a `LedgerWriter`.

    writer = DeferredLedgerWriter(context, ledger_id, stored, missing)
    writer.append([payload])
    await writer.wait_acknowledged(0)    # an ack quorum of bookies has it, perhaps in memory
    await writer.force()                 # it is on their disks: confirmed, and readers may see it

An entry is kept until it is confirmed, and sent again to whoever has to take the place of a bookie
that fails; so `pending_bytes` counts what was not forced, too.  Who appends for ever without
forcing has to watch it, and `request_force` now and then.
"""

from collections.abc import Sequence
from typing import assert_never

import trio

from daybook.bookie.errors import InDoubtError
from daybook.bookie.ledger.bookies import Purpose
from daybook.bookie.ledger.catalog import StoredMetadata
from daybook.bookie.ledger.context import LedgerContext
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
from daybook.bookie.ledger.waiters import EntryWaiters
from daybook.bookie.ledger.writer import LedgerWriter


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
        self._takers = EntryWaiters()

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
        lane = self.lane(bookie)
        if lane is not None:
            lane.force(lambda: self._step(Forced(bookie)))

    def _taken(self, first: int, count: int) -> None:
        self._takers.reached(first, first + count - 1)

    def _withdraw(self, reason: str) -> None:
        super()._withdraw(reason)
        self._takers.let_all_go()
