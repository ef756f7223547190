"""Small files that are read again when they change: what tells a change, and a bounded read.

`ChangingFile` keeps the value of such a file.  While the file cannot be read or parsed, the value
that it had before stays, and `problem` says why.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

Value = TypeVar("Value")

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


class ChangingFile(Generic[Value]):
    """A file whose content is parsed again when it has changed."""

    def __init__(self, path: Path, bytes_max: int, parse: Callable[[bytes], Value]) -> None:
        """Read the file.  Raise OSError or ValueError if that is not possible."""
        self.path = path
        self.problem = ""  # why the present file cannot be used; "" if it is in force
        self._bytes_max = bytes_max
        self._parse = parse
        self._stamp = stamp_of(path)
        self.value = self._read()

    def look(self, *, retry: bool = False) -> bool:
        """Return True if the file has a new value.

        A file that could not be used is read again when it has changed, and with `retry` in any
        case, because a changed permission leaves the stamp as it is.
        """
        try:
            stamp = stamp_of(self.path)
            if stamp == self._stamp and not (retry and self.problem):
                return False
            # The stamp is kept even if the content is refused, so that each look does not read it.
            self._stamp = stamp
            found = self._read()
        except (OSError, ValueError) as error:
            self.problem = str(error)
            return False
        self.problem = ""
        changed, self.value = found != self.value, found
        return changed

    def _read(self) -> Value:
        return self._parse(read_stamped(self.path, self._bytes_max)[1])
