"""The periodic work of a bookie: garbage collection, compaction and the scrub.

    every `reclaim_interval_s`   drop the deleted ledgers (`collector`), then compact
    every `scrub_interval_s`     read everything that is written, slowly

Bookies that are started together do this at different times.  If a disk has too little room,
garbage collection begins at once, and again every few seconds until there is more.
"""

from dataclasses import dataclass
from random import Random

import trio

from daybook.bookie.server.garbage_collector import GarbageCollector
from daybook.bookie.storage.scrub import Finding
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.logging import Log

_NO_ROOM_INTERVAL_S = 10.0
_FIRST_SCRUB_S = 3600.0


@dataclass(frozen=True, slots=True)
class HousekeepingStatistics:
    collections: int  # rounds of the garbage collector that succeeded
    collections_failed: int
    ledgers_dropped: int
    drops_failed: int
    tombstones_ended: int


class Housekeeping:
    """`run` does the periodic work; an interval of 0 leaves only work on request."""

    def __init__(
        self,
        store: LedgerStore,
        collector: GarbageCollector,
        *,
        reclaim_interval_s: float,
        scrub_interval_s: float,
        rng: Random,
        log: Log,
    ) -> None:
        self.busy = False
        self._store = store
        self._collector = collector
        self._reclaim_interval_s = reclaim_interval_s
        self._scrub_interval_s = scrub_interval_s
        self._rng = rng
        self._log = log
        self._wanted = trio.Event()
        store.add_writable_listener(self._writable_changed)
        store.maintenance.add_finding_listener(self._found)

    def statistics(self) -> HousekeepingStatistics:
        collector = self._collector
        return HousekeepingStatistics(
            collections=collector.collections,
            collections_failed=collector.collections_failed,
            ledgers_dropped=collector.ledgers_dropped,
            drops_failed=collector.drops_failed,
            tombstones_ended=collector.tombstones_ended,
        )

    def want_room(self) -> None:
        """Begin garbage collection and compaction soon, before the interval is over."""
        self._wanted.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_room_now_and_then)
            if self._scrub_interval_s:
                nursery.start_soon(self._scrub_now_and_then)

    async def make_room(self) -> None:
        self.busy = True
        try:
            await self._collector.collect()
            await self._store.maintenance.reclaim()
        finally:
            self.busy = False

    async def _make_room_now_and_then(self) -> None:
        while True:
            await self._pause()
            # Renewed before the work: a request that comes meanwhile causes another round.
            self._wanted = trio.Event()
            await self.make_room()

    async def _pause(self) -> None:
        interval_s = self._reclaim_interval_s
        if interval_s and self._store.out_of_space:
            interval_s = min(interval_s, _NO_ROOM_INTERVAL_S)
        if not interval_s:
            await self._wanted.wait()
            return
        with trio.move_on_after(interval_s * self._rng.uniform(0.5, 1.5)):
            await self._wanted.wait()

    async def _scrub_now_and_then(self) -> None:
        interval_s = self._scrub_interval_s
        await trio.sleep(self._rng.uniform(0, min(interval_s, _FIRST_SCRUB_S)))
        while True:
            await self._store.maintenance.scrub()
            await trio.sleep(interval_s * self._rng.uniform(0.5, 1.5))

    def _writable_changed(self) -> None:
        if self._reclaim_interval_s and self._store.out_of_space:
            self.want_room()

    def _found(self, finding: Finding) -> None:
        self._log.warning(
            "damaged",
            path=finding.path,
            positions=f"{finding.start}-{finding.end}",
            why=finding.why,
            entries=len(finding.entries),
        )
