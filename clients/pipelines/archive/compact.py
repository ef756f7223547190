"""Merge small files of an archive into larger ones.

Each group of neighbouring files of one partition and one day becomes one file.  The manifest is
replaced after the new file is on the disk.  It names the old files as retired, and they stay for a
day, for readers that know an older manifest.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from time import time  # noqa: TID251  the ages of files are those of the file system

from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile, Manifest
from daybook.clients.pipelines.archive.store import ArchiveStore, open_store
from daybook.clients.pipelines.archive.write import COLUMNS, EPOCH, NewFile

_SMALL_SHARE = 4
"""A file is written again if the others of its group have a quarter of its size together.  So a
file that grows by small ones is written again a few times only."""


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring files of one partition that become one."""

    partition: int
    files: tuple[ArchivedFile, ...]

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files)


@dataclass(frozen=True, slots=True)
class CompactProgress:
    """How far a run is: the rows and bytes that it has written again, and all such bytes."""

    rows: int
    done: int
    total: int


def compact(
    directory: Path,
    file_bytes: int,
    report: Callable[[CompactProgress], None] = lambda _: None,
) -> Manifest:
    """Merge files into such of about this size, delete old ones, and return the manifest.

    Raise ArchiveError if there is no archive, or another process writes to it.
    """
    if not directory.is_dir():
        raise ArchiveError(f"{directory} has no archive: make one with `daybook pipeline archive`")
    with open_store(directory) as store:
        return compact_store(store, file_bytes, report)


def compact_store(
    store: ArchiveStore,
    file_bytes: int,
    report: Callable[[CompactProgress], None] = lambda _: None,
    now: Callable[[], float] = time,
) -> Manifest:
    """Do as `compact` in a directory that is open."""
    manifest = store.manifest
    if manifest is None:
        raise ArchiveError(f"{store.files.directory} has no archive")
    found = groups(manifest, file_bytes)
    rows, done, total = 0, 0, sum(each.bytes for each in found)
    report(CompactProgress(rows, done, total))
    for group in found:
        new = merge(store.files, manifest.id, group.partition, group.files)
        manifest = store.replace(
            manifest.with_merged(group.partition, group.files, new, int(now()))
        )
        rows, done = rows + new.rows, done + group.bytes
        report(CompactProgress(rows, done, total))
    store.clean(now())
    return store.manifest or manifest


def groups(manifest: Manifest, file_bytes: int) -> list[Group]:
    """Return the files that are to be merged, in the order of partitions and offsets."""
    return [
        Group(number, group)
        for number, part in sorted(manifest.partitions.items())
        for group in _runs(part.files, file_bytes)
        if _is_worth_it(group)
    ]


def _runs(files: Sequence[ArchivedFile], file_bytes: int) -> Iterator[tuple[ArchivedFile, ...]]:
    """Cut files into runs of one day that fit into one file."""
    run: list[ArchivedFile] = []
    size = 0
    for each in files:
        if run and (each.day != run[0].day or size + each.bytes > file_bytes):
            yield tuple(run)
            run, size = [], 0
        run.append(each)
        size += each.bytes
    if run:
        yield tuple(run)


def _is_worth_it(group: Sequence[ArchivedFile]) -> bool:
    sizes = [each.bytes for each in group]
    return len(sizes) > 1 and (sum(sizes) - max(sizes)) * _SMALL_SHARE >= max(sizes)


def merge(
    files: ArchiveFiles, archive: str, partition: int, old: Sequence[ArchivedFile]
) -> ArchivedFile:
    """Write the rows of files into a new one, and return it."""
    new = NewFile(files, archive, (date.fromisoformat(old[0].day) - EPOCH).days)
    for each in old:
        with open_file(NamedFile(files, archive, partition, each)) as opened:
            for batch in opened.rows(COLUMNS, each.first, each.next):
                new.write(batch)
    # Offsets without rows before its first row belong to a file, too.
    return replace(new.close(), first=old[0].first, next=old[-1].next)
