"""Small files that are read again when they change: what tells a change, and a bounded read.

`ChangingFile` keeps the value of such a file.  While the file cannot be read or parsed, the value
that it had before stays, and `problem` says why.

Only regular files are read.  To open a pipe waits for its other end, and everybody would wait.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import trio

Value = TypeVar("Value")

FileStamp: TypeAlias = tuple[int, int, int]
"""The inode, the size and the time of the last change: other ones when a file was replaced."""


def stamp_of(path: Path) -> FileStamp:
    """Return what changes when a file is replaced or written.  Raise OSError."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_regular(path: Path, bytes_max: int) -> bytes:
    """Return the content of a regular file, without a wait for another process.

    Raise OSError, or ValueError for a file that is not regular, or larger than `bytes_max`.
    """
    _check_regular(os.stat(path).st_mode)  # To open some devices has effects.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        _check_regular(os.fstat(descriptor).st_mode)
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError("the file is too large")
    return content


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError("it is not a regular file")


def read_stamped(path: Path, bytes_max: int) -> tuple[FileStamp, bytes]:
    """Return the content of a file, and its stamp before it was read.

    A file that changes during the read has another stamp afterwards.  Raise what `read_regular`
    raises.
    """
    stamp = stamp_of(path)
    return stamp, read_regular(path, bytes_max)


class ChangingFile(Generic[Value]):
    """A file whose content is parsed again when it has changed."""

    def __init__(
        self,
        path: Path,
        bytes_max: int,
        parse: Callable[[bytes], Value],
        *,
        settle_s: float = 0.0,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """Read the file.  Raise OSError or ValueError if that is not possible.

        A changed file is read when it has not changed for `settle_s`.  A part of a file that is
        being written may be a right value too, a shorter one.
        """
        self.path = path
        self.problem = ""  # why the present file cannot be used; "" if it is in force
        self._bytes_max = bytes_max
        self._parse = parse
        self._settle_s = settle_s
        self._clock = clock
        self._stamp = stamp_of(path)
        self._unsettled: tuple[FileStamp, float] | None = None  # a new stamp, since when
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
            if stamp != self._stamp and not self._is_settled(stamp):
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

    def _is_settled(self, stamp: FileStamp) -> bool:
        """Return True if the file has had a new stamp for long enough."""
        if not self._settle_s:
            return True
        now = self._clock()
        if self._unsettled is None or self._unsettled[0] != stamp:
            self._unsettled = stamp, now
            return False
        if now - self._unsettled[1] < self._settle_s:
            return False
        self._unsettled = None
        return True

    def _read(self) -> Value:
        return self._parse(read_stamped(self.path, self._bytes_max)[1])
