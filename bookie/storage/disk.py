"""SEAM disk: directories and files as a bookie needs them.  Real files here; `tests/simulation`.

What returns from a call that changes something has survived a loss of power: contents *and* names.
There is no sync to forget; each promise is one call:

    await disk.write_file("d0/VERSION", text)         replaced as a whole, or not at all
    appender = disk.open_appender()
    await appender.start("d0/log/0.log", buffers)     a new file: its bytes and its name
    await appender.write(buffers)                     behind them, in order

An appender is one stream of writes, like one log: it has a thread of its own, a write costs one
hop there and one wake-up back.  **After an error it refuses everything.**  A sync that failed has
dropped pages which the next one would report as written, so nothing is ever tried again; what was
being written may or may not be on the disk.  A write that has begun is not cancelled: the answer is
waited for.

Errors are `OSError`s.  A lock that somebody else holds is a `DirectoryInUseError`.

Appenders write past the page cache (O_DIRECT) where the file system lets them: a fifth of the
processor time, at a megabyte a write.  They gather in an aligned buffer, and write the last, partly
filled block of a file again with the next bytes; the file ends in zeros then, up to a multiple of
4096.  Long reads go past it, too; short ones use it.
"""

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self, TypeVar

import outcome
import trio

from daybook.bookie.storage.file_reader import READ_BUFFER_BYTES, FileReader
from daybook.bookie.storage.growing import Buffer, GrowingFile, write_fully
from daybook.wire.arena import ArenaPool

T = TypeVar("T")

UNFINISHED = ".new"  # behind the name of what `write_file` writes, until all of it is there
_FEW_BYTES = 16 << 10
_QUICK_S = 0.004  # no disk that seeks; on busy cores most of it is waiting for a turn
_BUFFERS_BYTES_MAX = 64 << 20


class DirectoryInUseError(Exception):
    """Another process has locked the directory."""


class Appender(Protocol):
    """Writes at the end of one file after the other; one caller at a time."""

    async def start(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Begin a new file with these bytes; bytes and name are durable on return.

        Later writes go there.  `FileExistsError` if there is such a file.
        """
        ...

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Append behind everything written before; durable on return.  Not always a checkpoint."""
        ...

    async def aclose(self) -> None: ...


class Reader(Protocol):
    """A file that is read at any place, while it may still grow."""

    async def read(self, offset: int, size: int) -> Buffer:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def close(self) -> None:
        """Reads that are under way end as if nothing had happened."""
        ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """What a host sees of its disks."""

    async def make_directory(self, path: str) -> None:
        """Make it, and its parents, if they are not there."""
        ...

    async def list_directory(self, path: str) -> list[str]:
        """The names in it, sorted."""
        ...

    async def lock_directory(self, path: str) -> DirectoryLock:
        """Hold it for this process alone until `release` or the end of the process."""
        ...

    async def read_file(self, path: str) -> bytes: ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace: after a crash there is the old file or the new one."""
        ...

    async def remove(self, path: str) -> None: ...

    async def remove_directory(self, path: str) -> None:
        """Remove it with all that is in it, if it is there."""
        ...

    async def size(self, path: str) -> int: ...

    async def free_bytes(self, path: str) -> int:
        """Room left on the file system of that directory."""
        ...

    async def open_reader(self, path: str) -> Reader: ...

    def open_appender(self) -> Appender: ...


class FileDisk:
    """The disks of the machine.  Everything that may wait for a device runs in a thread."""

    def __init__(self, *, threads_max: int = 16) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._buffers = ArenaPool(arena_bytes=READ_BUFFER_BYTES, total_bytes_max=_BUFFERS_BYTES_MAX)

    async def make_directory(self, path: str) -> None:
        await self._in_thread(lambda: _make_directory(Path(path)))

    async def list_directory(self, path: str) -> list[str]:
        return await self._in_thread(lambda: sorted(os.listdir(path)))

    async def lock_directory(self, path: str) -> DirectoryLock:
        return await self._in_thread(lambda: _FileLock(path))

    async def read_file(self, path: str) -> bytes:
        return await self._in_thread(Path(path).read_bytes)

    async def write_file(self, path: str, content: bytes) -> None:
        await self._in_thread(lambda: _replace_file(path, content))

    async def remove(self, path: str) -> None:
        def remove() -> None:
            os.unlink(path)
            _sync_directory(os.path.dirname(path))

        await self._in_thread(remove)

    async def remove_directory(self, path: str) -> None:
        def remove() -> None:
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
                _sync_directory(os.path.dirname(path))

        await self._in_thread(remove)

    async def size(self, path: str) -> int:
        return await self._in_thread(lambda: os.stat(path).st_size)

    async def free_bytes(self, path: str) -> int:
        def free() -> int:
            stat = os.statvfs(path)
            return stat.f_bavail * stat.f_frsize

        return await self._in_thread(free)

    async def open_reader(self, path: str) -> Reader:
        return await self._in_thread(lambda: FileReader(path, self._threads, self._buffers))

    def open_appender(self) -> Appender:
        return FileAppender()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._threads)


class FileAppender:
    """A thread that writes and syncs; jobs go in through a queue, answers out through the loop.

    A few bytes on a quick disk are there before a thread would even have begun: as long as the
    last write was quick, the loop writes them itself (`make bench`, latency: 2.6 against 3.1 ms).
    """

    def __init__(self) -> None:
        self._seconds = inf  # what the last write took
        self._jobs: SimpleQueue[tuple[trio.lowlevel.Task, Callable[[], None]] | None] = (
            SimpleQueue()
        )
        self._token = trio.lowlevel.current_trio_token()
        self._thread: threading.Thread | None = None
        self._file: GrowingFile | None = None
        self._broken = False

    async def start(self, path: str, buffers: Sequence[Buffer]) -> None:
        await self._run(lambda: self._start(path, buffers))

    async def write(self, buffers: Sequence[Buffer]) -> None:
        def append() -> None:
            self._append(buffers)

        if self._seconds <= _QUICK_S and sum(map(len, buffers)) <= _FEW_BYTES:
            self._checked(append)
        else:
            await self._run(append)

    async def aclose(self) -> None:
        if self._thread is None:
            return
        with trio.CancelScope(shield=True):
            await self._run_in_thread(self._close_file)
        self._jobs.put(None)
        self._thread = None

    async def _run(self, job: Callable[[], None]) -> None:
        await self._run_in_thread(lambda: self._checked(job))

    def _checked(self, job: Callable[[], None]) -> None:
        if self._broken:
            raise OSError(errno.EIO, "an earlier write failed")
        started_s = time.perf_counter()
        try:
            job()
        except OSError:
            self._broken = True
            raise
        self._seconds = time.perf_counter() - started_s

    async def _run_in_thread(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
            self._thread.start()
        self._jobs.put((trio.lowlevel.current_task(), job))
        # What has been handed over will be done: there is no way to take it back.
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            task, job = item
            result = outcome.capture(job)
            try:
                self._token.run_sync_soon(trio.lowlevel.reschedule, task, result)
            except trio.RunFinishedError:
                return
            del item, task, job, result  # an idle thread must not keep the buffers alive

    def _start(self, path: str, buffers: Sequence[Buffer]) -> None:
        self._close_file()
        self._file = GrowingFile(path)
        self._file.append(buffers)
        _sync_directory(os.path.dirname(path))

    def _append(self, buffers: Sequence[Buffer]) -> None:
        assert self._file is not None, "no file was started"
        self._file.append(buffers)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _FileLock:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(
            os.path.join(path, "LOCK"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise DirectoryInUseError(f"{path} is in use by another process") from error

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _replace_file(path: str, content: bytes) -> None:
    fresh = f"{path}{UNFINISHED}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_fully(descriptor, (content,), 0, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(fresh, path)
    _sync_directory(os.path.dirname(path))


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync_directory(str(path.parent))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
