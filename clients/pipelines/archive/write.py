"""Run a Spark task that archives: write its rows to Parquet files, and return a row for each.

The rows of a task are a range of offsets of one partition, in order.  A file has a name that is
never used twice, so a task that is repeated leaves litter and harms no file of the archive.  It
gets this name when it is whole and on the disk, and has another one before.

The day of a file is that of its first message.  A message of a later day begins a new file.  One
of an earlier day does not: clocks of producers differ, and around midnight their messages would
make a file each.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Iterator
from datetime import date, timedelta
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile, part_of
from daybook.clients.pipelines.archive.parquet import Label
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.schema import TYPES
from daybook.clients.spark.short_errors import each_in_one_sentence

COLUMNS = tuple(TYPES)
RESULT = (
    "path string, partition int, first bigint, next bigint, rows bigint, bytes bigint, day string,"
    " earliest bigint, latest bigint, versions array<binary>"
)
ROW_GROUP_BYTES = 16 << 20  # a size in Arrow; a reader holds one row group at a time
_DAY_US = 86_400_000_000
EPOCH = date(1970, 1, 1)
_RESULT = pa.schema(
    [
        ("path", pa.string()),
        ("partition", pa.int32()),
        ("first", pa.int64()),
        ("next", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("day", pa.string()),
        ("earliest", pa.int64()),
        ("latest", pa.int64()),
        ("versions", pa.list_(pa.binary())),
    ]
)


class FileWriter:
    """Writes the files of one task."""

    def __init__(self, files: ArchiveFiles, archive: str, file_bytes: int) -> None:
        self._files = files
        self._archive = archive  # the id of the archive
        self._file_bytes = file_bytes

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches; this is what `mapInArrow` calls."""
        return each_in_one_sentence(self._run(batches))

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file: NewFile | None = None
        for batch in batches:
            for day, rows in by_day(batch, None if file is None else file.day):
                if file is not None and (file.day < day or file.is_full(self._file_bytes)):
                    yield _row(file)
                    file = None
                if file is None:
                    file = NewFile(self._files, self._archive, day)
                file.write(rows)
        if file is not None:
            yield _row(file)


def _row(file: "NewFile") -> pa.RecordBatch:
    written = file.close()
    row = {
        "path": written.path,
        "partition": file.partition,
        "first": written.first,
        "next": written.next,
        "rows": written.rows,
        "bytes": written.bytes,
        "day": written.day,
        "earliest": written.earliest_ms,
        "latest": written.latest_ms,
        "versions": sorted(file.versions),
    }
    return pa.RecordBatch.from_pylist([row], schema=_RESULT)


def by_day(batch: pa.RecordBatch, day: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch where a later day begins; days are counted since 1970.

    `day` is that of the rows before, if there are any.  A row without a publish time is of the day
    of the row before it, and otherwise of the first day of 1970.
    """
    times = pc.fill_null(batch.column("timestamp").cast(pa.int64()), -1).to_pylist()
    first = 0
    for i, time_us in enumerate(times):
        here = time_us // _DAY_US if time_us >= 0 else 0
        if day is None:
            day = here
        elif here > day:
            if i > first:
                yield day, batch.slice(first, i - first)
            first, day = i, here
    if first < len(times):
        assert day is not None
        yield day, batch.slice(first)


class NewFile:
    """A Parquet file that is being written.  Its rows are of one partition, in order."""

    def __init__(self, files: ArchiveFiles, archive: str, day: int) -> None:
        self.day = day
        self._archive = archive
        self.partition = -1
        self.versions: set[bytes] = set()  # the versions of schemas that its rows name
        self._text = (EPOCH + timedelta(days=day)).isoformat()
        self._path = f"day={self._text}/{token_hex(16)}.parquet"
        self._files = files
        self._schema = arrow_schema(COLUMNS)
        self._file = files.create(part_of(self._path))
        self._writer = pq.ParquetWriter(
            self._file, self._schema, compression="zstd", write_page_checksum=True
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._first = self._last = -1
        self._rows = 0
        self._earliest: int | None = None
        self._latest: int | None = None
        self._lacks_times = False

    def is_full(self, limit_bytes: int) -> bool:
        """Return True if the file has its size.  Rows that wait count once they are written."""
        if self._file.tell() + self._waiting_bytes >= limit_bytes:
            self._flush()
        return self._file.tell() >= limit_bytes

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, which have the columns of the archive."""
        offsets: list[int] = rows.column("offset").to_pylist()
        if not self._rows:
            self._first, self.partition = offsets[0], rows.column("partition")[0].as_py()
        assert self._last < offsets[0] or not self._rows, "the rows of a task are in order"
        self._last = offsets[-1]
        self._rows += len(offsets)
        self._note_times(rows.column("timestamp").cast(pa.int64()))
        self.versions.update(rows.column("schemaVersion").drop_null().unique().to_pylist())
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _note_times(self, times_us: Any) -> None:  # noqa: ANN401  an Arrow array
        self._lacks_times = self._lacks_times or times_us.null_count > 0
        found = pc.call_function("min_max", [times_us]).as_py()
        if found["min"] is not None:
            low, high = found["min"] // 1000, found["max"] // 1000
            self._earliest = low if self._earliest is None else min(low, self._earliest)
            self._latest = high if self._latest is None else max(high, self._latest)

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting).cast(self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> ArchivedFile:
        """Make the file durable, give it its name, and return what it holds."""
        self._flush()
        label = Label(self._archive, self.partition, self._first, self._last + 1)
        self._writer.add_key_value_metadata(label.metadata())
        self._writer.close()
        self._files.sync(self._file)
        size = self._file.tell()
        self._file.close()
        self._files.rename(part_of(self._path), self._path)
        self._files.sync_directory(self._path.partition("/")[0])
        self._files.sync_directory()
        known = not self._lacks_times
        return ArchivedFile(
            self._path,
            self._first,
            self._last + 1,
            self._rows,
            size,
            self._text,
            self._earliest if known else None,
            self._latest if known else None,
        )
