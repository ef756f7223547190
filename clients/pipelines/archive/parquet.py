"""The label of a Parquet file of an archive, in the metadata of its footer.

A file has the id of its archive, its partition, the offset of its first row, and the offset behind
its last one.  So a file that no manifest names still says what would be lost with it.
"""

# pyright: basic
# (the libraries underneath have no types)

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Label:
    """The label of a file: the archive and the partition to which its rows [first, next) belong."""

    archive: str
    partition: int
    first: int
    next: int

    def metadata(self) -> dict[str, str]:
        """Return the entries for the footer of a file."""
        return {
            "daybook.archive": self.archive,
            "daybook.partition": str(self.partition),
            "daybook.first": str(self.first),
            "daybook.next": str(self.next),
        }


def label_of(metadata: Mapping[bytes, bytes] | None) -> Label | None:
    """Return the label in the footer of a file; None if it has none, or one that is not whole."""
    given = metadata or {}
    archive = given.get(b"daybook.archive", b"").decode("latin-1")
    texts = [
        given.get(name, b"").decode("latin-1")
        for name in (b"daybook.partition", b"daybook.first", b"daybook.next")
    ]
    if not _ID.fullmatch(archive) or not all(map(_NUMBER.fullmatch, texts)):
        return None
    partition, first, following = map(int, texts)
    return Label(archive, partition, first, following) if first < following else None


def read_label(source: BinaryIO) -> Label | None:
    """Return the label of a file; None if nobody can read it."""
    try:
        return label_of(opened(source).metadata.metadata)
    except (pa.ArrowException, OSError, ValueError):
        return None


def opened(source: BinaryIO) -> Any:  # noqa: ANN401  a ParquetFile
    """Open a file, whose pages are compared with their checksums.  All readers open files here."""
    return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
