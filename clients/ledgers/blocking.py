"""Ledgers for code without trio: scripts, workers, notebooks.  The same names, no `await`.

    with ledgers.blocking.connect("zk://localhost:2181/ledgers") as client:
        with client.create() as writer:
            appended = [writer.append_soon(data) for data in many]    # futures: ids, once confirmed
        for entry in client.open(writer.ledger_id, recover=False).read():
            print(entry.entry_id, entry.data)

A thread runs the trio client.  A call into the thread costs some tens of microseconds, so frequent
operations avoid it: `append_soon` queues, and entries are fetched many at a time.
Objects may be used from any thread, but not in a forked process.  Callbacks of futures run in the
client's own thread: they may call `append_soon`, but nothing that waits (RuntimeError).
`timeout_s` None waits forever; a call that takes longer than `timeout_s` raises TimeoutError, and
has the same effect as a cancelled call of the trio client.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, Self, TypeVar, Unpack

import trio

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.racks import Placement
from daybook.bookie.ledger.security import BookieAccess
from daybook.clients.ledgers import client as trio_client
from daybook.clients.ledgers import reader as trio_reader
from daybook.clients.ledgers.blocking_writer import AdvancedWriter as AdvancedWriter
from daybook.clients.ledgers.blocking_writer import DeferredWriter as DeferredWriter
from daybook.clients.ledgers.blocking_writer import Writer as Writer
from daybook.clients.ledgers.blocking_writer import call_within, new_portal
from daybook.clients.ledgers.client import LedgerOptions
from daybook.clients.ledgers.entries import Entry, EntryT, EntryView
from daybook.clients.ledgers.limits import Limits
from daybook.clients.ledgers.zookeeper import ZooKeeperOptions
from daybook.clients.python.portal import Block, Closing, Portal

__all__ = ["AdvancedWriter", "Client", "DeferredWriter", "Reader", "Writer", "connect", "serve"]

T = TypeVar("T")
_LISTED_MAX = 1000


def connect(
    metadata: str,
    *,
    limits: Limits | None = None,
    placement: Placement | None = None,
    session_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
    zookeeper: ZooKeeperOptions | None = None,
    bookie_access: BookieAccess | None = None,
) -> "Client":
    """Return a client of the cluster with metadata at `zk://host:port,host:port/ledgers`.

    Use the client in a `with` block, or `close` it.  Errors are those of `clients.ledgers.connect`.
    """
    return serve(
        lambda: trio_client.connect(
            metadata,
            limits=limits,
            placement=placement,
            session_timeout_s=session_timeout_s,
            connect_timeout_s=connect_timeout_s,
            zookeeper=zookeeper,
            bookie_access=bookie_access,
        ),
        limits or Limits(),
    )


def serve(
    block: Callable[[], AbstractAsyncContextManager[trio_client.Client]], limits: Limits
) -> "Client":
    """Enter `block` in a new thread, and return the blocking client of the client there."""
    portal = new_portal()

    async def enter() -> Client:
        entered = Block(block())
        portal.start(entered.run)
        return Client(portal, await entered.opened(), entered.close, limits)

    try:
        return portal.call(enter)
    except BaseException:
        portal.close()
        raise


class Client(Closing):
    """The blocking twin of `clients.ledgers.client.Client`."""

    def __init__(
        self,
        portal: Portal,
        client: trio_client.Client,
        close: Callable[[], Awaitable[None]],
        limits: Limits,
    ) -> None:
        self._portal = portal
        self._client = client
        self._close = close
        self._limits = limits
        self._closed = False

    def create(self, **options: Unpack[LedgerOptions]) -> "Writer":
        """Create a ledger and return its only writer; options are those of the trio client."""

        async def create() -> Writer:
            made = await self._client.create(**options)
            return Writer(self._portal, made, self._limits)

        return call_within(self._portal, create)

    def create_advanced(self, **options: Unpack[LedgerOptions]) -> "AdvancedWriter":
        """Like `create`, for callers that assign the entry ids."""
        made = call_within(self._portal, lambda: self._client.create_advanced(**options))
        return AdvancedWriter(self._portal, made)

    def create_deferred(self, **options: Unpack[LedgerOptions]) -> "DeferredWriter":
        """Like `create`, for entries that bookies accept first, and sync when they are forced."""

        async def create() -> DeferredWriter:
            made = await self._client.create_deferred(**options)
            return DeferredWriter(self._portal, made, self._limits)

        return call_within(self._portal, create)

    def open(
        self, ledger_id: int, *, recover: bool, password: bytes = b"", patience_s: float = 0.0
    ) -> "Reader":
        """Open a ledger for reading; `recover` takes it from its writer and closes it."""

        async def open_reader() -> trio_reader.Reader:
            return await self._client.open(
                ledger_id, recover=recover, password=password, patience_s=patience_s
            )

        return Reader(self._portal, call_within(self._portal, open_reader))

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger; a ledger that does not exist is no error."""
        call_within(self._portal, lambda: self._client.delete(ledger_id))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return state, quorums, ensembles, digest, custom metadata; raise NoSuchLedgerError."""
        return call_within(self._portal, lambda: self._client.metadata(ledger_id))

    def list_ledgers(self) -> Iterator[int]:
        """Yield the ids of all ledgers, ascending."""
        listed = self._client.list_ledgers()
        while batch := call_within(self._portal, lambda: _take(listed)):
            yield from batch

    def close(self) -> None:
        """Close the client; writers that are still open are abandoned."""
        if self._closed:
            return
        self._portal.check_thread()
        self._closed = True
        try:
            if not self._portal.was_forked:
                self._portal.call(self._close)
        finally:
            self._portal.close()


async def _take(ids: AsyncIterator[int]) -> list[int]:
    taken: list[int] = []
    while len(taken) < _LISTED_MAX:
        try:
            taken.append(await anext(ids))
        except StopAsyncIteration:
            break
    return taken


class Reader:
    """The blocking twin of `clients.ledgers.reader.Reader`."""

    def __init__(self, portal: Portal, reader: trio_reader.Reader) -> None:
        self._portal = portal
        self._reader = reader

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def closed(self) -> bool:
        return self._reader.closed

    @property
    def last_add_confirmed(self) -> int:
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int:
        return self._reader.length

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last confirmed entry."""
        return call_within(self._portal, self._reader.read_last_add_confirmed)

    def read(
        self, first: int = 0, last: int | None = None, *, timeout_s: float | None = None
    ) -> Iterator[Entry]:
        """Read entries `first` to `last`, both included; `last` None: up to the last confirmed one.

        Raise TimeoutError if no entry comes for `timeout_s`.
        """
        return _Entries(self._portal, self._reader.read(first, last), timeout_s)

    def read_views(
        self, first: int = 0, last: int | None = None, *, timeout_s: float | None = None
    ) -> Iterator[EntryView]:
        """Read as `read` does, without a copy of each entry: for those who keep none of them."""
        return _Entries(self._portal, self._reader.read_views(first, last), timeout_s)

    def tail(self, first: int = 0, *, timeout_s: float | None = None) -> Iterator[Entry]:
        """Read the entries from `first` on, each as it is confirmed, until the ledger is closed.

        Raise TimeoutError if no entry comes for `timeout_s`; `next` then waits for the same entry.
        """
        return _Entries(self._portal, self._reader.tail(first), timeout_s)


class _Source(Protocol[EntryT]):
    """A range of a ledger, or its tail."""

    async def next_batch(self) -> list[EntryT]: ...


class _Entries(Generic[EntryT]):
    """An iterator that continues with the next entry after an error, and in any thread."""

    def __init__(
        self,
        portal: Portal,
        source: "_Source[EntryT]",
        timeout_s: float | None,
    ) -> None:
        self._portal = portal
        self._source: _Source[EntryT] = source
        self._timeout_s = timeout_s
        self._fetching = trio.Lock()
        self._fetched: deque[EntryT] = deque()
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EntryT:
        while True:
            try:
                return self._fetched.popleft()
            except IndexError:
                if self._ended:
                    raise StopIteration from None
            call_within(self._portal, self._fetch, self._timeout_s)

    async def _fetch(self) -> None:
        # The batch is kept, not returned: the caller may have been interrupted meanwhile.
        async with self._fetching:
            if not self._fetched and not self._ended:
                batch = await self._source.next_batch()
                self._fetched.extend(batch)
                self._ended = not batch
