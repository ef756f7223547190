"""Recovery at a start: the log is read from the last checkpoint on and checked for losses.

`replay` hands every record that was certainly durable to `apply`, in order, and reads nothing
below the checkpoint.  It tells a torn tail from a loss as follows:

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
Segments that were removed on purpose (`deleted_segments`) are gaps, not losses.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from daybook.bookie.storage.batches import Batch, Window, read_batch
from daybook.bookie.storage.deleted_segments import Gap
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.records import SEGMENT_HEADER_BYTES, BatchFlag, Record
from daybook.bookie.storage.segments import Segment

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")


@dataclass(slots=True)
class ReplayResult:
    segments: list[Segment]
    mark: int = 0  # the last mark
    end: int = 0  # behind every byte of every segment
    reached: int = 0  # the end of the last whole batch; zeros may follow up to `end`
    creation_id: int = 0  # the highest in use
    doubtful: list[Record] = field(default_factory=list[Record])
    clean: bool = True  # the log ends with an end mark, or had nothing to apply
    losses: list[str] = field(default_factory=list[str])
    bytes_read: int = 0


async def list_segments(disk: Disk, directory: str) -> list[Segment]:
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
    # The mark of the first batch behind a gap may lie in the removed segments in front of it.
    removed = [gap.end for gap in gaps if gap.first < checkpoint < gap.end]
    walk = _LogReplay(apply, applied, result, reached=max(removed, default=0))
    result.mark = checkpoint
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
            walk.gap(ahead.popleft())
        start = max(checkpoint, segment.first)
        if start - segment.first > size:
            continue  # cut off below the checkpoint: the next mark reports the loss
        window = Window(await disk.open_reader(segment.path), segment.first, size)
        try:
            await walk.segment(window, start)
        except OSError as error:
            result.losses.append(f"{segment.path}: {error}")
        finally:
            window.reader.close()
            result.bytes_read += window.bytes_read
    for gap in ahead:
        walk.gap(gap)
    if end is not None:
        result.mark = max(result.mark, end)
    walk.finish()
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

    async def segment(self, window: Window, start: int) -> None:
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
                self._meet(batch)
                position = batch.end
                await self._applied(self._result)
                continue
            found = await window.find_batch(header.creation_id, position)
            if found is None:
                return
            position = found

    def gap(self, gap: Gap) -> None:
        """Pass over removed segments; the mark of the first one is kept with the gap."""
        self._confirm(gap.mark)
        self._tail = []
        self._reached = max(self._reached, gap.end)

    def _meet(self, batch: Batch) -> None:
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
            self._reached = mark
        for batch in self._tail:
            if batch.position < mark:
                for record in batch.records:
                    self._apply(record)
        self._result.mark = max(self._result.mark, mark)

    def finish(self) -> None:
        self._confirm(self._result.mark)
        for batch in self._tail:
            if batch.whole and batch.position >= self._result.mark:
                self._result.doubtful = batch.records
        self._result.reached = self._reached
