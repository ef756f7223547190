"""Recovery: what a start reads from a directory, and what it may believe of that.

`load` reads the rows of the index, then replays the log from the last checkpoint on.  `replay`
hands every record that was certainly durable to `apply`, in order, and reads nothing below the
checkpoint.  It tells a torn tail from a loss as follows:

- Each batch names the position below which the log was durable when it was written, and so does
  the checkpoint.  If the bytes up to such a *mark* are not all there and whole, records were
  **lost**: an entry or a fence of any ledger.  The caller must then answer *unknown* for every
  entry that it does not find (limbo).  Records that are still readable in between are applied.
- Behind the last mark there may be one batch.  If it is not whole, none of its adds was
  acknowledged: it stays in the file and is ignored from now on, since the next segment's first
  batch names a mark below it.  If it is whole, it may have been acknowledged, and it may be in the
  page cache only, even after a sync that failed.  Its records are **doubtful**: the caller appends
  them once more, in one batch, the first of the new segment.

A segment without a whole first batch does not exist: one write creates it with that batch.  A
segment with a second batch and no valid header is lost.
Segments that were deleted on purpose (`deleted_segments`) are gaps, not losses.

A segment is deleted only when it is behind the checkpoint and nothing in the index points into it
any longer.  An index that contradicts this is an old image that was restored, which may have
ledgers that were deleted since.  It is emptied and rebuilt from the log.

A long replay, for instance after the loss of the index, makes checkpoints on its way.  So memory is
bounded, and a bookie that dies during its start resumes at the last of them, unless segments
further on were deleted: then its index looks like an old image.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from daybook.bookie.storage.batches import Batch, Window, read_batch
from daybook.bookie.storage.deleted_segments import Gap, read_gaps
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.entry_locations import EntryLocations, decode_usage
from daybook.bookie.storage.index import (
    BLOCK_KEYS,
    LEDGER_KEYS,
    Checkpoint,
    IndexStore,
    checkpoint_key,
    ledger_of_key,
    shares_key,
)
from daybook.bookie.storage.ledger_state import LedgerState, decode_row, lac_of_entry
from daybook.bookie.storage.records import (
    EVERY_LEDGER,
    SEGMENT_HEADER_BYTES,
    BatchFlag,
    Kind,
    Record,
)
from daybook.bookie.storage.segments import Segment
from daybook.bookie.storage.status import StoreError, StoreStatus

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_ROWS_A_SCAN = 4096
_NO_CHECKPOINT = Checkpoint(0, limbo=False)


@dataclass(slots=True)
class ReplayResult:
    """The findings of a replay."""

    segments: list[Segment]
    mark: int = 0  # the last mark: below it the log was durable
    end: int = 0  # behind every byte of every segment
    reached: int = 0  # the end of the last whole batch; zeros may follow up to `end`
    creation_id: int = 0  # the highest in use
    doubtful: list[Record] = field(default_factory=list[Record])
    clean: bool = True  # the log ends with an end mark, or had nothing to apply
    losses: list[str] = field(default_factory=list[str])
    bytes_read: int = 0


async def list_segments(disk: Disk, directory: str) -> list[Segment]:
    """Return the segments of a log, in order; `list_directory` sorts their names."""
    return [
        Segment(int(match[1]), f"{directory}/{name}")
        for name in await disk.list_directory(directory)
        if (match := _SEGMENT_NAME.fullmatch(name))
    ]


async def replay(
    disk: Disk,
    segments: list[Segment],
    checkpoint: int,
    apply: Callable[[Record], None],
    applied: Callable[[ReplayResult], Awaitable[None]],
    *,
    gaps: Sequence[Gap] = (),
    end: int | None = None,
) -> ReplayResult:
    """Read the log behind `checkpoint`; no segment is in one of the gaps.

    With `end` the log is known to be durable up to there, and nothing behind it is read.
    `applied` is called after each batch: everything below `mark` has been applied.
    """
    result = ReplayResult(segments, end=max([checkpoint, *(gap.end for gap in gaps)]))
    # The mark of the first batch behind a gap may lie in the deleted segments in front of it.
    removed = [gap.end for gap in gaps if gap.first < checkpoint < gap.end]
    log_replay = _LogReplay(apply, applied, result, reached=max(removed, default=0))
    result.mark = checkpoint
    # Segments in front of the checkpoint are not read, except for the last one of them.
    ahead = deque(gap for gap in gaps if gap.first >= checkpoint)
    behind = sum(segment.first < checkpoint for segment in segments)
    unread = behind if removed else behind - 1  # the last of them extends past the checkpoint
    for number, segment in enumerate(segments):
        size = await disk.size(segment.path)
        if end is not None:
            size = max(0, min(size, end - segment.first))
        result.end = max(result.end, segment.first + max(size, SEGMENT_HEADER_BYTES))
        if number < unread:
            continue
        while ahead and ahead[0].first < segment.first:
            log_replay.skip_gap(ahead.popleft())
        start = max(checkpoint, segment.first)
        if start - segment.first > size:
            continue  # cut off below the checkpoint: the next mark reports the loss
        window = Window(await disk.open_reader(segment.path), segment.first, size)
        try:
            await log_replay.read_segment(window, start)
        except OSError as error:
            result.losses.append(f"{segment.path}: {error}")
        finally:
            window.reader.close()
            result.bytes_read += window.bytes_read
    for gap in ahead:
        log_replay.skip_gap(gap)
    if end is not None:
        result.mark = max(result.mark, end)
    log_replay.finish()
    return result


class _LogReplay:
    """One pass over the log, which follows the marks from batch to batch."""

    def __init__(
        self,
        apply: Callable[[Record], None],
        applied: Callable[[ReplayResult], Awaitable[None]],
        result: ReplayResult,
        *,
        reached: int,
    ) -> None:
        self._apply = apply
        self._applied = applied
        self._result = result
        self._reached = reached  # up to here every byte was found or reported lost
        self._tail: list[Batch] = []  # batches behind the last mark, not yet applied

    async def read_segment(self, window: Window, start: int) -> None:
        """Read the batches from `start` on, past damaged ones."""
        header = await window.header()
        if header is None:
            # A torn first write has one batch at this position, which was never acknowledged.
            # A batch behind it proves that the header was valid once: then the segment is lost.
            there = max(start, window.first + SEGMENT_HEADER_BYTES)
            if await window.looks_written(there + 1):
                self._result.losses.append(f"the segment at {window.first}: no valid header")
            return
        self._result.creation_id = max(self._result.creation_id, header.creation_id)
        position = window.first + SEGMENT_HEADER_BYTES
        if start > window.first:
            self._reached = position = start
        while position < window.end:
            batch = await read_batch(window, header.creation_id, position)
            if batch is not None:
                self._see_batch(batch)
                position = batch.end
                await self._applied(self._result)
                continue
            found = await window.find_batch(header.creation_id, position)
            if found is None:
                return
            position = found

    def skip_gap(self, gap: Gap) -> None:
        """Pass over deleted segments; the mark of the first one is kept with the gap."""
        self._confirm(gap.mark)
        self._tail = []
        self._reached = max(self._reached, gap.end)

    def _see_batch(self, batch: Batch) -> None:
        # The mark of a torn batch is true as well, but only a whole batch replaces the batches
        # that an earlier segment has behind that mark.
        mark = batch.header.durable
        self._confirm(mark)
        self._tail = [] if batch.whole else [b for b in self._tail if b.position >= mark]
        self._tail.append(batch)
        self._result.clean = bool(batch.header.flags & BatchFlag.END)
        if batch.whole:
            self._reached = batch.end

    def _confirm(self, mark: int) -> None:
        """Apply the batches below the mark, where everything was durable; note what is missing."""
        if mark > self._reached:
            self._result.losses.append(f"positions {self._reached} to {mark} of the log")
            self._reached = mark  # the same loss is reported once
        assert self._reached >= mark
        for batch in self._tail:
            if batch.position < mark:
                for record in batch.records:
                    self._apply(record)
        self._result.mark = max(self._result.mark, mark)

    def finish(self) -> None:
        """Note the doubtful records: those of a whole batch behind the last mark."""
        self._confirm(self._result.mark)
        for batch in self._tail:
            # A write ends before the next one begins, so there is at most one such batch.
            if batch.whole and batch.position >= self._result.mark:
                self._result.doubtful = batch.records
        self._result.reached = self._reached


@dataclass(slots=True)
class Contents:
    """The ledgers of a directory, as far as they are known."""

    ledgers: dict[int, LedgerState]
    locations: EntryLocations
    limbo: bool  # the log has lost records
    checkpoint: int
    gaps: list[Gap] = field(default_factory=list[Gap])  # deleted segments

    def apply(self, record: Record, position: int) -> None:
        """Apply a record that the log has at this position."""
        if record.ledger_id == EVERY_LEDGER:
            self.limbo = record.kind is Kind.LIMBO
            return
        state = self.ledgers.get(record.ledger_id)
        if state is None:
            state = LedgerState(record.ledger_id, first=position)
            self.ledgers[record.ledger_id] = state
        if state.deleted and record.kind is not Kind.TOMBSTONE:
            state.middle = max(state.middle, position)
        match record.kind:
            case Kind.ENTRY:
                lac = lac_of_entry(record.payload)
                state.accepted_lac = state.lac = max(state.lac, lac)
                self.locations.add(state, record.entry_id, position, len(record.payload))
            case Kind.MASTER_KEY:
                state.master_key = bytes(record.payload)
            case Kind.FENCE:
                state.fenced = True
            case Kind.EXPLICIT_LAC:
                if record.entry_id > state.explicit_lac:
                    state.explicit_lac = record.entry_id
                    state.explicit_body = bytes(record.payload)
                    state.accepted_lac = state.lac = max(state.lac, record.entry_id)
            case Kind.LIMBO | Kind.LIMBO_END:
                state.limbo = record.kind is Kind.LIMBO
            case Kind.TOMBSTONE:
                if state.deleted:  # a copy: the first tombstone may still be in its segment
                    state.middle = max(state.middle, state.last)
                    state.stated = state.last = position
                else:
                    state.mark_deleted(position)
        self.locations.mark_changed(state)


async def load(
    disk: Disk,
    log_directory: str,
    index: IndexStore,
    locations: EntryLocations,
    *,
    checkpoint_entries: int,
    finish: bool = True,
) -> tuple[Contents, ReplayResult]:
    """Load the directory; with `finish`, an unfinished deletion of segments is finished."""
    stored = await index.get(checkpoint_key())
    checkpoint = Checkpoint.decode(stored) if stored is not None else _NO_CHECKPOINT
    gaps = await read_gaps(disk, log_directory)
    if finish and await _is_old(index, checkpoint, gaps):
        await empty(index)
        checkpoint = _NO_CHECKPOINT
    segments = await _segments(disk, log_directory, gaps, finish=finish)
    for segment in segments:
        locations.usage.begin(segment.first)
    await locations.load_usage(checkpoint.position)
    rows = await _load_rows(index)
    contents = Contents(rows, locations, checkpoint.limbo, checkpoint.position, gaps)

    def apply(record: Record) -> None:
        contents.apply(record, record.position)

    async def applied(so_far: ReplayResult) -> None:
        contents.limbo |= bool(so_far.losses)
        if locations.recent_entries >= checkpoint_entries:
            try:
                await locations.checkpoint(so_far.mark, limbo=contents.limbo)
            except OSError as error:  # `replay` would take an OSError for one of the segment
                raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
            contents.checkpoint = so_far.mark

    replayed = await replay(disk, segments, checkpoint.position, apply, applied, gaps=gaps)
    contents.limbo |= bool(replayed.losses)
    return contents, replayed


async def load_below(
    disk: Disk,
    segments: list[Segment],
    gaps: list[Gap],
    locations: EntryLocations,
    end: int,
    *,
    checkpoint_entries: int,
    progress: Callable[[int], None],
) -> tuple[Contents, ReplayResult]:
    """Load the durable log below `end` into the index, and return its contents.

    `progress` gets the position below which everything was applied.  The checkpoints say limbo:
    the store is in doubt when its index is rebuilt.
    """
    for segment in segments:
        locations.usage.begin(segment.first)
    contents = Contents({}, locations, limbo=True, checkpoint=0, gaps=gaps)

    async def checkpoint(position: int) -> None:
        try:
            await locations.checkpoint(position, limbo=True)
        except OSError as error:  # `replay` would take an OSError for one of the segment
            raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
        contents.checkpoint = position

    async def applied(so_far: ReplayResult) -> None:
        progress(so_far.mark)
        if locations.recent_entries >= checkpoint_entries:
            await checkpoint(so_far.mark)

    def apply(record: Record) -> None:
        contents.apply(record, record.position)

    replayed = await replay(disk, segments, 0, apply, applied, gaps=gaps, end=end)
    await checkpoint(end)
    return contents, replayed


async def _is_old(index: IndexStore, checkpoint: Checkpoint, gaps: list[Gap]) -> bool:
    """Return True if the index needs segments that were deleted since it was written."""
    if any(gap.end > checkpoint.position for gap in gaps):
        return True
    usage = await index.get(shares_key()) if gaps else None
    counted = decode_usage(usage, checkpoint.position) if usage is not None else None
    return any(
        live and gap.first <= first < gap.end for first, live in counted or () for gap in gaps
    )


async def empty(index: IndexStore) -> None:
    """Empty the index; if this is cut short, the next start finds it old and empties it again."""
    for first, end in (BLOCK_KEYS, LEDGER_KEYS):
        while found := await index.scan(first, end, _ROWS_A_SCAN):
            await index.write({}, [key for key, _ in found])
    await index.write({}, [shares_key(), checkpoint_key()])


async def _segments(
    disk: Disk, log_directory: str, gaps: list[Gap], *, finish: bool
) -> list[Segment]:
    """Return the segments of the log, without those that the last process began to remove."""
    kept: list[Segment] = []
    for segment in await list_segments(disk, log_directory):
        if not any(gap.first <= segment.first < gap.end for gap in gaps):
            kept.append(segment)
        elif finish:
            with suppress(OSError):  # the segment is ignored; the next start tries again
                await disk.remove(segment.path)
    return kept


async def _load_rows(index: IndexStore) -> dict[int, LedgerState]:
    ledgers: dict[int, LedgerState] = {}
    first, end = LEDGER_KEYS
    while rows := await index.scan(first, end, _ROWS_A_SCAN):
        for key, row in rows:
            ledger_id = ledger_of_key(key)
            ledgers[ledger_id] = decode_row(ledger_id, row)
        first = rows[-1][0] + b"\0"
    return ledgers
