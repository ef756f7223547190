"""The ledger client: create, open, recover and delete ledgers.

    async with open_ledger_client(store=store, network=network, rng=rng, clock=clock,
                                  arenas=arenas, flusher=flusher) as client:
        writer = await client.create(Quorums(3, 3, 2))
        entry_id = writer.append([payload])
        await writer.wait_confirmed(entry_id)
        await writer.close()

        reader = await client.open(writer.ledger_id, recover=True)
        entries = await reader.read(0, reader.last_add_confirmed, max_bytes=1 << 20)

Nothing that a client starts outlives its block; writers still open at its end are abandoned.
Errors are those of `bookie.errors`; errors of the metadata store pass through.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import trio

from daybook.bookie.errors import UnauthorizedError
from daybook.bookie.ledger.batches import BatchReads
from daybook.bookie.ledger.bookie_client import BookieClient
from daybook.bookie.ledger.context import LedgerContext, LedgerLimits
from daybook.bookie.ledger.deferred_writer import DeferredLedgerWriter
from daybook.bookie.ledger.ensemble import BookieDirectory
from daybook.bookie.ledger.lac import LacAnnouncer, TailingReader
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.metadata_store import LedgerMetadataStore, StoredMetadata
from daybook.bookie.ledger.protocol.placement import Ensemble, Fragment, Quorums
from daybook.bookie.ledger.racks import Placement
from daybook.bookie.ledger.reader import LedgerReader, open_reader
from daybook.bookie.ledger.recovery import can_recover, recover_ledger
from daybook.bookie.ledger.request_channel import RequestChannel, decode_v3
from daybook.bookie.ledger.security import BookieSecurity
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import WallClock
from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import ENTRY_HEADER_BYTES, Entry
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Network

__all__ = [
    "DigestType",
    "LedgerClient",
    "LedgerLimits",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerWriter",
    "Quorums",
    "open_ledger_client",
]

_log = logging.getLogger(__name__)


class LedgerClient:
    """The ledgers of one cluster.  See `open_ledger_client`."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context
        self._warned = False

    @property
    def context(self) -> LedgerContext:
        """The context for other shells over the same connections (`bookie.replication`)."""
        return self._context

    @property
    def directory(self) -> BookieDirectory:
        """The bookies of the cluster: which are usable, and which failed lately."""
        return self._context.directory

    def entry_bytes_max(self) -> int:
        """Return the largest entry, with header and digest, that all writable bookies take."""
        return self._context.limits.bookies.entry_bytes_max(self.directory.frame_bytes_max)

    def payload_bytes_max(self) -> int:
        """Return the largest payload that they take in a ledger with the usual digest."""
        return self.entry_bytes_max() - ENTRY_HEADER_BYTES - Digester().size

    def refused_by_all(self) -> str:
        """Return why each writable bookie refuses this client; "" if one may not."""
        bookies, directory = self._context.bookies, self.directory
        refusals = [
            "" if directory.is_usable(bookie) else bookies.refusal_of(bookie)
            for bookie in directory.writable
        ]
        return refusals[0] if refusals and all(refusals) else ""

    async def create(
        self,
        quorums: Quorums,
        *,
        custom: Mapping[str, bytes] | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        ledger_id: int | None = None,
    ) -> LedgerWriter:
        """Create a ledger; return its only writer.

        Raise NotEnoughBookiesError if entries could not be confirmed now.  With fewer bookies than
        an ensemble the ledger starts under-replicated.

        `ledger_id` is for callers with ids of their own; raise LedgerExistsError if it is taken.
        Such a caller must never use an id twice, even after a deletion: bookies may remember the
        first ledger.
        """
        return LedgerWriter(
            self._context,
            *await self._create(quorums, custom, password, digest_type, ledger_id),
        )

    async def create_deferred(
        self,
        quorums: Quorums,
        *,
        custom: Mapping[str, bytes] | None = None,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        ledger_id: int | None = None,
    ) -> DeferredLedgerWriter:
        """Create a ledger as `create` does, with a deferred sync: `force` confirms the entries."""
        return DeferredLedgerWriter(
            self._context,
            *await self._create(quorums, custom, password, digest_type, ledger_id),
        )

    async def _create(
        self,
        quorums: Quorums,
        custom: Mapping[str, bytes] | None,
        password: bytes,
        digest_type: DigestType,
        ledger_id: int | None,
    ) -> tuple[int, StoredMetadata, Ensemble]:
        """Return the id, the record, and the members of the ensemble that are away."""
        self._warn_about(quorums)
        choice = await self._context.directory.choose(quorums)
        metadata = LedgerMetadata(
            quorums=quorums,
            fragments=(Fragment(0, choice.ensemble),),
            digest_type=digest_type,
            password=password,
            custom=dict(custom or {}),
        )
        store = self._context.metadata_store
        if ledger_id is None:
            ledger_id, stored = await store.create(metadata, self._context.nursery)
        else:
            stored = await store.create_as(ledger_id, metadata)
        return ledger_id, stored, choice.missing

    def _warn_about(self, quorums: Quorums) -> None:
        if quorums.ack == 1 and quorums.write > 1 and not self._warned:
            self._warned = True
            _log.warning(
                "the ack quorum of a new ledger is 1: an entry is confirmed while only one bookie"
                " holds it, and a single bookie that is away stalls recovery. Use 2 or more"
            )

    async def open(self, ledger_id: int, *, recover: bool, password: bytes = b"") -> LedgerReader:
        """Open a ledger for reading.

        With `recover`, fence its writer and close the ledger, unless it is closed already.  Without
        it, the writer does not notice, and the reader sees the entries confirmed so far.
        """
        stored = await self._context.metadata_store.read(ledger_id)
        return await self.open_stored(ledger_id, stored, recover=recover, password=password)

    async def open_stored(
        self, ledger_id: int, stored: StoredMetadata, *, recover: bool, password: bytes = b""
    ) -> LedgerReader:
        """Open a ledger as `open` does, for a caller that has checked its metadata.

        After a recovery, `last_entry` of the reader is the last entry, if the recovery has seen it.
        """
        if stored.metadata.password not in (None, password):
            raise UnauthorizedError(
                f"ledger {ledger_id} has another password than the one that was given"
            )
        last_entries: list[Entry] = []
        if recover and not stored.metadata.closed:
            stored = await recover_ledger(
                self._context, ledger_id, stored, on_last_entry=last_entries.append
            )
        reader = await open_reader(self._context, ledger_id, stored)
        reader.last_entry = last_entries[0] if last_entries else None
        return reader

    async def can_recover(self, writer: LedgerWriter) -> bool:
        """Return True if a recovery of that ledger would close it now, as far as bookies say."""
        return await can_recover(self._context, writer)

    def tailing_reader(self, reader: LedgerReader) -> TailingReader:
        """Return an object that waits for an open ledger to grow."""
        return TailingReader(self._context, reader)

    def announcer(self, writer: LedgerWriter) -> LacAnnouncer:
        """Return the announcer of the writer's LAC; the caller stops it with the writer."""
        return LacAnnouncer(self._context, writer)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, if it exists; bookies free its space later."""
        await self._context.metadata_store.delete(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata; NoSuchLedgerError is raised only if the store says so."""
        return (await self.stored_metadata(ledger_id)).metadata

    async def stored_metadata(self, ledger_id: int) -> StoredMetadata:
        """Return the metadata with their version."""
        return await self._context.metadata_store.read(ledger_id)

    def list_ledgers(self) -> AsyncIterator[int]:
        """Return the ids of all ledgers, ascending."""
        return self._context.metadata_store.list()


@asynccontextmanager
async def open_ledger_client(
    *,
    store: MetadataStore,
    network: Network,
    rng: Random,
    clock: WallClock,
    arenas: ArenaPool,
    flusher: Flusher,
    limits: LedgerLimits | None = None,
    root: str = "/ledgers",
    placement: Placement | None = None,
    security: BookieSecurity | None = None,
) -> AsyncGenerator[LedgerClient]:
    """Open a client for an `async with`.  `flusher` runs in the caller's nursery, `arenas` here.

    `placement` says where the racks of bookies are read from, and which rule ensembles follow.  By
    default, bookies announce their racks.  `security` has TLS and credentials for bookies.
    """
    limits = limits or LedgerLimits()
    paths = LedgerPaths(root)
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        directory = BookieDirectory(store, paths, rng, limits.directory, placement)
        bookies = BookieClient(
            network=network,
            arenas=arenas,
            flusher=flusher,
            resolve=directory.resolve,
            takes_blocks=directory.takes_blocks,
            on_failed=directory.bookie_failed,
            on_refused=directory.bookie_refused,
            nursery=nursery,
            limits=limits.bookies,
            security=security,
        )
        nursery.start_soon(arenas.run)
        nursery.start_soon(bookies.run)
        nursery.start_soon(directory.follow)
        nursery.start_soon(directory.probe, bookies.probe)
        try:
            context = LedgerContext(
                LedgerMetadataStore(store, paths, rng),
                directory,
                bookies,
                RequestChannel(bookies, decode_v3),
                BatchReads(bookies),
                nursery,
                limits,
                rng,
                clock,
            )
            yield LedgerClient(context)
        except trio.Cancelled:
            raise
        except BaseException as caught:
            error = caught  # It is raised below, so that the caller gets no exception group.
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
