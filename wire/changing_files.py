"""Small files that are read again when they change: what tells a change, and a bounded read."""

import os
from pathlib import Path
from typing import TypeAlias

FileStamp: TypeAlias = tuple[int, int, int]
"""The inode, the size and the time of the last change: other ones when a file was replaced."""


def stamp_of(path: Path) -> FileStamp:
    """Return what changes when a file is replaced or written.  Raise OSError."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_stamped(path: Path, bytes_max: int) -> tuple[FileStamp, bytes]:
    """Return the content of a file, and its stamp before it was read.

    A file that changes during the read has another stamp afterwards.  Raise OSError, or ValueError
    for a file that is larger than `bytes_max`.
    """
    stamp = stamp_of(path)
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError("the file is too large")
    return stamp, content
