"""The file of the audit log: whole lines, in files of a bounded size and number.

`FILE` is the newest; when it is full it becomes `FILE.1`, that one `FILE.2`, and so on, and the
oldest is deleted.  Each of these steps is one rename, so an end of the process between two of them
loses no line.  Someone else may rename the file, too: it is opened anew for each write.
"""

import os
import re
from contextlib import suppress
from pathlib import Path


class AuditFile:
    """Appends to the file.  The calls block, so they belong in a thread."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        """A file is full with `bytes_max`; 0: never, because someone else renames it."""
        assert files_max > 0
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max

    def append(self, data: bytes) -> None:
        """Append whole lines.  Raise OSError; then the file has none of them."""
        if self._bytes_max and 0 < self._size() > self._bytes_max - len(data):
            self._rotate()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            try:
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    _write_all(descriptor, b"\n")  # behind half a line of a machine that went down
                _write_all(descriptor, data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        older = re.compile(re.escape(self._path.name) + r"\.([1-9][0-9]{0,8})")
        for each in list(self._path.parent.iterdir()):
            match = older.fullmatch(each.name)
            if match is not None and int(match[1]) >= self._files_max:
                each.unlink(missing_ok=True)
        if self._files_max == 1:
            self._path.unlink(missing_ok=True)
            return
        for number in range(self._files_max - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._numbered(number - 1).replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
