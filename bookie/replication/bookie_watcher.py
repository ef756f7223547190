"""The bookie watcher: which bookies are registered, leaving, away or lost.

A bookie is missing when it belongs to the cluster (it has a cookie, or ledgers name it) and is
registered neither as writable nor as read-only.

A single missing bookie may be restarting: it counts as lost after a delay.  When a second bookie is
missing too, copies are at stake, and both count as lost without a delay.  All bookies missing at
the first look get the delay, however many there are: bookies of a starting cluster come up one by
one.  There is no delay for a bookie that was told to leave.

While the metadata store does not answer, no status changes: no bookie counts as lost because *this*
process is cut off.
"""

from collections.abc import Callable, Collection

import trio

from daybook.bookie.errors import MalformedRecordError, RegistryError
from daybook.bookie.ledger.admin_states import AdminState, AdminStates
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.protocol.replica_check import BookieStatus
from daybook.wire.metadata.store import MetadataError

_RETRY_S = 1.0


class LostBookies:
    """The lost bookies, from the missing ones at each look."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._since: dict[BookieId, float] = {}
        self._lost: set[BookieId] = set()
        self._looked = False

    @property
    def lost(self) -> frozenset[BookieId]:
        return frozenset(self._lost)

    @property
    def waited_for(self) -> tuple[BookieId, ...]:
        return tuple(bookie for bookie in self._since if bookie not in self._lost)

    def look(self, now: float, missing: Collection[BookieId]) -> float | None:
        """Record the bookies missing now; return when to look again at the latest.

        `missing` bookies belong to the cluster, or ledgers name them.
        """
        # A bookie that is back is forgotten: if it goes again, its delay begins anew.
        self._since = {b: since for b, since in self._since.items() if b in missing}
        self._lost &= set(missing)
        waited_before = self.waited_for
        fresh = [bookie for bookie in missing if bookie not in self._since]
        for bookie in sorted(fresh):
            self._since[bookie] = now
        # A second bookie is missing during the delay of the first one: copies are at stake.
        # Bookies that were lost before do not count: their ledgers are marked already.
        if self._looked and fresh and len(fresh) + len(waited_before) > 1:
            self._lost.update(self._since)
        self._looked = True
        for bookie, since in self._since.items():
            if now >= since + self.delay_s:
                self._lost.add(bookie)
        assert self._lost <= self._since.keys() == set(missing)
        return min((self._since[b] + self.delay_s for b in self.waited_for), default=None)

    def hurry(self) -> None:
        """Count all missing bookies as lost now, because an audit was requested."""
        self._lost.update(self._since)


class BookieWatcher:
    """`run` follows the metadata store; listeners are called after each change."""

    def __init__(
        self, underreplication: Underreplication, admin_states: AdminStates, *, delay_s: float
    ) -> None:
        self._underreplication = underreplication
        self._admin_states = admin_states
        self._delay_s = delay_s  # unless the metadata store has another value
        self._lost = LostBookies(delay_s)
        self._statuses: dict[BookieId, BookieStatus] = {}
        self._strangers: dict[BookieId, None] = {}  # named by ledgers, without a cookie
        self._ready = trio.Event()
        self._again = trio.Event()
        self._delay_written: trio.Event | None = None
        self._listeners: dict[Callable[[], None], None] = {}
        self.audit_requests = 0  # how often an audit was requested

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def statuses_of(self, bookies: Collection[BookieId]) -> dict[BookieId, BookieStatus]:
        """Return the status of each; the delay of a bookie that was unknown starts now."""
        for bookie in sorted(bookies):
            if bookie not in self._statuses and bookie not in self._strangers:
                self._strangers[bookie] = None
                self._again.set()
        return {b: self._statuses.get(b, BookieStatus.AWAY) for b in sorted(bookies)}

    def is_staying(self, bookie: BookieId) -> bool:
        """Return True if the bookie is registered, and was not told to leave."""
        return self._statuses.get(bookie) in (BookieStatus.WRITABLE, BookieStatus.READONLY)

    def statuses(self) -> dict[BookieId, BookieStatus]:
        return dict(self._statuses)

    def writable(self) -> list[BookieId]:
        return [b for b, status in self._statuses.items() if status is BookieStatus.WRITABLE]

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._listeners[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    async def run(self) -> None:
        while True:
            try:
                look_again_at = await self._look()
            except (MetadataError, RegistryError):
                await trio.sleep(_RETRY_S)
                continue
            # No watch tells that a delay has passed: the loop wakes when the next one ends.
            deadline = float("inf") if look_again_at is None else look_again_at
            with trio.move_on_at(deadline):
                await self._again.wait()

    async def _look(self) -> float | None:
        store, paths = self._underreplication.store, self._underreplication.paths
        # The event is new before the reads: a change during them causes another look.
        changed = self._again = trio.Event()
        await self._follow_delay()
        # A server of the store that lags may lack a registration: a bookie would look missing.
        await store.sync(paths.available)
        orders = await self._admin_states.list(changed.set)
        writable = await writable_bookies(store, paths, changed.set)
        readonly = await readonly_bookies(store, paths, changed.set)
        known = await known_bookies(store, paths)
        here = {*writable, *readonly}
        members = sorted({*map(BookieId, known), *map(BookieId, here), *self._strangers})
        missing = [bookie for bookie in members if bookie not in here]
        look_again_at = self._lost.look(trio.current_time(), missing)
        statuses: dict[BookieId, BookieStatus] = {}
        for bookie in members:
            order = orders.get(bookie)
            leaves = order is not None and order.kind in (AdminState.LEAVE, AdminState.LEFT)
            if bookie in self._lost.lost or (leaves and bookie not in here):
                statuses[bookie] = BookieStatus.LOST
            elif bookie not in here:
                statuses[bookie] = BookieStatus.AWAY
            elif leaves:
                statuses[bookie] = BookieStatus.LEAVING
            elif bookie in writable and order is None:
                statuses[bookie] = BookieStatus.WRITABLE
            else:
                statuses[bookie] = BookieStatus.READONLY
        first = not self._ready.is_set()
        self._ready.set()
        if statuses != self._statuses or first:
            self._statuses = statuses
            self._notify()
        return look_again_at

    async def _follow_delay(self) -> None:
        """Read the delay; if it was written since the last look, an audit was requested."""
        if self._delay_written is not None and not self._delay_written.is_set():
            return  # the watch is still set
        written = trio.Event()

        def wake() -> None:
            written.set()
            self._again.set()

        try:
            delay_s = await self._underreplication.lost_delay_s(wake)
        except MalformedRecordError:
            delay_s = None
        self._lost.delay_s = self._delay_s if delay_s is None else float(delay_s)
        if self._delay_written is not None:
            # A reconnect to the store fires the watch as well; one extra audit does no harm.
            self._lost.hurry()
            self.audit_requests += 1
            self._notify()
        self._delay_written = written

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()
