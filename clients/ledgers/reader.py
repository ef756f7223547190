"""Reads a ledger: a range of it, or all that comes as its writer appends.

    reader = await client.open(17, recover=False)
    async for entry in reader.read(0, 999):            # a range that is there
        ...
    async for entry in reader.tail():                  # from the first on, until it is closed
        ...

Nothing behind `last_add_confirmed` is given out, and only what matches its digest.  There is
nothing to close.  Reading never fences; opening with recovery did, before.
"""

from collections import deque
from collections.abc import Callable
from typing import Self

from daybook.bookie.errors import NoSuchEntryError
from daybook.bookie.ledger.lac import TailingReader
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.reader import LedgerReader
from daybook.clients.ledgers.entries import Entry, EntryStream, Life, Turn
from daybook.clients.ledgers.errors import translated
from daybook.clients.ledgers.limits import Limits


class Reader:
    """Made by `Client.open`.  Any number of streams may be read at the same time."""

    def __init__(
        self,
        life: Life,
        reader: LedgerReader,
        follower: Callable[[], TailingReader],
        limits: Limits,
    ) -> None:
        self._life = life
        self._reader = reader
        self._follower = follower
        self._limits = limits

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """As they were when the reader looked last."""
        return self._reader.metadata

    @property
    def closed(self) -> bool:
        """Whether the ledger has its end, as far as the reader knows."""
        return self._reader.closed

    @property
    def last_add_confirmed(self) -> int:
        """The id of the newest entry that can be read, as far as the reader knows; -1 for none.

        Of a closed ledger, its last entry, for good.
        """
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int:
        """Bytes of a closed ledger; an estimate of those that can be read while it is open."""
        return self._reader.length

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies how far the ledger has got; `last_add_confirmed` is that from now on.

        ReadUnknownError if no bookie of its newest ensemble answers.
        """
        with translated(), self._life.lasting():
            return await self._follower().look()

    def read(self, first: int = 0, last: int | None = None) -> EntryStream:
        """The entries `first` to `last`, both included, in order; some are read ahead.

        `last` None means `last_add_confirmed`, as it is now; nothing comes then if `first` is the
        one behind it.  NoSuchEntryError for what is not, or not yet, confirmed.  While reading:
        NoSuchEntryError, ReadUnknownError (go on from there later), NoSuchLedgerError.
        """
        newest = self.last_add_confirmed
        if first < 0 or (last is not None and last < first):
            raise ValueError(f"no range of entries: {first} to {last}")
        if last is None:
            last = max(newest, first - 1)
        if last > newest and (last >= first or first > newest + 1):
            what = "the last one is" if self.closed else "confirmed are those up to"
            raise NoSuchEntryError(self.ledger_id, max(last, first), f"{what} {newest}")
        return EntryStream(self._life, self._reader, first, last, self._limits)

    def tail(self, first: int = 0) -> "Tail":
        """The entries from `first` on: those that are there, then each as it is confirmed.

        It ends behind the last entry of a ledger that is closed, by its writer or by recovery.
        """
        if first < 0:
            raise ValueError(f"no entry has the id {first}")
        return Tail(self._life, self, self._follower(), first)


class Tail:
    """Follows a ledger: `async for entry in reader.tail()`.

    Bookies say when there is more, the metadata store when the ledger is closed; while they are
    away it waits.  ReadUnknownError if an entry that is confirmed cannot be read now: `next_entry`
    says where to go on.  NoSuchLedgerError if the ledger is deleted.  One task at a time
    (BusyResourceError).
    """

    def __init__(self, life: Life, reader: Reader, follower: TailingReader, first: int) -> None:
        self.next_entry = first  # the first one that was not given out
        self._life = life
        self._reader = reader
        self._follower = follower
        self._stream: EntryStream | None = None
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
        """Wait for an entry; return it and those behind it that are there; [] behind the last."""
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
            self._life.check()
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
                with translated(), self._life.lasting():
                    await self._follower.wait(self.next_entry - 1)
