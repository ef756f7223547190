"""SEAM disk, simulated: the files as programs see them, and what survives a loss of power.

Each file has two images: the *cache*, which reads see, and the *platter*, which survives; the table
of names has both, too.  A sync copies one to the other.  A loss of power keeps, of the unsynced
writes to each file: none, all, a prefix, or any of the changed sectors of 512 bytes; and of the
unsynced names a prefix of the changes.  Killing only the process loses nothing.

    platter = Platter(random.Random(seed))
    disk = platter.mount()                 the disk of a process
    platter.crash_before(17)               kill the host instead of its 17th operation from now
    platter.lose_power(); disk = platter.mount()

Calls of the `Disk` contract consist of several *operations* (write, sync, sync of the directory),
and a crash fits in between any two.  A dead host's disk raises `HostCrashedError`, a BaseException:
nobody handles it.  The index store that goes with it is in `tests.harness.index`.
"""

import errno
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import trio

from daybook.bookie.storage.disk import (
    UNFINISHED,
    Appender,
    DirectoryInUseError,
    DirectoryLock,
    Reader,
)
from daybook.wire.transport import Buffer
from tests.harness.index import RottenIndex, SimulatedIndexes

SECTOR_BYTES = 512
_STEPS = 2


class HostCrashedError(BaseException):
    """The host is dead; no code may handle this error."""


@dataclass(slots=True)
class SimulatedFile:
    cache: bytearray = field(default_factory=bytearray)
    platter: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    bad_sectors: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True)
class Image:
    """A copy of a directory, with its index."""

    directory: str
    files: Mapping[str, bytes]
    indexes: Mapping[str, RottenIndex]


class Platter:
    """The disk of one host; it outlives its processes."""

    def __init__(
        self,
        rng: random.Random,
        *,
        latency_s: tuple[float, float] | None = None,
        free_bytes: int = 1 << 40,
        sleep: Callable[[float], Awaitable[None]] = trio.sleep,
        tap: Callable[[str], None] | None = None,
    ) -> None:
        self._rng = rng
        self._latency_s = latency_s
        self._sleep = sleep
        self._tap = tap  # called before each operation
        self.slowness = 1.0  # factor for the delay of all operations
        self.generation = 0
        self._files: dict[str, SimulatedFile] = {}
        self._durable_files: dict[str, SimulatedFile] = {}
        self._name_changes: list[
            tuple[str, SimulatedFile | None]
        ] = []  # since the last sync of names
        self._directories: set[str] = {""}
        self._locks: dict[str, int] = {}
        self._indexes: dict[str, RottenIndex] = {}
        self._failures: dict[str, list[OSError]] = {}
        self._stuck: trio.Event | None = None
        self._crash_at = -1
        self.operations = 0
        self.bytes_read = 0
        self.free_bytes = free_bytes
        self.full = False  # all writes fail

    def mount(self) -> "SimulatedDisk":
        """Return the disk for a new process of the host."""
        return SimulatedDisk(self, self.generation)

    def indexes(self) -> "SimulatedIndexes":
        return SimulatedIndexes(self, self.generation)

    # ---- faults

    def crash_before(self, operation: int) -> None:
        """Kill the host just before the `operation`-th operation from now, counted from 0."""
        self._crash_at = self.operations + operation

    def kill(self) -> None:
        """Kill the process; the operating system keeps the data that it was given."""
        self.generation += 1
        self._crash_at = -1
        self._locks.clear()

    def lose_power(self) -> None:
        self.kill()
        for path, file in self._name_changes[: self._rng.randint(0, len(self._name_changes))]:
            if file is None:
                self._durable_files.pop(path, None)
            else:
                self._durable_files[path] = file
        self._name_changes.clear()
        self._files = dict(self._durable_files)
        for path in sorted(self._files):
            self._settle(self._files[path])

    def _settle(self, file: SimulatedFile) -> None:
        """Choose which of the unsynced writes have reached the platter."""
        if file.writes:
            match self._rng.randrange(4):
                case 0:
                    kept: list[tuple[int, bytes]] = []
                case 1:
                    kept = file.writes
                case 2:
                    kept = file.writes[: self._rng.randint(0, len(file.writes))]
                    kept = kept and [*kept[:-1], self._torn(*kept[-1])]
                case _:
                    share = self._rng.choice((0.1, 0.5, 0.9))
                    kept = [
                        sector
                        for offset, data in file.writes
                        for sector in _sectors(offset, data)
                        if self._rng.random() < share
                    ]
            for offset, data in kept:
                _put(file.platter, offset, data)
            file.writes = []
        file.cache = bytearray(file.platter)

    def _torn(self, offset: int, data: bytes) -> tuple[int, bytes]:
        return offset, data[: self._rng.randint(0, len(data))]

    def fail_next(self, operation: str, error: OSError, *, after: int = 0) -> None:
        """Let an operation (write, sync, read, create, sync_names) fail, `after` good ones."""
        self._failures.setdefault(operation, []).extend([OSError(0)] * after + [error])

    def fill_up(self) -> None:
        self.fail_next("write", OSError(errno.ENOSPC, "no space left on device"))

    def repair(self) -> None:
        """End all faults of operations: failures, waits, slowness."""
        self._failures.clear()
        self.slowness = 1.0
        if self._stuck is not None:
            self._stuck.set()
            self._stuck = None

    def stick(self) -> trio.Event:
        """Let operations wait until the event is set, like a disk that has stopped answering."""
        if self._stuck is None:  # operations that wait already share one event
            self._stuck = trio.Event()
        return self._stuck

    def corrupt(self, path: str, offset: int, data: bytes) -> None:
        """Change bytes on the platter, unnoticed by the process."""
        for image in (self._files[path].cache, self._files[path].platter):
            _put(image, offset, data)

    def spoil(self, path: str, offset: int) -> None:
        """Make a sector unreadable."""
        self._files[path].bad_sectors.add(offset // SECTOR_BYTES)

    def truncate(self, path: str, size: int) -> None:
        for image in (self._files[path].cache, self._files[path].platter):
            del image[size:]

    def forget(self, path: str) -> None:
        """Delete the file, unnoticed by the process."""
        self._files.pop(path, None)
        self._durable_files.pop(path, None)

    def image(self, directory: str) -> Image:
        """Return a copy of the directory as programs see it now."""
        inside = f"{directory}/"
        return Image(
            directory,
            {p: bytes(f.cache) for p, f in self._files.items() if p.startswith(inside)},
            {p: deepcopy(i) for p, i in self._indexes.items() if p.startswith(inside)},
        )

    def put_back(self, image: Image) -> None:
        """Restore the directory from the image; no process uses it."""
        inside = f"{image.directory}/"
        for files in (self._files, self._durable_files):
            for path in [path for path in files if path.startswith(inside)]:
                del files[path]
        self._name_changes = [each for each in self._name_changes if not each[0].startswith(inside)]
        for path, content in image.files.items():
            file = SimulatedFile(bytearray(content), bytearray(content))
            self._files[path] = self._durable_files[path] = file
        for path in [path for path in self._indexes if path.startswith(inside)]:
            del self._indexes[path]
        self._indexes.update(deepcopy(dict(image.indexes)))

    def lose_index(self, directory: str) -> None:
        self._indexes.pop(directory, None)

    def lose_indexes(self) -> None:
        self._indexes.clear()

    def indexes_there(self) -> dict[str, RottenIndex]:
        """Return the indexes by their directories."""
        return dict(sorted(self._indexes.items()))

    def paths(self) -> list[str]:
        return sorted(self._files)

    def content(self, path: str) -> bytes:
        return bytes(self._files[path].cache)

    # ---- used by mounts

    async def operate(self, name: str, generation: int) -> None:
        """Count an operation, and let it wait, fail or crash the host, before it is carried out."""
        if generation != self.generation:
            raise HostCrashedError
        if self._latency_s is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._sleep(self._rng.uniform(*self._latency_s) * self.slowness)
        if self._stuck is not None:
            await self._stuck.wait()
        if generation != self.generation:
            raise HostCrashedError
        if self.operations == self._crash_at:
            self.kill()
            raise HostCrashedError
        self.operations += 1
        if self._tap is not None:
            self._tap(name)
        failures = self._failures.get(name)
        if failures and (error := failures.pop(0)).errno:
            raise error

    def file(self, path: str) -> SimulatedFile:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path]

    def create(self, path: str) -> SimulatedFile:
        file = self._files[path] = SimulatedFile()
        self._name_changes.append((path, file))
        return file

    def rename(self, path: str, target: str) -> None:
        file = self._files.pop(path)
        self._files[target] = file
        self._name_changes += [(target, file), (path, None)]

    def unlink(self, path: str) -> None:
        self.file(path)
        del self._files[path]
        self._name_changes.append((path, None))

    def sync_names(self) -> None:
        for path, file in self._name_changes:
            if file is None:
                self._durable_files.pop(path, None)
            else:
                self._durable_files[path] = file
        self._name_changes.clear()

    def sync_file(self, file: SimulatedFile) -> None:
        for offset, data in file.writes:
            _put(file.platter, offset, data)
        file.writes.clear()

    def drop_dirty(self, file: SimulatedFile) -> None:
        """Handle a failed sync: the pages count as clean now, and are not on the platter."""
        cache = bytes(file.cache)
        self._settle(file)
        file.cache = bytearray(cache)  # the process still sees its writes

    def lock(self, path: str, generation: int) -> None:
        if path in self._locks:
            raise DirectoryInUseError(f"{path} is in use by another process")
        self._locks[path] = generation

    def unlock(self, path: str, generation: int) -> None:
        if self._locks.get(path) == generation:
            del self._locks[path]

    def index(self, directory: str) -> RottenIndex:
        return self._indexes.setdefault(directory, RottenIndex())

    def make_directory(self, path: str) -> None:
        parts = path.split("/")
        self._directories.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))

    def names_in(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        prefix = f"{path}/"
        paths = [*self._files, *self._directories, *self._indexes]
        return sorted({p[len(prefix) :].split("/")[0] for p in paths if p.startswith(prefix)})


class SimulatedDisk:
    """The disk as one process sees it."""

    def __init__(self, platter: Platter, generation: int) -> None:
        self.platter = platter
        self._generation = generation

    async def operate(self, name: str) -> None:
        await self.platter.operate(name, self._generation)

    async def make_directory(self, path: str) -> None:
        await self.operate("make_directory")
        self.platter.make_directory(path)

    async def list_directory(self, path: str) -> list[str]:
        await self.operate("list")
        return self.platter.names_in(path)

    async def lock_directory(self, path: str) -> DirectoryLock:
        await self.operate("lock")
        self.platter.lock(path, self._generation)
        return _Lock(self.platter, path, self._generation)

    async def read_file(self, path: str) -> bytes:
        return bytes(await self.read(path, 0, len(self.platter.file(path).cache)))

    async def write_file(self, path: str, content: bytes) -> None:
        fresh = f"{path}{UNFINISHED}"
        await self.operate("create")
        file = self.platter.create(fresh)
        await self.write(file, 0, content)
        await self.sync(file)
        await self.operate("rename")
        self.platter.rename(fresh, path)
        await self.sync_names()

    async def remove(self, path: str) -> None:
        await self.operate("remove")
        self.platter.unlink(path)
        await self.sync_names()

    async def remove_in_steps(self, path: str) -> None:
        await self.remove(path)
        for _ in range(_STEPS):  # the bytes, which have no name any more
            await self.operate("truncate")

    async def remove_directory(self, path: str) -> None:
        await self.operate("remove_directory")
        self.platter.lose_index(path)

    async def size(self, path: str) -> int:
        await self.operate("size")
        return len(self.platter.file(path).cache)

    async def free_bytes(self, path: str) -> int:
        await self.operate("free")
        return self.platter.free_bytes

    async def open_reader(self, path: str) -> Reader:
        await self.operate("open")
        self.platter.file(path)
        return _SimulatedReader(self, path)

    def open_appender(self) -> Appender:
        return _SimulatedAppender(self)

    async def run(self) -> None:
        await trio.sleep_forever()

    # ---- single operations; tests break them by overriding

    async def read(self, path: str, offset: int, size: int) -> bytes:
        await self.operate("read")
        file = self.platter.file(path)
        data = bytes(file.cache[offset : offset + size])
        sectors = range(offset // SECTOR_BYTES, (offset + size - 1) // SECTOR_BYTES + 1)
        if any(sector in file.bad_sectors for sector in sectors):
            raise OSError(errno.EIO, "unreadable sector", path)
        self.platter.bytes_read += len(data)
        return data

    async def write(self, file: SimulatedFile, offset: int, data: bytes) -> None:
        await self.operate("write")
        if self.platter.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        _put(file.cache, offset, data)
        file.writes.append((offset, data))

    async def sync(self, file: SimulatedFile) -> None:
        try:
            await self.operate("sync")
        except OSError:
            self.platter.drop_dirty(file)
            raise
        self.platter.sync_file(file)

    async def sync_names(self) -> None:
        await self.operate("sync_names")
        self.platter.sync_names()


class _SimulatedReader:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._closed = False

    async def read(self, offset: int, size: int) -> Buffer:
        if self._closed:
            raise OSError(errno.EBADF, "the reader is closed")
        return await self._disk.read(self._path, offset, size)

    async def read_pieces(self, pieces: Sequence[tuple[int, int]]) -> list[Buffer]:
        return [await self.read(offset, size) for offset, size in pieces]

    def close(self) -> None:
        self._closed = True


class _SimulatedAppender:
    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._file: SimulatedFile | None = None
        self._broken = False

    async def start(self, path: str, buffers: Sequence[Buffer]) -> None:
        async def start() -> None:
            await self._disk.operate("create")
            if path in self._disk.platter.paths():
                raise FileExistsError(errno.EEXIST, "there is such a file", path)
            self._file = self._disk.platter.create(path)
            await self._append(self._file, buffers)
            await self._disk.sync_names()

        await self._guarded(start)

    async def write(self, buffers: Sequence[Buffer]) -> None:
        assert self._file is not None, "no file was started"
        file = self._file
        await self._guarded(lambda: self._append(file, buffers))

    async def aclose(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _append(self, file: SimulatedFile, buffers: Sequence[Buffer]) -> None:
        await self._disk.write(file, len(file.cache), b"".join(buffers))
        await self._disk.sync(file)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._broken:
            raise OSError(errno.EIO, "an earlier write failed")
        try:
            # An operation that has begun is waited for, as on a real disk.
            with trio.CancelScope(shield=True):
                await work()
        except OSError:
            self._broken = True
            raise


class _Lock:
    def __init__(self, platter: Platter, path: str, generation: int) -> None:
        self._platter = platter
        self._path = path
        self._generation = generation

    def release(self) -> None:
        self._platter.unlock(self._path, self._generation)


def _put(image: bytearray, offset: int, data: bytes) -> None:
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """Cut a write at the sector boundaries of the file."""
    parts: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        end = min(len(data), at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
        parts.append((offset + at, data[at:end]))
        at = end
    return parts
