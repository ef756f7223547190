"""Compaction of archives: which files are merged, and that no crash loses or doubles a row."""

import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from daybook.clients.pipelines.archive.compact import (
    CompactProgress,
    compact,
    compact_store,
    groups,
    merge,
)
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedPartition, Manifest
from daybook.clients.pipelines.archive.run import with_step
from daybook.clients.pipelines.archive.store import ArchiveStore, load, open_store
from daybook.clients.pipelines.archive.write import FileWriter
from tests.clients.pipelines.memory_files import MemoryFiles
from tests.clients.pipelines.rows import a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import ID, TOPIC, a_file
from tests.clients.pipelines.test_archive_store import CRASHES, stopping
from tests.clients.pipelines.test_archive_write import archived

DAY_S = 24 * 3600.0


def sized(*sizes: int, day: str = "2026-11-27", first: int = 0) -> ArchivedPartition:
    """Return a partition with files of these sizes."""
    files = [
        replace(a_file(n, n + 1), bytes=size, day=day, path=f"day={day}/{n:032x}.parquet")
        for n, size in enumerate(sizes, first)
    ]
    return ArchivedPartition(7, first, tuple(files))


def a_manifest(*partitions: ArchivedPartition) -> Manifest:
    return Manifest(ID, TOPIC, True, "instance", partitions=dict(enumerate(partitions)))


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ((), []),
        ((5,), []),
        ((5, 5), [[0, 1]]),
        ((50, 50, 50), [[0, 1]]),
        ((100, 100), []),
        ((60, 50), []),
        ((80, 20), [[0, 1]]),
        ((80, 10), []),
        ((80, 5, 5, 5, 5), [[0, 1, 2, 3, 4]]),
        ((10, 100, 10, 10), [[2, 3]]),
        ((30, 30, 30, 30, 30, 30), [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_neighbours_that_fit_into_one_file_are_merged(
    sizes: tuple[int, ...], merged: list[list[int]]
) -> None:
    found = groups(a_manifest(sized(*sizes)), 100)
    assert [[each.first for each in group.files] for group in found] == merged


def test_files_of_different_days_and_partitions_are_not_merged() -> None:
    first, second = sized(5, 5), sized(5, 5, day="2026-11-28", first=2)
    both = ArchivedPartition(7, 0, (*first.files, *second.files))
    found = groups(a_manifest(both, sized(1, 1)), 100)
    assert [(g.partition, [f.first for f in g.files], g.bytes) for g in found] == [
        (0, [0, 1], 10),
        (0, [2, 3], 10),
        (1, [0, 1], 2),
    ]


def test_a_day_that_grows_by_small_files_is_not_written_again_each_time() -> None:
    part, again = sized(10), 0
    for n in range(1, 200):
        part = replace(part, files=(*part.files, replace(sized(10, first=n).files[0])))
        for group in groups(a_manifest(part), 1 << 30):
            again += group.bytes
            first = part.files.index(group.files[0])
            one = replace(group.files[0], next=group.files[-1].next, bytes=group.bytes)
            one = replace(one, rows=one.next - one.first)
            part = replace(part, files=(*part.files[:first], one))
    assert part.bytes == 2000
    assert again < 12 * 2000


def with_files(files: MemoryFiles) -> MemoryFiles:
    """Write an archive with four small files, of two days, and some rows that offsets lack."""
    manifest = a_manifest(ArchivedPartition(7, 0))
    for offsets, hour in [((2, 3), 1), ((4, 7), 2), ((8,), 25), ((9, 12), 26)]:
        batch = a_batch(*[a_row(offset, hour=hour, orderingKey=b"o") for offset in offsets])
        written = [archived(row) for row in FileWriter(files, ID, 1 << 30).run(iter([batch]))]
        manifest = with_step(manifest, {0: written})
    ArchiveStore(files).replace(manifest)
    return files


def offsets(files: ArchiveFiles) -> list[int]:
    """Return the offsets of the rows that the archive holds, and check its manifest."""
    manifest = load(files)
    assert manifest is not None
    found: list[int] = []
    for each in manifest.partitions[0].files:
        data = files.read(each.path)
        assert len(data) == each.bytes
        here = pq.read_table(BytesIO(data))["offset"].to_pylist()
        assert len(here) == each.rows
        assert all(each.first <= offset < each.next for offset in here)
        found += here
    return found


ALL = [2, 3, 4, 7, 8, 9, 12]


def test_merged_files_hold_the_same_rows() -> None:
    files = with_files(MemoryFiles())
    before = load(files)
    assert before is not None
    told: list[CompactProgress] = []
    manifest = compact_store(ArchiveStore(files), 1 << 20, told.append, lambda: files.now_s)
    assert [(f.first, f.next, f.rows, f.day) for f in manifest.partitions[0].files] == [
        (0, 8, 4, "2026-11-27"),
        (8, 13, 3, "2026-11-28"),
    ]
    assert offsets(files) == ALL
    (first, *_) = manifest.partitions[0].files
    table = pq.read_table(BytesIO(files.read(first.path)))
    assert table["value"].to_pylist() == [b"value %d" % n for n in (2, 3, 4, 7)]
    assert table["orderingKey"].to_pylist() == [b"o"] * 4
    assert (told[0].rows, told[0].done) == (0, 0)
    assert told[-1].rows == 7
    assert told[-1].done == told[-1].total == sum(f.bytes for f in before.partitions[0].files)


def test_old_files_stay_for_a_day() -> None:
    files = with_files(MemoryFiles())
    before = load(files)
    assert before is not None
    old = {each.path for each in before.partitions[0].files}
    compact_store(ArchiveStore(files), 1 << 20, now=lambda: files.now_s)
    later_s = files.now_s + DAY_S - 1
    compact_store(ArchiveStore(files), 1 << 20, now=lambda: later_s)
    assert old <= {path for path, _ in files.parquet()}
    for each in before.partitions[0].files:
        assert len(files.read(each.path)) == each.bytes, "a reader with the old manifest goes on"
    compact_store(ArchiveStore(files), 1 << 20, now=lambda: later_s + 2)
    left = load(files)
    assert left is not None
    assert {path for path, _ in files.parquet()} == left.paths()
    assert left.retired == ()
    assert offsets(files) == ALL


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_at_any_step_leaves_the_archive_right(crash: str) -> None:
    seen: list[MemoryFiles] = []

    def files(step: int) -> MemoryFiles:
        found = with_files(MemoryFiles())
        found.stop_at = found.steps + step
        seen.append(found)
        return found

    steps = stopping(
        lambda files: compact_store(ArchiveStore(files), 1 << 20, now=lambda: files.now_s), files
    )
    assert steps == 2 * (5 + 4)  # for each group: a file, and a manifest
    for stopped in seen:
        left = CRASHES[crash](stopped)
        assert offsets(left) == ALL
        compact_store(ArchiveStore(left), 1 << 20, now=lambda: left.now_s)  # noqa: B023
        assert offsets(left) == ALL
        assert [f.next for f in ArchiveStore(left).manifest.partitions[0].files] == [8, 13]  # type: ignore[union-attr]
        # The crash has left litter, which goes after a day, like the old files.
        compact_store(ArchiveStore(left), 1 << 20, now=lambda: left.now_s + DAY_S + 1)  # noqa: B023
        assert len(list(left.parquet())) == 2
        assert list(left.parts()) == []
        assert offsets(left) == ALL


def test_a_file_that_lacks_rows_is_not_merged() -> None:
    files = with_files(MemoryFiles())
    manifest = load(files)
    assert manifest is not None
    first, second, *_ = manifest.partitions[0].files
    with pytest.raises(ArchiveError, match=re.escape(f"{first.path} has 2 rows, and the manifest")):
        merge(files, ID, 0, [replace(first, rows=1), second])
    files.delete(second.path)
    with pytest.raises(ArchiveError, match="is in the manifest, and is not there"):
        merge(files, ID, 0, [first, second])
    assert load(files) == manifest


def test_only_an_archive_is_compacted(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="has no archive"):
        compact(tmp_path / "none", 1 << 20)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ArchiveError, match="has no archive"):
        compact(tmp_path, 1 << 20)
    with open_store(tmp_path), pytest.raises(ArchiveError, match="another process"):
        compact(tmp_path, 1 << 20)
