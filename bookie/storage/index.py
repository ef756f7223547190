"""SEAM index store: an ordered key-value store with atomic, durable batches.

RocksDB in production, which does its own I/O; memory in tests and simulation.  A batch is there as
a whole or not at all, and `write` returns when it would survive a crash.  Errors are `OSError`s;
so is what does not parse (`IndexDamagedError`), which never says that something is absent.

What the keys of a bookie are:

    checkpoint_key()            how far the index covers the log, and whether it is in limbo
    ledger_key(ledger)          the row of a ledger (`ledgers`)
    block_key(ledger, number)   the places of up to 256 entries (`recent`)
    shares_key()                how much of each segment still counts (`shares`)
"""

import struct
import tempfile
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import trio
from rocksdict import AccessType, DbClosedError, Options, Rdict, WriteBatch, WriteOptions

from bookie.storage.records import UnsupportedVersionError

T = TypeVar("T")

_LEDGER = struct.Struct(">cQ")
_BLOCK = struct.Struct(">cQQ")
_CHECKPOINT = struct.Struct(">BBQ")
_CHECKPOINT_VERSION = 1
LEDGER_KEYS = (b"l", b"m")  # all rows of ledgers are between these two
BLOCK_KEYS = (b"b", b"c")  # all blocks


class IndexDamagedError(OSError):
    """What is in the index is not what was put there."""


def ledger_key(ledger_id: int) -> bytes:
    return _LEDGER.pack(b"l", ledger_id)


def ledger_of_key(key: bytes) -> int:
    if len(key) != _LEDGER.size:
        raise IndexDamagedError(f"the index has a ledger under {key.hex()}")
    ledger_id: int = _LEDGER.unpack(key)[1]
    return ledger_id


def block_key(ledger_id: int, number: int) -> bytes:
    return _BLOCK.pack(b"b", ledger_id, number)


def block_keys(ledger_id: int) -> tuple[bytes, bytes]:
    """All blocks of a ledger are between these two."""
    return _LEDGER.pack(b"b", ledger_id), _LEDGER.pack(b"b", ledger_id + 1)


def block_number_of_key(key: bytes) -> int:
    if len(key) != _BLOCK.size:
        raise IndexDamagedError(f"the index has a block under {key.hex()}")
    number: int = _BLOCK.unpack(key)[2]
    return number


def ledger_of_block_key(key: bytes) -> int:
    if len(key) != _BLOCK.size:
        raise IndexDamagedError(f"the index has a block under {key.hex()}")
    ledger_id: int = _BLOCK.unpack(key)[1]
    return ledger_id


def checkpoint_key() -> bytes:
    return b"c"


def shares_key() -> bytes:
    return b"s"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The index covers everything in the log below `position`."""

    position: int
    limbo: bool  # the log has lost records

    def encode(self) -> bytes:
        return _CHECKPOINT.pack(_CHECKPOINT_VERSION, self.limbo, self.position)

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        if len(data) != _CHECKPOINT.size:
            raise IndexDamagedError(f"a checkpoint of {len(data)} bytes")
        version, limbo, position = _CHECKPOINT.unpack(data)
        if version != _CHECKPOINT_VERSION:
            raise UnsupportedVersionError(f"index of version {version}")
        return cls(position, bool(limbo))


class IndexStore(Protocol):
    async def get(self, key: bytes) -> bytes | None: ...

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The same for each of them, in their order."""
        ...

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` pairs with first <= key < end, in order."""
        ...

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        """All of it or nothing; durable on return."""
        ...


OpenIndex: TypeAlias = Callable[[str], AbstractAsyncContextManager[IndexStore]]  # by its directory


class MemoryIndex:
    """Keeps its batches as long as the object lives."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    async def get(self, key: bytes) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return self._values.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await trio.lowlevel.checkpoint()
        return [self._values.get(key) for key in keys]

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        await trio.lowlevel.checkpoint()
        start = bisect_left(self._keys, first)
        stop = min(bisect_left(self._keys, end), start + limit)
        return [(key, self._values[key]) for key in self._keys[start:stop]]

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.apply(puts, deletes)

    def apply(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        for key in deletes:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in puts.items():
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value


class MemoryIndexes:
    """The memory indexes of one host, by directory: what a restarted host finds again."""

    def __init__(self) -> None:
        self._indexes: dict[str, MemoryIndex] = {}

    @asynccontextmanager
    async def open(self, directory: str) -> AsyncGenerator[IndexStore]:
        await trio.lowlevel.checkpoint()
        yield self._indexes.setdefault(directory, MemoryIndex())


class RocksIndex:
    """RocksDB; its calls run in threads, each batch is synced."""

    def __init__(self, database: Rdict, threads: trio.CapacityLimiter) -> None:
        self._database = database
        self._threads = threads
        self._synced = WriteOptions()
        self._synced.sync = True

    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._in_thread(lambda: self._database.get(key))
        return value

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        def get() -> list[bytes | None]:
            return [self._database.get(key) for key in keys]

        return await self._in_thread(get)

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        def scan() -> list[tuple[bytes, bytes]]:
            found: list[tuple[bytes, bytes]] = []
            cursor = self._database.iter()
            cursor.seek(first)
            while len(found) < limit and cursor.valid():
                key: bytes = cursor.key()
                if key >= end:
                    break
                found.append((key, cursor.value()))
                cursor.next()
            cursor.status()
            return found

        return await self._in_thread(scan)

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        def write() -> None:
            batch = WriteBatch(raw_mode=True)
            for key in deletes:
                batch.delete(key)
            for key, value in puts.items():
                batch.put(key, value)
            self._database.write(batch, self._synced)

        await self._in_thread(write)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(work, limiter=self._threads)
        except DbClosedError:
            raise
        except Exception as error:  # rocksdict raises a bare Exception for what RocksDB reports
            raise OSError(f"index: {error}") from error


@asynccontextmanager
async def open_rocks_index(directory: str) -> AsyncGenerator[IndexStore]:
    """The index in this directory; it is made if it is not there."""
    async with _opened(directory, _options(), AccessType.read_write()) as index:
        yield index


@asynccontextmanager
async def view_rocks_index(directory: str) -> AsyncGenerator[IndexStore]:
    """The same for looking only: no file in the directory changes."""
    options = _options()
    options.create_if_missing(False)
    with tempfile.TemporaryDirectory() as elsewhere:  # it keeps a log of its own doings
        options.set_db_log_dir(elsewhere)
        async with _opened(directory, options, AccessType.read_only()) as index:
            yield index


@asynccontextmanager
async def _opened(
    directory: str, options: Options, access: AccessType
) -> AsyncGenerator[RocksIndex]:
    threads = trio.CapacityLimiter(4)

    def open_database() -> Rdict:
        return Rdict(directory, options, access_type=access)

    try:
        database = await trio.to_thread.run_sync(open_database)
    except Exception as error:  # as above
        raise OSError(f"cannot open the index {directory}: {error}") from error
    try:
        yield RocksIndex(database, threads)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.close)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(8 << 20)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(32 << 20)
    options.set_max_open_files(256)
    return options
