"""A file that grows: what `append` took is on the disk when it returns.  Blocking; for a thread.

Past the page cache (O_DIRECT) where the file system lets us, which costs a fifth of the processor
time at a megabyte a write:

    file    | block | block | block |     whole blocks only
    stage                   | bytes.. 0 |  the last one, partly filled: written again with the next

Bytes that were on the disk are written over with themselves then; the zeros behind them are the
end of the file until more comes.

Where a file grows, a sync has to wait for the journal of the file system as well, and all files of
it wait for each other there: 0.7 ms against 0.3 ms with three that write 4 KB.  So small appends
go to where zeros were written before, some megabytes at a time; `close` cuts off what is left.
"""

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

BLOCK_BYTES = 4096
_STAGE_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
_ZEROS_BYTES = 4 << 20
_IOV_MAX = 1024  # buffers that one system call takes (Linux)


class GrowingFile:
    """A new file, to which bytes are appended and synced."""

    def __init__(self, path: str) -> None:
        self._descriptor, direct = _create(path)
        self._offset = 0
        self._size = 0  # of the file, with the zeros at its end
        self._stage = memoryview(mmap.mmap(-1, _STAGE_BYTES)) if direct else None
        self._staged = 0  # bytes of the last, partly filled block; they are at the front of it

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
        """Room for small appends; they do without if there is none."""
        zeros = memoryview(mmap.mmap(-1, _ZEROS_BYTES))
        with suppress(OSError):
            self._size = offset + write_fully(self._descriptor, (zeros,), offset, 0)

    def close(self) -> None:
        with suppress(OSError):
            if self._stage is not None:
                filled = BLOCK_BYTES if self._staged else 0
                os.ftruncate(self._descriptor, self._offset + filled)
        os.close(self._descriptor)


def _create(path: str) -> tuple[int, bool]:
    """A new file, past the page cache if that is possible; whether it was."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # Some file systems make the file before they refuse the flag.
    return os.open(path, flags & ~os.O_EXCL, 0o644), False


def write_fully(descriptor: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
    size = sum(map(len, buffers))
    written = os.pwritev(descriptor, buffers, offset, flags)
    if written < size:  # rare: a signal, or nearly no room
        rest = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        while written < size:
            written += os.pwritev(descriptor, [rest[written:]], offset + written, flags)
    return size
