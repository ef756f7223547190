"""Find offsets of an archive by publish time."""

# pyright: basic
# (the libraries underneath have no types)

import pyarrow as pa
import pyarrow.compute as pc

from daybook.clients.pipelines.archive.checked import NamedFile, open_file
from daybook.clients.pipelines.archive.errors import ArchiveError
from daybook.clients.pipelines.archive.files import ArchiveFiles
from daybook.clients.pipelines.archive.manifest import ArchivedPartition
from daybook.clients.spark.columns import TIME_MS_MAX


def first_published(
    files: ArchiveFiles, archive: str, number: int, part: ArchivedPartition, time_ms: int
) -> int | None:
    """Return the first offset of a partition that was published at a time or later; None: none was.

    `archive` is the id of the archive.  One file is opened, or more if messages of them have no
    publish time.  Raise ArchiveError for a file that differs from its manifest, and for a time
    which no row can hold if it would decide.
    """
    for file in part.files:
        if file.latest_ms is not None and file.latest_ms < time_ms:
            continue
        named = NamedFile(files, archive, number, file)
        if file.latest_ms is None and time_ms > TIME_MS_MAX:
            raise ArchiveError(
                f"{named} has messages that were published after the year 9999, and does not say"
                " when: name an earlier time, or offsets"
            )
        found = _first_in(named, time_ms)
        if found is not None:
            return found
    return None


def _first_in(named: NamedFile, time_ms: int) -> int | None:
    with open_file(named) as opened:
        for batch in opened.rows(("offset", "timestamp"), named.file.first, named.file.next):
            times_us = batch.column("timestamp").cast(pa.int64())
            # A message without a time was published after the last time that a row can hold.
            late = pc.call_function("greater_equal", [times_us, pa.scalar(time_ms * 1000)])
            late = pc.fill_null(late, True)
            if (index := pc.index(late, True).as_py()) >= 0:
                return int(batch.column("offset")[index].as_py())
    return None
