"""An entry, and entries that are read ahead of the application."""

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeAlias

import trio

from clients.ledgers.errors import LedgerClosedError, LedgerError, translated
from wire.entry import Entry as StoredEntry

Fetch: TypeAlias = Callable[[int, int], Awaitable[list[StoredEntry]]]
"""A prefix of the entries first..last, at least one."""


@dataclass(frozen=True, slots=True)
class Entry:
    entry_id: int
    data: bytes
    length: int  # bytes of the ledger up to and including this entry


class Life:
    """Of a client: the place for what it does in the background, and whether it still lives."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._ended = False
        self._waiting: dict[trio.CancelScope, None] = {}

    def end(self) -> None:
        """Nobody waits any more for what will not come."""
        self._ended = True
        for scope in self._waiting:
            scope.cancel()

    def check(self) -> None:
        if self._ended:
            raise LedgerClosedError("the client was closed")

    @contextmanager
    def lasting(self, error: type[LedgerError] = LedgerClosedError) -> Generator[None]:
        """For what waits for bookies: `error` when the client ends meanwhile."""
        self.check()
        with trio.CancelScope() as scope:
            self._waiting[scope] = None
            try:
                yield
            finally:
                del self._waiting[scope]
        if scope.cancel_called:
            raise error("the client was closed meanwhile")

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        self.check()
        self._nursery.start_soon(work)


class EntryStream:
    """The entries of a range, in order: `async for entry in reader.read(...)`.

    Some are read ahead, bounded by `Limits.read_bytes` and `read_ahead`; a stream that nobody reads
    any more costs no more than these.  One task at a time.  After an error it is over.
    """

    def __init__(self, life: Life, fetch: Fetch, first: int, last: int, ahead: int) -> None:
        self._life = life
        self._fetch = fetch
        self._next = first
        self._last = last
        self._ahead = ahead
        self._batches: deque[list[Entry]] = deque()
        self._entries: deque[Entry] = deque()  # of the batch that is being given out
        self._filling = False
        self._failure: LedgerError | None = None
        self._arrived = trio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if not self._entries:
            self._entries.extend(await self.next_batch())
        if not self._entries:
            raise StopAsyncIteration
        return self._entries.popleft()

    async def next_batch(self) -> list[Entry]:
        """The next entries, about `Limits.read_bytes` of them; [] behind the last one."""
        if self._entries:
            batch = list(self._entries)
            self._entries.clear()
            return batch
        self._fill()
        while not self._batches:
            if self._failure is not None:
                raise self._failure
            if not self._filling:
                break
            await self._arrived.wait()
        else:
            batch = self._batches.popleft()
            self._fill()
            return batch
        await trio.lowlevel.checkpoint()
        return []

    def _fill(self) -> None:
        if not self._filling and self._has_room():
            self._life.start(self._read_ahead)
            self._filling = True

    def _has_room(self) -> bool:
        more = self._next <= self._last and self._failure is None
        return more and len(self._batches) < self._ahead

    async def _read_ahead(self) -> None:
        try:
            while self._has_room():
                with translated():
                    entries = await self._fetch(self._next, self._last)
                # Copies: who keeps a payload should not keep the memory that it was received in.
                batch = [Entry(e.entry_id, bytes(e.payload), e.length) for e in entries]
                self._next = batch[-1].entry_id + 1
                self._batches.append(batch)
                self._tell()
        except LedgerError as error:
            self._failure = error
        except trio.Cancelled:
            self._failure = LedgerClosedError("the client was closed while this was read")
            raise
        finally:
            self._filling = False
            self._tell()

    def _tell(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()
