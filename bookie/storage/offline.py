"""Work on a directory that no bookie uses: check it, rebuild its index, export its entries.

The functions work on the files of this machine and lock the directory (`DirectoryInUseError`).  The
check and the export change no file.  A rebuild writes the new index beside the old one, which is
removed when the file INDEX names the new one (`rebuild`).  If the directory does not allow a
command, the function raises an `OfflineError` that says why.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from daybook.bookie.storage.batches import Damage, begins, durable_end, holes, scan
from daybook.bookie.storage.directory_runner import log_directory
from daybook.bookie.storage.disk import Buffer, DirectoryInUseError, Disk, FileDisk, Reader
from daybook.bookie.storage.entry_locations import EntryLocations, Lookup
from daybook.bookie.storage.index import IndexStore, open_rocks_index, view_rocks_index
from daybook.bookie.storage.markers import is_dirty
from daybook.bookie.storage.rebuild import (
    IndexRecord,
    next_name,
    read_index_record,
    remove_others,
    write_index_record,
)
from daybook.bookie.storage.records import RECORD_HEADER_BYTES, Kind, UnsupportedVersionError
from daybook.bookie.storage.recovery import Contents, ReplayResult, load
from daybook.bookie.storage.segments import ReadLimits, Segment, Segments
from daybook.bookie.storage.status import StoreError

__all__ = [
    "CheckReport",
    "DirectoryInUseError",
    "ExportedEntry",
    "OfflineError",
    "StoreError",
    "UnsupportedVersionError",
    "check_directory",
    "export_entries",
    "log_bytes",
    "remake_index",
]

Progress = Callable[[int], None]  # gets the number of bytes read since the last call

_CHECKPOINT_ENTRIES = 500_000
_NEVER = 1 << 62


class OfflineError(Exception):
    """The directory does not allow the command; the message says why."""


@dataclass(slots=True)
class CheckReport:
    """The contents of a directory, and its problems, if any."""

    ledgers: int = 0
    deleted: int = 0
    fenced: int = 0
    entries: int = 0
    live_bytes: int = 0
    log_bytes: int = 0
    segments: int = 0
    clean_stop: bool = True
    limbo: bool = False
    problems: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """`data` is None if the entry cannot be read; then `error` says why."""

    ledger_id: int
    entry_id: int
    data: bytes | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Opened:
    disk: Disk
    contents: Contents
    replayed: ReplayResult


def log_bytes(directory: Path) -> int:
    """Return the size of the log."""
    return sum(path.stat().st_size for path in (directory / "log").glob("*.log"))


async def check_directory(directory: Path, progress: Progress) -> CheckReport:
    """Read the whole log, and compare it with the index."""
    async with _locked(directory, progress) as disk, _index(directory) as index:
        opened = await _load(disk, directory, index, checkpoint_entries=_NEVER)
        contents, replayed = opened.contents, opened.replayed
        report = CheckReport(
            ledgers=sum(not state.deleted for state in contents.ledgers.values()),
            deleted=sum(state.deleted for state in contents.ledgers.values()),
            fenced=sum(state.fenced for state in contents.ledgers.values() if not state.deleted),
            log_bytes=log_bytes(directory),
            segments=len(replayed.segments),
            clean_stop=replayed.clean,
            limbo=contents.limbo,
        )
        report.problems += replayed.losses
        if contents.limbo and not replayed.losses:
            report.problems.append("records were lost before: what is absent is unknown here")
        if await is_dirty(disk, str(directory)):
            report.problems.append(
                "the last stop was not clean, and adds had been acknowledged before their sync:"
                " what is absent may be lost"
            )
        if limbo := [each for each in contents.ledgers.values() if each.limbo]:
            report.problems.append(f"{len(limbo)} ledgers are in limbo: they may lack entries")
        for start, end in holes(replayed.segments, contents.gaps):
            lost = len(await contents.locations.indexed_entries(start, end))
            where = f"positions {start} to {end}"
            report.problems.append(f"a segment is gone: {where}, with {lost} entries")
        report.entries = contents.locations.recent_entries  # behind the last checkpoint
        for segment in replayed.segments:
            await _check_segment(opened, segment, report)
        return report


async def remake_index(directory: Path, progress: Progress) -> list[str]:
    """Rebuild the index from the log alone; return the losses of the log.

    A bookie that had found its index damaged was in doubt.  The new index keeps it in doubt.
    """
    async with _locked(directory, progress) as disk:
        record = await read_index_record(disk, str(directory))
        await remove_others(disk, str(directory), record.name)
        name = await next_name(disk, str(directory), record)
        async with open_rocks_index(str(directory / name)) as index:
            opened = await _load(disk, directory, index, checkpoint_entries=_CHECKPOINT_ENTRIES)
            contents, replayed = opened.contents, opened.replayed
            limbo = contents.limbo or record.damaged
            await contents.locations.checkpoint(replayed.mark, limbo=limbo)
        await write_index_record(disk, str(directory), IndexRecord(name, damaged=False))
        await remove_others(disk, str(directory), name)
        return replayed.losses


async def export_entries(
    directory: Path, progress: Progress, ledger_ids: frozenset[int] = frozenset()
) -> AsyncGenerator[ExportedEntry]:
    """Yield the entries of these ledgers or of all, in order, with the doubtful ones."""
    async with _locked(directory, progress) as disk, _index(directory) as index:
        opened = await _load(disk, directory, index, checkpoint_entries=_NEVER)
        contents, replayed = opened.contents, opened.replayed
        for record in replayed.doubtful:
            contents.apply(record, record.position)
        segments = Segments(disk, replayed.segments, ReadLimits())
        try:
            for ledger_id in sorted(ledger_ids or contents.ledgers):
                state = contents.ledgers.get(ledger_id)
                if state is None or state.deleted:
                    continue
                for entry_id in await contents.locations.entry_ids(state, below=_NEVER):
                    location = await contents.locations.find(state, entry_id)
                    if location is None:
                        continue
                    try:
                        record = await segments.read(*location, replayed.end)
                    except StoreError as error:
                        yield ExportedEntry(ledger_id, entry_id, None, str(error))
                        continue
                    found = (record.kind, record.ledger_id, record.entry_id)
                    if found == (Kind.ENTRY, ledger_id, entry_id):
                        yield ExportedEntry(ledger_id, entry_id, bytes(record.payload))
                    else:
                        why = f"the index points to a {record.kind.name}"
                        yield ExportedEntry(ledger_id, entry_id, None, why)
        finally:
            segments.close()


# ---- the directory


@asynccontextmanager
async def _locked(directory: Path, progress: Progress) -> AsyncGenerator[Disk]:
    if not (directory / "log").is_dir():
        raise OfflineError(f"{directory} has no log: it is not a directory of a bookie")
    disk = _CountingDisk(progress)
    lock = await disk.lock_directory(str(directory))
    try:
        yield disk
    finally:
        lock.release()


@asynccontextmanager
async def _index(directory: Path) -> AsyncGenerator[IndexStore]:
    record = await read_index_record(FileDisk(), str(directory))
    if record.damaged:
        raise OfflineError(
            f"the index of {directory} is damaged, as its bookie has found: a start of the bookie,"
            " or rebuild-index, makes it again from the log"
        )
    if not (directory / record.name / "CURRENT").is_file():  # RocksDB's pointer to all the rest
        raise OfflineError(
            f"{directory} has no index: a start of the bookie, or rebuild-index, makes it again"
        )
    async with view_rocks_index(str(directory / record.name)) as index:
        yield index


async def _load(
    disk: Disk, directory: Path, index: IndexStore, *, checkpoint_entries: int
) -> _Opened:
    locations = EntryLocations(index, blocks_cached=2048)
    log = log_directory(str(directory))
    contents, replayed = await load(
        disk, log, index, locations, checkpoint_entries=checkpoint_entries, finish=False
    )
    return _Opened(disk, contents, replayed)


async def _check_segment(opened: _Opened, segment: Segment, report: CheckReport) -> None:
    """Check that each record is whole, and that the segment has all that the index expects."""
    disk, locations = opened.disk, opened.contents.locations
    segments, gaps = opened.replayed.segments, opened.contents.gaps
    behind = [first for first in begins(segments, gaps) if first > segment.first]
    try:
        limit = await durable_end(disk, segment, segments, gaps) if behind else opened.replayed.mark
    except OSError:
        limit = None
    found = entries = 0
    lookup = Lookup(locations)
    async with aclosing(scan(disk, segment, behind[0] if limit is None else limit)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Damage):
                if limit is not None:  # otherwise it may be a torn write
                    where = f"positions {piece.start} to {piece.end}"
                    report.problems.append(f"{piece.path}: {piece.why}, {where}")
                continue
            for record in piece.records:
                if record.kind is Kind.ENTRY and await lookup.is_at(
                    record.ledger_id, record.entry_id, record.position
                ):
                    found += RECORD_HEADER_BYTES + len(record.payload)
                    entries += 1
    report.entries += entries
    report.live_bytes += found
    missing = locations.usage.live_bytes(segment.first) - found
    if missing:
        report.problems.append(
            f"{segment.path}: the index points to {missing} bytes of entries that are not there"
        )


class _CountingDisk(FileDisk):
    """A disk that reports how many bytes were read."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    async def open_reader(self, path: str) -> Reader:
        return _CountingReader(await super().open_reader(path), self._progress)


class _CountingReader:
    def __init__(self, reader: Reader, progress: Progress) -> None:
        self._reader = reader
        self._progress = progress

    async def read(self, offset: int, size: int) -> Buffer:
        data = await self._reader.read(offset, size)
        self._progress(len(data))
        return data

    async def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        return [await self.read(offset, size) for offset, size in pieces]

    def close(self) -> None:
        self._reader.close()
