"""The return of a bookie with empty directories: its disks were replaced, or it left before.

Such a bookie has lost its fences.  A writer that was frozen while its ledger was recovered may
still use this bookie, and two such bookies would confirm entries that no reader will ever see.
So the bookie is admitted in these steps:

    empty       no ledger names it: all its entries were copied to others first (`decommission`)
    come back   it starts without any data and with a new cookie; under its admin state it takes
                no entries of writers
    fence       every ledger that is not open is fenced there, durably
    admit       the admin state is withdrawn

The writer of an open ledger does not use this bookie: it has changed the metadata itself, so that
they no longer name it.  The steps may be interrupted at any time and restarted.
"""

from collections.abc import Callable
from functools import partial

import trio

from daybook.bookie.errors import MalformedMetadataError, NoSuchLedgerError
from daybook.bookie.ledger.admin_states import AdminState, AdminStates
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.decommission import (
    Decommission,
    DecommissionError,
    RemainingLedgers,
)
from daybook.wire.digest import master_key
from daybook.wire.errors import ConnectionLostError
from daybook.wire.messages.bookie import LAST_ENTRY, Status
from daybook.wire.messages.bookie_v3 import encode_read, from_v3

_FENCES_MAX = 64  # pending at once
# A bookie gives each of them after it has fenced; the last one while it is in doubt.
_FENCED = (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER, Status.UNKNOWN_LEDGER_STATE)
_POLL_S = 2.0


class Readmission:
    """The readmission of one bookie that has left."""

    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        admin_states: AdminStates,
        bookie: BookieId,
    ) -> None:
        self.bookie = bookie
        self._context = context
        self._underreplication = underreplication
        self._admin_states = admin_states

    async def wait_back(self) -> None:
        """Wait until the bookie is registered as read-only, with a new cookie."""
        while not await self.is_back():  # noqa: ASYNC110  two records, and one may never come
            await trio.sleep(_POLL_S)

    async def is_back(self) -> bool:
        store, paths = self._underreplication.store, self._underreplication.paths
        return self.bookie in await known_bookies(
            store, paths
        ) and self.bookie in await readonly_bookies(store, paths)

    async def admit(self, on_fenced: Callable[[int], None] = lambda count: None) -> int:
        """Fence the ledgers, then admit the bookie; return the number of fenced ledgers.

        Raise DecommissionError if the bookie is writable or not back, or a ledger is not fenced.
        """
        store, paths = self._underreplication.store, self._underreplication.paths
        if self.bookie in await writable_bookies(store, paths):
            raise DecommissionError(
                f"{self.bookie} already accepts new entries, so it does not follow its admin state"
            )
        if not await self.is_back():
            raise DecommissionError(
                f"{self.bookie} has left the cluster. Start it with empty directories first; it"
                " accepts no new entries until it is taken back"
            )
        await store.sync(paths.root)
        count = 0
        fence = _Fencing(self._context, self.bookie)
        async with trio.open_nursery() as nursery:
            async for ledger_id in self._context.metadata_store.list():
                try:
                    metadata = (await self._context.metadata_store.read(ledger_id)).metadata
                except NoSuchLedgerError:
                    continue
                except MalformedMetadataError as error:
                    # The password, which a fence needs, is in the metadata.
                    fence.failure = f"{error}: that ledger cannot be fenced"
                    break
                if metadata.state is LedgerState.OPEN:
                    continue
                await fence.begin(nursery, ledger_id, metadata)
                if fence.failure:
                    break
                count += 1
                on_fenced(count)
        if fence.failure:
            raise DecommissionError(fence.failure)
        # Last: a writer may use the bookie from now on, and every fence is durable there.
        await self._admin_states.withdraw(self.bookie)
        return count


class _Fencing:
    """Many fences at once; `failure` is the reason if one failed, else empty."""

    def __init__(self, context: LedgerContext, bookie: BookieId) -> None:
        self._context = context
        self._bookie = bookie
        self._room = trio.CapacityLimiter(_FENCES_MAX)
        self.failure = ""

    async def begin(self, nursery: trio.Nursery, ledger_id: int, metadata: LedgerMetadata) -> None:
        token = object()
        await self._room.acquire_on_behalf_of(token)
        nursery.start_soon(self._fence, token, ledger_id, metadata)

    async def _fence(self, token: object, ledger_id: int, metadata: LedgerMetadata) -> None:
        encode = partial(
            encode_read,
            ledger_id=ledger_id,
            entry_id=LAST_ENTRY,
            fence_key=master_key(metadata.password or b""),
        )
        timeout_s = self._context.limits.bookies.read_timeout_s
        try:
            answer = await self._context.requests.ask(self._bookie, encode, timeout_s)
        except ConnectionLostError as error:
            self.failure = f"ledger {ledger_id} is not fenced there: {error}"
        else:
            status = from_v3(answer.status)
            if status not in _FENCED:
                self.failure = f"ledger {ledger_id} is not fenced there: it answered {status.name}"
        finally:
            self._room.release_on_behalf_of(token)


class DiskReplacement:
    """The replacement of a bookie's disks: empty the bookie, wait until it is back, admit it."""

    def __init__(
        self, decommission: Decommission, readmission: Readmission, admin_states: AdminStates
    ) -> None:
        self._decommission = decommission
        self._readmission = readmission
        self._admin_states = admin_states

    async def empty(
        self, on_progress: Callable[[RemainingLedgers], None] = lambda remaining: None
    ) -> None:
        """Return when the bookie's disks may be replaced: no ledger needs their entries."""
        order = await self._admin_states.read(self._decommission.bookie)
        if order is None or order.kind is not AdminState.LEFT:
            await self._decommission.run(on_progress=on_progress)
        elif not await self._readmission.is_back():
            await self._decommission.forget()  # a repeated last step does no harm

    async def is_back(self) -> bool:
        return await self._readmission.is_back()

    async def finish(self, on_fenced: Callable[[int], None] = lambda count: None) -> int:
        """Wait until the bookie is back, and admit it."""
        await self._readmission.wait_back()
        return await self._readmission.admit(on_fenced)
