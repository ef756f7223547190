"""Find out which bookies serve, which do not answer, and which are gone, for one command.

A bookie is gone if it is not registered and has no cookie, was told to leave, or the address in its
id refuses connections.  If its id is not an address, the last test cannot be made.  A host that is
frozen or cut off also loses its registration but keeps its data, so nothing is known about a bookie
that merely does not answer.
"""

from contextlib import suppress

import trio

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.ledger.admin_states import AdminState, AdminStates
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.replication.protocol.replica_check import (
    BookieStatus,
    FragmentReport,
    bookies_of,
)
from daybook.wire.errors import ConnectionLostError, NobodyListensError

_PROBE_S = 3.0
_SILENT_S = 30.0  # a bookie that did not answer, or is gone, is not probed again for this long


class BookieLiveness:
    """One instance per command; it remembers which bookies are silent or gone."""

    def __init__(self, context: LedgerContext) -> None:
        self._bookies = context.bookies
        self._store = context.metadata_store.store
        self._paths = LedgerPaths(context.metadata_store.paths.root)
        self._silent_until: dict[BookieId, float] = {}
        self._gone_until: dict[BookieId, float] = {}
        self._why_gone: dict[BookieId, str] = {}
        self._answering: set[BookieId] = set()  # bookies that are not registered and answer
        self._registered: set[str] = set()

    async def for_ledger(self, metadata: LedgerMetadata) -> dict[BookieId, BookieStatus]:
        """Return the status of each bookie in the ensembles; AWAY means that nothing is known."""
        writable = await writable_bookies(self._store, self._paths)
        readonly = await readonly_bookies(self._store, self._paths)
        self._registered = {*writable, *readonly}
        statuses: dict[BookieId, BookieStatus] = {}
        for bookie in sorted(bookies_of(metadata)):
            if trio.current_time() < self._silent_until.get(bookie, 0.0):
                statuses[bookie] = BookieStatus.AWAY
            elif bookie in self._registered:
                here = bookie in writable
                statuses[bookie] = BookieStatus.WRITABLE if here else BookieStatus.READONLY
            else:
                # Not registered is not enough: a frozen host loses its registration, too.
                gone = await self._is_gone(bookie)
                statuses[bookie] = BookieStatus.LOST if gone else BookieStatus.AWAY
        return statuses

    async def note_report(self, report: FragmentReport) -> None:
        """Mark the bookies that did not answer as silent, so that other ledgers skip them."""
        for bookie in report.silent:
            if trio.current_time() < self._silent_until.get(bookie, 0.0):
                continue
            if not await self._answers(bookie):
                self._be_silent(bookie)

    def describe_silence(self, bookie: BookieId) -> str:
        """Return a sentence on why nothing is known about a bookie."""
        if bookie in self._registered:
            return f"{bookie} did not answer"
        if bookie in self._answering:
            return f"{bookie} answers, and is not registered any more"
        return f"{bookie} did not answer, and is not registered any more"

    def why_gone(self, bookie: BookieId) -> str:
        """Return in brackets why a bookie is gone; empty if it is not."""
        why = self._why_gone.get(bookie)
        return "" if why is None else f" ({why})"

    async def _is_gone(self, bookie: BookieId) -> bool:
        if trio.current_time() < self._gone_until.get(bookie, 0.0):
            return True
        why = await self._nobody_is_there(bookie)
        gone = why is not None
        self._why_gone.pop(bookie, None)
        if why is not None:
            self._why_gone[bookie] = why
        self._answering.discard(bookie)
        if gone:
            self._gone_until[bookie] = trio.current_time() + _SILENT_S
        else:
            self._be_silent(bookie)
            if await self._answers(bookie):
                self._answering.add(bookie)
        return gone

    async def _nobody_is_there(self, bookie: BookieId) -> str | None:
        """Return the reason why a bookie is gone; None if it may still exist."""
        if bookie not in await known_bookies(self._store, self._paths):
            return "it has no cookie"
        with suppress(MalformedRecordError):  # from another release: not an order to leave
            order = await AdminStates(self._store, self._paths).read(bookie)
            if order is not None and order.kind in (AdminState.LEAVE, AdminState.LEFT):
                return "it was asked to leave"
        # Only a refused connection proves that the process has ended; a timeout proves nothing.
        try:
            connection = await self._bookies.connect(bookie)
        except NobodyListensError:
            return "not registered, and its address refuses connections"
        except ConnectionLostError:
            return None
        connection.close()
        return None

    async def _answers(self, bookie: BookieId) -> bool:
        with trio.move_on_after(_PROBE_S):
            return await self._bookies.probe(bookie)
        return False

    def _be_silent(self, bookie: BookieId) -> None:
        self._silent_until[bookie] = trio.current_time() + _SILENT_S
