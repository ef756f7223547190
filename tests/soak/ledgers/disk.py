"""SEAM disk: that of the machine, in a mood.

What is written goes to the disk below, so what is kept, and what a torn write leaves, is real.  An
appender that has failed once refuses everything, as the contract says.
"""

import errno
from collections.abc import Callable, Sequence
from random import Random

import trio

from daybook.bookie.storage.disk import Appender, DirectoryLock, Disk, Reader
from daybook.wire.transport import Buffer
from tests.soak.ledgers.moods import FINE, Mood

_LOOK_S = 0.05  # at the mood, while the disk is stuck


class MoodyDisk:
    def __init__(self, disk: Disk, mood: Callable[[], Mood], rng: Random) -> None:
        self._disk = disk
        self._mood = mood
        self._rng = rng

    async def make_directory(self, path: str) -> None:
        await self.change()
        await self._disk.make_directory(path)

    async def list_directory(self, path: str) -> list[str]:
        await self.answer()
        return await self._disk.list_directory(path)

    async def lock_directory(self, path: str) -> DirectoryLock:
        await self.answer()
        return await self._disk.lock_directory(path)

    async def read_file(self, path: str) -> bytes:
        await self.answer()
        return await self._disk.read_file(path)

    async def write_file(self, path: str, content: bytes) -> None:
        await self.change()
        await self._disk.write_file(path, content)

    async def remove(self, path: str) -> None:
        """Also on a full disk: that is how room is made."""
        await self.answer()
        await self._disk.remove(path)

    async def remove_directory(self, path: str) -> None:
        await self.answer()
        await self._disk.remove_directory(path)

    async def size(self, path: str) -> int:
        await self.answer()
        return await self._disk.size(path)

    async def free_bytes(self, path: str) -> int:
        mood = await self.answer()
        return 0 if mood.full or mood.no_room else await self._disk.free_bytes(path)

    async def open_reader(self, path: str) -> Reader:
        await self.answer()
        return _MoodyReader(self, await self._disk.open_reader(path))

    def open_appender(self) -> Appender:
        return _MoodyAppender(self, self._disk.open_appender())

    async def answer(self) -> Mood:
        """As soon as the disk says anything at all."""
        while (mood := self._mood()).stuck:  # noqa: ASYNC110  it is in a file
            await trio.sleep(_LOOK_S)
        return mood

    async def change(self) -> Mood:
        """Before something is written; it may have no room."""
        mood = await self.answer()
        if mood.write_s:
            await trio.sleep(mood.write_s)
        if mood.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return mood

    async def read(self) -> None:
        mood = await self.answer()
        if mood.read_errors and self._rng.random() < mood.read_errors:
            raise OSError(errno.EIO, "input/output error")

    def part(self, size: int) -> int:
        """How much of a torn write gets there."""
        return self._rng.randint(0, size)


class _MoodyReader:
    def __init__(self, disk: MoodyDisk, reader: Reader) -> None:
        self._disk = disk
        self._reader = reader

    async def read(self, offset: int, size: int) -> Buffer:
        await self._disk.read()
        return await self._reader.read(offset, size)

    def close(self) -> None:
        self._reader.close()


class _MoodyAppender:
    def __init__(self, disk: MoodyDisk, appender: Appender) -> None:
        self._disk = disk
        self._appender = appender
        self._broken = False

    async def start(self, path: str, buffers: Sequence[Buffer]) -> None:
        await self._check(None)
        await self._appender.start(path, buffers)

    async def write(self, buffers: Sequence[Buffer]) -> None:
        await self._check(buffers)
        await self._appender.write(buffers)

    async def aclose(self) -> None:
        await self._appender.aclose()

    async def _check(self, buffers: Sequence[Buffer] | None) -> None:
        if self._broken:
            raise OSError(errno.EIO, "an earlier write failed")
        mood = FINE
        try:
            with trio.CancelScope(shield=True):  # A write that has begun is not cancelled.
                mood = await self._disk.change()
        except OSError:
            self._broken = True
            raise
        if mood.torn:
            self._broken = True
            if buffers is not None:
                whole = b"".join(bytes(buffer) for buffer in buffers)
                await self._appender.write([whole[: self._disk.part(len(whole))]])
            raise OSError(errno.EIO, "input/output error")
