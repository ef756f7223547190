"""The directory of an archive: no crash and no second writer harms its manifest."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile, Manifest, Retired, encode
from daybook.clients.pipelines.archive.store import (
    KEPT_S,
    ArchiveStore,
    directory_of,
    load,
    open_store,
)
from daybook.clients.pipelines.archive.write import FileWriter, NewFile
from tests.clients.pipelines.memory_files import MemoryFiles, StoppedError
from tests.clients.pipelines.rows import a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import (
    DAY,
    ID,
    WHOLE,
    a_file,
    a_manifest,
    a_path,
)
from tests.clients.pipelines.test_archive_write import archived, written

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

        written = [archived(row) for row in FileWriter(files, ID, 1 << 20).run(iter([batch]))]
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


@pytest.mark.parametrize("crash", CRASHES)
def test_no_file_of_a_run_that_died_stays_for_ever(crash: str) -> None:
    """The run writes two files and the manifest, and dies at each of its steps."""
    from daybook.clients.pipelines.archive.run import with_step

    batch = a_batch(*[a_row(offset, hour=12 if offset < 9 else 30) for offset in range(5, 12)])

    def archive(files: MemoryFiles) -> None:
        written = [archived(row) for row in FileWriter(files, ID, 1 << 20).run(iter([batch]))]
        ArchiveStore(files).replace(with_step(a_manifest(), {0: written}))

    seen: list[MemoryFiles] = []

    def files(step: int) -> MemoryFiles:
        before = holding(a_manifest(), MemoryFiles())
        before.stop_at = before.steps + step
        seen.append(before)
        return before

    assert stopping(archive, files) == 2 * 5 + 4
    half_written = 0
    for stopped in seen:
        left = CRASHES[crash](stopped)
        half_written += len(list(left.parts()))
        found = load(left)
        assert found is not None
        if not found.partitions[0].files:
            left.now_s += 3600
            archive(left)
        store = ArchiveStore(left)
        assert store.manifest is not None
        named = store.manifest.paths()
        store.clean(left.now_s - 3600 + KEPT_S - 1)
        assert named <= {path for path, _ in left.parquet()}
        store.clean(left.now_s + KEPT_S + 1)
        assert {path for path, _ in left.parquet()} == named
        assert list(left.parts()) == []
        for each in store.manifest.partitions[0].files:
            assert len(left.read(each.path)) == each.bytes
    assert half_written > 0 or crash == "without power", "a crash may take the name, too"


def test_a_file_that_is_being_written_stays_for_a_day(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path)
    ArchiveStore(files).replace(a_manifest())
    new = NewFile(files, ID, 20_000)
    new.write(a_batch(*[a_row(n) for n in range(5, 9)]))
    ((path, changed_s),) = files.parts()
    assert Path(path).name.startswith("."), "readers of Parquet leave it out"
    assert list(files.parquet()) == []
    with open_store(tmp_path) as store:
        assert store.clean(changed_s + KEPT_S - 1) == []
    assert [each for each, _ in files.parts()] == [path]
    written = new.close()
    assert list(files.parts()) == []
    assert [each for each, _ in files.parquet()] == [written.path]
    with open_store(tmp_path) as store:
        assert store.clean(changed_s + 3 * KEPT_S) == [], "it is whole, and the archive lacks it"


def test_a_file_that_is_deleted_under_its_writer_is_never_named(tmp_path: Path) -> None:
    """Two archivers at once are possible on a file system without working locks only."""
    files = ArchiveFiles(tmp_path)
    store = ArchiveStore(files)
    store.replace(a_manifest())
    new = NewFile(files, ID, 20_000)
    new.write(a_batch(*[a_row(n) for n in range(5, 9)]))
    ((path, changed_s),) = files.parts()
    assert ArchiveStore(files).clean(changed_s + KEPT_S + 1) == [path]
    with pytest.raises(FileNotFoundError):
        new.close()
    assert list(files.parquet()) == []
    assert load(files) == store.manifest


def test_links_and_other_hidden_files_are_not_taken_for_half_written_ones(tmp_path: Path) -> None:
    store = ArchiveStore(ArchiveFiles(tmp_path))
    store.replace(a_manifest())
    directory = tmp_path / f"day={DAY}"
    directory.mkdir()
    (tmp_path / "kept").touch()
    names = [
        ".x.parquet",
        f".{'a' * 31}.parquet",
        f".{'A' * 32}.parquet",
        f".{'a' * 32}.parquet.crc",
    ]
    for name in names:
        (directory / name).touch()
    (directory / f".{'b' * 32}.parquet").symlink_to(tmp_path / "kept")
    (directory / f".{'c' * 32}.parquet").mkdir()
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    assert store.clean(KEPT_S + 1) == []
    assert len(list(directory.iterdir())) == len(names) + 2


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
    held, old, gone, young = map(a_path, (5, 1, 2, 3))
    for path in (held, old, gone, young):
        (tmp_path / path).touch()
        os.utime(tmp_path / path, (0, 0))
    os.utime(tmp_path / young, (100_000, 100_000))
    manifest = replace(a_manifest(a_file(5, 9)), retired=(Retired(gone, 100),))
    ArchiveStore(ArchiveFiles(tmp_path)).replace(manifest)
    with open_store(tmp_path) as store:
        assert store.clean(86_450) == [old]
        assert store.clean(100_000) == [gone]
    found = load(ArchiveFiles(tmp_path))
    assert found is not None
    assert found.retired == ()
    assert {path.name for path in directory.iterdir()} == {Path(held).name, Path(young).name}


def kept(directory: Path, *ranges: tuple[int, int], partition: int = 0) -> list[ArchivedFile]:
    """Write files with these offsets, two days old; return them."""
    files = ArchiveFiles(directory)
    found: list[ArchivedFile] = []
    for low, high in ranges:
        batch = a_batch(*[a_row(n, partition=partition) for n in range(low, high)])
        found += written(batch, files=files)
        os.utime(directory / found[-1].path, (0, 0))
    return found


def cleaned(directory: Path, manifest: Manifest) -> list[str]:
    """Put a manifest into the directory, and return what is deleted a day later."""
    (directory / "manifest.json").write_bytes(encode(manifest))
    with open_store(directory) as store:
        return store.clean(KEPT_S + 1)


def test_files_without_a_manifest_are_not_taken_for_a_new_archive(tmp_path: Path) -> None:
    for name in ("day=2026-11-27/x.parquet", "day=x/y", "table.parquet", "part/table.parquet"):
        directory = tmp_path / name.replace("/", "_")
        (directory / name).parent.mkdir(parents=True)
        (directory / name).touch()
        words = "has files and no manifest.json: restore the manifest .* or name an empty directory"
        with pytest.raises(ArchiveError, match=words), open_store(directory):
            pass
        assert (directory / name).exists()
    with open_store(tmp_path / "new") as store:
        assert store.manifest is None


def test_only_files_that_an_archiver_named_are_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    archive = tmp_path / "archive"
    name = a_path(1).partition("/")[2]
    for path in (
        outside / name,
        archive / f"day={DAY}" / "part-0.parquet",
        archive / f"day={DAY}" / f"{'A' * 32}.parquet",
        archive / "day=x" / name,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    (archive / "day=2026-11-28").symlink_to(outside)
    (archive / a_path(2)).symlink_to(outside / name)
    retired = (Retired(f"day=2026-11-28/{name}", 0), Retired(a_path(2), 0))
    assert cleaned(archive, replace(a_manifest(), retired=retired)) == []
    assert (outside / name).exists()
    assert (archive / a_path(2)).is_symlink()
    assert len(list(archive.glob("day=*/*.parquet"))) == 5


def test_an_older_manifest_never_deletes_newer_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = kept(tmp_path, (5, 9), (9, 12), (12, 20))
    assert cleaned(tmp_path, a_manifest(first, second)) == []
    assert f"{third.path} is kept: it has the offsets 12 to 20 of partition 0" in caplog.text
    # The offsets were archived again.
    (again,) = kept(tmp_path, (12, 21))
    assert cleaned(tmp_path, a_manifest(first, second, again)) == [third.path]


def test_a_merged_file_stays_if_a_restored_manifest_names_files_that_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, merged = kept(tmp_path, (5, 9), (9, 12), (5, 12))
    (tmp_path / first.path).unlink()
    assert cleaned(tmp_path, a_manifest(first, second)) == []
    assert f"{first.path}, which has offsets of it, is missing or damaged" in caplog.text
    retired = (Retired(second.path, 0),)
    assert cleaned(tmp_path, replace(a_manifest(merged), retired=retired)) == [second.path]


def test_a_retired_file_stays_if_the_file_in_its_place_is_gone(tmp_path: Path) -> None:
    first, merged = kept(tmp_path, (5, 9), (5, 12))
    (tmp_path / merged.path).unlink()
    assert cleaned(tmp_path, replace(a_manifest(merged), retired=(Retired(first.path, 0),))) == []
    found = load(ArchiveFiles(tmp_path))
    assert found is not None
    assert found.retired == (Retired(first.path, 0),)


def test_a_file_of_which_nobody_knows_what_it_holds_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held, cut, plain = kept(tmp_path, (5, 20), (5, 9), (5, 9))
    (other,) = kept(tmp_path, (0, 4), partition=1)
    data = (tmp_path / cut.path).read_bytes()
    (tmp_path / cut.path).write_bytes(data[:-9])
    pq.write_table(pq.read_table(tmp_path / plain.path), tmp_path / plain.path)
    for each in (cut, plain):
        os.utime(tmp_path / each.path, (0, 0))
    assert cleaned(tmp_path, a_manifest(held)) == []
    assert caplog.text.count("nobody can read what it holds") == 2
    assert f"{other.path} is kept: it has the offsets 0 to 4 of partition 1" in caplog.text
    caplog.clear()
    assert cleaned(tmp_path, replace(a_manifest(held), id="f" * 32)) == []
    assert "it belongs to the archive 0123456789abcdef" in caplog.text


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_while_files_are_deleted_loses_none_that_the_manifest_holds(crash: str) -> None:
    manifest = replace(WHOLE, retired=(Retired(a_path(2), 100),))
    seen: list[MemoryFiles] = []

    def files(step: int) -> MemoryFiles:
        before = MemoryFiles()
        for path in sorted({*manifest.paths(), a_path(3)}):
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
