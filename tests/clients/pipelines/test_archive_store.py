"""The directory of an archive: no crash and no second writer harms its manifest."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import Manifest, Retired
from daybook.clients.pipelines.archive.store import ArchiveStore, directory_of, load, open_store
from daybook.clients.pipelines.archive.write import FileWriter
from tests.clients.pipelines.memory_files import MemoryFiles, StoppedError
from tests.clients.pipelines.rows import a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import DAY, WHOLE, a_file, a_manifest

Left = Callable[[MemoryFiles], MemoryFiles]
CRASHES: dict[str, Left] = {
    "killed": MemoryFiles.killed,
    "without power": lambda files: files.without_power(names=False),
    "without power, with new names": lambda files: files.without_power(names=True),
}


def stopping(work: Callable[[MemoryFiles], object], files: Callable[[int], MemoryFiles]) -> int:
    """Do the work once for each step at which it can stop; return the number of steps."""
    for step in range(1000):
        found = files(step)
        try:
            work(found)
        except StoppedError:
            continue
        return step
    raise AssertionError("the work never ends")


def holding(manifest: Manifest, files: MemoryFiles) -> MemoryFiles:
    """Return files with this manifest."""
    ArchiveStore(files).replace(manifest)
    return files


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_while_a_manifest_is_replaced_leaves_the_old_or_the_new_one(crash: str) -> None:
    grown = WHOLE.with_files(0, [a_file(12, 20)])
    seen: list[MemoryFiles] = []

    def files(step: int) -> MemoryFiles:
        before = holding(WHOLE, MemoryFiles())
        before.stop_at = before.steps + step
        seen.append(before)
        return before

    steps = stopping(lambda files: ArchiveStore(files).replace(grown), files)
    assert steps == 4  # create, sync, rename, sync of the directory
    ends = []
    for stopped in seen:
        left = CRASHES[crash](stopped)
        found = load(left)
        assert found is not None
        ends.append(found.partitions[0].end)
        again = ArchiveStore(left)
        if found.partitions[0].end == 12:
            again.replace(grown)
        assert load(left) == again.manifest
    assert ends[0] == 12
    assert ends[-1] == 20
    assert ends == sorted(ends)


@pytest.mark.parametrize("crash", CRASHES)
def test_a_manifest_never_names_a_file_that_a_crash_takes(crash: str) -> None:
    batch = a_batch(*[a_row(offset, hour=12 if offset < 9 else 30) for offset in range(5, 12)])

    def archive(files: MemoryFiles) -> None:
        from daybook.clients.pipelines.archive.run import with_step
        from tests.clients.pipelines.test_archive_write import archived

        written = [archived(row) for row in FileWriter(files, 1 << 20).run(iter([batch]))]
        ArchiveStore(files).replace(with_step(a_manifest(), {0: written}))

    seen: list[MemoryFiles] = []

    def files(step: int) -> MemoryFiles:
        found = MemoryFiles(step)
        seen.append(found)
        return found

    assert stopping(archive, files) > 8
    for stopped in seen:
        left = CRASHES[crash](stopped)
        found = load(left)
        if found is not None:
            for each in found.partitions[0].files:
                assert len(left.read(each.path)) == each.bytes
    last = load(CRASHES[crash](seen[-1]))
    assert last is not None
    assert [(f.first, f.next, f.day) for f in last.partitions[0].files] == [
        (5, 9, "2026-11-27"),
        (9, 12, "2026-11-28"),
    ]


def test_a_second_archiver_is_refused(tmp_path: Path) -> None:
    with (
        open_store(tmp_path),
        pytest.raises(ArchiveError, match="another process"),
        open_store(tmp_path),
    ):
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="file cannot be written"), open_store(tmp_path / "file"):
        pass


def test_without_locks_the_second_of_two_archivers_loses() -> None:
    files = MemoryFiles()
    first, second = ArchiveStore(files), ArchiveStore(files)
    first.replace(WHOLE)
    with pytest.raises(ArchiveError, match="another archiver"):
        second.replace(a_manifest())
    assert load(files) == first.manifest


def test_a_manifest_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"{")
    with pytest.raises(ArchiveError, match=r"manifest\.json is damaged, restore it"):
        load(ArchiveFiles(tmp_path))


def test_a_path_with_a_scheme_is_refused() -> None:
    with pytest.raises(ArchiveError, match="s3://bucket/x is not a path"):
        directory_of("s3://bucket/x")
    with pytest.raises(ArchiveError, match="empty"):
        directory_of(" ")


def test_litter_and_retired_files_are_deleted_after_a_day(tmp_path: Path) -> None:
    directory = tmp_path / f"day={DAY}"
    directory.mkdir()
    for name in ("5", "old", "retired", "young"):
        (directory / f"{name}.parquet").touch()
        os.utime(directory / f"{name}.parquet", (0, 0))
    os.utime(directory / "young.parquet", (100_000, 100_000))
    retired = (Retired(f"day={DAY}/retired.parquet", 100),)
    with open_store(tmp_path) as store:
        store.replace(replace(a_manifest(a_file(5, 9)), retired=retired))
        assert store.clean(86_450) == [f"day={DAY}/old.parquet"]
        assert store.clean(100_000) == [f"day={DAY}/retired.parquet"]
    found = load(ArchiveFiles(tmp_path))
    assert found is not None
    assert found.retired == ()
    assert sorted(path.name for path in directory.iterdir()) == ["5.parquet", "young.parquet"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_while_files_are_deleted_loses_none_that_the_manifest_holds(crash: str) -> None:
    manifest = replace(WHOLE, retired=(Retired(f"day={DAY}/retired.parquet", 100),))
    seen: list[MemoryFiles] = []

    def files(step: int) -> MemoryFiles:
        before = MemoryFiles()
        for path in sorted({*manifest.paths(), f"day={DAY}/litter.parquet"}):
            with before.create(path) as file:
                before.sync(file)
        before.sync_directory(f"day={DAY}")
        before.sync_directory()
        holding(manifest, before)
        before.stop_at = before.steps + step
        seen.append(before)
        return before

    stopping(lambda files: ArchiveStore(files).clean(files.now_s + 100_000), files)
    assert len(seen) > 5
    for stopped in seen:
        left = CRASHES[crash](stopped)
        ArchiveStore(left).clean(left.now_s + 100_000)
        found = load(left)
        assert found is not None
        assert found.retired == ()
        assert [path for path, _ in left.parquet()] == sorted(WHOLE.paths())
