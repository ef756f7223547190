"""Boot: what the log holds behind the last checkpoint, and whether all of it is still there.

`replay` hands every record that was certainly durable to `apply`, in order, and reads nothing
below the checkpoint.  How it tells a torn tail from a loss:

- Each batch says below which position the log was durable when it was written, and so does the
  checkpoint.  If the bytes up to such a *mark* are not all there and whole, records were **lost**:
  that may have been anybody's entry, or a fence.  The caller must then answer *unknown* to
  whatever it does not find (limbo).  What is still readable in between is applied.
- Behind the last mark there may be one batch.  If it is not whole, nobody was told of it: it is
  left where it is, and ignored from now on, since the next segment's first batch names a mark
  below it.  If it is whole, it may have been acknowledged, and it may also be in the page cache
  only, even after a sync that failed.  These records are **doubtful**: the caller appends them
  once more, in one batch, the first of the new segment.

A segment without a whole first batch does not exist: it is written in one go with that batch.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bookie.storage.disk import Disk, Reader
from bookie.storage.records import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    SEGMENT_HEADER_BYTES,
    BatchFlag,
    BatchHeader,
    Buffer,
    Record,
    SegmentHeader,
    decode_batch_header,
    decode_records,
    record_seed,
)
from bookie.storage.segments import Segment

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Replayed:
    segments: list[Segment]
    mark: int = 0  # the last one
    end: int = 0  # behind every byte of every segment
    creation_id: int = 0  # the highest in use
    doubtful: list[Record] = field(default_factory=list[Record])
    clean: bool = True  # there was nothing to apply, or an end mark behind it
    losses: list[str] = field(default_factory=list[str])
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    position: int
    end: int
    header: BatchHeader
    records: list[Record]  # those that can be read
    whole: bool


async def replay(
    disk: Disk,
    directory: str,
    checkpoint: int,
    apply: Callable[[Record], None],
    applied: Callable[[Replayed], Awaitable[None]],
) -> Replayed:
    """Read what is behind `checkpoint`.

    `applied` is called every now and then: everything below `mark` has been applied.
    """
    segments = [
        Segment(int(match[1]), f"{directory}/{name}")
        for name in await disk.list_directory(directory)
        if (match := _SEGMENT_NAME.fullmatch(name))
    ]
    result = Replayed(segments, end=checkpoint)
    walk = _Walk(apply, applied, result)
    result.mark = checkpoint
    inside = sum(segment.first < checkpoint for segment in segments) - 1  # it ends there
    for number, segment in enumerate(segments):
        size = await disk.size(segment.path)
        result.end = max(result.end, segment.first + max(size, SEGMENT_HEADER_BYTES))
        if number < inside:
            continue
        start = checkpoint if number == inside else segment.first
        if start - segment.first > size:
            continue  # cut off below the checkpoint: the walk will miss it
        window = _Window(await disk.open_reader(segment.path), segment.first, size, result)
        try:
            await walk.segment(window, start)
        except OSError as error:
            result.losses.append(f"{segment.path}: {error}")
        finally:
            window.reader.close()
    walk.finish()
    return result


class _Window:
    """A segment by positions, read in large pieces."""

    def __init__(self, reader: Reader, first: int, size: int, result: Replayed) -> None:
        self.reader = reader
        self.first = first
        self.end = first + size
        self._result = result
        self._data: Buffer = b""
        self._from = first

    async def header(self) -> SegmentHeader | None:
        return SegmentHeader.decode(await self._read(self.first, SEGMENT_HEADER_BYTES))

    async def take(self, position: int, size: int) -> memoryview:
        """The bytes there; fewer at the end."""
        size = max(0, min(size, self.end - position))
        at = position - self._from
        if at < 0 or at + size > len(self._data):
            wanted = min(max(size, _READ_BYTES), self.end - position)
            self._data = await self._read(position, wanted)
            self._from, at = position, 0
        return memoryview(self._data)[at : at + size]

    async def _read(self, position: int, size: int) -> Buffer:
        data = await self.reader.read(position - self.first, size)
        self._result.bytes_read += len(data)
        return data

    async def find_batch(self, creation_id: int, position: int) -> int | None:
        """The first batch at or behind `position`."""
        while position + BATCH_HEADER_BYTES <= self.end:
            data = bytes(await self.take(position, _READ_BYTES))
            at = data.find(BATCH_MAGIC)
            while at >= 0:
                head = await self.take(position + at, BATCH_HEADER_BYTES)
                if decode_batch_header(creation_id, position + at, head):
                    return position + at
                at = data.find(BATCH_MAGIC, at + 1)
            position += max(1, len(data) - len(BATCH_MAGIC) + 1)
        return None


class _Walk:
    """Follows the marks from batch to batch."""

    def __init__(
        self,
        apply: Callable[[Record], None],
        applied: Callable[[Replayed], Awaitable[None]],
        result: Replayed,
    ) -> None:
        self._apply = apply
        self._applied = applied
        self._result = result
        self._reached = 0  # up to here every byte was found, or reported lost
        self._tail: list[_Batch] = []  # behind the last mark

    async def segment(self, window: _Window, start: int) -> None:
        header = await window.header()
        if header is None:
            return  # if it ever was one, a later mark tells
        self._result.creation_id = max(self._result.creation_id, header.creation_id)
        position = window.first + SEGMENT_HEADER_BYTES
        if start > window.first:
            self._reached = position = start
        while position < window.end:
            batch = await _read_batch(window, header.creation_id, position)
            if batch is not None:
                self._meet(batch)
                position = batch.end
                await self._applied(self._result)
                continue
            found = await window.find_batch(header.creation_id, position)
            if found is None:
                return
            position = found

    def _meet(self, batch: _Batch) -> None:
        # The mark of a torn batch is true as well, but only a whole one takes the place of what
        # an earlier segment has behind that mark.
        mark = batch.header.durable
        self._confirm(mark)
        self._tail = [] if batch.whole else [b for b in self._tail if b.position >= mark]
        self._tail.append(batch)
        self._result.clean = bool(batch.header.flags & BatchFlag.END)
        if batch.whole:
            self._reached = batch.end

    def _confirm(self, mark: int) -> None:
        """Everything below the mark was durable once."""
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


async def _read_batch(window: _Window, creation_id: int, position: int) -> _Batch | None:
    head = await window.take(position, BATCH_HEADER_BYTES)
    header = decode_batch_header(creation_id, position, head)
    if header is None:
        return None
    start = position + BATCH_HEADER_BYTES
    data = await window.take(start, header.size)
    records, whole = decode_records(record_seed(creation_id), start, data)
    whole = whole and len(data) == header.size and len(records) == header.count
    return _Batch(position, start + header.size, header, records, whole)
