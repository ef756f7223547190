"""The list of a log's ledgers: in memory, and in the metadata store by compare-and-swap.

Whoever writes the list owns the log.  A conflict means that somebody else has written it: that is
final for this handle.  A write whose answer was lost is looked up before anything else happens; and
one that was begun goes on when whoever asked for it stops waiting.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import trio

from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import FencedError, LogCorruptError, ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.records import (
    INDEX,
    INSTANCE,
    LAST_OFFSET,
    LedgerInfo,
    Owner,
    get_property,
    log_path,
    set_property,
)
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.metadata.store import (
    Check,
    MetadataError,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    StoreUnavailableError,
    VersionConflictError,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One ledger.  `last_offset` None: not known, or nothing in it."""

    ledger_id: int
    entries: int
    bytes: int
    closed_ms: int
    last_offset: int | None = None

    @property
    def last(self) -> Position:
        return Position(self.ledger_id, self.entries - 1)


class LedgerList:
    """Sealed ledgers and the present one, which is the last (or the one before, in a roll)."""

    def __init__(
        self, context: LogContext, name: str, info: ManagedLedgerInfo, version: int
    ) -> None:
        self.path = path = log_path(name)
        self.owner = Owner(name)  # what the ledgers of the list say of themselves
        self.info = info
        self.version = version
        self.ids = [ledger.ledgerId for ledger in info.ledgerInfo]  # ascending; all that are listed
        self.rows: list[Row] = []  # those of them that are sealed, in order
        self.bytes = info.ByteSize()  # of the list as it was read or written last
        self.doubtful = False  # a write of ours may have been, or may yet be, carried out
        self._first = self.ids[0] if self.ids else -1
        self._sums = [0]  # entries in the first so many rows
        self._byte_sums = [0]
        self._lengths: dict[int, int] | None = None  # None: to be made again
        self._context = context
        self._lock = trio.Lock()
        self._stopped: ManagedLedgerError | None = None
        if any(a >= b for a, b in zip(self.ids, self.ids[1:], strict=False)):
            raise LogCorruptError(f"{path}: the ids of ledgers do not ascend")

    # -- positions

    @property
    def before_first(self) -> Position:
        """The position before the first retained entry: nothing begins before it any more.

        What a write under way drops from the list is behind us already.
        """
        return Position(self._first, -1)

    def lists(self, ledger_id: int) -> bool:
        i = bisect_left(self.ids, ledger_id)
        return i < len(self.ids) and self.ids[i] == ledger_id

    @property
    def lengths(self) -> dict[int, int]:
        """How many entries there are in each sealed ledger."""
        if self._lengths is None:
            self._lengths = {row.ledger_id: row.entries for row in self.rows}
        return self._lengths

    def row(self, ledger_id: int) -> Row | None:
        i = self.first_row(ledger_id)
        if i < len(self.rows) and self.rows[i].ledger_id == ledger_id:
            return self.rows[i]
        return None

    def first_row(self, ledger_id: int) -> int:
        """The index of the first row that is not before that ledger."""
        return bisect_left(self.rows, ledger_id, key=lambda row: row.ledger_id)

    def next_position(self, position: Position) -> Position:
        """Where the entry behind `position` lies, or will lie."""
        row = self.row(position.ledger_id)
        if row is None and self.lists(position.ledger_id):
            return position.next_in_ledger()  # in the present ledger
        if row is not None and position.entry_id + 1 < row.entries:
            return position.next_in_ledger()
        ids = self.ids
        i = bisect_right(ids, position.ledger_id)
        while i < len(ids) - 1 and (after := self.row(ids[i])) is not None and not after.entries:
            i += 1
        return Position(ids[i], 0) if i < len(ids) else position.next_in_ledger()

    def previous_position(self, position: Position) -> Position:
        """The entry before `position`; (first ledger, -1) before everything."""
        row = self.row(position.ledger_id)
        if row is not None and position.entry_id > 0 and row.entries:
            return Position(row.ledger_id, min(position.entry_id, row.entries) - 1)
        if row is None and position.entry_id > 0 and self.lists(position.ledger_id):
            return Position(position.ledger_id, position.entry_id - 1)
        for i in range(self.first_row(position.ledger_id) - 1, -1, -1):
            if self.rows[i].entries:
                return self.rows[i].last
        return Position(self.ids[0], -1)

    def entry_at(self, position: Position) -> Position:
        """The position itself if an entry lies there, or will; else that of the next entry."""
        if position.entry_id < 0 or not self.lists(position.ledger_id):
            return self.next_position(Position(position.ledger_id, -1))
        row = self.row(position.ledger_id)
        if row is not None and position.entry_id >= row.entries:
            return self.next_position(row.last)
        return position

    def floor(self, position: Position) -> Position:
        """The last position of an entry, or before a ledger, that is not behind `position`."""
        if position.entry_id < 0:
            return Position(position.ledger_id, -1)
        return self.previous_position(position.next_in_ledger())

    def entries_between(self, after: Position, through: Position) -> int:
        """How many entries lie behind `after`, up to and with `through`."""
        if through <= after:
            return 0
        if after.ledger_id == through.ledger_id:
            return through.entry_id - after.entry_id
        first, last = self.first_row(after.ledger_id), self.first_row(through.ledger_id)
        count = through.entry_id + 1 + self._sums[last] - self._sums[first]
        if first < last and self.rows[first].ledger_id == after.ledger_id:
            count -= min(after.entry_id + 1, self.rows[first].entries)
        return count

    def bytes_from_row(self, first: int) -> int:
        """How many bytes there are in the sealed ledgers from that row on."""
        return self._byte_sums[-1] - self._byte_sums[first]

    # -- changes in memory

    def seal(self, row: Row) -> None:
        """The ledger is written no more.  Those before it in the list were sealed before."""
        assert not self.rows or self.rows[-1].ledger_id < row.ledger_id
        self.rows.append(row)
        self._sums.append(self._sums[-1] + row.entries)
        self._byte_sums.append(self._byte_sums[-1] + row.bytes)
        self._lengths = None

    def learn(self, row: Row) -> None:
        """More is known of a sealed ledger; nothing if it has gone meanwhile."""
        i = self.first_row(row.ledger_id)
        if i < len(self.rows) and self.rows[i].ledger_id == row.ledger_id:
            self.rows[i] = row

    def stop(self, error: ManagedLedgerError) -> None:
        """Write nothing any more."""
        self._stopped = self._stopped or error

    # -- changes in the store

    async def update(
        self,
        change: Callable[[ManagedLedgerInfo], None],
        next_offset: int,
        *,
        last: ManagedLedgerError | None = None,
    ) -> None:
        """Change the list in the store; with `last`, and then stop.

        FencedError if it is somebody else's by now; what `stop` was given; MetadataError if the
        store does not take it: then it is as it was.
        """
        self._check()
        await self._context.to_the_end(lambda: self._update(change, next_offset, last))

    async def stop_behind_writes(self, error: ManagedLedgerError) -> None:
        """Stop when nothing is under way."""
        async with self._lock:
            self.stop(error)

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    async def _update(
        self,
        change: Callable[[ManagedLedgerInfo], None],
        next_offset: int,
        last: ManagedLedgerError | None,
    ) -> None:
        async with self._lock:
            info = ManagedLedgerInfo()
            info.CopyFrom(self.info)
            change(info)
            if next_offset > stored_offset(info, self.path):
                set_property(info, INDEX, str(next_offset - 1))
            if self._context.instance is not None:
                set_property(info, INSTANCE, self._context.instance)
            ids = [ledger.ledgerId for ledger in info.ledgerInfo] or self.ids[-1:]
            self._first = max(self._first, ids[0])
            value = info.SerializeToString()
            await self._swap(value)
            self.info, self.ids, self.bytes = info, ids, len(value)
            self._drop_rows(frozenset(ids))
            if last is not None:
                self.stop(last)

    def _drop_rows(self, listed: frozenset[int]) -> None:
        """Keep those that are listed."""
        kept = [row for row in self.rows if row.ledger_id in listed]
        if len(kept) < len(self.rows):
            self.rows = kept
            self._lengths = None
            self._sums = list(accumulate((row.entries for row in kept), initial=0))
            self._byte_sums = list(accumulate((row.bytes for row in kept), initial=0))

    async def _swap(self, value: bytes) -> None:
        """`doubtful` from before a request until its outcome is known, whoever stops us."""
        lost = self.doubtful  # a request of ours that nobody answered
        while True:
            self._check()
            self.doubtful = True
            try:
                self.version = await self._context.store.set(self.path, value, self.version)
            except StoreUnavailableError:
                self.doubtful = lost
                await self._context.pause()
                continue
            except OutcomeUnknownError:
                lost = True
                if not await self._was_applied(value):
                    await self._context.pause()
                    continue
            except (VersionConflictError, NoRecordError):
                # What was in doubt may have been carried out after we looked.
                if not (lost and await self._was_applied(value)):
                    self.doubtful = lost
                    raise self._fenced() from None
            except MetadataError:
                self.doubtful = lost
                raise
            self.doubtful = False  # Others of ours name a version that has passed.
            return

    async def _was_applied(self, value: bytes) -> bool:
        """Whether our write is what the record holds.  No two owners write the same value."""
        record = await self._context.newest(self.path)
        if record is not None and record.stat.version == self.version:
            return False
        following = self.version + 1
        if record is not None and record.value == value and record.stat.version == following:
            self.version = following
            return True
        raise self._fenced()

    def _fenced(self) -> FencedError:
        return FencedError(f"{self.path} was changed by another owner")

    async def guarded(self, operations: Sequence[Operation]) -> list[int]:
        """Carry out operations only while the list is as we wrote it; the versions of them.

        FencedError if the log is somebody else's.  OutcomeUnknownError is the caller's to resolve;
        VersionConflictError and the like speak of the operations themselves.
        """
        async with self._lock:
            self._check()
            check = Check(self.path, self.version)
            try:
                return (await self._context.store.multi([check, *operations]))[1:]
            except (VersionConflictError, NoRecordError):
                record = await self._context.newest(self.path)
                if record is None or record.stat.version != self.version:
                    raise self._fenced() from None
                raise


def stored_offset(info: ManagedLedgerInfo, path: str) -> int:
    """The next offset as the list has it; 0 if it has none."""
    text = get_property(info.properties, INDEX)
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:  # 63 bits
        raise LogCorruptError(f"{path}: the property {INDEX} is {text!r}, not an offset")
    return int(text) + 1


def set_sealed(info: ManagedLedgerInfo, row: Row) -> None:
    """Write into the list how long a ledger is; an empty one leaves it."""
    for i, ledger in enumerate(info.ledgerInfo):
        if ledger.ledgerId == row.ledger_id:
            if not row.entries:
                del info.ledgerInfo[i]
                return
            ledger.entries, ledger.size, ledger.timestamp = row.entries, row.bytes, row.closed_ms
            if row.last_offset is not None:
                set_property(ledger, LAST_OFFSET, str(row.last_offset))
            return


def drop(info: ManagedLedgerInfo, ledger_ids: Iterable[int]) -> None:
    """Take these ledgers off the list."""
    dropped = frozenset(ledger_ids)
    if dropped:
        kept = [ledger for ledger in info.ledgerInfo if ledger.ledgerId not in dropped]
        del info.ledgerInfo[:]
        info.ledgerInfo.extend(kept)


def news(ledgers: LedgerList) -> list[Row]:
    """The rows of which the list in the store does not say everything; all ledgers are sealed."""
    listed = zip(ledgers.info.ledgerInfo, ledgers.rows, strict=True)
    return [
        row
        for ledger, row in listed
        if not row.entries
        or not ledger.HasField("entries")
        or sealed_row(ledger, row.closed_ms) != row
    ]


def sealed_row(ledger: LedgerInfo, now_ms: int) -> Row:
    """A ledger that the list says is closed; now, if it does not say when."""
    text = get_property(ledger.properties, LAST_OFFSET)
    last = int(text) if text is not None and text.isascii() and text.isdecimal() else None
    return Row(ledger.ledgerId, ledger.entries, ledger.size, ledger.timestamp or now_ms, last)
