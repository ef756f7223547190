"""What a writer changes in the metadata of its ledger: fragments, and the end; one at a time.

A change that did not happen, or of which nobody knows, leaves the ledger as the writer knows it:
trying again is safe (`catalog.update`).  A ledger that somebody else closed, or recovers, is no
longer the writer's, and no change of it is made.
"""

from typing import Protocol, assert_never

import trio

from daybook.bookie.errors import LedgerError, LedgerFencedError, NoSuchLedgerError
from daybook.bookie.ledger.catalog import StoredMetadata, UpdateResult
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import Fragment
from daybook.bookie.ledger.protocol.update import (
    Gone,
    NotAllowed,
    NotDone,
    Settled,
    change_ensemble,
    close_by_writer,
)
from daybook.bookie.ledger.protocol.write import ChangePostponed, EnsembleChanged
from daybook.wire.metadata.store import OutcomeUnknownError, StoreUnavailableError


class ChangeListener(Protocol):
    """What a writer is told of a change of its ensemble."""

    def ensemble_changed(self, event: EnsembleChanged | ChangePostponed) -> None: ...

    def refused(self, error: LedgerError) -> None:
        """The ledger is no longer the writer's."""
        ...

    def try_again(self) -> None:
        """Some time after a change that was postponed."""
        ...


class Changes:
    """Of one ledger, as long as its writer lives."""

    def __init__(
        self,
        context: LedgerContext,
        ledger_id: int,
        stored: StoredMetadata,
        listener: ChangeListener,
    ) -> None:
        self.stored = stored
        self._context = context
        self._ledger_id = ledger_id
        self._listener = listener
        self._lock = trio.Lock()  # one change at a time
        self._scopes: dict[trio.CancelScope, None] = {}  # of changes that are under way

    async def change_ensemble(self, wanted: Fragment) -> None:
        """Let the ledger go on with this fragment; the listener hears what became of it."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            async with self._lock:
                previous = self.stored.metadata.last_fragment
                result = await self._context.catalog.update(
                    self._ledger_id, self.stored, change_ensemble(previous, wanted)
                )
                self.ended(wanted, result)
            if isinstance(result, NotDone):
                await trio.sleep(self._context.limits.change_retry_s)
                self._listener.try_again()
        del self._scopes[scope]

    def ended(self, wanted: Fragment, result: UpdateResult) -> None:
        match result:
            case Settled(metadata, version):
                self.stored = StoredMetadata(metadata, version)
                self._listener.ensemble_changed(EnsembleChanged(wanted.ensemble))
            case NotAllowed(metadata, version):
                self.stored = StoredMetadata(metadata, version)
                self._listener.refused(LedgerFencedError(self._lost(metadata)))
            case Gone():
                self._listener.refused(NoSuchLedgerError(self._ledger_id))
            case NotDone():
                self._listener.ensemble_changed(ChangePostponed())
            case _:
                assert_never(result)

    async def close(self, last_entry_id: int, length: int) -> None:
        """End the ledger there; errors as `LedgerWriter.close` has them."""
        result: UpdateResult | None = None
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            try:
                async with self._lock:
                    result = await self._context.catalog.update(
                        self._ledger_id, self.stored, close_by_writer(last_entry_id, length)
                    )
            finally:
                del self._scopes[scope]
        match result:
            case None:
                raise OutcomeUnknownError(f"ledger {self._ledger_id} was given up while it closed")
            case Settled(metadata, version):
                self.stored = StoredMetadata(metadata, version)
            case NotAllowed(metadata):
                raise LedgerFencedError(self._lost(metadata))
            case Gone():
                raise NoSuchLedgerError(self._ledger_id)
            case NotDone():
                raise StoreUnavailableError(f"ledger {self._ledger_id} could not be closed")
            case _:
                assert_never(result)

    def cancel(self) -> None:
        """Let go of what is under way; whether it happens, nobody knows."""
        for scope in self._scopes:
            scope.cancel()

    def _lost(self, metadata: LedgerMetadata) -> str:
        if metadata.state is LedgerState.OPEN:
            return f"somebody else changed ledger {self._ledger_id}"
        return f"ledger {self._ledger_id} is {metadata.state.name}: another client took it over"
