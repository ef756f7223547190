"""The data integrity check: a bookie that may have lost records finds the ledgers and repairs each.

It runs while the bookie serves.  First, while the bookie rejects all plain adds:

    mark        The check reads the metadata of all ledgers.  It marks a ledger as in limbo if any
                fragment names this bookie, and as fenced if its writer may still rely on this
                bookie or may have been fenced here before.  It also fences a ledger that is here
                and no longer in the metadata.  Before that it takes a transaction id, the cookie
                generation: no record of a ledger that is created later can be lost.
                If the list fails or is incomplete, it proves nothing, and the check starts again.

Then the bookie takes plain adds of all other ledgers.  For each ledger in limbo the check does:

    recover     if the ledger is not closed and its last ensemble has this bookie: recover the
                ledger as any client would do it
    copy        copy the entries that should be here and are not, with digests verified, as
                recovery adds
    clear       when all of them are durable and another comparison finds nothing missing: end the
                limbo of the ledger

If the end of a ledger or an entry cannot be read now (its bookies are away, or in limbo
themselves), the ledger is tried again, later each time.  If no bookie gives an entry, the ledger is
marked, so that auto-recovery reports it.  After a crash at any moment the ledgers that were not
cleared are still in limbo.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias

import trio

from daybook.bookie.errors import (
    LedgerError,
    MalformedMetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadUnknownError,
    RegistryError,
)
from daybook.bookie.ledger.client import LedgerClient
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.reader import digester_of, read_entries
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.registry.cookies import Cookie, renew_cookie
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import mark_under_replicated
from daybook.bookie.replication.checker import ENTRIES_MAX, TooManyEntriesError
from daybook.bookie.replication.protocol.replica_check import (
    ReplicaState,
    SealedFragment,
    entry_bytes,
    expected_replicas,
    runs_of,
    sealed_fragments,
)
from daybook.bookie.server.garbage_collector import ForeignMetadataError, check_cluster
from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.clock import WallClock
from daybook.wire.digest import master_key
from daybook.wire.entry import Entry, encode_header
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.rate_limit import RateLimit

OpenClient: TypeAlias = Callable[[], AbstractAsyncContextManager[LedgerClient]]

_RETRY_S = 0.5
_RETRY_S_MAX = 30.0
_REPAIRS_MAX = 8  # ledgers
_CHUNK_BYTES = 1 << 20
_BURST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LimboStatistics:
    in_doubt: bool  # it is not known yet which ledgers may have lost records
    ledgers: int  # in limbo
    ledgers_cleared: int  # since the start, like all numbers below
    entries_copied: int  # without those that the recovery of an open ledger wrote
    bytes_copied: int
    attempts_failed: int


@dataclass(slots=True)
class _Delayed:
    """A ledger whose repair failed: the reason, and when the next attempt is due."""

    why: str
    retry_s: float
    due: float
    marked: bool = False


def marks_for_ledger(ledger_id: int, metadata: LedgerMetadata, bookie: BookieId) -> LimboMark:
    """Return what a bookie that may have lost records must assume of a ledger."""
    named = any(bookie in fragment.ensemble for fragment in metadata.fragments)
    if metadata.state is LedgerState.OPEN:
        return LimboMark(ledger_id, named, bookie in metadata.last_fragment.ensemble)
    return LimboMark(ledger_id, named, True)


class DataIntegrityCheck:
    """`run` ends limbo whenever it begins; it calls `open_client` only if a ledger is in limbo."""

    def __init__(
        self,
        store: LedgerStore,
        metadata: MetadataStore,
        paths: LedgerPaths,
        cookie: Cookie,
        *,
        open_client: OpenClient,
        bytes_per_s: float,
        clock: WallClock,
        rng: Random,
        log: Log,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._paths = paths
        self._cookie = cookie
        self._bookie = BookieId(cookie.bookie_id)
        self._open_client = open_client
        self._rate_limit = RateLimit(bytes_per_s, _BURST_BYTES)
        self._clock = clock
        self._rng = rng
        self._log = log
        self._ledgers = LedgerMetadataStore(metadata, paths, rng)
        self._delayed: dict[int, _Delayed] = {}
        self._cleared = 0
        self._entries_copied = 0
        self._bytes_copied = 0
        self._failed = 0
        self._changed = trio.Event()
        store.add_writable_listener(self._check_soon)

    def _check_soon(self) -> None:
        self._changed.set()

    def statistics(self) -> LimboStatistics:
        return LimboStatistics(
            in_doubt=self._store.limbo,
            ledgers=len(self._store.limbo_ledgers.ledgers()),
            ledgers_cleared=self._cleared,
            entries_copied=self._entries_copied,
            bytes_copied=self._bytes_copied,
            attempts_failed=self._failed,
        )

    def ledgers(self) -> dict[int, str]:
        """Return the ledgers in limbo, and why each is not repaired yet, in words."""
        return {
            ledger_id: delayed.why if (delayed := self._delayed.get(ledger_id)) else ""
            for ledger_id in self._store.limbo_ledgers.ledgers()
        }

    async def run(self) -> None:
        """Run forever: a doubt may also begin while the bookie serves (`storage.rebuild`)."""
        while True:
            self._changed = trio.Event()
            if not self._store.rebuilding and (
                self._store.limbo or self._store.limbo_ledgers.ledgers()
            ):
                await self._resolve()
            else:
                await self._changed.wait()

    async def _resolve(self) -> None:
        """Return when nothing is in limbo, or a new doubt has begun."""
        if self._store.limbo:
            await self._end_doubt()
        while self._store.limbo_ledgers.ledgers() and not self._store.limbo:
            try:
                async with self._open_client() as client:
                    await self._repair_all(client.context)
            except* (MetadataError, RegistryError) as errors:
                self._log.warning("repairing starts again", why=str(errors.exceptions[0]))
            except* Exception as errors:  # A repair that fails must not end the bookie.
                self._log.error("repairing has failed and starts again", exc_info=errors)
            else:
                if not self._store.limbo:
                    self._log.info("nothing is in limbo any more", ledgers=self._cleared)
                return
            await trio.sleep(self._rng.uniform(0.5, 1.5) * _RETRY_S_MAX)

    # -- which ledgers may have lost records

    async def _end_doubt(self) -> None:
        retry_s = _RETRY_S
        while not self._store.rebuilding:  # A damaged index cannot say what a ledger lacks.
            try:
                birth = await self._find_suspects()
                await self._store.end_doubt(birth)
            except (
                MetadataError,
                RegistryError,
                ForeignMetadataError,
                StoreError,
                OSError,
            ) as error:
                why = str(error) or repr(error)
                self._log.warning("it is not known yet what may be lost", why=why)
                await trio.sleep(self._rng.uniform(0.5, 1.5) * retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            suspects = len(self._store.limbo_ledgers.ledgers())
            self._log.warning("records may be lost", ledgers=suspects, birth=birth)
            return

    async def _find_suspects(self) -> int:
        """Mark the ledgers that may have lost records; return the new cookie generation."""
        await self._metadata.sync(self._paths.root)
        await check_cluster(self._metadata, self._paths, self._cookie)
        # The order matters: the list below then has each ledger that is older than this
        # transaction, so a ledger that it lacks is younger and has lost nothing.
        birth = await renew_cookie(self._metadata, self._paths, self._cookie)
        await self._metadata.sync(self._paths.root)
        # Also before the list: a ledger that is here and that the list lacks was deleted.
        here = set(self._store.ledgers())
        suspects: dict[int, LimboMark] = {}
        async for ledger_id, metadata in self._all_metadata():
            if metadata is None:
                suspects[ledger_id] = LimboMark(ledger_id, limbo=True, fence=True)
                continue
            suspect = marks_for_ledger(ledger_id, metadata, self._bookie)
            if suspect.limbo or ledger_id in here:
                suspects[ledger_id] = suspect
        for ledger_id in here - suspects.keys():
            suspects[ledger_id] = LimboMark(ledger_id, limbo=False, fence=True)
        await self._store.limbo_ledgers.mark([suspects[each] for each in sorted(suspects)])
        return birth

    async def _all_metadata(self) -> AsyncIterator[tuple[int, LedgerMetadata | None]]:
        """Yield each ledger, with None if its metadata do not parse.  Raise if a read fails."""
        async for ledger_id in self._ledgers.list():
            try:
                metadata = (await self._ledgers.read(ledger_id)).metadata
            except NoSuchLedgerError:
                continue
            except MalformedMetadataError:
                yield ledger_id, None
            else:
                yield ledger_id, metadata

    # -- ledger by ledger

    async def _repair_all(self, context: LedgerContext) -> None:
        room = trio.CapacityLimiter(_REPAIRS_MAX)
        while (ledger_ids := self._store.limbo_ledgers.ledgers()) and not self._store.limbo:
            now = trio.current_time()
            async with trio.open_nursery() as nursery:
                for ledger_id in ledger_ids:
                    delayed = self._delayed.get(ledger_id)
                    if delayed is None or delayed.due <= now:
                        token = object()
                        await room.acquire_on_behalf_of(token)
                        nursery.start_soon(self._try, context, ledger_id, room, token)
            left = self._store.limbo_ledgers.ledgers()
            self._delayed = {each: self._delayed[each] for each in left if each in self._delayed}
            await trio.sleep_until(min((t.due for t in self._delayed.values()), default=now))

    async def _try(
        self, context: LedgerContext, ledger_id: int, room: trio.CapacityLimiter, token: object
    ) -> None:
        try:
            await self._repair(context, ledger_id)
        except (LedgerError, MetadataError, RegistryError, StoreError, OSError) as error:
            self._failed += 1
            delayed = self._delay(ledger_id, str(error) or repr(error))
            self._log.warning("stays in limbo for now", ledger=ledger_id, why=delayed.why)
            if isinstance(error, NoSuchEntryError | ReadUnknownError) and not delayed.marked:
                await self._mark(ledger_id, delayed)
        else:
            self._delayed.pop(ledger_id, None)
            self._cleared += 1
        finally:
            room.release_on_behalf_of(token)

    def _delay(self, ledger_id: int, why: str) -> _Delayed:
        delayed = self._delayed.setdefault(ledger_id, _Delayed(why, _RETRY_S, 0))
        delayed.why = why
        delayed.due = trio.current_time() + self._rng.uniform(0.5, 1.5) * delayed.retry_s
        delayed.retry_s = min(2 * delayed.retry_s, _RETRY_S_MAX)
        return delayed

    async def _mark(self, ledger_id: int, delayed: _Delayed) -> None:
        """Mark the ledger: auto-recovery reads every copy, and reports what is lost for good."""
        try:
            await mark_under_replicated(
                self._metadata, self._paths, ledger_id, [self._bookie], self._clock.now_ms()
            )
            delayed.marked = True
        except MetadataError as error:
            self._log.warning("not marked yet", ledger=ledger_id, why=str(error))

    async def _repair(self, context: LedgerContext, ledger_id: int) -> None:
        await self._metadata.sync(self._paths.ledger(ledger_id))
        try:
            stored = await self._ledgers.read(ledger_id)
        except NoSuchLedgerError:  # It was deleted, so nothing is missing.
            await self._store.limbo_ledgers.clear(ledger_id)
            return
        metadata = stored.metadata
        ours = self._bookie in metadata.last_fragment.ensemble
        if metadata.state is LedgerState.IN_RECOVERY or (not metadata.closed and ours):
            metadata = (await recover_ledger(context, ledger_id, stored)).metadata
        # The loop compares again after each copy: only a comparison that finds nothing missing
        # may end the limbo, because an entry that is not here would be answered with "no".
        while missing := await self._missing(ledger_id, metadata):
            for run in missing:
                await self._copy(context, ledger_id, metadata, run)
        await self._store.limbo_ledgers.clear(ledger_id)

    async def _missing(self, ledger_id: int, metadata: LedgerMetadata) -> list[range]:
        """Return the ranges of entries that should be here and are not."""
        fragments = sealed_fragments(metadata)
        if (count := sum(max(0, fragment.count) for fragment in fragments)) > ENTRIES_MAX:
            raise TooManyEntriesError(f"ledger {ledger_id} has {count} entries, for all it says")
        here = await self._store.entry_ids(ledger_id)
        return [run for fragment in fragments for run in self._gaps(fragment, metadata, here)]

    def _gaps(
        self, fragment: SealedFragment, metadata: LedgerMetadata, here: list[int]
    ) -> list[range]:
        if self._bookie not in fragment.ensemble:
            return []
        position = fragment.ensemble.index(self._bookie)
        codes = expected_replicas(fragment, metadata.quorums, position)
        for entry_id in here:
            if fragment.first <= entry_id <= fragment.last:
                codes[entry_id - fragment.first] = ReplicaState.PRESENT
        return runs_of(codes, [ReplicaState.NO_ANSWER], fragment.first)

    async def _copy(
        self, context: LedgerContext, ledger_id: int, metadata: LedgerMetadata, run: range
    ) -> None:
        first, size_of_one = run.start, entry_bytes(metadata)
        while first < run.stop:
            wanted = min(_CHUNK_BYTES, size_of_one * (run.stop - first))
            await self._rate_limit.spend(wanted)
            entries = await read_entries(
                context,
                ledger_id,
                metadata,
                first,
                run.stop - 1,
                max_bytes=_CHUNK_BYTES,
                entry_bytes=size_of_one,
            )
            size = await self._add(ledger_id, metadata, entries)
            size_of_one = max(1, size // len(entries))
            self._entries_copied += len(entries)
            self._bytes_copied += size
            first = entries[-1].entry_id + 1

    async def _add(self, ledger_id: int, metadata: LedgerMetadata, entries: list[Entry]) -> int:
        """Add the entries to the store; return their bytes when all are durable.

        Those for which there was no memory follow when the others are durable.  With no memory for
        any of them, the bookie is busy, and the ledger is tried again later.
        """
        size, left = 0, entries
        while left:
            refused, taken = await self._add_together(ledger_id, metadata, left)
            if len(refused) == len(left):
                raise StoreError(
                    StoreStatus.TOO_MANY, f"entries of ledger {ledger_id} have to wait"
                )
            size, left = size + taken, refused
        return size

    async def _add_together(
        self, ledger_id: int, metadata: LedgerMetadata, entries: list[Entry]
    ) -> tuple[list[Entry], int]:
        """Add entries; return those that found no memory, and the bytes of the others.

        Raise StoreError for any other refusal.
        """
        digester, key = digester_of(metadata), master_key(metadata.password or b"")
        statuses, finished = dict[int, StoreStatus](), trio.Event()

        def done(entry_id: int, status: StoreStatus) -> None:
            statuses[entry_id] = status
            if len(statuses) == len(entries):
                finished.set()

        sizes: dict[int, int] = {}
        for entry in entries:
            payload = [entry.payload]
            header = encode_header(
                ledger_id, entry.entry_id, entry.lac, entry.length, digester, payload
            )
            data = memoryview(header + bytes(entry.payload))
            sizes[entry.entry_id] = len(data)
            # As recovery adds: the ledger may be fenced, and in limbo it rejects plain adds.
            self._store.add(
                ledger_id,
                entry.entry_id,
                key,
                data,
                recovery=True,
                done=partial(done, entry.entry_id),
            )
        await finished.wait()
        for status in statuses.values():
            if status not in (StoreStatus.OK, StoreStatus.TOO_MANY):
                raise StoreError(status, f"entries of ledger {ledger_id} were not stored")
        refused = [each for each in entries if statuses[each.entry_id] is StoreStatus.TOO_MANY]
        return refused, sum(sizes.values()) - sum(sizes[each.entry_id] for each in refused)
