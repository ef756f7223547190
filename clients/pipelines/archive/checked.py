"""The one way in which rows of an archive are read: files that differ from the manifest are errors.

    with open_file(NamedFile(files, archive, partition, file)) as opened:
        for batch in opened.rows(("value", "offset"), start, end):
            ...

A reader checks all that the manifest says before the first row: the size, the archive and the
partition of the label, the number of rows, the columns, and the offsets of all rows.  Pages have
checksums.  So a damaged file never gives fewer or other rows.
"""

# pyright: basic
# (the libraries underneath have no types)

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import SEEK_END
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedFile
from daybook.clients.pipelines.archive.parquet import label_of, opened
from daybook.clients.spark.columns import arrow_schema
from daybook.clients.spark.schema import TYPES

BATCH_ROWS = 65_536
_REMEDY = "restore the file from a copy"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file, and what the manifest says of it.  It can be sent to the workers of Spark."""

    files: ArchiveFiles
    archive: str  # the id of the archive
    partition: int
    file: ArchivedFile

    def __str__(self) -> str:
        return str(self.files.directory / self.file.path)


class CheckedFile:
    """A file that is as its manifest says, from `open_file`."""

    def __init__(self, named: NamedFile, found: Any, offsets: Any) -> None:  # noqa: ANN401
        self._named = named
        self._found = found
        self._offsets = offsets

    def rows_before(self, offset: int) -> int:
        """Return how many rows lie before an offset."""
        return int(np.searchsorted(self._offsets, offset))

    def rows(
        self, columns: Sequence[str], start: int, end: int, batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows with the offsets [start, end), with columns as the source has them.

        Row groups without such a row are not read, and one is in memory at a time.
        """
        schema = arrow_schema(columns)
        with _naming(self._named):
            for batch in self._between(list(columns), start, end, batch_rows):
                found = [batch.column(name) for name in columns]
                yield pa.RecordBatch.from_arrays(found, schema=schema)

    def _between(
        self, columns: list[str], start: int, end: int, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        low, high = self.rows_before(start), self.rows_before(end)
        at = 0
        for group in range(self._found.num_row_groups):
            following = at + self._found.metadata.row_group(group).num_rows
            if low >= following or high <= at:
                at = following
                continue
            for batch in self._found.iter_batches(batch_rows, [group], columns, use_threads=False):
                first, last = max(low, at), min(high, at + batch.num_rows)
                if first < last:
                    yield batch.slice(first - at, last - first)
                at += batch.num_rows
            if at != following:
                raise ArchiveError(f"{self._named} lacks rows: {_REMEDY}")


@contextmanager
def _naming(named: NamedFile) -> Generator[None]:
    """Turn the errors of a file that cannot be read into ArchiveError."""
    try:
        yield
    except ArchiveError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ArchiveError(f"{named} cannot be read: {_REMEDY} ({why})") from None


@contextmanager
def open_file(named: NamedFile) -> Generator[CheckedFile]:
    """Open a file, and check it.  Raise ArchiveError."""
    try:
        source = named.files.open(named.file.path)
    except FileNotFoundError:
        raise ArchiveError(
            f"{named} is in the manifest, and is not there: restore it from a copy"
        ) from None
    except OSError as error:
        raise ArchiveError(
            f"{named} cannot be opened: {error.strerror}: make it readable for this process, or"
            " restore it from a copy"
        ) from None
    with source:
        with _naming(named):
            found = _checked(named, source)
        yield found


def _checked(named: NamedFile, source: BinaryIO) -> CheckedFile:
    file = named.file
    size = source.seek(0, SEEK_END)
    if size != file.bytes:
        raise _differs(named, f"has {size} bytes", str(file.bytes))
    source.seek(0)
    found = opened(source)
    label = label_of(found.metadata.metadata)
    if label is None or (label.archive, label.partition) != (named.archive, named.partition):
        raise ArchiveError(
            f"{named} does not say that it is of the partition {named.partition} of the archive"
            f" {named.archive}: {_REMEDY}"
        )
    if found.metadata.num_rows != file.rows:
        raise _differs(named, f"has {found.metadata.num_rows} rows", str(file.rows))
    if not found.schema_arrow.equals(arrow_schema(tuple(TYPES)), check_metadata=False):
        raise ArchiveError(f"{named} does not have the columns of an archive: {_REMEDY}")
    column = found.read(["offset"], use_threads=False).column("offset")
    offsets = column.to_numpy()
    if column.null_count or len(offsets) != file.rows or (np.diff(offsets) <= 0).any():
        raise ArchiveError(
            f"{named} does not have its rows in the order of their offsets: {_REMEDY}"
        )
    if offsets[0] < file.first or offsets[-1] + 1 != file.next:
        raise _differs(
            named,
            f"has the offsets {offsets[0]} to {offsets[-1] + 1}",
            f"{file.first} to {file.next}",
        )
    return CheckedFile(named, found, offsets)


def _differs(named: NamedFile, has: str, said: str) -> ArchiveError:
    return ArchiveError(f"{named} {has}, and the manifest says {said}: {_REMEDY}")
