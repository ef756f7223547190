"""Follows a ledger while its writer appends: waits until there is more to read, or the end.

Two things tell that a ledger has grown: bookies, which are asked to say when the LAC moves (a long
poll to each member of the last ensemble: with striping, no single one hears of every entry), and
its record in the metadata store, which is watched for another ensemble and for the end.  Both only
say "look again".

Bookies and metadata stores that are away for a while are waited for: what a follower knows stays
true, and it goes on when one of them is back.  It fences nobody, and the writer does not notice.
"""

from math import inf

import trio

from daybook.bookie.errors import ReadUnknownError
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.lac import lac_moved, read_lac
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.reader import LedgerReader
from daybook.wire.metadata.store import StoreUnavailableError


class Follower:
    """One task at a time may wait.  See `LedgerClient.follower`."""

    def __init__(self, context: LedgerContext, reader: LedgerReader) -> None:
        self._context = context
        self._reader = reader
        self._changed: trio.Event | None = None  # the watch that lies on the metadata

    async def look(self) -> int:
        """Ask all bookies how far the ledger has got, as far as they can prove it; the LAC."""
        if self._context.catalog.reachable:
            self._reader.learn(await self._context.catalog.read(self._reader.ledger_id), None)
        await self._look_at_lac()
        return self._reader.last_add_confirmed

    async def wait(self, after: int) -> int:
        """Return the LAC when it is above `after`, or the ledger is closed.

        NoSuchLedgerError if it is deleted.
        """
        limits = self._context.limits
        pause_s = limits.lac_pause_s
        while not self._arrived(after):
            if self._watch_is_gone and await self._look_again(after):
                continue
            await self._wait_for_a_hint(after)
            if await self._look_again(after):
                continue
            # Fenced and not closed yet, or nobody answers: then polls do not wait.
            with trio.move_on_after(pause_s):
                await self._wait_for_change()
            pause_s = min(2 * pause_s, limits.lac_pause_s_max)
        return self._reader.last_add_confirmed

    @property
    def _watch_is_gone(self) -> bool:
        return self._changed is None or self._changed.is_set()

    def _arrived(self, after: int) -> bool:
        return self._reader.closed or self._reader.last_add_confirmed > after

    async def _look_again(self, after: int) -> bool:
        try:
            if self._watch_is_gone:
                await self._watch_metadata()
            if not self._reader.closed:
                await self._look_at_lac()
        except (ReadUnknownError, StoreUnavailableError):
            return False
        return self._arrived(after)

    async def _watch_metadata(self) -> None:
        if self._context.catalog.reachable:
            changed = trio.Event()
            stored = await self._context.catalog.read(self._reader.ledger_id, changed.set)
            self._changed = changed
            self._reader.learn(stored, None)

    async def _look_at_lac(self) -> None:
        stored = self._reader.stored
        if not stored.metadata.closed:
            last = await read_lac(self._context, self._reader.ledger_id, stored.metadata)
            self._reader.learn(stored, last)

    async def _wait_for_a_hint(self, after: int) -> None:
        """Until the metadata change, a bookie says that the LAC moved, or none has more to say."""
        asking = 0

        async def poll(bookie: BookieId) -> None:
            nonlocal asking
            moved = await lac_moved(self._context, self._reader.ledger_id, bookie, after)
            asking -= 1
            if moved or not asking:
                nursery.cancel_scope.cancel()

        async def follow_metadata() -> None:
            await self._wait_for_change()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_metadata)
            for bookie in self._reader.metadata.last_fragment.ensemble:
                asking += 1
                nursery.start_soon(poll, bookie)

    async def _wait_for_change(self) -> None:
        if self._changed is None:
            await trio.sleep(inf)
        else:
            await self._changed.wait()
