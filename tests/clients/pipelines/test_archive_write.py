"""The files that tasks write: days, sizes, and rows that are the same when they are read."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybook.clients.pipelines.archive.checked import NamedFile
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile
from daybook.clients.pipelines.archive.read import read_files
from daybook.clients.pipelines.archive.write import COLUMNS, FileWriter
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.offsets import OffsetRange
from daybook.clients.spark.options import ReadTask
from daybook.clients.spark.schema import KeyType
from tests.clients.pipelines.memory_files import MemoryFiles
from tests.clients.pipelines.rows import DAY, a_batch, a_row
from tests.clients.pipelines.test_archive_manifest import ID

START_MS = int(DAY.timestamp() * 1000)
HOUR_MS = 3_600_000


def archived(row: pa.RecordBatch) -> ArchivedFile:
    """Return the file of a row that a task returns."""
    (found,) = row.to_pylist()
    return ArchivedFile(
        found["path"],
        found["first"],
        found["next"],
        found["rows"],
        found["bytes"],
        found["day"],
        found["earliest"],
        found["latest"],
    )


def written(
    *batches: pa.RecordBatch, files: ArchiveFiles | None = None, file_bytes: int = 1 << 30
) -> list[ArchivedFile]:
    writer = FileWriter(files or MemoryFiles(), ID, file_bytes)
    return [archived(row) for row in writer.run(iter(batches))]


def days(*hours: int | None) -> list[tuple[str, int, int]]:
    """Return the files of messages that were published at these hours."""
    rows = [a_row(offset, hour=hour) for offset, hour in enumerate(hours)]
    found = written(*(a_batch(row) for row in rows))
    together = written(a_batch(*rows))
    assert [(f.first, f.next, f.day) for f in together] == [(f.first, f.next, f.day) for f in found]
    return [(f.day, f.first, f.next) for f in found]


def test_a_message_of_a_later_day_begins_a_file() -> None:
    assert days(1, 23, 24, 25, 49) == [
        ("2026-11-27", 0, 2),
        ("2026-11-28", 2, 4),
        ("2026-11-29", 4, 5),
    ]


def test_clocks_that_differ_at_midnight_make_no_file_for_each_message() -> None:
    assert days(23, 24, 23, 24, 23, 24) == [("2026-11-27", 0, 1), ("2026-11-28", 1, 6)]


def test_a_message_without_a_publish_time_is_of_the_day_before_it() -> None:
    assert days(24, None, 25) == [("2026-11-28", 0, 3)]
    assert days(None, None, 25) == [("1970-01-01", 0, 2), ("2026-11-28", 2, 3)]


def test_a_file_knows_its_publish_times_unless_one_has_none() -> None:
    (file,) = written(a_batch(a_row(0, hour=3), a_row(1, hour=1)), a_batch(a_row(2, hour=2)))
    assert (file.earliest_ms, file.latest_ms) == (START_MS + HOUR_MS, START_MS + 3 * HOUR_MS)
    (file,) = written(a_batch(a_row(0, hour=3), a_row(1, hour=None)))
    assert (file.earliest_ms, file.latest_ms) == (None, None)


def test_a_file_ends_when_it_has_its_size() -> None:
    batches = [a_batch(*[a_row(10 * n + i) for i in range(10)]) for n in range(4)]
    found = written(*batches, file_bytes=1)
    assert [(f.first, f.next, f.rows) for f in found] == [
        (0, 10, 10),
        (10, 20, 10),
        (20, 30, 10),
        (30, 40, 10),
    ]
    assert len({f.path for f in found}) == 4
    (whole,) = written(*batches)
    assert (whole.first, whole.next, whole.rows) == (0, 40, 40)
    assert whole.bytes < sum(f.bytes for f in found)


def test_rows_wait_for_a_row_group(tmp_path: Path) -> None:
    batches = [a_batch(*[a_row(10 * n + i) for i in range(10)]) for n in range(4)]
    (file,) = written(*batches, files=ArchiveFiles(tmp_path))
    found = pq.ParquetFile(tmp_path / file.path)
    assert (found.num_row_groups, found.metadata.num_rows) == (1, 40)
    assert (tmp_path / file.path).stat().st_size == file.bytes


def test_versions_of_schemas_are_told() -> None:
    rows = [a_row(n, schemaVersion=each) for n, each in enumerate([b"b", None, b"a", b"b"])]
    (row,) = FileWriter(MemoryFiles(), ID, 1 << 30).run(iter([a_batch(*rows)]))
    assert row.to_pylist()[0]["versions"] == [b"a", b"b"]


def test_the_columns_of_a_file_are_those_of_the_format(tmp_path: Path) -> None:
    (file,) = written(a_batch(a_row(0)), files=ArchiveFiles(tmp_path))
    found = pq.read_schema(tmp_path / file.path)
    assert [(field.name, re.sub(r" \('.*?'\)", "", str(field.type))) for field in found] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("eventTime", "timestamp[us, tz=UTC]"),
        ("properties", "map<string, string>"),
        ("messageId", "binary"),
        ("headers", "list<element: struct<key: string, value: binary>>"),
        ("keyIsBytes", "bool"),
        ("orderingKey", "binary"),
        ("schemaVersion", "binary"),
    ]


ROWS = [
    a_row(3, key=b"text", keyIsBytes=False, orderingKey=b"\0o", schemaVersion=b"\0" * 8),
    a_row(5, key=b"\xff\0", keyIsBytes=True, value=None),
    a_row(6, properties=[("b", "3"), ("a", "2")]),
    a_row(7, headers=[{"key": name, "value": b"v"} for name in ("b", "a", "b")]),
    a_row(8, eventTime=DAY, hour=None),
]


def read(
    path: Path, file: ArchivedFile, start: int, end: int, *names: str, key_type: KeyType = "binary"
) -> list[dict[str, Any]]:
    part = OffsetRange(0, start, end, "t")
    files = (NamedFile(ArchiveFiles(path), ID, 0, file),)
    task = ReadTask("", "asked", part, True, names or COLUMNS, key_type, files=files)
    found: list[dict[str, Any]] = []
    for batch in read_files(task):
        assert batch.schema.equals(arrow_schema(task.columns, key_type))
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    (file,) = written(a_batch(*ROWS), files=ArchiveFiles(tmp_path))
    wanted = [row | {"topic": "asked"} for row in ROWS]
    assert read(tmp_path, file, 0, 100) == wanted
    assert read(tmp_path, file, 4, 7) == wanted[1:3]
    assert read(tmp_path, file, 4, 5) == []
    assert read(tmp_path, file, 8, 9, "value", "topic") == [{"value": b"value 8", "topic": "asked"}]


def test_keys_as_text_are_those_of_the_topic(tmp_path: Path) -> None:
    (file,) = written(a_batch(*ROWS), files=ArchiveFiles(tmp_path))
    found = read(tmp_path, file, 0, 100, "key", key_type="string")
    assert [row["key"] for row in found] == ["text", "/wA=", None, None, None]
    assert read(tmp_path, file, 3, 4, "key", key_type="string") == [{"key": "text"}]


def test_a_task_without_rows_writes_no_file() -> None:
    files = MemoryFiles()
    assert written(files=files) == []
    assert list(files.parquet()) == []


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_is_read_alone(tmp_path: Path, column: str) -> None:
    (file,) = written(a_batch(*ROWS), files=ArchiveFiles(tmp_path))
    wanted = [{column: (row | {"topic": "asked"})[column]} for row in ROWS]
    assert read(tmp_path, file, 0, 100, column) == wanted
