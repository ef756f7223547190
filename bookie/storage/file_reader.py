"""Reads from one file, without making the loop wait for a device.

What is short is taken from the page cache if it is there, else read in a thread.  What is long is
read past the page cache (O_DIRECT) into buffers that are used again: the log was written past it,
so it holds nothing of it, and to fill it costs twenty times the processor time of reading (2.4 ms
against 0.12 ms a megabyte, on the virtual disk where it was measured).

A buffer is free when nobody holds a view into it any more, as with arenas.
"""

import ctypes
import errno
import os

import trio

from daybook.bookie.storage.growing import Buffer
from daybook.wire.arena import ArenaPool

_BLOCK_BYTES = 4096
_LONG_BYTES = 256 << 10
READ_BUFFER_BYTES = (4 << 20) + 3 * _BLOCK_BYTES  # from anywhere, and room to align


class FileReader:
    """Made in a thread; used and closed in the loop.  Errors are `OSError`s."""

    def __init__(self, path: str, threads: trio.CapacityLimiter, buffers: ArenaPool) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = _open_direct(path)
        self._threads = threads
        self._buffers = buffers
        self._cache_tells = True  # whether the file system can say what is in the page cache
        self._reading = 0
        self._closed = False

    async def read(self, offset: int, size: int) -> Buffer:
        """Up to `size` bytes; fewer at the end of the file.  Some other task runs meanwhile."""
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
        before = offset % _BLOCK_BYTES
        span = -(-(before + size) // _BLOCK_BYTES) * _BLOCK_BYTES
        arena = self._buffers.try_acquire(span + _BLOCK_BYTES)
        if arena is None:
            arena = bytearray(span + _BLOCK_BYTES)
        else:
            self._buffers.release(arena)  # for when the views are gone
        skip = -ctypes.addressof(ctypes.c_char.from_buffer(arena)) % _BLOCK_BYTES
        view = memoryview(arena)[skip : skip + span]
        got = await trio.to_thread.run_sync(
            _read_blocks, self._direct, offset - before, view, limiter=self._threads
        )
        return view[before : min(before + size, got)]

    def close(self) -> None:
        self._closed = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        """Never close under a thread that reads: the number may belong to another file then."""
        if self._closed and not self._reading and self._descriptor >= 0:
            os.close(self._descriptor)
            if self._direct >= 0:
                os.close(self._direct)
            self._descriptor = self._direct = -1


def _open_direct(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return -1  # the file system has no such thing


def _read_blocks(descriptor: int, offset: int, view: memoryview) -> int:
    """Fill whole blocks, up to the end of the file; returns how many bytes came."""
    got = 0
    while got < len(view):
        count = os.preadv(descriptor, [view[got:]], offset + got)
        got += count
        if not count or count % _BLOCK_BYTES:
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
