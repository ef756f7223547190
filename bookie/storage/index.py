"""SEAM index store: an ordered key-value store with atomic, durable batches.

It is RocksDB in production, which does its own I/O, and memory in tests and simulation.  A batch
is stored as a whole or not at all, and `write` returns when it would survive a crash.  Errors are
`OSError`s.  A value that does not parse is an `IndexDamagedError`, never an absence.

A bookie uses these keys:

    checkpoint_key()            how far the index covers the log, and whether it is in limbo
    ledger_key(ledger)          the row of a ledger (`ledger_state`)
    block_key(ledger, number)   the locations of up to 256 entries (`write_cache`)
    shares_key()                how many bytes of each segment are live (`entry_locations`)
"""

import errno
import struct
import tempfile
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import trio
from rocksdict import (
    AccessType,
    DbClosedError,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from daybook.bookie.storage.records import UnsupportedVersionError

T = TypeVar("T")

_LEDGER = struct.Struct(">cQ")
_BLOCK = struct.Struct(">cQQ")
_CHECKPOINT = struct.Struct(">BBQ")
_CHECKPOINT_VERSION = 1
LEDGER_KEYS = (b"l", b"m")  # all ledger rows are between these two
BLOCK_KEYS = (b"b", b"c")  # all blocks


# These errors are no damage of the index: the machine lacked a resource for a moment.
_PASSING = frozenset(
    (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EAGAIN,
        errno.EACCES,
        errno.EROFS,
    )
)


class IndexDamagedError(OSError):
    """The index holds something other than what was written to it."""


def ledger_key(ledger_id: int) -> bytes:
    return _LEDGER.pack(b"l", ledger_id)


def ledger_of_key(key: bytes) -> int:
    if len(key) != _LEDGER.size:
        raise IndexDamagedError(f"the index has an invalid ledger key: {key.hex()}")
    ledger_id: int = _LEDGER.unpack(key)[1]
    return ledger_id


def block_key(ledger_id: int, number: int) -> bytes:
    return _BLOCK.pack(b"b", ledger_id, number)


def block_keys(ledger_id: int) -> tuple[bytes, bytes]:
    """Return two keys with all blocks of a ledger between them."""
    return _LEDGER.pack(b"b", ledger_id), _LEDGER.pack(b"b", ledger_id + 1)


def block_number_of_key(key: bytes) -> int:
    if len(key) != _BLOCK.size:
        raise IndexDamagedError(f"the index has an invalid block key: {key.hex()}")
    number: int = _BLOCK.unpack(key)[2]
    return number


def ledger_of_block_key(key: bytes) -> int:
    if len(key) != _BLOCK.size:
        raise IndexDamagedError(f"the index has an invalid block key: {key.hex()}")
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
        """Return the value of each key, in the order of the keys."""
        ...

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` pairs with first <= key < end, in order."""
        ...

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        """Apply all of the batch or nothing of it; it is durable on return."""
        ...


OpenIndex: TypeAlias = Callable[[str], AbstractAsyncContextManager[IndexStore]]  # by its directory


@dataclass(slots=True)
class _InUse:
    """A store, and how many calls to it are under way."""

    store: IndexStore
    calls: int = 0
    idle: trio.Event | None = None  # set when no call is under way, if a task waits for that


class MonitoredIndex:
    """The index of a directory: it reports damage, and another store can replace it.

    A read error is damage unless its cause is known to pass: such an index cannot prove that an
    entry is absent.  `damaged` is called with each error, in the middle of the failing call.  An
    error of a store that has been replaced says nothing about its successor.
    """

    def __init__(self, store: IndexStore) -> None:
        self.damage: OSError | None = None  # the first one of the present store
        self._current = _InUse(store)
        self._damaged: Callable[[OSError], None] = lambda _: None

    def watch(self, damaged: Callable[[OSError], None]) -> None:
        """Report damage to `damaged` from now on."""
        self._damaged = damaged

    def report(self, error: OSError, store: IndexStore | None = None) -> None:
        """Note and report damage: an error of the store, or a value that does not parse."""
        if store is not None and store is not self._current.store:
            return
        self.damage = self.damage or error
        self._damaged(error)

    async def get(self, key: bytes) -> bytes | None:
        with self._reading() as store:
            return await store.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reading() as store:
            return await store.get_many(keys)

    async def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        with self._reading() as store:
            return await store.scan(first, end, limit)

    async def write(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        with self._using() as store:
            try:
                await store.write(puts, deletes)
            except (
                IndexDamagedError
            ) as error:  # Other errors end the checkpoints (`entry_locations`).
                self.report(error, store)
                raise

    def replace(self, store: IndexStore) -> Callable[[], Awaitable[None]]:
        """Use `store` from now on; return a call that waits until the old one is unused."""
        old, self._current = self._current, _InUse(store)
        self.damage = None

        async def until_idle() -> None:
            if old.calls:
                old.idle = trio.Event()
                await old.idle.wait()

        return until_idle

    @contextmanager
    def _reading(self) -> Generator[IndexStore]:
        with self._using() as store:
            try:
                yield store
            except OSError as error:
                if error.errno not in _PASSING:
                    self.report(error, store)
                raise

    @contextmanager
    def _using(self) -> Generator[IndexStore]:
        current = self._current
        current.calls += 1
        try:
            yield current.store
        finally:
            current.calls -= 1
            if not current.calls and current.idle is not None:
                current.idle.set()


class MemoryIndex:
    """An index in memory, for as long as the object lives."""

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
    """The memory indexes of one host, by directory: a restarted host finds them again."""

    def __init__(self) -> None:
        self._indexes: dict[str, MemoryIndex] = {}

    @asynccontextmanager
    async def open(self, directory: str) -> AsyncGenerator[IndexStore]:
        await trio.lowlevel.checkpoint()
        yield self._indexes.setdefault(directory, MemoryIndex())


class RocksIndex:
    """An index in RocksDB: its calls run in threads, and each batch is synced."""

    def __init__(self, database: Rdict, threads: trio.CapacityLimiter) -> None:
        self._database = database
        self._threads = threads
        self._synced = WriteOptions()
        self._synced.sync = True
        reading = ReadOptions()
        reading.set_verify_checksums(True)
        database.set_read_options(reading)

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
        except Exception as error:  # rocksdict raises a bare Exception for any RocksDB error
            raise _error_of("index", error) from error


@asynccontextmanager
async def open_rocks_index(directory: str) -> AsyncGenerator[IndexStore]:
    """Open the index in this directory; create it if there is none."""
    async with _opened(directory, _options(), AccessType.read_write()) as index:
        yield index


@asynccontextmanager
async def view_rocks_index(directory: str) -> AsyncGenerator[IndexStore]:
    """Open the index read-only: no file in the directory changes."""
    options = _options()
    options.create_if_missing(False)
    with tempfile.TemporaryDirectory() as elsewhere:  # RocksDB writes an info log even so
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
        raise _error_of(f"cannot open the index {directory}", error) from error
    try:
        yield RocksIndex(database, threads)
    finally:
        # Closing a damaged database raises, since it cannot be flushed.  Nothing is lost by that:
        # each batch was synced to its write-ahead log.
        with trio.CancelScope(shield=True), suppress(Exception):
            await trio.to_thread.run_sync(database.close)


_PASSING_WORDS = {
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
    "No space left": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Resource temporarily unavailable": errno.EAGAIN,
    "No locks available": errno.EAGAIN,  # another process has the index open
    "Permission denied": errno.EACCES,
    "Read-only file system": errno.EROFS,
}


def _error_of(what: str, error: Exception) -> OSError:
    """Return the error as an `OSError`; RocksDB gives its cause only as text."""
    text = str(error)
    for words, number in _PASSING_WORDS.items():
        if words in text:
            return OSError(number, f"{what}: {text}")
    return IndexDamagedError(f"{what}: {text}")


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # RocksDB reports a missing file or one of another size when the index is opened, and a damaged
    # block when it is read.  It cuts off a damaged write-ahead log at the damage: the index is then
    # as it was at an earlier checkpoint, with the position of that checkpoint.
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(8 << 20)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(32 << 20)
    options.set_max_open_files(256)
    return options
