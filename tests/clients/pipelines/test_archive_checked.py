"""Files that differ from their manifest, or are damaged: an error that names them, never rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.compact import merge
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile
from daybook.clients.pipelines.archive.parquet import Label
from daybook.clients.pipelines.archive.read import read_files
from daybook.clients.pipelines.archive.replay_task import rows_of
from daybook.clients.pipelines.archive.write import COLUMNS
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask
from tests.clients.pipelines.rows import a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import ID, a_path
from tests.clients.pipelines.test_archive_write import written

FIRST, END = 10, 40


def put(directory: Path, table: pa.Table, label: Label | None = None) -> NamedFile:
    """Write a file, and return it as a manifest would name it that holds all of [10, 40)."""
    path = directory / a_path(1)
    path.parent.mkdir(exist_ok=True)
    with pq.ParquetWriter(path, table.schema, write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata((label or Label(ID, 0, FIRST, END)).metadata())
    size = path.stat().st_size
    file = ArchivedFile(a_path(1), FIRST, END, END - FIRST, size, "2026-11-27")
    return NamedFile(ArchiveFiles(directory), ID, 0, file)


def a_table(first: int = FIRST, end: int = END) -> pa.Table:
    return pa.Table.from_batches([a_batch(*[a_row(n) for n in range(first, end)])])


def source_rows(named: NamedFile) -> list[dict[str, Any]]:
    part = OffsetRange(0, FIRST, END, "t")
    task = ReadTask("", "orders", part, True, COLUMNS, files=(named,))
    return [row for batch in read_files(task) for row in batch.to_pylist()]


def replayed_rows(named: NamedFile) -> list[dict[str, Any]]:
    return [row for batch in rows_of(named, FIRST) for row in batch.to_pylist()]


def merged_rows(named: NamedFile) -> list[dict[str, Any]]:
    files = named.files
    file = merge(files, ID, 0, [named.file])
    found: list[dict[str, Any]] = pq.read_table(
        files.directory / file.path, partitioning=None
    ).to_pylist()
    return found


READERS: dict[str, Callable[[NamedFile], list[dict[str, Any]]]] = {
    "source": source_rows,
    "replay": replayed_rows,
    "compaction": merged_rows,
}
readers = pytest.mark.parametrize("reader", READERS)


@readers
def test_a_file_that_is_as_its_manifest_says_is_read(tmp_path: Path, reader: str) -> None:
    found = READERS[reader](put(tmp_path, a_table()))
    assert [row["offset"] for row in found] == list(range(FIRST, END))
    assert [row["value"] for row in found] == [b"value %d" % n for n in range(FIRST, END)]


def _without_value(table: pa.Table) -> pa.Table:
    return table.drop_columns(["value"])


def _with_text_values(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("value")
    return table.set_column(at, "value", table.column("value").cast(pa.string()))


DAMAGES: list[tuple[Callable[[], pa.Table], str]] = [
    (lambda: a_table(FIRST, END - 1), "has 29 rows, and the manifest says 30"),
    (lambda: pa.concat_tables([a_table(), a_table(40, 41)]), "has 31 rows, and the manifest"),
    (lambda: a_table(FIRST + 1, END + 1), "has the offsets 11 to 41, and the manifest says 10 to"),
    (lambda: a_table(FIRST - 1, END - 1), "has the offsets 9 to 39, and the manifest says 10 to"),
    (lambda: _without_value(a_table()), "does not have the columns of an archive"),
    (lambda: _with_text_values(a_table()), "does not have the columns of an archive"),
    (lambda: a_table().take(list(reversed(range(30)))), "not have its rows in the order of their"),
    (lambda: pa.concat_tables([a_table(10, 25)] * 2), "not have its rows in the order of their"),
]


@readers
@pytest.mark.parametrize(("table", "words"), DAMAGES)
def test_a_file_with_other_rows_or_columns_is_an_error(
    tmp_path: Path, reader: str, table: Callable[[], pa.Table], words: str
) -> None:
    named = put(tmp_path, table())
    with pytest.raises(ArchiveError, match=words) as raised:
        READERS[reader](named)
    assert str(raised.value).startswith(f"{tmp_path / a_path(1)} ")
    assert "restore the file from a copy" in str(raised.value)


@readers
def test_a_file_of_another_size_archive_or_partition_is_an_error(
    tmp_path: Path, reader: str
) -> None:
    named = put(tmp_path, a_table())
    larger = replace(named, file=replace(named.file, bytes=named.file.bytes + 1))
    with pytest.raises(ArchiveError, match=r"has \d+ bytes, and the manifest says \d+: restore"):
        READERS[reader](larger)
    for label in (Label("f" * 32, 0, FIRST, END), Label(ID, 1, FIRST, END)):
        other = put(tmp_path, a_table(), label)
        with pytest.raises(ArchiveError, match="does not say that it is of the partition 0 of the"):
            READERS[reader](other)
    (tmp_path / a_path(1)).unlink()
    with pytest.raises(ArchiveError, match="is in the manifest, and is not there"):
        READERS[reader](named)
    (tmp_path / a_path(1)).mkdir()
    with pytest.raises(ArchiveError, match="cannot be opened: Is a directory: make it readable"):
        READERS[reader](named)


def test_a_part_of_a_file_is_read_over_row_groups(tmp_path: Path) -> None:
    named = put(tmp_path, a_table())
    path = tmp_path / a_path(1)
    with pq.ParquetWriter(path, arrow_schema(COLUMNS), write_page_checksum=True) as writer:
        writer.write_table(a_table(), row_group_size=7)
        writer.add_key_value_metadata(Label(ID, 0, FIRST, END).metadata())
    named = replace(named, file=replace(named.file, bytes=path.stat().st_size))
    with open_file(named) as opened:
        for start in range(FIRST - 1, END + 2):
            for end in range(start, END + 2):
                found = opened.rows(("value", "offset"), start, end, batch_rows=4)
                offsets = [n for batch in found for n in batch.column("offset").to_pylist()]
                assert offsets == list(range(max(start, FIRST), min(end, END)))


def test_a_disk_that_is_full_is_not_the_fault_of_the_file_that_is_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), open_file(put(tmp_path, a_table())):
        raise OSError("full")


def test_flipped_bits_never_give_other_rows(tmp_path: Path) -> None:
    random = Random(1)
    rows = [
        a_row(
            n,
            value=random.randbytes(random.randrange(60)) if n % 9 else None,
            key=b"key %d" % (n % 5),
            keyIsBytes=bool(n % 2),
            eventTime=a_row(0)["timestamp"],
            headers=[{"key": "a", "value": b"%d" % n}],
            properties=[("a", str(n))],
        )
        for n in range(300)
    ]
    files = ArchiveFiles(tmp_path)
    (file,) = written(a_batch(*rows), files=files)
    named = NamedFile(files, ID, 0, file)
    part = OffsetRange(0, 0, 300, "t")
    task = ReadTask("", "orders", part, True, COLUMNS, files=(named,))

    def read() -> list[dict[str, Any]]:
        return [row for batch in read_files(task) for row in batch.to_pylist()]

    wanted = read()
    assert len(wanted) == 300
    path = tmp_path / file.path
    whole = path.read_bytes()
    sentences: list[str] = []
    for position in random.sample(range(len(whole)), 600):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read()
        except ArchiveError as error:
            sentences.append(str(error))
        else:
            assert found == wanted, f"the byte {position} of {len(whole)}"
    assert len(sentences) > 300
    assert {each.partition(" ")[0] for each in sentences} == {str(path)}
    assert not any("\n" in each for each in sentences)
