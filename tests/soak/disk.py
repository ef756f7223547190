"""SEAM disk: the disk of this machine, in a mood.

A mood says how the disk misbehaves.  The soak writes the mood into a file, and the bookie on the
disk reads that file at each call.

All writes go to the disk below, so the entries that are kept, and the bytes that a torn write
leaves, are real.  An appender that has failed once rejects everything, as the contract of `Disk`
says.
"""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
import trio

from daybook.bookie.storage.disk import Appender, DirectoryLock, Disk, Reader
from daybook.wire.transport import Buffer

_LOOK_S = 0.05  # between two looks at the mood while the disk hangs


class Mood(msgspec.Struct, frozen=True):
    """The misbehaviour of a disk, until the file has another mood."""

    no_room: bool = False  # the disk reports little free space
    full: bool = False  # every write fails
    torn: bool = False  # a part of each write is stored, then it fails
    read_errors: float = 0.0  # the share of reads that fail
    write_s: float = 0.0  # the additional time of each write
    stuck: bool = False  # no call returns


FINE = Mood()


class MoodFile:
    """The file that holds the mood; without a file the disk is fine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None  # the version of the file that was read last
        self._mood = FINE

    def read(self) -> Mood:
        """Return the mood of this moment."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen != self._seen:
                self._mood = msgspec.json.decode(self._path.read_bytes(), type=Mood)
                self._seen = seen
        except FileNotFoundError:
            self._mood, self._seen = FINE, None
        return self._mood

    def write(self, mood: Mood) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(mood))
        new.rename(self._path)  # atomic: the bookie never reads half of a mood


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
        """Delete on a full disk, too, since that frees space."""
        await self.answer()
        await self._disk.remove(path)

    async def remove_in_steps(self, path: str) -> None:
        await self.answer()
        await self._disk.remove_in_steps(path)

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

    async def run(self) -> None:
        await self._disk.run()

    async def answer(self) -> Mood:
        """Return the mood as soon as the disk does not hang."""
        while (mood := self._mood()).stuck:  # noqa: ASYNC110  it is in a file
            await trio.sleep(_LOOK_S)
        return mood

    async def change(self) -> Mood:
        """Wait as each write does; raise `OSError` if the disk is full."""
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
        """Return how many bytes of a torn write are stored."""
        return self._rng.randint(0, size)


class _MoodyReader:
    def __init__(self, disk: MoodyDisk, reader: Reader) -> None:
        self._disk = disk
        self._reader = reader

    async def read(self, offset: int, size: int) -> Buffer:
        await self._disk.read()
        return await self._reader.read(offset, size)

    async def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        return [await self.read(offset, size) for offset, size in pieces]

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
