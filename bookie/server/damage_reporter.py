"""The damage reporter marks the ledgers that are damaged on this bookie as underreplicated.

    damaged entries, found by a read or the scrub    their ledgers are marked
    a directory that has failed                      every ledger in it is marked

The mark names this bookie.  An auto-recovery worker then reads each copy here, writes the ones that
cannot be read again, and chooses other bookies for those that this bookie does not accept.  A
ledger whose metadata do not name this bookie is not marked.  If a mark cannot be written, the
reporter tries again.  Records that the log has lost are the subject of `data_integrity`.
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

_INTERVAL_S = 30.0  # between two checks for damage that reads have found
_RETRY_S = 5.0


class DamageReporter:
    """`run` marks ledgers; `ledgers_marked` counts them since the start."""

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
        self._reported: frozenset[tuple[int, int]] = frozenset()  # damaged entries
        self._stranded: frozenset[int] = frozenset()  # reported ledgers in failed directories
        self._wake = trio.Event()
        store.maintenance.add_finding_listener(self._found)
        store.add_writable_listener(self._check_soon)

    def _found(self, finding: Finding) -> None:
        del finding  # `_report` reads all damage from the store.
        self._check_soon()

    def _check_soon(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Run forever."""
        while True:
            # Renewed before the check: damage that is found meanwhile causes another one.
            self._wake = trio.Event()
            try:
                await self._report()
            except (MetadataError, RegistryError) as error:
                self._log.warning("damage is not marked yet", why=str(error) or repr(error))
                await trio.sleep(_RETRY_S)
                continue
            with trio.move_on_after(_INTERVAL_S):
                await self._wake.wait()

    async def _report(self) -> None:
        """Mark the ledgers of new damage.  If that raises, the same damage is reported again."""
        entries = frozenset(self._store.maintenance.damaged_entries())
        fresh = sorted({ledger_id for ledger_id, _ in entries - self._reported})
        await self._mark_all(fresh, "entries are damaged")
        self._reported = entries
        stranded = frozenset(self._store.maintenance.stranded_ledgers())
        fresh = sorted(stranded - self._stranded)
        await self._mark_all(fresh, "a directory has failed")
        self._stranded = stranded

    async def _mark_all(self, ledger_ids: list[int], why: str) -> None:
        count = 0
        for ledger_id in ledger_ids:
            if await self._is_named(ledger_id):
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

    async def _is_named(self, ledger_id: int) -> bool:
        """Return True if the metadata of the ledger may name this bookie."""
        try:
            metadata = (await self._catalog.read(ledger_id)).metadata
        except NoSuchLedgerError:
            return False
        except LedgerError:
            return True  # It does not parse, so it may.  The worker that repairs it reports that.
        return any(self._bookie in fragment.ensemble for fragment in metadata.fragments)
