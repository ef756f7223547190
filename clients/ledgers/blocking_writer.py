"""Writers for code without trio: `append_soon` queues entries, and one task sends them.

    append_soon -> handed -> sent -> settled        in order; the bytes of queued entries count

The caller gets a future immediately; it completes with the entry id on confirmation, or an error.
"""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Self, TypeVar

import trio

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.clients.ledgers import deferred as trio_deferred
from daybook.clients.ledgers import writer as trio_writer
from daybook.clients.ledgers.errors import (
    CutShortError,
    InDoubtError,
    LedgerClosedError,
    LedgerError,
)
from daybook.clients.ledgers.limits import Limits
from daybook.clients.python.portal import Drain, Portal
from daybook.wire.transport import Buffer

T = TypeVar("T")


def new_portal() -> Portal:
    """Return a portal that raises errors of ledgers."""
    return Portal(closed=LedgerClosedError, cut=CutShortError)


def call_within(
    portal: Portal, work: Callable[[], Awaitable[T]], timeout_s: float | None = None
) -> T:
    async def run() -> T:
        try:
            with trio.fail_after(inf if timeout_s is None else timeout_s):
                return await work()
        except trio.TooSlowError:
            raise TimeoutError(
                f"the call was not done within {timeout_s:g} s, so its outcome may be unknown"
            ) from None

    return portal.call(run)


class _Handle:
    """The common part of both kinds of writers."""

    def __init__(self, portal: Portal, handle: trio_writer.LedgerHandle) -> None:
        self._portal = portal
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    def length(self) -> int:
        return self._handle.length

    @property
    def error(self) -> LedgerError | None:
        """The reason why no entry can be appended any longer; None while one can."""
        return self._handle.error

    @property
    def waiting_for(self) -> str:
        """The reason why appends are not confirmed now, in words; empty if there is none."""
        return self._handle.waiting_for

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all entries appended so far are confirmed."""
        call_within(self._portal, self._flush, timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then close the ledger: it never changes again."""
        call_within(self._portal, self._close, timeout_s)

    def abandon(self) -> None:
        """Stop immediately and leave the ledger open, as a crash would."""

        async def abandon() -> None:
            self._handle.abandon()
            self._stopped()

        with suppress(LedgerClosedError):  # The closed client has abandoned it.
            call_within(self._portal, abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abandon()
            return
        try:
            self.close()
        except BaseException:
            self.abandon()
            raise

    async def _flush(self) -> None:
        await self._handle.flush()

    async def _close(self) -> None:
        await self._handle.close()

    def _stopped(self) -> None:
        """The writer has stopped: no entry is appended any longer."""


@dataclass(slots=True, eq=False)
class _Handed:
    """A pending entry and its future."""

    data: bytes
    result: "Future[int]"
    entry_id: int = -1  # until the writer assigns one


class Writer(_Handle):
    """The blocking twin of `clients.ledgers.writer.Writer`."""

    def __init__(self, portal: Portal, writer: trio_writer.Writer, limits: Limits) -> None:
        super().__init__(portal, writer)
        self._writer = writer
        self._limits = limits
        self._handed: deque[_Handed] = deque()  # queued for the thread
        self._handed_bytes = 0
        self._handing = threading.Lock()
        self._ended = False
        self._sent: deque[_Handed] = deque()  # sent by the writer, not settled
        self._sent_more, self._settled = trio.Event(), trio.Event()
        self._leaving = False  # no new entry comes; the sent ones are settled
        self._failure: Exception | None = None
        self._drain = Drain(portal, self._empty)
        portal.start(self._settle_until_stopped)
        portal.finish_at_exit(self, self._flush, self._left)

    def append(self, data: Buffer, timeout_s: float | None = None) -> int:
        """Append an entry; return its id when the entry is confirmed."""
        left_s = self._wait_for_room(timeout_s)
        return self._hand_over(data).result(left_s)

    def append_soon(self, data: Buffer) -> "Future[int]":
        """Send an entry; the future completes with its id on confirmation, or with an error.

        The call waits only while more is pending than `Limits` allow, and never in a callback.  The
        next `flush` or `close` also raises the first failure.
        """
        self._wait_for_room(None)
        return self._hand_over(data)

    def _wait_for_room(self, timeout_s: float | None) -> float | None:
        """Wait for room; return the rest of the timeout.

        The wait comes before the entry is queued: if it fails, the entry was not sent.
        """
        self._portal.check_process()
        if not self._is_full or self._portal.is_here:
            return timeout_s

        async def wait() -> float:
            since = trio.current_time()
            await self._drain.now()
            return trio.current_time() - since

        waited_s = call_within(self._portal, wait, timeout_s)
        return None if timeout_s is None else max(0.0, timeout_s - waited_s)

    def _hand_over(self, data: Buffer) -> "Future[int]":
        entry = _Handed(bytes(data), Future())
        entry.result.set_running_or_notify_cancel()  # A sent entry cannot be cancelled.
        with self._handing:
            if self._ended:
                raise self._why_ended()
            self._handed.append(entry)
            self._handed_bytes += len(entry.data)
            self._drain.soon()
        return entry.result

    @property
    def _is_full(self) -> bool:
        return (
            self._handed_bytes > self._limits.pending_bytes_max
            or len(self._handed) > self._limits.pending_entries_max
        )

    async def _flush(self) -> None:
        await self._settle()
        self._raise_failure()

    async def _close(self) -> None:
        try:
            await self._drain.now()
            await self._handle.close()
            await self._settle()
        finally:
            if self._handle.error is not None:
                self._stopped()
        self._raise_failure()

    def _stopped(self) -> None:
        self._leaving = True
        self._sent_more.set()

    async def _settle(self) -> None:
        """Return when every entry queued so far has its result."""
        await self._drain.now()
        last = self._sent[-1] if self._sent else None
        while last is not None and not last.result.done():
            await self._settled.wait()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # -- in the thread

    async def _empty(self) -> None:
        """Pass every queued entry to the writer."""
        while self._handed:
            entry = self._handed[0]
            failure: LedgerError | None = None
            try:
                entry.entry_id = await self._writer.append_soon(entry.data)
            except LedgerError as error:
                failure = error
            # The entry leaves the queue only now: if the writer ends meanwhile, `_end` fails it.
            with self._handing:
                if self._ended:
                    return  # `_end` has failed all of them.
                self._handed.popleft()
                self._handed_bytes -= len(entry.data)
            if failure is not None:
                self._fail(entry, failure)
            else:
                self._sent.append(entry)
                self._sent_more.set()

    async def _settle_until_stopped(self) -> None:
        """Complete the futures of the entries, in the order in which they were sent.

        When the writer or the client has stopped, every future has been completed.
        """
        try:
            while True:
                while not self._sent:
                    if self._leaving:
                        return
                    self._sent_more = trio.Event()
                    await self._sent_more.wait()
                try:
                    await self._wait_done(self._sent[0].entry_id)
                except LedgerError as error:
                    self._fail(self._sent.popleft(), error)
                self._complete_confirmed()
        finally:
            self._end()

    async def _wait_done(self, entry_id: int) -> None:
        """Wait until the future of the entry may complete."""
        await self._writer.wait_confirmed(entry_id)

    def _done(self) -> int:
        """Return the last entry whose future may complete."""
        return self._writer.last_add_confirmed

    def _complete_confirmed(self) -> None:
        done = self._done()
        while self._sent and self._sent[0].entry_id <= done:
            entry = self._sent.popleft()
            entry.result.set_result(entry.entry_id)
        settled, self._settled = self._settled, trio.Event()
        settled.set()

    def _end(self) -> None:
        """Fail all pending entries after the writer or client ended: no caller waits forever."""
        self._drain.end()
        self._complete_confirmed()
        self._portal.finished(self)
        while self._sent:
            entry = self._sent.popleft()
            self._fail(entry, InDoubtError(self.ledger_id, entry.entry_id))
        with self._handing:
            self._ended = True
            left, self._handed, self._handed_bytes = self._handed, deque(), 0
        for entry in left:  # Outside the lock: their callbacks may append again.
            self._fail(entry, self._why_ended())

    def _left(self) -> str:
        count = len(self._handed) + len(self._sent)
        return f"{count} entries of ledger {self.ledger_id} are not confirmed" if count else ""

    def _why_ended(self) -> LedgerError:
        return self._handle.error or LedgerClosedError(
            "the client was closed, and the writer with it"
        )

    def _fail(self, entry: _Handed, error: LedgerError) -> None:
        self._failure = self._failure or error
        entry.result.set_exception(error)


class DeferredWriter(Writer):
    """The blocking twin of `clients.ledgers.deferred.DeferredWriter`.

    A future completes when an ack quorum accepted the entry; the next `force` makes it durable.
    """

    def __init__(
        self, portal: Portal, writer: trio_deferred.DeferredWriter, limits: Limits
    ) -> None:
        self._deferred = writer
        super().__init__(portal, writer, limits)

    @property
    def last_acknowledged(self) -> int:
        return self._deferred.last_acknowledged

    def force(self, timeout_s: float | None = None) -> int:
        """Wait until all entries appended so far are on disks; return `last_add_confirmed`."""
        return call_within(self._portal, self._force, timeout_s)

    async def _force(self) -> int:
        await self._drain.now()
        confirmed = await self._deferred.force()
        await self._settle()
        self._raise_failure()
        return confirmed

    async def _flush(self) -> None:
        await self._force()

    async def _wait_done(self, entry_id: int) -> None:
        await self._deferred.wait_acknowledged(entry_id)

    def _done(self) -> int:
        return self._deferred.last_acknowledged


class AdvancedWriter(_Handle):
    """The blocking twin of `clients.ledgers.writer.AdvancedWriter`."""

    def __init__(self, portal: Portal, writer: trio_writer.AdvancedWriter) -> None:
        super().__init__(portal, writer)
        self._writer = writer

    @property
    def held_entries(self) -> int:
        """The number of entries that wait for a missing entry before them."""
        return self._writer.held_entries

    def append(self, entry_id: int, data: Buffer, timeout_s: float | None = None) -> None:
        """Append an entry; return when it and all entries before it are confirmed."""
        call_within(self._portal, lambda: self._writer.append(entry_id, data), timeout_s)

    def append_soon(self, entry_id: int, data: Buffer, timeout_s: float | None = None) -> None:
        """Send an entry, or hold it until all entries before it are given."""
        call_within(self._portal, lambda: self._writer.append_soon(entry_id, data), timeout_s)

    def wait_confirmed(self, entry_id: int, timeout_s: float | None = None) -> None:
        """Return when the entry and all before it are confirmed."""
        call_within(self._portal, lambda: self._writer.wait_confirmed(entry_id), timeout_s)
