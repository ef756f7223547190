"""The files of an archive, by their paths below its directory.

Every write to an archive goes through one of these methods, and is a step at which the machine may
stop.  `sync` makes the content of a file durable, and `sync_directory` the names in a directory.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from daybook.clients.pipelines.archive.manifest import PART, PATH


class ArchiveFiles:
    """The files in one directory.  It can be sent to the workers of Spark."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self, path: str, *, replaces: bool = False) -> BinaryIO:
        """Create a file for writing.  Unless it may replace one, raise FileExistsError."""
        full = self.directory / path
        full.parent.mkdir(parents=True, exist_ok=True)
        return full.open("wb" if replaces else "xb")

    def sync(self, file: BinaryIO) -> None:
        """Make the content of a file durable."""
        file.flush()
        os.fsync(file.fileno())

    def sync_directory(self, path: str = "") -> None:
        """Make the names in a directory durable."""
        handle = os.open(self.directory / path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it takes the place of one that has the new name, in one step."""
        (self.directory / old).rename(self.directory / new)

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        (self.directory / path).unlink(missing_ok=True)

    def read(self, path: str) -> bytes:
        """Return the content of a file.  Raise FileNotFoundError."""
        return (self.directory / path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading.  Raise FileNotFoundError."""
        return (self.directory / path).open("rb")

    def parquet(self) -> Iterator[tuple[str, float]]:
        """Return the files that an archiver wrote, named or not, with the times of their changes.

        Files of other names, symbolic links, and what is behind these are not among them.
        """
        return self._named(PATH)

    def parts(self) -> Iterator[tuple[str, float]]:
        """Return in the same way the files that are being written, or never became whole."""
        return self._named(PART)

    def _named(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, float]]:
        for full in sorted(self.directory.glob("day=*/*.parquet")):
            path = full.relative_to(self.directory).as_posix()
            linked = full.is_symlink() or full.parent.is_symlink()
            if pattern.fullmatch(path) and not linked and full.is_file():
                with suppress(FileNotFoundError):  # It has just got its name, or was deleted.
                    yield path, full.stat().st_mtime

    def size(self, path: str) -> int | None:
        """Return the bytes of a file; None if it is not there."""
        try:
            return (self.directory / path).stat().st_size
        except FileNotFoundError:
            return None

    def has_tables(self) -> bool:
        """Return True if the directory has a day of an archive, or a Parquet file."""
        patterns = ("day=*", "*.parquet", "*/*.parquet")
        return any(True for pattern in patterns for _ in self.directory.glob(pattern))
