"""Windows into the log: the size of a read, read-ahead, and eviction."""

from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing

from daybook.bookie.storage.disk import Buffer, FileDisk, Reader
from daybook.bookie.storage.records import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Kind,
    SegmentHeader,
    encode_record_header,
    record_seed,
)
from daybook.bookie.storage.segments import ReadLimits, Segment, Segments
from daybook.bookie.storage.status import StoreError

PAYLOAD = 1000
RECORD = RECORD_HEADER_BYTES + PAYLOAD
LIMITS = ReadLimits(
    window_bytes=16 << 10, first_bytes=4 << 10, windows_bytes_max=128 << 10, piece_bytes=500
)


class OneFile:
    """A segment of 200 records that notes each read of it."""

    def __init__(self) -> None:
        seed = record_seed(7)
        parts = [SegmentHeader(7).encode()]
        self.places = [SEGMENT_HEADER_BYTES + RECORD * n for n in range(200)]
        for n, place in enumerate(self.places):
            payload = bytes([n]) * PAYLOAD
            parts += [encode_record_header(seed, place, Kind.ENTRY, 1, n, payload), payload]
        self.content = b"".join(parts)
        self.reads: list[tuple[int, int]] = []
        self.fetches = 0
        self.stuck: trio.Event | None = None  # reads wait for it
        self.fails: Callable[[int], bool] = lambda offset: False

    async def read(self, offset: int, size: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        if self.stuck is not None:
            await self.stuck.wait()
        if offset:  # The header is read once, for the checksums.
            self.reads.append((offset, size))
        if self.fails(offset):
            raise OSError("no such sector")
        return self.content[offset : offset + size]

    async def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        self.fetches += 1
        return [await self.read(offset, size) for offset, size in pieces]

    def close(self) -> None:
        pass


class OneFileDisk(FileDisk):
    def __init__(self, file: OneFile) -> None:
        super().__init__()
        self._file = file

    async def open_reader(self, path: str) -> Reader:
        return self._file


class Reading:
    """A reader of one record after the other that reads ahead as a volume does."""

    def __init__(self, file: OneFile, durable: int | None = None) -> None:
        self.file = file
        self.durable = len(file.content) if durable is None else durable
        self.segments = Segments(OneFileDisk(file), [Segment(0, "log")], LIMITS)
        self.waited: list[int] = []  # records that were not cached

    async def fetch(self, *numbers: int) -> None:
        records = [(self.file.places[n], PAYLOAD) for n in numbers]
        await self.segments.fetch(records, self.durable)

    def has(self, n: int) -> bool:
        return self.segments.try_read(self.file.places[n], PAYLOAD) is not None

    async def read(self, n: int) -> None:
        place = self.file.places[n]
        record = self.segments.try_read(place, PAYLOAD)
        if record is None:
            before = len(self.file.reads)
            record = await self.segments.read(place, PAYLOAD, self.durable)
            if len(self.file.reads) > before:
                self.waited.append(n)
            ahead = self.segments.read_ahead_position(place, PAYLOAD, self.durable)
            if ahead is not None:
                await self.segments.read_ahead(ahead, self.durable)
        assert bytes(record.payload) == bytes([n]) * PAYLOAD


async def test_who_reads_on_waits_for_no_window_but_the_first_ones() -> None:
    reading = Reading(OneFile())
    for n in range(150):
        await reading.read(n)
    assert reading.waited == [0, 3]  # four kilobytes, sixteen; the rest was cached
    assert sum(size for _, size in reading.file.reads) < 1.3 * 150 * RECORD


async def test_who_does_not_read_on_reads_no_more_than_before() -> None:
    reading = Reading(OneFile())
    for n in (190, 150, 100, 50, 5):
        await reading.read(n)
    assert all(size <= LIMITS.first_bytes for _, size in reading.file.reads)


async def test_an_error_of_what_nobody_has_asked_for_is_told_to_who_asks() -> None:
    reading = Reading(OneFile())
    for n in range(20):
        await reading.read(n)
    behind = reading.file.places[40]
    reading.file.fails = lambda offset: offset > behind
    for n in range(20, 40):
        await reading.read(n)
    with pytest.raises(StoreError, match="no such sector"):
        await read_all(reading, range(40, 60))
    reading.file.fails = lambda offset: False
    await read_all(reading, range(40, 60))


async def test_what_was_not_read_ahead_does_not_count_as_if_it_were() -> None:
    """Such a count would stay forever, and after a few of these read-ahead would stop."""
    reading = Reading(OneFile())
    await read_all(reading, range(5))
    place = reading.file.places[100]
    async with trio.open_nursery() as nursery:  # another task is reading that very place
        nursery.start_soon(reading.segments.read, reading.file.places[99], PAYLOAD, 1 << 20)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(5):
            nursery.start_soon(reading.segments.read_ahead, place, 1 << 20)
    with trio.CancelScope() as scope:
        scope.cancel()
        await reading.segments.read_ahead(reading.file.places[150], 1 << 20)
    reading.waited.clear()
    await read_all(reading, range(5, 90))
    assert reading.waited == []


async def test_nothing_that_is_not_durable_is_read_ahead() -> None:
    file = OneFile()
    reading = Reading(file, durable=file.places[60])
    for n in range(60):
        await reading.read(n)
    assert max(offset + size for offset, size in file.reads) <= file.places[60]


async def test_what_is_read_ahead_for_nobody_is_bounded() -> None:
    reading = Reading(OneFile())
    starts = (120, 60, 0)
    for start in starts:  # each reads on for a while, and then stops
        await read_all(reading, range(start, start + 10))
    before = len(reading.file.reads)
    for start in starts:
        await reading.segments.read(reading.file.places[start + 25], PAYLOAD, reading.durable)
    read_ahead = len(starts) - (len(reading.file.reads) - before)
    assert read_ahead == LIMITS.windows_bytes_max // LIMITS.window_bytes // 4


async def read_all(reading: Reading, numbers: range) -> None:
    for n in numbers:
        await reading.read(n)


async def test_records_with_others_between_them_are_read_together_and_without_these() -> None:
    reading = Reading(OneFile())
    await reading.fetch(40, 10, 11, 25)
    assert reading.file.fetches == 1
    assert sum(size for _, size in reading.file.reads) == 4 * RECORD
    assert all(map(reading.has, (10, 11, 25, 40)))
    assert not any(map(reading.has, (9, 12, 24, 41)))
    await reading.fetch(10, 25, 40, 60, 80)
    assert len(reading.file.reads) == 3 + 2, "what is in memory is not read again"


async def test_few_records_beside_each_other_are_left_to_a_window_and_many_are_not() -> None:
    reading = Reading(OneFile())
    await reading.fetch(10, 11, 12)
    assert reading.file.reads == []
    await reading.fetch(*range(10, 20))
    assert reading.file.reads == [(reading.file.places[10], 10 * RECORD)]


async def test_a_fetch_reads_nothing_that_is_not_durable() -> None:
    file = OneFile()
    reading = Reading(file, durable=file.places[40])
    await reading.fetch(10, 20, 30, 40)
    assert max(offset + size for offset, size in file.reads) == file.places[31]


async def test_an_error_of_a_fetch_is_left_to_the_read_of_the_record() -> None:
    reading = Reading(OneFile())
    reading.file.fails = lambda offset: offset == reading.file.places[20]
    await reading.fetch(10, 20, 30)
    await reading.read(10)
    with pytest.raises(StoreError, match="no such sector"):
        await reading.read(20)
    reading.file.fails = lambda offset: False
    await reading.fetch(10, 20, 30)
    assert reading.has(20)


async def test_a_damaged_record_that_was_fetched_is_an_error() -> None:
    reading = Reading(OneFile())
    at = reading.file.places[20] + RECORD - 1
    reading.file.content = reading.file.content[:at] + b"?" + reading.file.content[at + 1 :]
    await reading.fetch(10, 20, 30)
    assert reading.has(10)
    with pytest.raises(StoreError, match="damaged"):
        reading.has(20)


async def test_who_wants_a_record_that_is_being_fetched_waits_for_it() -> None:
    reading = Reading(OneFile())
    reading.file.stuck = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading.fetch, 10, 20, 30)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(reading.read, 20)
        nursery.start_soon(reading.fetch, 10, 20, 30)
        await trio.testing.wait_all_tasks_blocked()
        reading.file.stuck.set()
    assert len(reading.file.reads) == 3


async def test_a_fetched_record_hides_no_window_around_it() -> None:
    reading = Reading(OneFile())
    await reading.fetch(51, 60)
    await reading.segments.read(reading.file.places[50], PAYLOAD, reading.durable)
    assert all(map(reading.has, (50, 51, 52)))
