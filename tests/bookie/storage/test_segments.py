"""Windows into the log: what one read fetches, what is read ahead, what goes again."""

from collections.abc import Callable

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
LIMITS = ReadLimits(window_bytes=16 << 10, first_bytes=4 << 10, windows_bytes_max=128 << 10)


class OneFile:
    """A segment of 200 records, and a note of each read of it."""

    def __init__(self) -> None:
        seed = record_seed(7)
        parts = [SegmentHeader(7).encode()]
        self.places = [SEGMENT_HEADER_BYTES + RECORD * n for n in range(200)]
        for n, place in enumerate(self.places):
            payload = bytes([n]) * PAYLOAD
            parts += [encode_record_header(seed, place, Kind.ENTRY, 1, n, payload), payload]
        self.content = b"".join(parts)
        self.reads: list[tuple[int, int]] = []
        self.fails: Callable[[int], bool] = lambda offset: False

    async def read(self, offset: int, size: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        self.reads.append((offset, size))
        if self.fails(offset):
            raise OSError("no such sector")
        return self.content[offset : offset + size]

    def close(self) -> None:
        pass


class OneFileDisk(FileDisk):
    def __init__(self, file: OneFile) -> None:
        super().__init__()
        self._file = file

    async def open_reader(self, path: str) -> Reader:
        return self._file


class Reading:
    """Somebody who reads record after record, and reads ahead as a ledger directory does."""

    def __init__(self, file: OneFile, durable: int | None = None) -> None:
        self.file = file
        self.durable = len(file.content) if durable is None else durable
        self.segments = Segments(OneFileDisk(file), [Segment(0, "log")], LIMITS)
        self.waited: list[int] = []  # records that were not at hand

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
    assert reading.waited == [0, 3]  # four kilobytes, sixteen; the rest was there
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
    """It would for ever, and after a few of these nobody would read ahead any more."""
    reading = Reading(OneFile())
    await read_all(reading, range(5))
    place = reading.file.places[100]
    async with trio.open_nursery() as nursery:  # somebody is reading that very place
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
    for start in starts:  # each reads on for a while, and then goes away
        await read_all(reading, range(start, start + 10))
    before = len(reading.file.reads)
    for start in starts:
        await reading.segments.read(reading.file.places[start + 25], PAYLOAD, reading.durable)
    read_ahead = len(starts) - (len(reading.file.reads) - before)
    assert read_ahead == LIMITS.windows_bytes_max // LIMITS.window_bytes // 4


async def read_all(reading: Reading, numbers: range) -> None:
    for n in numbers:
        await reading.read(n)
