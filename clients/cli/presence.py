"""Who is here, who does not answer, and who is gone: as one command sees it.

Gone is a bookie that is not registered and has no cookie, or was asked to leave, or nobody listens
at the address that its id names; of one whose id names none the last is never known.  A host that
is frozen or cut off loses its registration, too, and has all that it had: of one that only does not
answer nothing is known.
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
from daybook.bookie.replication.protocol.copies import Presence, Report, names
from daybook.wire.errors import ConnectionLostError, NobodyListensError

_PROBE_S = 3.0
_SILENT_S = 30.0  # so long one that did not answer is not asked again, nor where it was


class Presences:
    def __init__(self, context: LedgerContext) -> None:
        self._bookies = context.bookies
        self._store = context.metadata_store.store
        self._paths = LedgerPaths(context.metadata_store.paths.root)
        self._silent_until: dict[BookieId, float] = {}
        self._gone_until: dict[BookieId, float] = {}
        self._why_gone: dict[BookieId, str] = {}
        self._answering: set[BookieId] = set()  # of those that are not registered
        self._registered: set[str] = set()

    async def of(self, metadata: LedgerMetadata) -> dict[BookieId, Presence]:
        """How each bookie is that the ledger names; of one that is AWAY nothing is known."""
        writable = await writable_bookies(self._store, self._paths)
        readonly = await readonly_bookies(self._store, self._paths)
        self._registered = {*writable, *readonly}
        presence: dict[BookieId, Presence] = {}
        for bookie in sorted(names(metadata)):
            if trio.current_time() < self._silent_until.get(bookie, 0.0):
                presence[bookie] = Presence.AWAY
            elif bookie in self._registered:
                here = bookie in writable
                presence[bookie] = Presence.WRITABLE if here else Presence.READONLY
            else:
                gone = await self._is_gone(bookie)
                presence[bookie] = Presence.LOST if gone else Presence.AWAY
        return presence

    async def heard(self, report: Report) -> None:
        """Who is silent is not waited for at every ledger."""
        for bookie in report.unheard:
            if trio.current_time() < self._silent_until.get(bookie, 0.0):
                continue
            if not await self._answers(bookie):
                self._be_silent(bookie)

    def what(self, bookie: BookieId) -> str:
        """Why nothing is known of it."""
        if bookie in self._registered:
            return f"{bookie} did not answer"
        if bookie in self._answering:
            return f"{bookie} answers, and is not registered any more"
        return f"{bookie} did not answer, and is not registered any more"

    def why_gone(self, bookie: BookieId) -> str:
        """In brackets; empty for one that is not."""
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
        """Why, in words; None: it may be there."""
        if bookie not in await known_bookies(self._store, self._paths):
            return "it has no cookie"
        with suppress(MalformedRecordError):  # an order of another release: not one to leave
            order = await AdminStates(self._store, self._paths).read(bookie)
            if order is not None and order.kind in (AdminState.LEAVE, AdminState.LEFT):
                return "it was asked to leave"
        try:
            connection = await self._bookies.connect(bookie)
        except NobodyListensError:
            return "not registered, and nobody listens where its id says"
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
