"""The rebuild of a damaged index from the log, while its bookie serves.

RocksDB reports damage when it reads: a block with a wrong checksum, a file that is missing or cut
off.  Such an index cannot prove that an entry is absent, and what else it lacks is unknown.  The
rebuild has five steps:

    1. doubt    in memory at once, then in the file INDEX, then as a limbo record in the log
    2. hold     under the checkpoint lock: position P; memory keeps all that is not indexed
    3. replay   the log below P, into a new index beside the old one
    4. adopt    under the checkpoint lock: the new index is used, and a checkpoint adds the records
                from P on to it
    5. replace  INDEX names the new index and calls it whole: one rename; the old one is removed

The doubt is resolved only after that, ledger by ledger (`limbo`).  Until then no checkpoint is made
in the old index, no segment is deleted and no tombstone is removed (`EntryLocations.failure`), and
an add of an id below the last one of its ledger is refused if memory does not have the entry.

A crash at any step leaves INDEX as it was: the next start rebuilds the index before it serves,
and is in doubt.  A start that cannot read its index does the same.

    <directory>/INDEX    `1 <name of the directory of the index> <whole | damaged>`

A bookie without this file has its index in `index`, and knows of no damage.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

import trio

from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.entry_locations import EntryLocations
from daybook.bookie.storage.index import IndexStore, OpenIndex
from daybook.bookie.storage.ledger_directory import LedgerDirectory
from daybook.bookie.storage.ledger_state import LedgerState
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.records import UnsupportedVersionError
from daybook.bookie.storage.recovery import Contents, ReplayResult, empty, load_below
from daybook.bookie.storage.status import StoreError

INDEX_FILE = "INDEX"
_FORMAT = "1"
_FIRST_NAME = "index"
_NAME = re.compile(r"index(?:-([1-9]\d{0,17}))?")
_REPORT_S = 10.0
_RETRY_S = 1.0
_RETRY_S_MAX = 60.0


# ---- the file INDEX


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """The name of the index directory, and whether the index was found damaged."""

    name: str
    damaged: bool

    def encode(self) -> bytes:
        return f"{_FORMAT} {self.name} {'damaged' if self.damaged else 'whole'}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> "IndexRecord":
        """Return the record; a file that does not parse counts as damage, as the name is lost."""
        words = data.decode("ascii", "replace").split()
        if words and words[0].isdecimal() and words[0] != _FORMAT:
            raise UnsupportedVersionError(f"INDEX of version {words[0]}, known: {_FORMAT}")
        if len(words) != 3 or not _NAME.fullmatch(words[1]) or words[2] not in ("whole", "damaged"):
            return cls(_FIRST_NAME, damaged=True)
        return cls(words[1], damaged=words[2] == "damaged")


async def read_index_record(disk: Disk, directory: str) -> IndexRecord:
    try:
        return IndexRecord.decode(await disk.read_file(f"{directory}/{INDEX_FILE}"))
    except FileNotFoundError:
        return IndexRecord(_FIRST_NAME, damaged=False)


async def write_index_record(disk: Disk, directory: str, record: IndexRecord) -> None:
    await disk.write_file(f"{directory}/{INDEX_FILE}", record.encode())


async def next_name(disk: Disk, directory: str, record: IndexRecord) -> str:
    """Return a name that is above those of all indexes of this directory."""
    names = [*await disk.list_directory(directory), record.name]
    numbers = [int(match[1] or 1) for name in names if (match := _NAME.fullmatch(name))]
    return f"{_FIRST_NAME}-{max(numbers) + 1}"


async def remove_others(disk: Disk, directory: str, *kept: str) -> None:
    """Remove unused indexes; one that cannot be removed now is left for the next call."""
    with suppress(OSError):
        for name in await disk.list_directory(directory):
            if _NAME.fullmatch(name) and name not in kept:
                await disk.remove_directory(f"{directory}/{name}")


# ---- the index that is in use


class OpenedIndex:
    """The index of a directory, which can be replaced while it is open."""

    def __init__(self, open_index: OpenIndex, path: str) -> None:
        self.name = ""  # the name of the index in use
        self._open_index = open_index
        self._path = path
        self._stack = AsyncExitStack()

    async def open(self, name: str) -> IndexStore:
        """Open the first index of this process."""
        store, self._stack = await self.open_beside(name)
        self.name = name
        return store

    async def open_beside(self, name: str) -> tuple[IndexStore, AsyncExitStack]:
        """Open another index; the stack closes it."""
        stack = AsyncExitStack()
        opening = self._open_index(f"{self._path}/{name}")
        return await stack.enter_async_context(opening), stack

    def replace(self, name: str, stack: AsyncExitStack) -> AsyncExitStack:
        """Use the index of `stack` from now on; return the stack that closes the old one."""
        before, self._stack = self._stack, stack
        self.name = name
        return before

    async def aclose(self) -> None:
        await self._stack.aclose()


# ---- the rebuild


@dataclass(frozen=True, slots=True)
class IndexRebuild:
    """The progress of the rebuild of an index, for the operators of the bookie."""

    directory: str
    why: str  # the damage that was found
    state: str  # damaged, rebuilding, rebuilt, failed
    done_bytes: int = 0  # bytes of the log, like `total_bytes`
    total_bytes: int = 0
    trouble: str = ""  # why the last attempt failed; another one follows

    def __str__(self) -> str:
        share = f", {100 * self.done_bytes // self.total_bytes} % done" if self.total_bytes else ""
        return f"the index of {self.directory} is damaged and is being rebuilt{share}: {self.why}"


RebuildListener = Callable[[IndexRebuild], None]


class Rebuilder:
    """Rebuilds the index of one directory; `run` is started once for each damage."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        limits: StoreLimits,
        directory: LedgerDirectory,
        contents: Contents,
        opened: OpenedIndex,
        *,
        checkpoints: trio.Lock,
        checkpoint: Callable[[], Awaitable[None]],
        reclaiming: trio.Lock,
        rebuilt: Callable[[ReplayResult], None],
        tell: RebuildListener,
    ) -> None:
        """`checkpoint` makes a checkpoint; its caller holds the lock `checkpoints`."""
        self.progress: IndexRebuild | None = None  # None if no rebuild is under way
        self._disk = disk
        self._path = path
        self._limits = limits
        self._directory = directory
        self._contents = contents
        self._opened = opened
        self._checkpoints = checkpoints
        self._checkpoint = checkpoint
        self._reclaiming = reclaiming
        self._rebuilt = rebuilt
        self._notify = tell
        self._notified_at = 0.0

    def begin(self, error: OSError) -> None:
        """Report that the index was found damaged; a rebuild is under way from now on."""
        self._report(IndexRebuild(self._path, str(error), "damaged"))

    async def run(self) -> None:
        """Rebuild the index; try again after a failure, until it is whole or the log has failed."""
        retry_s = _RETRY_S
        while self._directory.rebuilding and not self._directory.closing:
            try:
                await self._rebuild()
                return
            except (OSError, StoreError) as error:
                assert self.progress is not None
                self._report(replace(self.progress, state="failed", trouble=str(error)))
                if self._directory.log.failure is not None:
                    return  # Nothing more can be written here; the next start rebuilds the index.
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_S_MAX)

    async def _rebuild(self) -> None:
        record = await read_index_record(self._disk, self._path)
        # The doubt must be durable before any other step: a crash must not forget the damage.
        with trio.CancelScope(shield=True):
            if not record.damaged:
                record = replace(record, damaged=True)
                await write_index_record(self._disk, self._path, record)
            await self._directory.log.wait_durable(self._directory.write_doubt())
        await remove_others(self._disk, self._path, record.name, self._opened.name)
        name = await next_name(self._disk, self._path, record)
        store, unused = await self._opened.open_beside(name)
        wait: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        try:
            await empty(store)
            fresh = EntryLocations(store, blocks_cached=self._limits.blocks_cached)
            contents, replayed = await self._replay(fresh)
            async with self._checkpoints:
                wait = self._adopt(store, fresh, contents)
                unused = self._opened.replace(name, unused)
                await self._checkpoint()
        finally:
            with trio.CancelScope(shield=True):
                await wait()  # A reader may still be using the old index.
                await unused.aclose()
        await self._directory.forget_moved_damage()
        self._check_new_index()
        await write_index_record(self._disk, self._path, IndexRecord(name, damaged=False))
        # A reader may have met damage in the new index while INDEX was written.
        self._check_new_index()
        self._directory.rebuilding = ""
        self._end()
        self._rebuilt(replayed)
        await remove_others(self._disk, self._path, name)

    def _check_new_index(self) -> None:
        locations = self._directory.locations
        if (error := locations.index.damage or locations.failure) is not None:
            raise error

    async def _replay(self, fresh: EntryLocations) -> tuple[Contents, ReplayResult]:
        """Index everything below P in the new index; later entries stay in memory."""
        directory = self._directory
        async with self._reclaiming:
            pass  # Wait for a compaction that began before the damage was known; it stops soon.
        async with self._checkpoints:
            position = directory.log.seal()
            directory.locations.hold(directory.ledgers.values())
        await directory.log.wait_durable(position - 1)
        segments = [each for each in directory.log.segments if each.first < position]
        start = segments[0].first if segments else position
        self._advance(0, position - start)

        def progress(reached: int) -> None:
            self._advance(max(0, reached - start), position - start)

        return await load_below(
            self._disk,
            segments,
            self._contents.gaps,
            fresh,
            position,
            checkpoint_entries=self._limits.checkpoint_entries,
            progress=progress,
        )

    def _adopt(
        self, store: IndexStore, fresh: EntryLocations, rebuilt: Contents
    ) -> Callable[[], Awaitable[None]]:
        directory = self._directory
        for state in directory.ledgers.values():
            state.indexed_last = -1
        for ledger_id, found in rebuilt.ledgers.items():
            known = directory.ledgers.setdefault(ledger_id, found)
            if known is not found:  # Otherwise the old index had lost its row without an error.
                _merge(known, found)
        for segment in directory.log.segments:
            fresh.usage.begin(segment.first)
        self._contents.checkpoint = rebuilt.checkpoint
        return directory.locations.adopt(store, fresh.usage, directory.ledgers.values())

    # ---- progress reports

    def _advance(self, done: int, total: int) -> None:
        assert self.progress is not None
        self.progress = replace(
            self.progress, state="rebuilding", done_bytes=done, total_bytes=total
        )
        now = trio.current_time()
        if now - self._notified_at >= _REPORT_S:
            self._notified_at = now
            self._notify(self.progress)

    def _end(self) -> None:
        assert self.progress is not None
        self._report(replace(self.progress, state="rebuilt", done_bytes=self.progress.total_bytes))
        self.progress = None

    def _report(self, progress: IndexRebuild) -> None:
        self.progress = progress
        self._notify(progress)


def _merge(state: LedgerState, found: LedgerState) -> None:
    """Merge the log's state of a ledger into memory's, which is newer unless a row was lost."""
    state.indexed_last = found.last_entry
    state.last_entry = max(state.last_entry, found.last_entry)
    state.fenced = state.fenced or found.fenced
    state.limbo = state.limbo or found.limbo
    state.master_key = state.master_key or found.master_key
    state.accepted_lac = max(state.accepted_lac, found.accepted_lac)
    state.raise_lac(found.lac)
    if found.explicit_lac > state.explicit_lac:
        state.explicit_lac, state.explicit_body = found.explicit_lac, found.explicit_body
    if found.deleted and not state.deleted:
        state.mark_deleted(found.last)
