"""The log: an entry is durable here before its add is answered, and is read from here, too.

`append` is synchronous: it gives the record its position and returns.  Records that arrive while
the disk is busy form a *group*, which becomes one batch, one write, one sync.  After the sync
the durable position is raised first, then the owner is called once for the whole group, in the
trio thread.  Fences, master keys, explicit LACs and limbo marks are records like the entries, in
the order in which they were accepted.

    append append append | append append            append
    `--- group, on its way to disk  `--- next group   (opened when the disk is free, or full)
                         ^ durable                    ^ end

On disk a log is a run of segments, `<first position>.log`, laid out by `records`.  Each process
starts a segment of its own with its first group; an old segment never changes.

Each batch says up to where the log was durable before it.  This *mark* tells damage from a torn
write at the next start (`recovery`).  When no record arrives for a while and there is disk space, a
batch without records is written, so that the last records have a mark behind them, too.  One task
watches for that, and commits only note the time: a timer for each commit costs a bookie an eighth
of its processor time when records arrive one by one.

**After the first disk error nothing more is written** (`failure`): the records on their way may or
may not be on the disk, every waiting caller is answered IO_ERROR, and reads continue.

No second copy is written: the index points into the log.  The limits are in `LogLimits`.  Where
each entry lies is in `entry_locations`, recovery is in `recovery`, and the rules for adds are in
`ledger_directory`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import trio

from daybook.bookie.storage.disk import Appender, Disk
from daybook.bookie.storage.records import (
    BATCH_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BatchFlag,
    Buffer,
    Kind,
    Record,
    Run,
    SegmentHeader,
    SharedRun,
    encode_batch_header,
    encode_record_header,
    make_records,
    record_seed,
)
from daybook.bookie.storage.segments import ReadLimits, Segment, Segments
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.wire.parking import Parking

Done: TypeAlias = Callable[[StoreStatus], None]
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class LogLimits:
    segment_bytes: int = 512 << 20  # a new segment begins behind the group that passes this
    group_bytes_max: int = 8 << 20  # a group is closed once it is larger
    mark_after_s: float = 1.0  # without records
    reading: ReadLimits = field(default_factory=ReadLimits)


@dataclass(slots=True)
class Group(Generic[K]):
    """Records that share a sync; `dones` and `lacs` are for the owner to apply after it."""

    position: int  # where the batch begins
    segment: Segment | None  # the new segment, if this batch begins one
    creation_id: int
    end: int
    buffers: list[Buffer]  # the batch header, then the records
    count: int = 0  # records
    flags: BatchFlag = BatchFlag.NONE
    dones: list[Done] = field(default_factory=list[Done])
    lacs: dict[K, int] = field(default_factory=dict[K, int])


class Log(Generic[K]):
    """One log in one directory.  `run` writes; it is a task of the owner."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        limits: LogLimits,
        *,
        segments: list[Segment],
        mark: int,
        end: int,
        reached: int = 0,
        creation_id: int,
        has_space: Callable[[], bool],
        committed: Callable[[Group[K]], None],
        failed: Callable[[list[Group[K]]], None],
    ) -> None:
        self.durable = end
        self.end = end
        # The end of the last batch that a start would find.  `durable` may lie behind padding.
        self.reached = reached
        self.failure: OSError | None = None
        self.syncs = 0
        self._mark = mark  # the last position below which everything is known to be durable
        self._disk = disk
        self._directory = directory
        self._limits = limits
        self._group_bytes_max = limits.group_bytes_max
        self._segments = Segments(disk, segments, limits.reading)
        self._creation_id = creation_id
        self._seed = 0
        self._has_space = has_space
        self._committed = committed
        self._failed = failed
        self._ended = False
        self._unmarked = False  # the last batch has records
        self._idle_since = 0.0  # when the last group was durable
        self._writing: Group[K] | None = None
        self._groups: deque[Group[K]] = deque()
        self._open: Group[K] | None = None  # the last of `_groups`, while it takes records
        self._roll_at = end  # the first group starts a segment
        self._writer, self._marker = Parking(), Parking()
        self._resumed = trio.Event()
        self._resumed.set()
        self._waiting: list[tuple[int, trio.Event]] = []

    @property
    def mark(self) -> int:
        """Everything below this is known to be durable.

        After a start it is below `durable`, which is behind all bytes of the old segments: the
        last one may end with a torn write, or with preallocated zeros.
        """
        return self._mark

    @property
    def pending_bytes(self) -> int:
        return self.end - self.durable

    def append(
        self, kind: Kind, ledger_id: int, entry_id: int, payload: Buffer, done: Done | None
    ) -> int:
        """Accept the record; return its position.  `done` is called when it is durable or lost."""
        group = self._open or self._open_group()
        position = self.end
        header = encode_record_header(self._seed, position, kind, ledger_id, entry_id, payload)
        group.buffers += (header, payload)
        group.count += 1
        if done is not None:
            group.dones.append(done)
        self.end = end = position + RECORD_HEADER_BYTES + len(payload)
        if end - group.position > self._group_bytes_max:
            self.seal()
        return position

    def append_run(self, run: Run, done: Done | None) -> list[int]:
        """Append the run's entries to one group; return their positions.  `done` is for all.

        The log owns the run's buffer from now on.
        """
        group = self._open or self._open_group()
        positions = make_records(
            self._seed, self.end, run.ledger_id, run.first, run.data, run.sizes
        )
        group.buffers.append(run.data)
        group.count += len(run.sizes)
        if done is not None:
            group.dones.append(done)
        self.end += len(run.data)
        if self.end - group.position > self._group_bytes_max:
            self.seal()
        return positions

    def append_runs(
        self, runs: Sequence[SharedRun], piece: memoryview, done: Done
    ) -> list[Sequence[int]]:
        """Append runs of several ledgers; `piece` consists of them, in this order."""
        group = self._open or self._open_group()
        seed, origin, begin = self._seed, self.end, runs[0].begin
        found: list[Sequence[int]] = []
        for ledger_id, first, _, sizes, at in runs:
            at -= begin
            found.append(make_records(seed, origin + at, ledger_id, first, piece, sizes, at))
            group.count += len(sizes)
        group.buffers.append(piece)
        group.dones.append(done)
        self.end += len(piece)
        if self.end - group.position > self._group_bytes_max:
            self.seal()
        return found

    @property
    def open_group(self) -> Group[K]:
        """The group that takes the next record."""
        return self._open or self._open_group()

    def append_batch(self, records: list[Record]) -> list[int]:
        """Append these records as one batch of any size; return their positions."""
        assert records
        self.seal()
        limit, self._group_bytes_max = self._group_bytes_max, 1 << 62
        positions = [
            self.append(record.kind, record.ledger_id, record.entry_id, record.payload, None)
            for record in records
        ]
        self._group_bytes_max = limit
        self.seal()
        return positions

    def roll(self) -> None:
        """Let the next group begin a segment."""
        self._roll_at = 0

    def seal(self) -> int:
        """Let the next record start a new batch; return a mark for everything accepted so far.

        The position is a mark as soon as the log is durable up to there.
        """
        if self._open is not None:
            self._open.end = self.end
            self._open = None
        return self.end if self._writing or self._groups else self._mark

    def when_durable(self, position: int, done: Done) -> None:
        """Call `done` when the record at `position`, accepted before, is durable or lost."""
        if position < self.durable:
            done(StoreStatus.OK)
        elif self.failure is not None:
            done(StoreStatus.IO_ERROR)
        else:
            assert position < self.end, "the record was accepted"
            # The last group may not have the record, but it is durable only after the one that has.
            last = self._groups[-1] if self._groups else self._writing
            assert last is not None, "a record that is not durable is in a group"
            last.dones.append(done)

    def pause(self) -> None:
        """Stop writing until `resume`; records are still accepted."""
        self._resumed = self._resumed if self.paused else trio.Event()

    def resume(self) -> None:
        self._resumed.set()

    @property
    def paused(self) -> bool:
        return not self._resumed.is_set()

    def _open_group(self) -> Group[K]:
        assert self.failure is None, "the log has failed"
        segment = None
        position = self.end
        if position >= self._roll_at:
            segment = Segment(position, f"{self._directory}/{position:020d}.log")
            self._creation_id += 1
            self._seed = record_seed(self._creation_id)
            self._roll_at = position + self._limits.segment_bytes
            position += SEGMENT_HEADER_BYTES
        # The empty buffer stands for the batch header, which `_write` encodes: it needs the count.
        group: Group[K] = Group(position, segment, self._creation_id, 0, [b""])
        self.end = position + BATCH_HEADER_BYTES
        self._open = group
        self._groups.append(group)
        self._writer.wake()
        return group

    async def run(self) -> None:
        """Write group after group, until the disk fails or `close` has written the end mark."""
        appender = self._disk.open_appender()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._mark_when_idle)
                await self._write_groups(appender)
                nursery.cancel_scope.cancel()
        finally:
            if not self._ended and self.failure is None:
                self._fail(OSError("the task that writes the log was stopped"))
            await appender.aclose()

    async def _write_groups(self, appender: Appender) -> None:
        while self.failure is None:
            if self._groups:  # a fast disk must not starve the connections
                await trio.lowlevel.checkpoint()
            while not self._groups:
                await self._writer.park()
            if self.paused:
                await self._resumed.wait()
            group = self._next_group()
            try:
                await self._write(appender, group)
            except OSError as error:
                self._fail(error)
            else:
                self._commit(group)
                if group.flags is BatchFlag.END:  # Enum members are compared much faster by `is`.
                    self._ended = True
                    return

    async def _mark_when_idle(self) -> None:
        """Write a batch without records whenever the last batch had some, a while after it."""
        while True:
            while not self._unmarked:
                await self._marker.park()
            due = self._idle_since + self._limits.mark_after_s
            if due > trio.current_time():
                await trio.sleep_until(due)
            elif self._groups or self._writing is not None or not self._has_space():
                # The log is not idle, or it may not grow: look again as if it were idle from now.
                await trio.sleep(self._limits.mark_after_s)
            else:
                self._open_group()
                self.seal()
                await self._marker.park()

    def _next_group(self) -> Group[K]:
        group = self._groups.popleft()
        if group is self._open:
            self.seal()
        self._writing = group
        return group

    async def _write(self, appender: Appender, group: Group[K]) -> None:
        size = group.end - group.position - BATCH_HEADER_BYTES
        assert size >= 0
        assert self.durable <= group.position
        group.buffers[0] = encode_batch_header(
            group.creation_id, group.position, group.flags, group.count, size, self._mark
        )
        if group.segment is None:
            await appender.write(group.buffers)
            return
        # The header and the first batch are one write: no segment exists without a first batch.
        header = SegmentHeader(group.creation_id).encode()
        await appender.start(group.segment.path, [header, *group.buffers])
        self._segments.add(group.segment, group.creation_id)

    def _commit(self, group: Group[K]) -> None:
        assert group is self._writing
        assert group.end > self.durable, "batches become durable in the order of the log"
        # `durable` is raised before any caller hears of it: its next read must find the record.
        self.durable = self._mark = self.reached = group.end
        self._writing = None
        self._unmarked = group.count > 0
        self._idle_since = trio.current_time()
        self._marker.wake()
        self.syncs += 1
        group.buffers.clear()
        if self._waiting:
            for position, event in self._waiting:
                if position < group.end:
                    event.set()
            self._waiting = [waiter for waiter in self._waiting if waiter[0] >= group.end]
        self._committed(group)

    def _fail(self, error: OSError) -> None:
        assert self.failure is None
        self.failure = error  # first of all: a callback below must find the log failed
        self._open = None
        groups = [group for group in (self._writing, *self._groups) if group is not None]
        self._writing = None
        self._groups.clear()
        for _, event in self._waiting:
            event.set()
        self._waiting.clear()
        self._failed(groups)

    async def wait_durable(self, position: int) -> None:
        """Return when the record at `position` is durable; raise IO_ERROR if it never will be."""
        if position >= self.end:
            raise StoreError(StoreStatus.IO_ERROR, f"{position} is behind the end of the log")
        if position >= self.durable and self.failure is None:
            event = trio.Event()
            self._waiting.append((position, event))
            await event.wait()
        if position >= self.durable:
            raise StoreError(StoreStatus.IO_ERROR, f"the log has failed: {self.failure}")

    async def close(self) -> None:
        """Write the pending groups and the end mark.  Nothing may be appended after this call."""
        # A process that has appended nothing leaves no segment behind.
        if self.failure is None and (self.syncs or self._groups or self._writing):
            self.seal()
            group = self._open_group()
            group.flags = BatchFlag.END
            self.seal()
            await self.wait_durable(group.position)

    def try_read(self, position: int, size: int) -> Record | None:
        """Return the durable record at `position`, with `size` payload bytes, if in memory."""
        assert position < self.durable
        return self._segments.try_read(position, size)

    async def read(self, position: int, size: int) -> Record:
        """Return the record, from the disk if need be; raise IO_ERROR if it is damaged."""
        assert position < self.durable
        return await self._segments.read(position, size, self.durable)

    def read_ahead_position(self, position: int, size: int) -> int | None:
        """Return where to `read_ahead` after a read of this record; None if there is no need."""
        return self._segments.read_ahead_position(position, size, self.durable)

    async def read_ahead(self, position: int) -> None:
        """Read the records that begin at `position` into memory.  It raises no error."""
        await self._segments.read_ahead(position, self.durable)

    @property
    def reading(self) -> ReadLimits:
        return self._limits.reading

    async def fetch(self, records: Sequence[tuple[int, int]]) -> None:
        """Read large records into memory that lie far from each other.  It raises no error."""
        await self._segments.fetch(records, self.durable)

    async def is_readable(self, position: int, size: int) -> bool:
        """Return True if the record on the disk is as it was written."""
        return await self._segments.is_readable(position, size)

    @property
    def segments(self) -> list[Segment]:
        """The segments on the disk, in order; the last one may be growing."""
        return self._segments.all()

    def forget(self, segment: Segment) -> None:
        """Drop a segment whose file is about to be deleted: nothing points into it any longer."""
        self._segments.forget(segment)

    def close_readers(self) -> None:
        self._segments.close()
