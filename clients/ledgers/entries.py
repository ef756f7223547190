"""An entry, and entries that are read ahead of the application."""

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

import trio

from daybook.clients.ledgers.errors import LedgerClosedError, LedgerError, translated
from daybook.clients.ledgers.limits import Limits
from daybook.wire.entry import Entry as StoredEntry


class Source(Protocol):
    """The ledger from which a stream reads."""

    async def read(self, first: int, last: int, *, max_bytes: int) -> list[StoredEntry]:
        """Return a prefix of the entries first..last, at least one."""
        ...

    def reach(self, first: int, last: int, *, max_bytes: int) -> int:
        """Return the last entry that such a read asks bookies for."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    entry_id: int
    data: bytes
    length: int  # bytes of the ledger up to and including this entry


@dataclass(slots=True)
class EntryView:
    """An entry that was not copied.

    `data` is a view into the memory into which the client receives.  It stays as it is, and keeps
    that memory, a few megabytes, from being used again: who keeps a part of it for long copies it.
    """

    entry_id: int
    data: memoryview


EntryT = TypeVar("EntryT", Entry, EntryView)


def copied(entry: StoredEntry) -> Entry:
    return Entry(entry.entry_id, bytes(entry.payload), entry.length)


def viewed(entry: StoredEntry) -> EntryView:
    return EntryView(entry.entry_id, entry.payload)


class ClientScope:
    """The nursery of a client for its background tasks, and the state of the client."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.reads = 0  # parts of streams that are being read
        self._nursery = nursery
        self._ended = False
        self._waiting: dict[trio.CancelScope, None] = {}

    def end(self) -> None:
        """End the client, and wake all tasks that wait."""
        self._ended = True
        for scope in self._waiting:
            scope.cancel()

    def check(self) -> None:
        if self._ended:
            raise LedgerClosedError("the client was closed")

    @contextmanager
    def while_open(self, error: type[LedgerError] = LedgerClosedError) -> Generator[None]:
        """Run code that waits for bookies; raise `error` if the client ends meanwhile."""
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


class Turn:
    """Admits one task at a time.

    A second task gets an error, because it would take entries away from the first one.
    """

    def __init__(self) -> None:
        self._taken = False

    @contextmanager
    def taken(self) -> Generator[None]:
        if self._taken:
            raise trio.BusyResourceError(
                "another task reads from this stream: one task at a time may do so"
            )
        self._taken = True
        try:
            yield
        finally:
            self._taken = False


@dataclass(slots=True, eq=False)
class _Part(Generic[EntryT]):
    """The entries first..last of a stream, which are being read."""

    first: int
    last: int
    entries: list[EntryT] = field(default_factory=list[EntryT])  # that have arrived: a prefix
    failure: LedgerError | None = None
    asked_s: float = 0.0
    arrived: trio.Event = field(default_factory=trio.Event)


class EntryStream(Generic[EntryT]):
    """The entries of a range, in order: `async for entry in reader.read(...)`.

    The stream reads some entries ahead, bounded by `Limits.read_bytes`, `read_ahead` and
    `reads_max`.  A stream from which nobody reads takes no more memory than these allow.  One task
    at a time may read (BusyResourceError).  After an error the stream has ended.

    The stream begins with one part.  It asks for more parts at once while the answers come much
    faster than the time that bookies are given (`slow_read_s`): a read that waits for others on the
    same link is not slow.
    """

    def __init__(
        self,
        scope: ClientScope,
        source: Source,
        first: int,
        last: int,
        limits: Limits,
        make: Callable[[StoredEntry], EntryT],
    ) -> None:
        self._scope = scope
        self._source = source
        self._next = first
        self._last = last
        self._limits = limits
        self._make: Callable[[StoredEntry], EntryT] = make
        self._parts: deque[_Part[EntryT]] = deque()  # bookies were asked for all of them
        self._parts_max = 1  # `_adapt` changes it
        self._entries: deque[EntryT] = deque()  # the rest of the present batch
        self._turn = Turn()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryT:
        if not self._entries:
            self._entries.extend(await self.next_batch())
        if not self._entries:
            raise StopAsyncIteration
        return self._entries.popleft()

    async def next_batch(self) -> list[EntryT]:
        """Return the next entries, about `Limits.read_bytes` of them; [] behind the last one."""
        if self._entries:
            batch = list(self._entries)
            self._entries.clear()
            return batch
        with self._turn.taken():
            return await self._next_batch()

    async def _next_batch(self) -> list[EntryT]:
        self._scope.check()
        self._fill()
        if not self._parts:
            await trio.lowlevel.checkpoint()
            return []
        part = self._parts[0]
        await part.arrived.wait()
        if part.failure is not None:
            self._parts, self._next = deque([part]), self._last + 1
            raise part.failure
        batch, part.entries = part.entries, []
        if part.first > part.last:
            self._parts.popleft()
        else:  # Its entries are larger than most.
            self._start(part)
        self._fill()
        return batch

    def _fill(self) -> None:
        while self._next <= self._last and self._may_ask():
            reach = self._source.reach(
                self._next, self._last, max_bytes=self._limits.read_bytes * 3 // 4
            )
            part = _Part[EntryT](self._next, reach)
            self._start(part)
            self._parts.append(part)
            self._next = reach + 1

    def _may_ask(self) -> bool:
        """Return True if there is memory for another part; the first part is always allowed."""
        parts = len(self._parts)
        return not parts or (parts < self._parts_max and self._scope.reads < self._limits.reads_max)

    def _start(self, part: _Part[EntryT]) -> None:
        self._scope.start(partial(self._read, part))
        self._scope.reads += 1
        part.asked_s, part.arrived = trio.current_time(), trio.Event()

    def _adapt(self, part: _Part[EntryT]) -> None:
        """Adapt the number of parts to the link, and to large entries."""
        quick_s = self._limits.ledger.slow_read_s / 4
        if part.first <= part.last:
            self._parts_max = 1
        elif trio.current_time() - part.asked_s > quick_s:
            self._parts_max = max(1, self._parts_max // 2)
        else:
            self._parts_max = min(self._parts_max + 1, self._limits.read_ahead)

    async def _read(self, part: _Part[EntryT]) -> None:
        try:
            with translated():
                found = await self._source.read(
                    part.first, part.last, max_bytes=self._limits.read_bytes
                )
            part.entries = [self._make(entry) for entry in found]
            part.first = found[-1].entry_id + 1
            self._adapt(part)
        except LedgerError as error:
            part.failure = error
        except trio.Cancelled:
            part.failure = LedgerClosedError("the client was closed while this ledger was read")
            raise
        finally:
            self._scope.reads -= 1
            part.arrived.set()
