"""The segments of a log, and reads of records by position.

A disk read costs a thread, so sequential reads are served from *windows*, pieces of up to four
megabytes that one read fetched.  Windows are bounded and hold durable bytes only, which never
change.  A record is a view into its window and keeps it alive.  While a sequential reader is sent
the records of one window, the next window is read.

Large records of one ledger, with records of others between them, are read without these: one thread
reads all of them (`fetch`), and each is a window of its own.

A record that is not as it was written is an IO_ERROR, never an absence.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from daybook.bookie.storage.disk import Disk, Reader
from daybook.bookie.storage.records import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
    decode_record,
    record_seed,
)
from daybook.bookie.storage.status import StoreError, StoreStatus

_NEAR_BYTES = 1 << 20  # a reader that skips less is sequential: other ledgers lie in between
_GROWTH = 4  # the factor by which the windows of a sequential reader grow
_OVERLAPS_MAX = 8  # windows in front of a position that are searched for it
_AHEAD_SHARE = 4  # at most one window in so many was read ahead and is unused


@dataclass(frozen=True, slots=True)
class ReadLimits:
    readers_max: int = 64  # open segments
    window_bytes: int = 4 << 20  # the largest window, for sequential readers
    first_bytes: int = 64 << 10  # the window of any other read
    windows_bytes_max: int = 32 << 20
    piece_bytes: int = 64 << 10  # To read so much costs as much as to begin another read.


@dataclass(frozen=True, slots=True)
class Segment:
    first: int
    path: str


@dataclass(slots=True)
class _Loading:
    start: int
    end: int
    done: trio.Event


class Segments:
    """All segments, in order; the last one may be growing."""

    def __init__(self, disk: Disk, segments: list[Segment], limits: ReadLimits) -> None:
        self._disk = disk
        self._limits = limits
        self._segments = segments
        self._firsts = [segment.first for segment in segments]
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        self._seeds: dict[int, int] = {}
        self._windows = _Windows(limits.windows_bytes_max)
        self._loading: list[_Loading] = []
        self._ahead: set[int] = set()  # starts of windows that were read ahead and are unused

    def add(self, segment: Segment, creation_id: int) -> None:
        self._segments.append(segment)
        self._firsts.append(segment.first)
        self._seeds[segment.first] = record_seed(creation_id)

    def forget(self, segment: Segment) -> None:
        """Drop a segment that is about to be deleted.  Reads under way end normally."""
        self._segments.remove(segment)
        self._firsts.remove(segment.first)
        self._seeds.pop(segment.first, None)
        reader = self._readers.pop(segment.first, None)
        if reader is not None:
            reader.close()

    def all(self) -> list[Segment]:
        return list(self._segments)

    def try_read(self, position: int, size: int) -> Record | None:
        """Return the record at `position`, with `size` payload bytes, if it is in a window.

        The first read in a window that was read ahead gets None: `read` then reads on ahead.
        """
        if self._ahead and self._windows.start_of(position) in self._ahead:
            return None
        return self._find(position, size)

    def _find(self, position: int, size: int) -> Record | None:
        data = self._windows.find(position, RECORD_HEADER_BYTES + size)
        if data is None:
            return None
        seed = self._seeds.get(self._first_of(position))
        return None if seed is None else _checked(seed, position, size, data)

    async def read(self, position: int, size: int, durable: int) -> Record:
        """Return the record, from the disk if need be.  The log is durable below `durable`."""
        try:
            while (record := self._find(position, size)) is None:
                await self._load(position, RECORD_HEADER_BYTES + size, durable)
        except OSError as error:
            raise StoreError(StoreStatus.IO_ERROR, str(error)) from error
        return record

    def read_ahead_position(self, position: int, size: int, durable: int) -> int | None:
        """Return where to `read_ahead` after a read of this record; None if there is no need."""
        start = self._windows.start_of(position)
        self._ahead.discard(start)
        limits = self._limits
        end = start + limits.window_bytes
        if self._windows.size_of(start) != limits.window_bytes:
            return None  # no sequential reader, or the last window of a segment
        if len(self._ahead) >= limits.windows_bytes_max // limits.window_bytes // _AHEAD_SHARE:
            return None
        # The next window overlaps by one record, since the end may cut a record in two.
        at = end - (RECORD_HEADER_BYTES + size)
        try:
            room = self._end_of(self._first_of(position), durable) - at
        except StoreError:
            return None
        known = self._windows.start_of(end) > start or any(
            loading.start <= end < loading.end for loading in self._loading
        )
        return None if known or room < limits.window_bytes else at

    async def read_ahead(self, position: int, durable: int) -> None:
        """Read the window that begins at `position`.  An error is left for the next read of it."""
        self._ahead.add(position)
        try:
            with suppress(OSError, StoreError):
                await self._load(position, RECORD_HEADER_BYTES, durable)
        finally:
            if not self._windows.size_of(position):  # The bytes are in another window, or in none.
                self._ahead.discard(position)

    async def fetch(self, records: Sequence[tuple[int, int]], durable: int) -> None:
        """Read records into memory, in any order, without what lies between them.

        Nothing is done if they are few and lie close to each other: a window has them, and those
        that come next.  An error is left for the `read` of the record.
        """
        first, missing = -1, list[tuple[int, int]]()  # segment; start and end of each record
        with suppress(StoreError):
            for position, size in sorted(records):
                end = position + RECORD_HEADER_BYTES + size
                if self._windows.find(position, end - position) is not None:
                    continue
                if self._is_loading(position, end) is not None:
                    continue
                if first < 0:
                    first = self._first_of(position)
                if end > self._end_of(first, durable):
                    break  # The records of the next segment are fetched by another call.
                missing.append((position, end))
        wanted = sum(end - start for start, end in missing)
        if not missing or (
            wanted * 3 > (missing[-1][1] - missing[0][0]) * 2
            and wanted * 4 < self._limits.window_bytes
        ):
            return
        with suppress(OSError, StoreError):
            await self._load_pieces(first, _joined(missing, self._limits.piece_bytes))

    async def is_readable(self, position: int, size: int) -> bool:
        """Return True if the record is whole on the disk itself; windows are not used."""
        try:
            first = self._first_of(position)
            reader = await self._reader(first)
            data = memoryview(await reader.read(position - first, RECORD_HEADER_BYTES + size))
        except (OSError, StoreError):
            return False
        seed = self._seeds.get(first)  # None if the segment was deleted meanwhile
        record = None if seed is None else decode_record(seed, position, data)
        return record is not None and len(record.payload) == size

    async def _load(self, position: int, size: int, durable: int) -> None:
        """Read a window that holds these bytes; one disk read serves all waiting callers."""
        if (under_way := self._is_loading(position, position + size)) is not None:
            await under_way.done.wait()
            return
        first = self._first_of(position)
        end = min(position + self._wanted(position, size), self._end_of(first, durable))
        loading = _Loading(position, end, trio.Event())
        self._loading.append(loading)
        try:
            reader = await self._reader(first)
            try:
                data = memoryview(await reader.read(position - first, end - position))
            except OSError:  # the damage may be behind the wanted record
                data = memoryview(await reader.read(position - first, size))
            if len(data) < size:
                raise OSError(f"the log ends at {position + len(data)}, inside a record")
            self._ahead.difference_update(self._windows.add(position, data))
        finally:
            self._loading.remove(loading)
            loading.done.set()

    def _is_loading(self, start: int, end: int) -> _Loading | None:
        """Return the read under way that holds these positions."""
        for loading in self._loading:
            if loading.start <= start and end <= loading.end:
                return loading
        return None

    async def _load_pieces(self, first: int, pieces: Sequence[tuple[int, int]]) -> None:
        """Read pieces of one segment, from a start to an end, each as a window."""
        under_way = [_Loading(start, end, trio.Event()) for start, end in pieces]
        self._loading += under_way
        try:
            reader = await self._reader(first)
            found = await reader.read_pieces(
                [(start - first, end - start) for start, end in pieces]
            )
            for (start, end), data in zip(pieces, found, strict=True):
                if len(data) == end - start:
                    self._ahead.difference_update(self._windows.add(start, memoryview(data)))
        finally:
            for loading in under_way:
                self._loading.remove(loading)
                loading.done.set()

    def _wanted(self, position: int, size: int) -> int:
        """Return the window size: it grows for a sequential reader, so that many share memory."""
        limits = self._limits
        last = self._windows.ends_near(position, _NEAR_BYTES)
        for loading in self._loading:
            if 0 <= position - loading.end <= _NEAR_BYTES:
                last = max(last, loading.end - loading.start)
        return max(size, min(_GROWTH * last, limits.window_bytes), limits.first_bytes)

    def _first_of(self, position: int) -> int:
        index = bisect_right(self._firsts, position) - 1
        if index < 0:
            raise StoreError(StoreStatus.IO_ERROR, f"no segment holds position {position}")
        return self._firsts[index]

    def _end_of(self, first: int, durable: int) -> int:
        index = bisect_right(self._firsts, first)
        return self._firsts[index] if index < len(self._firsts) else durable

    async def _reader(self, first: int) -> Reader:
        opened = self._readers.get(first)
        if opened is not None:
            self._readers.move_to_end(first)
            return opened
        segment = self._segments[bisect_right(self._firsts, first) - 1]
        reader = await self._disk.open_reader(segment.path)
        try:
            seed = self._seeds.get(first) or await _seed_of(reader, segment.path)
        except BaseException:
            reader.close()
            raise
        if first not in self._firsts:
            reader.close()  # an open file would keep its disk space after the removal
            raise OSError(f"{segment.path} was deleted")
        if first in self._readers:  # another task has opened it meanwhile
            reader.close()
            return self._readers[first]
        self._seeds[first] = seed
        self._readers[first] = reader
        while len(self._readers) > self._limits.readers_max:
            self._readers.popitem(last=False)[1].close()
        return reader

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


class _Windows:
    """Pieces of the log in memory; the least recently used one is dropped first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._starts: list[int] = []  # sorted
        self._by_start: OrderedDict[int, memoryview] = OrderedDict()

    def find(self, position: int, size: int) -> memoryview | None:
        at = bisect_right(self._starts, position) - 1
        # The last window that begins before the position may be a small one inside of another.
        for start in reversed(self._starts[max(0, at + 1 - _OVERLAPS_MAX) : at + 1]):
            window = self._by_start[start]
            offset = position - start
            if offset + size <= len(window):
                self._by_start.move_to_end(start)
                return window[offset : offset + size]
        return None

    def start_of(self, position: int) -> int:
        """Return the start of the last window that begins at or before this position, or -1."""
        at = bisect_right(self._starts, position) - 1
        return self._starts[at] if at >= 0 else -1

    def size_of(self, start: int) -> int:
        """Return the size of the window that begins at `start`; 0 if there is none."""
        window = self._by_start.get(start)
        return 0 if window is None else len(window)

    def ends_near(self, position: int, distance: int) -> int:
        """Return the size of the window that ends at most `distance` before `position`, or 0."""
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return 0
        start = self._starts[at]
        size = len(self._by_start[start])
        return size if position - start - size <= distance else 0

    def add(self, start: int, data: memoryview) -> list[int]:
        """Add a window; return the starts of the windows that were dropped for it."""
        old = self._by_start.pop(start, None)
        if old is None:
            insort(self._starts, start)
        else:
            self._bytes -= len(old)
        self._by_start[start] = data
        self._bytes += len(data)
        gone: list[int] = []
        while self._bytes > self._bytes_max and len(self._by_start) > 1:
            start, data = self._by_start.popitem(last=False)
            self._bytes -= len(data)
            del self._starts[bisect_right(self._starts, start) - 1]
            gone.append(start)
        return gone


def _joined(records: Sequence[tuple[int, int]], gap_max: int) -> list[tuple[int, int]]:
    """Join records with at most `gap_max` bytes between them.  They are sorted, start and end."""
    joined = [records[0]]
    for start, end in records[1:]:
        if start - joined[-1][1] <= gap_max:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


async def _seed_of(reader: Reader, path: str) -> int:
    """Return the checksum seed of a segment's records, by its header."""
    header = SegmentHeader.decode(await reader.read(0, SEGMENT_HEADER_BYTES))
    if header is None:
        raise StoreError(StoreStatus.IO_ERROR, f"{path} has no valid header")
    return record_seed(header.creation_id)


def _checked(seed: int, position: int, size: int, data: memoryview) -> Record:
    record = decode_record(seed, position, data)
    if record is None or len(record.payload) != size:
        raise StoreError(StoreStatus.IO_ERROR, f"the record at {position} is damaged")
    return record
