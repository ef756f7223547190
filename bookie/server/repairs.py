"""What is damaged here becomes work for auto-recovery: its ledgers are marked, with our name.

    entries that reads or the scrub found damaged    their ledgers
    a directory that has failed                      every ledger that lives there

A worker then reads every copy here, writes in place what cannot be read, and lets others take the
place of what we do not take.  A ledger that does not name us (any more) is not marked.  What could
not be marked now is tried again.  (Records that the log has lost: `limbo`.)
"""

from random import Random

import trio

from daybook.bookie.errors import LedgerError, NoSuchLedgerError, RegistryError
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import mark_under_replicated
from daybook.bookie.storage.scrub import Finding
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore

_INTERVAL_S = 30.0  # between looks at what reads have met
_RETRY_S = 5.0


class Repairs:
    """`run` marks; `ledgers_marked` counts since the start."""

    def __init__(
        self,
        store: LedgerStore,
        metadata: MetadataStore,
        paths: LedgerPaths,
        bookie_id: str,
        *,
        clock: WallClock,
        rng: Random,
        log: Log,
    ) -> None:
        self.ledgers_marked = 0
        self._store = store
        self._catalog = LedgerMetadataStore(metadata, paths, rng)
        self._bookie = BookieId(bookie_id)
        self._clock = clock
        self._log = log
        self._entries: frozenset[tuple[int, int]] = frozenset()  # damaged, and marked for it
        self._stranded: frozenset[int] = frozenset()  # in a failed directory, and marked for it
        self._wake = trio.Event()
        store.maintenance.add_finding_listener(self._found)
        store.add_writable_listener(self._look)

    def _found(self, finding: Finding) -> None:
        del finding  # The store knows it, too.
        self._look()

    def _look(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            self._wake = trio.Event()
            try:
                await self._mark_damaged()
            except (MetadataError, RegistryError) as error:
                self._log.warning("damage is not marked yet", why=str(error) or repr(error))
                await trio.sleep(_RETRY_S)
                continue
            with trio.move_on_after(_INTERVAL_S):
                await self._wake.wait()

    async def _mark_damaged(self) -> None:
        entries = frozenset(self._store.maintenance.damaged_entries())
        fresh = sorted({ledger_id for ledger_id, _ in entries - self._entries})
        await self._mark_all(fresh, "entries are damaged")
        self._entries = entries
        stranded = frozenset(self._store.maintenance.stranded_ledgers())
        fresh = sorted(stranded - self._stranded)
        await self._mark_all(fresh, "a directory has failed")
        self._stranded = stranded

    async def _mark_all(self, ledger_ids: list[int], why: str) -> None:
        count = 0
        for ledger_id in ledger_ids:
            if await self._names_us(ledger_id):
                await mark_under_replicated(
                    self._catalog.store,
                    self._catalog.paths,
                    ledger_id,
                    [self._bookie],
                    self._clock.now_ms(),
                )
                count += 1
        self.ledgers_marked += count
        if count:
            self._log.warning("marked for repair", ledgers=count, why=why)

    async def _names_us(self, ledger_id: int) -> bool:
        try:
            metadata = (await self._catalog.read(ledger_id)).metadata
        except NoSuchLedgerError:
            return False
        except LedgerError:
            return True  # It does not parse, and may name us; whoever mends it says so.
        return any(self._bookie in fragment.ensemble for fragment in metadata.fragments)
