"""The list of a log's ledgers, in memory and in the metadata store.

The host that writes the list owns the log.  Every write is a compare-and-swap on the version of the
list.  A conflict means that another host has written the list, and ends this handle for good.  If
the answer to a write is lost, the list is read before anything else happens.  A write that has
begun continues when its caller stops waiting.

The list also knows the last confirmed entry, so all arithmetic on positions is here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.managed_ledger.context import LogContext
from daybook.managed_ledger.errors import (
    FencedError,
    LedgerIdTooLowError,
    LogCorruptError,
    ManagedLedgerError,
)
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.trim import SealedLedger
from daybook.managed_ledger.records import (
    INDEX,
    INSTANCE,
    LAST_OFFSET,
    LedgerInfo,
    LedgerOwner,
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
    Record,
    StoreUnavailableError,
    VersionConflictError,
)

T = TypeVar("T")
_TIDY_S = 2.0  # for the deletion of a ledger that was not put on the list
_REFUSALS = ManagedLedgerError | MetadataError | LedgerError


class LedgerList:
    """The sealed ledgers of a log and the present one.

    The present ledger is the last of the list, or the last but one during a rollover.  An idle log
    has only sealed ledgers until a new one becomes the present one.
    """

    def __init__(
        self,
        context: LogContext,
        name: str,
        info: ManagedLedgerInfo,
        version: int,
        *,
        created: int = 0,
    ) -> None:
        self.path = path = log_path(name)
        self.owner = LedgerOwner(name)  # the ledgers of the list name it in their metadata
        self.info = info
        self.version = version
        self.created = created  # the transaction that created the list; 0 if it is not known
        self.ids = [ledger.ledgerId for ledger in info.ledgerInfo]  # all listed ledgers, ascending
        self.sealed: list[SealedLedger] = []  # the sealed ones among them, in order
        self.bytes = info.ByteSize()  # the size of the list as it was read or written last
        self.doubtful = False  # a write of this handle may have been, or may yet be, carried out
        # The records that may yet name a ledger that this handle creates: the encoded names of
        # cursors, and None for the list.
        self.naming: set[str | None] = set()
        self._first = self.ids[0] if self.ids else -1  # the first retained ledger; see `_update`
        self.last_confirmed = self.before_first  # the log moves it on
        self._sums = [0]  # number of entries in the first n sealed ledgers
        self._byte_sums = [0]
        self._lengths: dict[int, int] | None = None  # None: must be computed again
        self._context = context
        self._written_in = 0  # the session in which this handle wrote the list last; 0: not known
        self._childless = False  # The last write of the list has found nothing below it.
        self._lock = trio.Lock()
        self._stopped: ManagedLedgerError | None = None
        if any(a >= b for a, b in zip(self.ids, self.ids[1:], strict=False)):
            raise LogCorruptError(
                f"the list {path} is damaged: the ids of its ledgers do not ascend"
            )

    # -- positions

    @property
    def before_first(self) -> Position:
        """The position before the first retained entry.  No cursor may start before it.

        A ledger that a pending write drops from the list does not count as retained any more.
        """
        return Position(self._first, -1)

    def lists(self, ledger_id: int) -> bool:
        """Return True if the ledger is on the list."""
        i = bisect_left(self.ids, ledger_id)
        return i < len(self.ids) and self.ids[i] == ledger_id

    @property
    def lengths(self) -> dict[int, int]:
        """The number of entries of each sealed ledger."""
        if self._lengths is None:
            self._lengths = {ledger.ledger_id: ledger.entries for ledger in self.sealed}
        return self._lengths

    def find_sealed(self, ledger_id: int) -> SealedLedger | None:
        """Return the sealed ledger of that id; None if it is not sealed, or not listed."""
        i = self.first_sealed(ledger_id)
        if i < len(self.sealed) and self.sealed[i].ledger_id == ledger_id:
            return self.sealed[i]
        return None

    def first_sealed(self, ledger_id: int) -> int:
        """Return the index of the first sealed ledger with that id or a higher one."""
        return bisect_left(self.sealed, ledger_id, key=lambda ledger: ledger.ledger_id)

    def next_position(self, position: Position) -> Position:
        """Return the position of the entry behind `position`, which may not be there yet."""
        ledger = self.find_sealed(position.ledger_id)
        if ledger is None and self.lists(position.ledger_id):
            return position.next_in_ledger()  # In the present ledger there is always a next one.
        if ledger is not None and position.entry_id + 1 < ledger.entries:
            return position.next_in_ledger()
        ids = self.ids
        i = bisect_right(ids, position.ledger_id)
        # An empty sealed ledger is skipped, unless it is the last ledger of the list.
        while (
            i < len(ids) - 1
            and (after := self.find_sealed(ids[i])) is not None
            and not after.entries
        ):
            i += 1
        return Position(ids[i], 0) if i < len(ids) else position.next_in_ledger()

    def previous_position(self, position: Position) -> Position:
        """Return the position of the entry before this one; (first ledger, -1) if there is none."""
        ledger = self.find_sealed(position.ledger_id)
        if ledger is not None and position.entry_id > 0 and ledger.entries:
            return Position(ledger.ledger_id, min(position.entry_id, ledger.entries) - 1)
        if ledger is None and position.entry_id > 0 and self.lists(position.ledger_id):
            return Position(position.ledger_id, position.entry_id - 1)
        for i in range(self.first_sealed(position.ledger_id) - 1, -1, -1):
            if self.sealed[i].entries:
                return self.sealed[i].last
        return Position(self.ids[0], -1)

    def entry_at(self, position: Position) -> Position:
        """Return `position` if an entry lies there, or will; else that of the next entry."""
        if position.entry_id < 0 or not self.lists(position.ledger_id):
            return self.next_position(Position(position.ledger_id, -1))
        ledger = self.find_sealed(position.ledger_id)
        if ledger is not None and position.entry_id >= ledger.entries:
            return self.next_position(ledger.last)
        return position

    def floor(self, position: Position) -> Position:
        """Return the last position of an entry, or before a ledger, up to `position`."""
        if position.entry_id < 0:
            return Position(position.ledger_id, -1)
        return self.previous_position(position.next_in_ledger())

    def clip(self, mark_delete: Position) -> Position:
        """Return the nearest position where a cursor may stand."""
        floor = self.floor(min(mark_delete, self.last_confirmed))
        return max(floor, self.before_first)

    def entries_between(self, after: Position, through: Position) -> int:
        """Return the number of entries behind `after`, up to and including `through`."""
        if through <= after:
            return 0
        if after.ledger_id == through.ledger_id:
            return through.entry_id - after.entry_id
        first, last = self.first_sealed(after.ledger_id), self.first_sealed(through.ledger_id)
        count = through.entry_id + 1 + self._sums[last] - self._sums[first]
        if first < last and self.sealed[first].ledger_id == after.ledger_id:
            count -= min(after.entry_id + 1, self.sealed[first].entries)
        return count

    def spans(self, after: Position, through: Position) -> list[tuple[int, int, int]]:
        """Return the entries behind `after`, up to and including `through`.

        Each span is (ledger, first entry, last entry).
        """
        found: list[tuple[int, int, int]] = []
        for ledger_id in self.ids[bisect_left(self.ids, after.ledger_id) :]:
            if ledger_id > through.ledger_id:
                break
            first = after.entry_id + 1 if ledger_id == after.ledger_id else 0
            sealed = self.find_sealed(ledger_id)
            last = through.entry_id if sealed is None else sealed.entries - 1
            if ledger_id == through.ledger_id:
                last = min(last, through.entry_id)
            elif sealed is None:
                break  # The present ledger is the last one that has entries.
            if first <= last:
                found.append((ledger_id, first, last))
        return found

    def bytes_from(self, first: int) -> int:
        """Return the number of bytes in the sealed ledgers from index `first` on."""
        return self._byte_sums[-1] - self._byte_sums[first]

    # -- changes in memory

    def seal(self, ledger: SealedLedger) -> None:
        """Note that a ledger is closed.  All ledgers before it must be sealed already."""
        assert not self.sealed or self.sealed[-1].ledger_id < ledger.ledger_id
        self.sealed.append(ledger)
        self._sums.append(self._sums[-1] + ledger.entries)
        self._byte_sums.append(self._byte_sums[-1] + ledger.bytes)
        self._lengths = None

    def learn(self, ledger: SealedLedger) -> None:
        """Note the last offset of a sealed ledger, unless the ledger was trimmed meanwhile."""
        i = self.first_sealed(ledger.ledger_id)
        if i < len(self.sealed) and self.sealed[i].ledger_id == ledger.ledger_id:
            assert self.sealed[i].entries == ledger.entries  # `_sums` stays right.
            self.sealed[i] = ledger

    def stop(self, error: ManagedLedgerError) -> None:
        """Refuse all further writes with `error`."""
        self._stopped = self._stopped or error

    # -- changes in the store

    async def update(
        self,
        change: Callable[[ManagedLedgerInfo], None],
        next_offset: int,
        *,
        last: ManagedLedgerError | None = None,
    ) -> None:
        """Change the list in the store.  With `last`, refuse all further writes with that error.

        Raise FencedError if another host has written the list, the error that `stop` was given, or
        MetadataError if the store refuses the write; the list is unchanged then.
        """
        self._check()
        # A write that is cancelled halfway would leave the version of the list unknown.
        await self._context.run_to_end(lambda: self._update(change, next_offset, last))

    async def take(self, change: Callable[[ManagedLedgerInfo], None], next_offset: int) -> None:
        """Change the list as `update` does, for an opening: the write ends with its caller.

        An opening that is cancelled leaves no handle that had to know the version.
        """
        self._check()
        await self._update(change, next_offset, None)

    async def stop_behind_writes(self, error: ManagedLedgerError) -> None:
        """Wait for the write that is under way, then refuse all further writes with `error`."""
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
            # `change` runs under the lock: it sees what the writes before it have left.
            info = ManagedLedgerInfo()
            info.CopyFrom(self.info)
            change(info)
            if next_offset > stored_offset(info, self.path):
                set_property(info, INDEX, str(next_offset - 1))
            # A list of an older version gets the instance with its first write.
            if self._context.instance is not None:
                set_property(info, INSTANCE, self._context.instance)
            # A list that is being deleted is empty; positions still need its last id.
            ids = [ledger.ledgerId for ledger in info.ledgerInfo] or self.ids[-1:]
            # `before_first` moves before the write: no cursor starts in what is being dropped.
            self._first = max(self._first, ids[0])
            value = info.SerializeToString()
            await self._swap(value)
            self.info, self.ids, self.bytes = info, ids, len(value)
            self._drop_unlisted(frozenset(ids))
            if last is not None:
                self.stop(last)

    def _drop_unlisted(self, listed: frozenset[int]) -> None:
        """Drop the sealed ledgers that are not listed any more."""
        kept = [ledger for ledger in self.sealed if ledger.ledger_id in listed]
        if len(kept) < len(self.sealed):
            self.sealed = kept
            self._lengths = None
            self._sums = list(accumulate((ledger.entries for ledger in kept), initial=0))
            self._byte_sums = list(accumulate((ledger.bytes for ledger in kept), initial=0))

    async def _swap(self, value: bytes) -> None:
        """Write the list by compare-and-swap, and repeat that until the outcome is known.

        `doubtful` is set before each request and cleared when its outcome is known, so it stays
        set if this task is cancelled in between.
        """
        lost = self.doubtful  # a request of this handle was never answered
        while True:
            self._check()
            self.doubtful = True
            session_id, self._written_in = self._context.store.session_id, 0
            self._childless = False
            try:
                stat = await self._context.store.set(self.path, value, self.version)
                self.version, self._childless = stat.version, not stat.children_count
            except StoreUnavailableError:
                self.doubtful = lost  # The request was not sent.
                await self._context.pause()
                continue
            except OutcomeUnknownError:
                # The store may have carried the request out, or may do so later.
                lost = True
                if not await self._was_applied(value):
                    await self._context.pause()
                    continue
            except (VersionConflictError, NoRecordError):
                # The request in doubt may have been carried out after the list was read.
                if not (lost and await self._was_applied(value)):
                    self.doubtful = lost
                    raise self._fenced() from None
            except MetadataError:
                self.doubtful = lost
                raise
            # Any other request of this handle names a version that has passed, and will fail.
            self.doubtful = False
            # No id of a session comes again, so this one was the same all the time.
            if self._context.store.session_id == session_id:
                self._written_in = session_id
            return

    async def _was_applied(self, value: bytes) -> bool:
        """Return True if the record holds `value`, and False if the record is unchanged.

        Raise FencedError if it holds anything else.  No two owners write the same value: each lists
        a ledger of its own, or its random number.
        """
        record = await self._context.read_newest(self.path)
        if record is not None and record.stat.version == self.version:
            return False
        following = self.version + 1
        if record is not None and record.value == value and record.stat.version == following:
            self.version = following
            return True
        raise self._fenced()

    # -- reading behind the last write of the list

    async def read_record(self, path: str) -> Record | None:
        """Return a record with everything that was written before this handle wrote the list.

        That is enough for records of which every change names the version of the list.
        """
        store = self._context.store
        return await self._read(lambda: store.get(path), lambda: self._context.read_newest(path))

    async def read_children(self) -> list[str]:
        """Return the names of the records below the list, as `read_record` does."""
        if self._childless:
            return []  # The answer to the write said so, and this handle has created none since.
        store, path = self._context.store, self.path
        return (
            await self._read(
                lambda: store.get_children(path), lambda: self._context.read_newest_children(path)
            )
            or []
        )

    async def _read(
        self, read: Callable[[], Awaitable[T]], read_newest: Callable[[], Awaitable[T]]
    ) -> T:
        """Read without a sync if the session is the one that has seen the write.

        A session never sees an older state than that of its own write, whichever server it moves
        to.  The next session may.
        """
        store, written_in = self._context.store, self._written_in
        if written_in and store.session_id == written_in:
            found = await self._context.retry_read(read)
            if store.session_id == written_in:
                return found
        return await read_newest()

    def _fenced(self) -> FencedError:
        return FencedError(
            f"another broker has changed the list {self.path}: the topic was taken over"
        )

    async def guarded(self, operations: Sequence[Operation]) -> list[int]:
        """Carry out operations only while the list is unchanged, and return their versions.

        Raise FencedError if another host has written the list.  The caller has to resolve an
        OutcomeUnknownError.  A VersionConflictError, NoRecordError and the like concern the
        operations themselves.
        """
        async with self._lock:
            self._check()
            self._childless = False  # The operations may create a record below the list.
            # No write of the list runs now, so this version is exact.
            check = Check(self.path, self.version)
            try:
                return (await self._context.store.multi([check, *operations]))[1:]
            except (VersionConflictError, NoRecordError):
                # The store does not say which of the operations has failed.
                record = await self._context.read_newest(self.path)
                if record is None or record.stat.version != self.version:
                    raise self._fenced() from None
                raise


async def put_on_list(
    context: LogContext,
    ledgers: LedgerList,
    writer: LedgerWriter,
    update: Callable[[Callable[[ManagedLedgerInfo], None]], Awaitable[None]],
) -> None:
    """Append a new ledger to the list by `update`.

    If that fails, abandon the ledger, and delete it unless the list may name it after all.
    """

    def add(info: ManagedLedgerInfo) -> None:
        # Positions are compared by ledger id, so a list whose ids do not ascend cannot be opened.
        if ledgers.ids and writer.ledger_id <= ledgers.ids[-1]:
            raise LedgerIdTooLowError(writer.ledger_id, ledgers.ids[-1])
        info.ledgerInfo.add(ledgerId=writer.ledger_id, timestamp=0)

    try:
        await update(add)
    except BaseException as error:
        writer.abandon()
        # A request in doubt may still put the ledger on the list: then its entries must exist.
        if isinstance(error, _REFUSALS) and not ledgers.doubtful:
            with trio.move_on_after(_TIDY_S):
                await context.delete_ledgers([writer.ledger_id], ledgers.owner)
        raise


def stored_offset(info: ManagedLedgerInfo, path: str) -> int:
    """Return the next offset as the list states it; 0 if it states none."""
    text = get_property(info.properties, INDEX)
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:  # 63 bits
        raise LogCorruptError(
            f"the list {path} is damaged: its property {INDEX} is {text!r}, not an offset"
        )
    return int(text) + 1


def set_sealed(info: ManagedLedgerInfo, sealed: SealedLedger) -> None:
    """Write the length of a ledger into the list; an empty ledger is removed from the list."""
    for i, ledger in enumerate(info.ledgerInfo):
        if ledger.ledgerId == sealed.ledger_id:
            if not sealed.entries:
                del info.ledgerInfo[i]
                return
            ledger.entries, ledger.size = sealed.entries, sealed.bytes
            ledger.timestamp = sealed.closed_ms
            if sealed.last_offset is not None:
                set_property(ledger, LAST_OFFSET, str(sealed.last_offset))
            return


def drop(info: ManagedLedgerInfo, ledger_ids: Iterable[int]) -> None:
    """Remove these ledgers from the list."""
    dropped = frozenset(ledger_ids)
    if dropped:
        kept = [ledger for ledger in info.ledgerInfo if ledger.ledgerId not in dropped]
        del info.ledgerInfo[:]
        info.ledgerInfo.extend(kept)


def unrecorded(ledgers: LedgerList) -> list[SealedLedger]:
    """Return the ledgers about which the list in the store lacks something.

    All ledgers of the list must be sealed.
    """
    listed = zip(ledgers.info.ledgerInfo, ledgers.sealed, strict=True)
    return [
        sealed
        for ledger, sealed in listed
        if not sealed.entries
        or not ledger.HasField("entries")
        or sealed_ledger(ledger, sealed.closed_ms) != sealed
    ]


def sealed_ledger(ledger: LedgerInfo, now_ms: int) -> SealedLedger:
    """Return a ledger that is closed according to the list; `now_ms` if the list has no time."""
    text = get_property(ledger.properties, LAST_OFFSET)
    last = int(text) if text is not None and text.isascii() and text.isdecimal() else None
    return SealedLedger(
        ledger.ledgerId, ledger.entries, ledger.size, ledger.timestamp or now_ms, last
    )
