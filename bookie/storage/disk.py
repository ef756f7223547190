"""SEAM disk: the directories and files of a bookie.  Real files here; others in `tests/simulation`.

A call that changes something returns when contents *and* names would survive a power loss.  There
is no separate sync that a caller could forget; each promise is one call:

    await disk.write_file("d0/VERSION", text)         replaced as a whole, or not at all
    appender = disk.open_appender()
    await appender.start("d0/log/0.log", buffers)     a new file: its bytes and its name
    await appender.write(buffers)                     the next bytes, in order

An appender is one stream of writes, for instance one log.  It has a thread of its own: a write
costs one hop to the thread and one wake-up of the event loop.  **After an error the appender
refuses every call.**  A sync that failed has dropped pages which the next sync would report as
written, so no write is tried again; the bytes of the failed write may or may not be on the disk.
A write that has begun is not cancelled: the caller waits for its result.

Errors are `OSError`s.  A lock that another process holds is a `DirectoryInUseError`.

Appenders write past the page cache (O_DIRECT) where the file system allows it, which takes a fifth
of the processor time at a megabyte a write.  They end a file with zeros up to a multiple of 4096
bytes.  Long reads bypass the page cache, too; short reads use it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar

import outcome
import trio

from daybook.wire.arena import ArenaPool

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview

UNFINISHED = ".new"  # the suffix of a file that `write_file` has not finished
_FEW_BYTES = 16 << 10
_QUICK_S = 0.004  # no seeking disk; on busy cores most of this time is waiting for a turn
_BUFFERS_BYTES_MAX = 64 << 20
BLOCK_BYTES = 4096
# Bytes that fit are written and synced by one call.  Others take several writes and a sync of its
# own: with 1 MB, groups of little more cost a bookie a third more processor.
_STAGE_BYTES = 4 << 20
_SMALL_BYTES = 64 << 10
_ZEROS_BYTES = 4 << 20
_IOV_MAX = 1024  # buffers that one system call takes (Linux)
_LONG_BYTES = 256 << 10
_PRIVATE, _SHARED = 0o700, 0o777  # modes of directories; the umask of the process takes from them
_FREED_BYTES = 8 << 20  # at a time; a sync beside 512 MB that go at once waits for 100 ms
_FREE_PAUSE_S = 0.02
_READERS_LOOK_S = 0.05
_READERS_LOOKS_MAX = 200
_READ_BUFFER_BYTES = (4 << 20) + 3 * BLOCK_BYTES  # for any offset, with room for the alignment


class DirectoryInUseError(Exception):
    """Another process has locked the directory."""


class Appender(Protocol):
    """Writes at the end of one file after the other; one caller at a time."""

    async def start(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Begin a new file with these bytes; bytes and name are durable on return.

        Later writes go to this file.  Raise `FileExistsError` if the file exists.
        """
        ...

    async def write(self, buffers: Sequence[Buffer]) -> None:
        """Append to the file; durable on return.  The call is not always a trio checkpoint."""
        ...

    async def aclose(self) -> None: ...


class Reader(Protocol):
    """Reads from any offset of a file, which may still grow."""

    async def read(self, offset: int, size: int) -> Buffer:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...

    async def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Return what `read` does for each offset and size: with less work, if they are long."""
        ...

    def close(self) -> None:
        """Close the file; reads under way end normally."""
        ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """The disks of a host."""

    async def make_directory(self, path: str) -> None:
        """Create the directory and its parents, unless they exist.

        Only its owner can enter a new directory.  The modes of parents, and of a directory that
        exists, are those that the operator wants.
        """
        ...

    async def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        ...

    async def lock_directory(self, path: str) -> DirectoryLock:
        """Lock the directory for this process until `release` or the end of the process.

        Raise `DirectoryInUseError` if another process holds the lock.
        """
        ...

    async def read_file(self, path: str) -> bytes: ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace the file: after a crash there is the old file or the new one."""
        ...

    async def remove(self, path: str) -> None: ...

    async def remove_in_steps(self, path: str) -> None:
        """Remove a large file: its name at once, as `remove` does, and its bytes a few at a time.

        Writers beside it hardly wait then.  Nothing that has the file open ever finds it shorter.
        If a reader stays open for long, the call returns, and `run` frees the bytes when the reader
        is closed.  If the call or `run` is cut short, the system frees the rest at once.
        """
        ...

    async def remove_directory(self, path: str) -> None:
        """Remove the directory and its contents, if it exists."""
        ...

    async def size(self, path: str) -> int: ...

    async def free_bytes(self, path: str) -> int:
        """Return the free bytes of the file system that holds the directory."""
        ...

    async def open_reader(self, path: str) -> Reader: ...

    def open_appender(self) -> Appender: ...

    async def run(self) -> None:
        """Give back memory and space that reads needed and no longer need, forever."""
        ...


@dataclass(frozen=True, slots=True)
class _RemovedFile:
    """A file without a name; the descriptor keeps its bytes."""

    path: str  # as it was
    descriptor: int
    size: int


class FileDisk:
    """The disks of this machine.  Every call that may wait for a device runs in a thread."""

    def __init__(self, *, threads_max: int = 16) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._buffers = ArenaPool(
            arena_bytes=_READ_BUFFER_BYTES, total_bytes_max=_BUFFERS_BYTES_MAX
        )
        self._open = Counter[str]()  # open readers, by path
        self._held: list[_RemovedFile] = []  # a reader stayed open for long
        self._closed = trio.Event()  # a last reader of some file was closed
        self._running = False

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

    async def remove_in_steps(self, path: str) -> None:
        removed, held = await self._in_thread(lambda: _unlink(path)), False
        try:
            # The name is gone, durably: a crash leaves no file that is shorter than its records.
            if await self._has_no_reader(path):
                await self._cut(removed)
            else:
                held = self._hold(removed)
        finally:
            if not held:
                await self._close(removed)

    def _hold(self, removed: _RemovedFile) -> bool:
        """Leave the file to `run`; return False if that does not run.

        Otherwise the close of the reader would free all bytes at once, and in the event loop.
        """
        if self._running:
            self._held.append(removed)
            self._closed.set()  # The reader may have been closed since the last look.
        return self._running

    async def _cut(self, removed: _RemovedFile) -> None:
        size = removed.size
        with suppress(OSError):  # the close frees the rest
            while size:
                size = max(0, size - _FREED_BYTES)
                await self._in_thread(partial(os.ftruncate, removed.descriptor, size))
                await trio.sleep(_FREE_PAUSE_S)

    async def _close(self, removed: _RemovedFile) -> None:
        with trio.CancelScope(shield=True):
            await self._in_thread(lambda: os.close(removed.descriptor))

    async def _has_no_reader(self, path: str) -> bool:
        """Wait for reads under way; return False if a reader stays open for too long."""
        for _ in range(_READERS_LOOKS_MAX):
            if not self._open[path]:
                return True
            await trio.sleep(_READERS_LOOK_S)
        return False

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
        def closed() -> None:
            self._open[path] -= 1
            if not self._open[path]:
                del self._open[path]
                self._closed.set()

        self._open[path] += 1  # before the file is opened: a removal must not miss this reader
        try:
            return await self._in_thread(
                lambda: FileReader(path, self._threads, self._buffers, closed)
            )
        except BaseException:
            closed()
            raise

    def open_appender(self) -> Appender:
        return FileAppender()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._buffers.run)
            nursery.start_soon(self._free_held)

    async def _free_held(self) -> None:
        """Free removed files whose readers stayed open for long, when these are closed."""
        self._running = True
        try:
            while True:
                await self._closed.wait()
                self._closed = trio.Event()
                for removed in [each for each in self._held if not self._open[each.path]]:
                    await self._cut(removed)
                    self._held.remove(removed)
                    await self._close(removed)
        finally:
            self._running = False
            for removed in self._held:
                await self._close(removed)
            self._held.clear()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._threads)


class FileAppender:
    """A thread that writes and syncs: a queue brings it jobs, the event loop gets its answers.

    A quick disk has written a few bytes before a thread would even have begun.  So as long as the
    last write was quick, the event loop writes small appends itself (`make bench`, latency: 2.6 ms
    instead of 3.1 ms).
    """

    def __init__(self) -> None:
        self._seconds = inf  # the duration of the last write
        self._jobs: SimpleQueue[tuple[trio.lowlevel.Task, Callable[[], None]] | None] = (
            SimpleQueue()
        )
        self._token = trio.lowlevel.current_trio_token()
        self._thread: threading.Thread | None = None
        self._file: PreallocatedFile | None = None
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
        # The thread will run the job in any case, so a cancelled caller waits for the answer, too.
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
        self._file = PreallocatedFile(path)
        self._file.append(buffers)
        _sync_directory(os.path.dirname(path))

    def _append(self, buffers: Sequence[Buffer]) -> None:
        assert self._file is not None, "no file was started"
        self._file.append(buffers)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PreallocatedFile:
    """A new file to which bytes are appended; they are on the disk when `append` returns.

    The calls block, so they run in a thread.  The file is written past the page cache (O_DIRECT)
    where the file system allows it, in whole blocks from an aligned buffer:

        file    | block | block | block |
        stage                   | bytes.. 0 |  the last, partly filled block

    The last block is written again together with the next bytes.  The bytes in it that were on
    the disk before are then overwritten with themselves.

    A sync of a file that grows also waits for the journal of the file system, and all files of the
    file system wait for each other there: 0.7 ms instead of 0.3 ms with three files that get 4 KB
    at a time.  So zeros are written some megabytes ahead of small appends; `close` cuts them off.
    """

    def __init__(self, path: str) -> None:
        self._descriptor, direct = _create(path)
        self._offset = 0
        self._size = 0  # the size of the file, with the zeros at its end
        self._stage = memoryview(mmap.mmap(-1, _STAGE_BYTES)) if direct else None
        self._staged = 0  # bytes of the last, partly filled block, at the front of the stage

    def append(self, buffers: Sequence[Buffer]) -> None:
        if self._stage is not None:
            self._append_direct(self._stage, buffers)
        elif len(buffers) <= _IOV_MAX:
            self._offset += write_fully(self._descriptor, buffers, self._offset, os.RWF_DSYNC)
        else:
            for first in range(0, len(buffers), _IOV_MAX):
                some = buffers[first : first + _IOV_MAX]
                self._offset += write_fully(self._descriptor, some, self._offset, 0)
            os.fdatasync(self._descriptor)

    def _append_direct(self, stage: memoryview, buffers: Sequence[Buffer]) -> None:
        at = self._staged
        pieces = 0
        for buffer in buffers:
            size = len(buffer)
            if at + size <= _STAGE_BYTES:
                stage[at : at + size] = buffer
                at += size
                continue
            rest = memoryview(buffer)
            while rest:
                some = min(len(rest), _STAGE_BYTES - at)
                stage[at : at + some] = rest[:some]
                at += some
                rest = rest[some:]
                if at == _STAGE_BYTES:
                    self._offset += write_fully(self._descriptor, (stage,), self._offset, 0)
                    pieces += 1
                    at = 0
        end = -(-at // BLOCK_BYTES) * BLOCK_BYTES
        stage[at:end] = bytes(end - at)
        if end <= _SMALL_BYTES and self._offset + end > self._size and self._offset:
            self._write_zeros(self._offset + end)
        write_fully(self._descriptor, (stage[:end],), self._offset, 0 if pieces else os.RWF_DSYNC)
        if pieces:
            os.fdatasync(self._descriptor)
        self._size = max(self._size, self._offset + end)
        self._staged = at % BLOCK_BYTES
        whole = at - self._staged
        stage[: self._staged] = bytes(stage[whole:at])
        self._offset += whole

    def _write_zeros(self, offset: int) -> None:
        """Write zeros ahead of small appends; without disk space the appends do without them."""
        zeros = memoryview(mmap.mmap(-1, _ZEROS_BYTES))
        with suppress(OSError):
            self._size = offset + write_fully(self._descriptor, (zeros,), offset, 0)

    def close(self) -> None:
        with suppress(OSError):
            if self._stage is not None:
                filled = BLOCK_BYTES if self._staged else 0
                os.ftruncate(self._descriptor, self._offset + filled)
        os.close(self._descriptor)


class FileReader:
    """Reads from one file; the event loop never waits for a device.

    The constructor runs in a thread, the other calls run in the event loop.  Errors are `OSError`s.

    A short read is served from the page cache if it holds the bytes, otherwise by a thread.  A long
    read goes past the page cache (O_DIRECT) into reused buffers.  The log was written past the
    page cache, so the cache does not hold it, and filling the cache costs twenty times the
    processor time of the read (2.4 ms against 0.12 ms a megabyte, measured on a virtual disk).
    A buffer is free for reuse when no view into it is left.
    """

    def __init__(
        self,
        path: str,
        threads: trio.CapacityLimiter,
        buffers: ArenaPool,
        closed: Callable[[], None],
    ) -> None:
        """`closed` is called once, when the file is closed."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = _open_direct(path)
        self._threads = threads
        self._buffers = buffers
        self._cache_tells = True  # the file system can tell if bytes are in the page cache
        self._reading = 0
        self._closed = False
        self._on_closed = closed

    async def read(self, offset: int, size: int) -> Buffer:
        """Return up to `size` bytes; fewer at the end of the file.  This is a trio checkpoint."""
        if self._closed:
            raise OSError(errno.EBADF, "the reader is closed")
        self._reading += 1
        try:
            if size >= _LONG_BYTES and self._direct >= 0:
                return await self._read_long(offset, size)
            return await self._read_short(offset, size)
        finally:
            self._reading -= 1
            self._close_when_idle()

    async def _read_short(self, offset: int, size: int) -> Buffer:
        if self._cache_tells:
            data = bytearray(size)
            try:
                if os.preadv(self._descriptor, [data], offset, os.RWF_NOWAIT) == size:
                    await trio.lowlevel.checkpoint()
                    return data
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                self._cache_tells = False
        return await trio.to_thread.run_sync(
            _read_fully, self._descriptor, offset, size, limiter=self._threads
        )

    async def _read_long(self, offset: int, size: int) -> Buffer:
        before = offset % BLOCK_BYTES
        view = self._aligned(-(-(before + size) // BLOCK_BYTES) * BLOCK_BYTES)
        got = await trio.to_thread.run_sync(
            _read_blocks, self._direct, offset - before, view, limiter=self._threads
        )
        return view[before : min(before + size, got)]

    async def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Read all pieces in one thread, past the page cache, into one buffer."""
        if self._direct < 0:
            return [await self.read(offset, size) for offset, size in pieces]
        if self._closed:
            raise OSError(errno.EBADF, "the reader is closed")
        self._reading += 1
        try:
            return await self._read_long_pieces(pieces)
        finally:
            self._reading -= 1
            self._close_when_idle()

    async def _read_long_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        spans = [
            -(-(offset % BLOCK_BYTES + size) // BLOCK_BYTES) * BLOCK_BYTES
            for offset, size in pieces
        ]
        view, at = self._aligned(sum(spans)), 0
        parts: list[tuple[int, memoryview]] = []  # the offset of the first block, and its place
        for (offset, _), span in zip(pieces, spans, strict=True):
            parts.append((offset - offset % BLOCK_BYTES, view[at : at + span]))
            at += span

        def read_all() -> list[int]:
            return [_read_blocks(self._direct, offset, part) for offset, part in parts]

        counts = await trio.to_thread.run_sync(read_all, limiter=self._threads)
        found: list[Buffer] = []
        for (offset, size), (first, part), got in zip(pieces, parts, counts, strict=True):
            before = offset - first
            found.append(part[before : min(before + size, got)])
        return found

    def _aligned(self, size: int) -> memoryview:
        """Return memory for a read past the page cache, which begins at a block."""
        arena = self._buffers.try_acquire(size + BLOCK_BYTES)
        # The heap keeps its pages; pages of a fresh arena would take longer than the read.
        buffer = bytearray(size + BLOCK_BYTES) if arena is None else arena
        if arena is not None:
            self._buffers.release(arena)  # reused only when no view into it is left
        skip = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % BLOCK_BYTES
        return memoryview(buffer)[skip : skip + size]

    def close(self) -> None:
        self._closed = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        # Not under a thread that reads: the descriptor could belong to another file by then.
        if self._closed and not self._reading and self._descriptor >= 0:
            os.close(self._descriptor)
            if self._direct >= 0:
                os.close(self._direct)
            self._descriptor = self._direct = -1
            self._on_closed()


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


def _unlink(path: str) -> _RemovedFile:
    """Unlink the file; return it with a descriptor that keeps its bytes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.unlink(path)
        _sync_directory(os.path.dirname(path))
        return _RemovedFile(path, descriptor, os.fstat(descriptor).st_size)
    except BaseException:
        os.close(descriptor)
        raise


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


def _make_directory(path: Path, mode: int = _PRIVATE) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent, _SHARED)
    path.mkdir(mode, exist_ok=True)
    _sync_directory(str(path.parent))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: str) -> tuple[int, bool]:
    """Create the file; return its descriptor, and True if it bypasses the page cache."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # Some file systems create the file before they refuse the flag.
    return os.open(path, flags & ~os.O_EXCL, 0o644), False


def write_fully(descriptor: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
    size = sum(map(len, buffers))
    written = os.pwritev(descriptor, buffers, offset, flags)
    if written < size:  # rare: a signal, or a nearly full disk
        rest = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        while written < size:
            written += os.pwritev(descriptor, [rest[written:]], offset + written, flags)
    return size


def _open_direct(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return -1  # the file system does not support it


def _read_blocks(descriptor: int, offset: int, view: memoryview) -> int:
    """Fill whole blocks, up to the end of the file; return the number of bytes read."""
    got = 0
    while got < len(view):
        count = os.preadv(descriptor, [view[got:]], offset + got)
        got += count
        if not count or count % BLOCK_BYTES:
            break
    return got


def _read_fully(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size and (data := os.pread(descriptor, size - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)
