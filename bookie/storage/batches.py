"""Sequential reads of a segment: batch by batch, in large pieces.

Recovery, compaction and the scrub read segments like this.  Damage is left out and reported; the
reader then searches for the next batch that is valid at its position.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import trio

from daybook.bookie.storage.deleted_segments import Gap
from daybook.bookie.storage.disk import Disk, Reader
from daybook.bookie.storage.records import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    SEGMENT_HEADER_BYTES,
    BatchHeader,
    Buffer,
    Record,
    SegmentHeader,
    decode_batch_header,
    decode_records,
    end_of_records,
    record_seed,
)
from daybook.bookie.storage.segments import Segment

_READ_BYTES = 1 << 20
_DECODED_BYTES = 64 << 10  # bytes decoded before other tasks get their turn


@dataclass(frozen=True, slots=True)
class Batch:
    position: int
    end: int
    header: BatchHeader
    records: list[Record]  # the readable ones
    whole: bool


class Window:
    """A segment that is read by log positions, with one piece of it in memory."""

    def __init__(self, reader: Reader, first: int, size: int) -> None:
        self.reader = reader
        self.first = first
        self.end = first + size
        self.bytes_read = 0
        self._data: Buffer = b""
        self._from = first

    async def header(self) -> SegmentHeader | None:
        return SegmentHeader.decode(await self._read(self.first, SEGMENT_HEADER_BYTES))

    async def take(self, position: int, size: int) -> memoryview:
        """Return `size` bytes at `position`; fewer at the end."""
        size = max(0, min(size, self.end - position))
        at = position - self._from
        if at < 0 or at + size > len(self._data):
            wanted = min(max(size, _READ_BYTES), self.end - position)
            self._data = await self._read(position, wanted)
            self._from, at = position, 0
        return memoryview(self._data)[at : at + size]

    async def _read(self, position: int, size: int) -> Buffer:
        data = await self.reader.read(position - self.first, size)
        self.bytes_read += len(data)
        return data

    async def find_batch(self, creation_id: int, position: int) -> int | None:
        """Return the position of the first batch at or behind `position`."""
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

    async def looks_written(self, position: int) -> bool:
        """Return True if a batch seems to follow; without a header only the magic can be seen."""
        while position < self.end:
            data = bytes(await self.take(position, _READ_BYTES))
            if BATCH_MAGIC in data:
                return True
            position += max(1, len(data) - len(BATCH_MAGIC) + 1)
        return False


async def read_batch(window: Window, creation_id: int, position: int) -> Batch | None:
    head = await window.take(position, BATCH_HEADER_BYTES)
    header = decode_batch_header(creation_id, position, head)
    if header is None:
        return None
    start = position + BATCH_HEADER_BYTES
    data = await window.take(start, header.size)
    records, whole = await _decode(record_seed(creation_id), start, data)
    whole = whole and len(data) == header.size and len(records) == header.count
    return Batch(position, start + header.size, header, records, whole)


async def _decode(seed: int, start: int, data: memoryview) -> tuple[list[Record], bool]:
    """Decode a batch in pieces: a large batch takes as long as many adds of other ledgers."""
    records: list[Record] = []
    whole = True
    at = 0
    while at < len(data):
        end = end_of_records(data, at, _DECODED_BYTES)
        some, some_whole = decode_records(seed, start + at, data[at:end])
        records += some
        whole = whole and some_whole
        at = end
        await trio.lowlevel.checkpoint()
    return records, whole


async def first_mark(disk: Disk, segment: Segment) -> int | None:
    """Return the mark of the first batch: below it the log was durable when the segment began.

    Return None if there is no valid batch at the front.
    """
    reader = await disk.open_reader(segment.path)
    try:
        data = await reader.read(0, SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES)
        header = SegmentHeader.decode(data)
        if header is None:
            return None
        position = segment.first + SEGMENT_HEADER_BYTES
        head = memoryview(data)[SEGMENT_HEADER_BYTES:]
        batch = decode_batch_header(header.creation_id, position, head)
        return None if batch is None else batch.durable
    finally:
        reader.close()


async def has_header(disk: Disk, segment: Segment) -> bool:
    """Return True if the segment has a valid header: its batches can be checked."""
    try:
        reader = await disk.open_reader(segment.path)
        try:
            header = await reader.read(0, SEGMENT_HEADER_BYTES)
        finally:
            reader.close()
    except OSError:
        return False
    return SegmentHeader.decode(header) is not None


def begins(segments: Sequence[Segment], gaps: Sequence[Gap]) -> list[int]:
    """Return where segments and gaps begin, in order; each ends where the next one begins."""
    return sorted([*(each.first for each in segments), *(gap.first for gap in gaps)])


def holes(segments: Sequence[Segment], gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    """Return the ranges of positions in which a segment is missing.

    They are at the front of the log and behind gaps: elsewhere the segment before ends too early.
    """
    firsts = begins(segments, gaps)
    ends = [0, *(gap.end for gap in gaps)]
    following = [min((first for first in firsts if first >= end), default=end) for end in ends]
    return [(end, first) for end, first in zip(ends, following, strict=True) if first > end]


async def durable_end(
    disk: Disk, segment: Segment, segments: Sequence[Segment], gaps: Sequence[Gap]
) -> int | None:
    """Return the position below which all of the segment was durable once.

    Behind it may be a torn write.  The next segment or gap names this position; there must be one.
    Return None if the next segment is unreadable.
    """
    end = min(first for first in begins(segments, gaps) if first > segment.first)
    for gap in gaps:
        if gap.first == end:
            return min(end, gap.mark)
    following = next(each for each in segments if each.first == end)
    mark = await first_mark(disk, following)
    return None if mark is None else min(end, mark)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not as they were written: positions from `start` up to `end`."""

    path: str
    start: int
    end: int
    why: str
    headless: bool = False  # the header is damaged: no record of the segment can be checked


async def scan(disk: Disk, segment: Segment, limit: int) -> AsyncGenerator[Batch | Damage]:
    """Yield the batches and damages of the segment below `limit`, where all was durable once.

    A batch that is not whole is yielded with its readable records, after its damage.  An `OSError`
    of the disk is damage, too, up to `limit`.
    """
    reached = segment.first
    headless = True
    reader: Reader | None = None
    try:
        reader = await disk.open_reader(segment.path)
        size = await disk.size(segment.path)
        window = Window(reader, segment.first, min(size, max(0, limit - segment.first)))
        header = await window.header()
        headless = header is None
        position = segment.first + SEGMENT_HEADER_BYTES
        while header is not None and position < window.end:
            batch = await read_batch(window, header.creation_id, position)
            if batch is None:
                found = await window.find_batch(header.creation_id, position)
                if found is None:
                    break
                position = found
                continue
            if batch.position > max(reached, segment.first + SEGMENT_HEADER_BYTES):
                yield Damage(segment.path, reached, batch.position, "no valid batch")
            if not batch.whole:
                yield Damage(segment.path, batch.position, batch.end, "a batch is damaged")
            yield batch
            reached = position = batch.end
        why = "no valid header" if headless else "no valid batch"
    except OSError as error:
        why = str(error)
    finally:
        if reader is not None:
            reader.close()
    if reached < limit and limit > segment.first + SEGMENT_HEADER_BYTES:
        yield Damage(segment.path, reached, limit, why, headless)
