"""The ledger client: connect; create, open, delete and list ledgers.

    async with ledgers.connect("zk://localhost:2181/ledgers") as client:
        async with await client.create() as writer:
            await writer.append(b"hello")
        reader = await client.open(writer.ledger_id, recover=False)
        async for entry in reader.read():
            print(entry.entry_id, entry.data)

A client serves one trio program, with any number of tasks and ledgers.  No task of the client
outlives its block; writers that are still open at its end are abandoned.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random, SystemRandom
from typing import Literal, TypeAlias, TypedDict, TypeVar, Unpack

import trio

from daybook.bookie.errors import LedgerError, ReadUnknownError, Remedy
from daybook.bookie.ledger.client import LedgerClient, open_ledger_client
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import Quorums
from daybook.bookie.ledger.racks import Placement
from daybook.bookie.ledger.security import BookieAccess, BookieSecurity, open_bookie_security
from daybook.bookie.registry.layout import check_layout
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.ledgers.address import MetadataAddress
from daybook.clients.ledgers.deferred import DeferredWriter
from daybook.clients.ledgers.entries import ClientScope
from daybook.clients.ledgers.errors import MetadataInDoubtError, translated
from daybook.clients.ledgers.limits import Limits
from daybook.clients.ledgers.reader import Reader
from daybook.clients.ledgers.turns import Turns
from daybook.clients.ledgers.writer import AdvancedWriter, LedgerHandle, Writer
from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
from daybook.wire.arena import ARENA_BYTES, LITTLE_BYTES, ArenaPool
from daybook.wire.clock import SystemClock, WallClock
from daybook.wire.digest import DigestType
from daybook.wire.logging import std_log
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.outbox import Flusher
from daybook.wire.settings import ConfigError
from daybook.wire.tcp import TcpNetwork
from daybook.wire.tls_files import TlsFilesError
from daybook.wire.transport import Network

_log = logging.getLogger(__name__)
Digest: TypeAlias = Literal["crc32c", "crc32", "hmac", "none"]
"""The digest of an entry: two checksums, a HMAC-SHA1 keyed with the password, or nothing."""

_DIGESTS: dict[Digest, DigestType] = {
    "crc32c": DigestType.CRC32C,
    "crc32": DigestType.CRC32,
    "hmac": DigestType.HMAC,
    "none": DigestType.DUMMY,
}
_LEDGER_IDS_END = 1 << 63
_PAUSE_S = 0.1
_PAUSE_S_MAX = 5.0


class LedgerOptions(TypedDict, total=False):
    """The options of a new ledger.

    Each entry is stored on `write_quorum` (3) of `ensemble` (3) bookies; `ack_quorum` (2) of these
    have it on disk when it is confirmed.  `digest` is "crc32c" by default.  `custom` is kept in the
    metadata.  A given `ledger_id` must never have been used before, not even by a deleted ledger.
    """

    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: Digest
    password: bytes
    custom: Mapping[str, bytes] | None
    ledger_id: int | None


class _Wanted(TypedDict):
    """The same options in the form of `bookie.ledger.client`."""

    quorums: Quorums
    custom: Mapping[str, bytes] | None
    password: bytes
    digest_type: DigestType
    ledger_id: int | None


_Handle = TypeVar("_Handle", bound=LedgerHandle)


class Client:
    """A client of one cluster's ledgers; `connect` makes it."""

    def __init__(self, client: LedgerClient, scope: ClientScope, limits: Limits) -> None:
        self._client = client
        self._scope = scope
        self._limits = limits
        self._turns = Turns()
        self._handles: dict[LedgerHandle, None] = {}

    async def create(self, **options: Unpack[LedgerOptions]) -> Writer:
        """Create a ledger, return its only writer: `async with await client.create() as writer`.

        See `LedgerOptions` for the options and their defaults.  Raise LedgerExistsError if a given
        id is in use, NotEnoughBookiesError if entries could not be confirmed now.
        """
        wanted = self._wanted(options)
        with translated(), self._scope.while_open(MetadataInDoubtError):
            writer = await self._client.create(**wanted)
        return self._keep(
            Writer(writer, self._client.announcer(writer), self._limits, self._turns, self._forget)
        )

    async def create_advanced(self, **options: Unpack[LedgerOptions]) -> AdvancedWriter:
        """Like `create`, for callers that assign the entry ids."""
        wanted = self._wanted(options)
        with translated(), self._scope.while_open(MetadataInDoubtError):
            writer = await self._client.create(**wanted)
        return self._keep(
            AdvancedWriter(
                writer, self._client.announcer(writer), self._limits, self._turns, self._forget
            )
        )

    async def create_deferred(self, **options: Unpack[LedgerOptions]) -> DeferredWriter:
        """Like `create`, for entries that bookies accept first, and sync when they are forced."""
        wanted = self._wanted(options)
        with translated(), self._scope.while_open(MetadataInDoubtError):
            writer = await self._client.create_deferred(**wanted)
        return self._keep(
            DeferredWriter(
                writer, self._client.announcer(writer), self._limits, self._turns, self._forget
            )
        )

    async def open(
        self, ledger_id: int, *, recover: bool, password: bytes = b"", patience_s: float = 0.0
    ) -> Reader:
        """Open a ledger for reading.

        With `recover`, a ledger that is not closed is taken from its writer: it is fenced,
        recovered and closed, with all confirmed entries.  Without `recover` the writer is not
        affected, and only the entries confirmed so far can be read.  There is no default, because
        the former stops a writer and the latter may miss entries.

        Raise NoSuchLedgerError, UnauthorizedError, or, if too few bookies answer,
        RecoveryAbortedError or ReadUnknownError.  An attempt that may succeed later is repeated
        for `patience_s`, with growing pauses.
        """
        _check_id(ledger_id)
        deadline = trio.current_time() + patience_s
        pause_s = _PAUSE_S
        while True:
            try:
                return await self._open(ledger_id, recover=recover, password=password)
            except LedgerError as error:
                left_s = deadline - trio.current_time()
                if error.remedy is not Remedy.RETRY or left_s <= 0:
                    raise
            jittered_s = self._client.context.rng.uniform(pause_s / 2, pause_s)
            await trio.sleep(min(jittered_s, left_s))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _open(self, ledger_id: int, *, recover: bool, password: bytes) -> Reader:
        with translated(), self._scope.while_open():
            reader = await self._client.open(ledger_id, recover=recover, password=password)
            if not reader.closed:
                with suppress(ReadUnknownError):  # The LAC that its entries carry is known already.
                    await self._client.tailing_reader(reader).look()
        return Reader(
            self._scope, reader, lambda: self._client.tailing_reader(reader), self._limits
        )

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger, open or closed; bookies free its space later.

        A ledger that does not exist is no error.  A writer of the ledger is not notified.
        """
        _check_id(ledger_id)
        with translated(), self._scope.while_open(MetadataInDoubtError):
            await self._client.delete(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return state, quorums, ensembles, digest, custom metadata; raise NoSuchLedgerError."""
        _check_id(ledger_id)
        with translated(), self._scope.while_open():
            return await self._client.metadata(ledger_id)

    async def list_ledgers(self) -> AsyncIterator[int]:
        """Yield all ledger ids, ascending; ledgers created or deleted meanwhile may be included."""
        self._scope.check()
        with translated():
            async for ledger_id in self._client.list_ledgers():
                yield ledger_id

    def _wanted(self, options: LedgerOptions) -> "_Wanted":
        self._scope.check()
        digest = options.get("digest", "crc32c")
        if digest not in _DIGESTS:
            raise ValueError(f"digest must be one of {', '.join(_DIGESTS)}, not {digest!r}")
        ledger_id = options.get("ledger_id")
        if ledger_id is not None:
            _check_id(ledger_id)
        return {
            "quorums": Quorums(
                options.get("ensemble", 3),
                options.get("write_quorum", 3),
                options.get("ack_quorum", 2),
            ),
            "custom": options.get("custom"),
            "password": options.get("password", b""),
            "digest_type": _DIGESTS[digest],
            "ledger_id": ledger_id,
        }

    def _keep(self, handle: _Handle) -> "_Handle":
        self._handles[handle] = None
        return handle

    def _forget(self, handle: LedgerHandle) -> None:
        self._handles.pop(handle, None)

    def end(self) -> None:
        """End the client, for `open_client`; every later call reports that it was closed."""
        self._scope.end()
        for handle in list(self._handles):
            handle.abandon()


def _check_id(ledger_id: int) -> None:
    if not 0 <= ledger_id < _LEDGER_IDS_END:
        raise ValueError(f"a ledger id must be from 0 to 2**63-1, not {ledger_id}")


@asynccontextmanager
async def connect(
    metadata: str,
    *,
    limits: Limits | None = None,
    placement: Placement | None = None,
    session_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
    zookeeper: ZooKeeperOptions | None = None,
    bookie_access: BookieAccess | None = None,
) -> AsyncGenerator[Client]:
    """Connect to the cluster whose metadata are at `zk://host:port,host:port/ledgers`.

    `placement` gives the racks of bookies and the rules for them.  Without it bookies are in the
    racks that they register, and each write set spans two racks if possible.  `zookeeper` says how
    to connect to ZooKeeper, and as whom.

    `bookie_access` has TLS and credentials for bookies.

    Raise ValueError for another kind of address, or if `bookie_access` cannot be used,
    MetadataUnavailableError if there is no answer in
    `connect_timeout_s`, ClusterError if there are no ledgers.
    """
    address = MetadataAddress.parse(metadata)
    security = None
    if bookie_access is not None:
        security = _security(bookie_access)
    with translated():
        async with (
            open_zookeeper(
                address.hosts,
                session_timeout_s=session_timeout_s,
                connect_timeout_s=connect_timeout_s,
                access=None if zookeeper is None else zookeeper.access,
            ) as store,
            open_client(
                store=store,
                root=address.root,
                network=TcpNetwork(),
                rng=Random(SystemRandom().getrandbits(64)),  # noqa: S311  nothing secret
                clock=SystemClock(),
                limits=limits,
                placement=placement,
                security=security,
            ) as client,
        ):
            yield client


def _security(access: BookieAccess) -> BookieSecurity | None:
    try:
        return open_bookie_security(access, clock=SystemClock(), log=std_log(_log))
    except (ConfigError, TlsFilesError) as error:
        raise ValueError(f"bookie_access: {error}") from None


@asynccontextmanager
async def open_client(
    *,
    store: MetadataStore,
    root: str,
    network: Network,
    rng: Random,
    clock: WallClock,
    limits: Limits | None = None,
    placement: Placement | None = None,
    security: BookieSecurity | None = None,
) -> AsyncGenerator[Client]:
    """Open a client on given seams; an exception of the block is not wrapped in a group."""
    limits = limits or Limits()
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        try:
            with translated():
                await check_layout(store, LedgerPaths(root))
            async with open_ledger_client(
                store=store,
                network=network,
                rng=rng,
                clock=clock,
                arenas=ArenaPool(arena_bytes=_arena_bytes(limits)),
                flusher=flusher,
                limits=limits.ledger,
                root=root,
                placement=placement,
                security=security,
            ) as ledger_client:
                client = Client(ledger_client, ClientScope(nursery), limits)
                try:
                    yield client
                finally:
                    client.end()
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _arena_bytes(limits: Limits) -> int:
    """Return a size that holds the largest answer of a bookie, so that its memory is recycled."""
    largest = limits.ledger.bookies.batch_bytes_max + 2 * LITTLE_BYTES
    return max(ARENA_BYTES, -(-largest // ARENA_BYTES) * ARENA_BYTES)
