"""The files of an archive in memory, which stop at any step, and lose what was not synced."""

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from daybook.clients.pipelines.archive.files import ArchiveFiles


class StoppedError(Exception):
    """The process was killed, or the machine lost its power."""


class _Inode:
    def __init__(self, changed_s: float) -> None:
        self.data = b""
        self.durable = b""
        self.changed_s = changed_s


class _Writing(BytesIO):
    def __init__(self, inode: _Inode) -> None:
        super().__init__()
        self.inode = inode

    def close(self) -> None:
        if not self.closed:
            self.inode.data = self.getvalue()
        super().close()


class MemoryFiles(ArchiveFiles):
    """Each change is a step.  The step `stop_at`, counted from 0, raises before it changes."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__(Path("/archive"))
        self.stop_at = stop_at
        self.steps = 0
        self.now_s = 1_000_000.0
        self._names: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._synced: set[str] = set()  # directories whose own names are not synced yet

    def _step(self) -> None:
        if self.steps == self.stop_at:
            raise StoppedError
        self.steps += 1

    # -- what is left of it

    def killed(self) -> "MemoryFiles":
        """Return the files after the process was killed: the system keeps what was written."""
        return self._left(self._names, durable=False)

    def without_power(self, *, names: bool) -> "MemoryFiles":
        """Return the files after a loss of power; `names`: the disk had the newest names."""
        return self._left(self._names if names else self._durable, durable=True)

    def _left(self, found: dict[str, _Inode], *, durable: bool) -> "MemoryFiles":
        left = MemoryFiles()
        left.now_s = self.now_s
        for path, inode in found.items():
            copy = _Inode(inode.changed_s)
            copy.data = copy.durable = inode.durable if durable else inode.data
            left._names[path] = left._durable[path] = copy
        return left

    # -- as ArchiveFiles

    def create(self, path: str, *, replaces: bool = False) -> BinaryIO:
        self._step()
        if path in self._names and not replaces:
            raise FileExistsError(path)
        inode = self._names[path] = _Inode(self.now_s)
        return _Writing(inode)

    def sync(self, file: BinaryIO) -> None:
        self._step()
        assert isinstance(file, _Writing)
        file.inode.data = file.inode.durable = file.getvalue()

    def sync_directory(self, path: str = "") -> None:
        self._step()
        if path:
            # The directory itself has a durable name after its parent was synced.
            self._synced |= {path}
            return
        inside = {n for n in {*self._names, *self._durable} if "/" not in n}
        inside |= {
            name
            for name in {*self._names, *self._durable}
            if name.partition("/")[0] in self._synced
        }
        for name in inside:
            if name in self._names:
                self._durable[name] = self._names[name]
            else:
                self._durable.pop(name, None)
        self._synced = set()

    def rename(self, old: str, new: str) -> None:
        self._step()
        self._names[new] = self._names.pop(old)

    def delete(self, path: str) -> None:
        self._step()
        self._names.pop(path, None)

    def read(self, path: str) -> bytes:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._names[path].data

    def open(self, path: str) -> BinaryIO:
        return BytesIO(self.read(path))

    def _named(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, float]]:
        for path, inode in sorted(self._names.items()):
            if pattern.fullmatch(path):
                yield path, inode.changed_s

    def size(self, path: str) -> int | None:
        return len(self._names[path].data) if path in self._names else None
