"""Reads a ledger: a range of it, or all entries as its writer appends them.

    reader = await client.open(17, recover=False)
    async for entry in reader.read(0, 999):            # a range that is there
        ...
    async for entry in reader.tail():                  # from the first on, until it is closed
        ...

A reader returns no entry behind `last_add_confirmed`, and only entries that match their digests.
It need not be closed.  Reading never fences a ledger; only opening it with recovery does.
"""

from collections import deque
from collections.abc import Callable
from typing import Self

from daybook.bookie.errors import NoSuchEntryError
from daybook.bookie.ledger.lac import TailingReader
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.reader import LedgerReader
from daybook.clients.ledgers.entries import (
    ClientScope,
    Entry,
    EntryStream,
    EntryT,
    EntryView,
    Turn,
    copied,
    viewed,
)
from daybook.clients.ledgers.errors import translated
from daybook.clients.ledgers.limits import Limits
from daybook.wire.entry import Entry as StoredEntry


class Reader:
    """Reads a ledger; `Client.open` makes it.

    Any number of streams may be read at the same time.
    """

    def __init__(
        self,
        scope: ClientScope,
        reader: LedgerReader,
        follower: Callable[[], TailingReader],
        limits: Limits,
    ) -> None:
        self._scope = scope
        self._reader = reader
        self._follower = follower
        self._limits = limits

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as of the reader's last look."""
        return self._reader.metadata

    @property
    def closed(self) -> bool:
        """True if the ledger is closed, as far as the reader knows."""
        return self._reader.closed

    @property
    def last_add_confirmed(self) -> int:
        """The newest entry that can be read, as far as the reader knows; -1 for none.

        In a closed ledger this is the last entry, and never changes.
        """
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int:
        """The bytes of a closed ledger; an estimate while the ledger is open."""
        return self._reader.length

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last confirmed entry, and store it in `last_add_confirmed`.

        Raise ReadUnknownError if no bookie of the newest ensemble answers.
        """
        with translated(), self._scope.while_open():
            return await self._follower().look()

    def read(self, first: int = 0, last: int | None = None) -> EntryStream[Entry]:
        """Read the entries `first` to `last`, both included, in order; some are read ahead.

        If `last` is None, reading ends at the present `last_add_confirmed`; there are no entries if
        `first` is the one behind it.  Raise NoSuchEntryError for entries that are not confirmed
        yet.

        While entries are read: NoSuchEntryError, ReadUnknownError (continue from that entry later),
        NoSuchLedgerError.
        """
        return self._stream(first, last, copied)

    def read_views(self, first: int = 0, last: int | None = None) -> EntryStream[EntryView]:
        """Read as `read` does, without a copy of each entry: for those who keep none of them."""
        return self._stream(first, last, viewed)

    def _stream(
        self, first: int, last: int | None, make: Callable[[StoredEntry], EntryT]
    ) -> EntryStream[EntryT]:
        newest = self.last_add_confirmed
        if first < 0 or (last is not None and last < first):
            raise ValueError(
                f"entries {first} to {last} are not a range: `first` must be at least 0, and at"
                " most `last` + 1"
            )
        if last is None:
            last = max(newest, first - 1)
        if last > newest and (last >= first or first > newest + 1):
            what = "the last one is" if self.closed else "confirmed are those up to"
            raise NoSuchEntryError(self.ledger_id, max(last, first), f"{what} {newest}")
        return EntryStream(self._scope, self._reader, first, last, self._limits, make)

    def tail(self, first: int = 0) -> "Tail":
        """Read the entries from `first` on: those that exist, then each as it is confirmed.

        The stream ends behind the last entry of a ledger that was closed by its writer or by
        recovery.
        """
        if first < 0:
            raise ValueError(f"an entry id must be at least 0, not {first}")
        return Tail(self._scope, self, self._follower(), first)


class Tail:
    """Follows a ledger: `async for entry in reader.tail()`.

    Bookies report new entries, and the metadata store reports the close of the ledger; the stream
    waits while they are away.  Raise ReadUnknownError if a confirmed entry cannot be read now;
    `next_entry` is the entry from which to continue.  Raise NoSuchLedgerError if the ledger is
    deleted.  One task at a time may read (BusyResourceError).
    """

    def __init__(
        self, scope: ClientScope, reader: Reader, follower: TailingReader, first: int
    ) -> None:
        self.next_entry = first  # the first entry that was not given out
        self._scope = scope
        self._reader = reader
        self._follower = follower
        self._stream: EntryStream[Entry] | None = None
        self._entries: deque[Entry] = deque()
        self._turn = Turn()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if not self._entries:
            self._entries.extend(await self._next_batch())
        if not self._entries:
            raise StopAsyncIteration
        entry = self._entries.popleft()
        self.next_entry = entry.entry_id + 1
        return entry

    async def next_batch(self) -> list[Entry]:
        """Wait for an entry; return it and the entries behind it; [] behind the last one."""
        batch = list(self._entries) or await self._next_batch()
        self._entries.clear()
        if batch:
            self.next_entry = batch[-1].entry_id + 1
        return batch

    async def _next_batch(self) -> list[Entry]:
        with self._turn.taken():
            return await self._wait_for_batch()

    async def _wait_for_batch(self) -> list[Entry]:
        while True:
            self._scope.check()
            if self._stream is not None:
                batch = await self._stream.next_batch()
                if batch:
                    return batch
                self._stream = None
            elif self.next_entry <= self._reader.last_add_confirmed:
                self._stream = self._reader.read(self.next_entry)
            elif self._reader.closed:
                return []
            else:
                with translated(), self._scope.while_open():
                    await self._follower.wait(self.next_entry - 1)
