"""The interface of the storage that the bookie's server calls to serve requests.

    async with open_store(disk=disk, directories=["d0"], index=open_rocks_index,
                          clock=clock) as store:
        store.add(ledger_id, 0, master_key, entry, recovery=False, done=answer)
        entry = await store.read(ledger_id, 0)

**OK means durable**: entries, fences and explicit LACs survive a power loss from then on; only
`StoreLimits.ack_early` answers plain adds before that.  A refusal is sent immediately.  Accepted
adds are answered in order in the trio thread, all those of one commit together, followed by one
call of each commit listener.  `done` must not raise.

**"No" means never acknowledged here**; any other absence is UNKNOWN or IO_ERROR.

A new ledger goes to a directory that accepts it (`directories`).  If the ledger may have been here
and forgotten since, it is accepted only if the metadata do not object (`unknown_ledgers`).

Background work is in `maintenance`; the end of a doubt is in `limbo`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import TypeAlias

from daybook.bookie.storage.directories import Directories
from daybook.bookie.storage.directory_runner import (
    Answering,
    DirectoryListeners,
    DirectoryRunner,
    open_directory,
)
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.index import OpenIndex
from daybook.bookie.storage.ledger_directory import DoneOfRuns, LedgerDirectory
from daybook.bookie.storage.ledger_state import Cancel
from daybook.bookie.storage.limbo import LimboLedgers, LimboMark
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Done
from daybook.bookie.storage.maintenance import Maintenance
from daybook.bookie.storage.markers import IN_DOUBT, NEVER_LOST, read_generation
from daybook.bookie.storage.rebuild import IndexRebuild, RebuildListener
from daybook.bookie.storage.records import Buffer, Run, SharedRun, entries_of_run
from daybook.bookie.storage.statistics import StoreStatistics, gather
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.unknown_ledgers import (
    AskMetadata,
    LedgerStatus,
    UnknownLedgerCheck,
    refusal_for,
)
from daybook.wire.clock import WallClock

IsBehind: TypeAlias = Callable[[Mapping[str, int]], Awaitable[bool]]
"""Gets the end of each directory's log; returns True if one of them lacks records."""


class LedgerStore:
    """The ledgers of a bookie, used from one trio thread."""

    def __init__(self, disk: Disk, unknown_ledgers: UnknownLedgerCheck | None = None) -> None:
        self._unknown_ledgers = unknown_ledgers
        self._directories = Directories()
        self._homes = self._directories.homes
        self.limbo_ledgers = LimboLedgers(disk, self._directories)
        self.maintenance = Maintenance(self._directories, forgets=unknown_ledgers is not None)
        self._answering: Answering = nullcontext
        self._writable_listeners: list[Callable[[], None]] = []
        self._read_only_reasons: set[str] = set()

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        *,
        recovery: bool,
        done: Done,
        admitted: bool = False,
    ) -> None:
        """Store an entry.  `done` is called once: now if refused, otherwise when it is durable.

        `admitted`: there was room for the run that the entry is part of (`_admits`).
        """
        directory = self._homes.get(ledger_id)
        if entry_id < 0 or ledger_id < 0:
            done(StoreStatus.BAD_REQUEST)
        elif directory is not None:
            directory.add(ledger_id, entry_id, master_key, entry, recovery, done, admitted=admitted)
        elif self._unknown_ledgers is None or not self._may_be_forgotten(ledger_id):
            self._add_new(ledger_id, entry_id, master_key, entry, recovery, done, admitted)
        elif not admitted and self._unknown_ledgers.is_full(ledger_id):
            done(StoreStatus.TOO_MANY)
        else:

            def answer(ledger_status: LedgerStatus) -> None:
                status = refusal_for(ledger_status, recovery=recovery)
                if status is StoreStatus.OK and ledger_status is LedgerStatus.ENDED:
                    status = self._fence_again(ledger_id)
                if status is StoreStatus.OK:
                    self._add_new(ledger_id, entry_id, master_key, entry, recovery, done, admitted)
                else:
                    done(status)

            self._unknown_ledgers.ask(
                self._directories.runners[0].nursery, ledger_id, len(entry), answer
            )

    def try_add_run(self, run: Run, master_key: Buffer, done: Done) -> bool:
        """Accept plain adds of new entries to a known ledger; otherwise do nothing, return False.

        The store owns the run from then on.  `done` is called once, when each entry is durable.
        """
        directory = self._homes.get(run.ledger_id)
        return directory is not None and directory.try_add_run(run, master_key, done)

    def try_add_runs(
        self, runs: Sequence[SharedRun], start: int, span: memoryview, taken: DoneOfRuns
    ) -> int:
        """Accept runs of several ledgers that arrived one behind the other, from `start` on.

        Return how many were accepted: those in front of the first one for which `try_add_run`
        would return False, or which belongs to another directory.  `taken` is called with them
        before that and makes their `done`.
        """
        directory = self._homes.get(runs[start].ledger_id)
        return 0 if directory is None else directory.try_add_runs(runs, start, span, taken)

    def add_run(self, run: Run, master_key: Buffer, done: Done) -> None:
        """Add the entries of a run as plain adds.  The store owns the run from then on.

        `done` is called once for all: OK if each is durable; an error proves nothing about any.
        There is room for all of them or for none, however many they are.
        """
        if self.try_add_run(run, master_key, done):
            return
        # A run that is let in by halves is refused, sent again as a whole, and looked at entry by
        # entry from then on.  If it alone fills the room, each time would store one more entry.
        admitted = self._admits(run.ledger_id)
        left = len(run.sizes)
        result = StoreStatus.OK

        def entry_done(status: StoreStatus) -> None:
            nonlocal left, result
            # FENCED replaces any other error: it says most, since no later add will be accepted.
            if result is StoreStatus.OK or status is StoreStatus.FENCED:
                result = status
            left -= 1
            if left == 0:
                done(result)

        for entry_id, entry in enumerate(entries_of_run(run.data, run.sizes), run.first):
            self.add(
                *(run.ledger_id, entry_id, master_key, entry),
                recovery=False,
                done=entry_done,
                admitted=admitted,
            )

    def _admits(self, ledger_id: int) -> bool:
        """Return True if there is memory for another add to the ledger."""
        directory = self._homes.get(ledger_id)
        if directory is None:
            unknown = self._unknown_ledgers
            if ledger_id < 0 or (
                unknown is not None
                and self._may_be_forgotten(ledger_id)
                and unknown.is_full(ledger_id)
            ):
                return False
            directory = self._directories.directory_for(ledger_id)
        return directory.has_room

    def _fence_again(self, ledger_id: int) -> StoreStatus:
        """Fence a ledger that the metadata say has ended: its fence here may be forgotten."""
        try:
            self.limbo_ledgers.mark_one(LimboMark(ledger_id, limbo=False, fence=True))
        except StoreError as error:
            return error.status
        return StoreStatus.OK

    def _may_be_forgotten(self, ledger_id: int) -> bool:
        assert self._unknown_ledgers is not None
        lost_before = self._unknown_ledgers.generation != NEVER_LOST
        return lost_before or ledger_id <= self._directories.highest_tombstone

    def _add_new(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        recovery: bool,
        done: Done,
        admitted: bool,
    ) -> None:
        directory = self._directories.directory_for(ledger_id)
        directory.add(ledger_id, entry_id, master_key, entry, recovery, done, admitted=admitted)
        self._directories.register(ledger_id, directory)

    async def read(self, ledger_id: int, entry_id: int) -> memoryview:
        """Return the entry as it was stored; LAST_ENTRY is the one with the highest id."""
        directory = self._directories.directory_of(ledger_id, entry_id)
        entry = directory.try_read(ledger_id, entry_id)
        return await directory.read(ledger_id, entry_id) if entry is None else entry

    def try_read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Return the entry if that needs no waiting; None if the caller must use `read`."""
        return self._directories.directory_of(ledger_id, entry_id).try_read(ledger_id, entry_id)

    async def fetch(self, ledger_id: int, first: int, count: int, bytes_max: int) -> None:
        """Read the first of these entries into memory if single reads would read too much.

        It raises no error, and promises nothing: `read` each of them.
        """
        directory = self._homes.get(ledger_id)
        if directory is not None:
            await directory.fetch(ledger_id, first, count, bytes_max)

    async def fence(self, ledger_id: int, master_key: Buffer) -> None:
        """Let the ledger accept only recovery adds, forever; durable on return.

        Every add that was accepted before the fence is durable or refused on return.
        """
        directory, position = self._fence(ledger_id, master_key)
        await directory.log.wait_durable(position)

    def begin_fence(self, ledger_id: int, master_key: Buffer, done: Done) -> None:
        """Fence a ledger; call `done` when `fence` would return, perhaps in this call.

        Raise StoreError if the ledger cannot be fenced; then `done` is not called.
        """
        directory, position = self._fence(ledger_id, master_key)
        directory.log.when_durable(position, done)

    def _fence(self, ledger_id: int, master_key: Buffer) -> tuple[LedgerDirectory, int]:
        directory = self._directories.directory_for(ledger_id)
        position = directory.fence(ledger_id, master_key)
        self._directories.register(ledger_id, directory)
        return directory, position

    async def fencing_read(self, ledger_id: int, entry_id: int, master_key: Buffer) -> memoryview:
        """Read after a durable fence: a "no" can no longer become a "yes" by a plain add."""
        await self.fence(ledger_id, master_key)
        return await self.read(ledger_id, entry_id)

    async def write_lac(self, ledger_id: int, master_key: Buffer, lac: int, body: Buffer) -> None:
        """Store an explicit LAC; one that is lower than the last changes nothing."""
        if self._unknown_ledgers is not None and ledger_id >= 0 and ledger_id not in self._homes:
            await self._check_first_contact(ledger_id)
        directory = self._directories.directory_for(ledger_id)
        position = directory.write_lac(ledger_id, master_key, lac, body)
        self._directories.register(ledger_id, directory)
        await directory.log.wait_durable(position)

    async def _check_first_contact(self, ledger_id: int) -> None:
        if self._unknown_ledgers is not None and self._may_be_forgotten(ledger_id):
            ledger_status = await self._unknown_ledgers.ledger_status(ledger_id)
            status = refusal_for(ledger_status, recovery=False)
            if status is not StoreStatus.OK and ledger_id not in self._homes:
                raise StoreError(status, "the ledger is unknown here, and may have been forgotten")

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, memoryview | None]:
        """Return the body of the explicit LAC and the last entry, at least one of them."""
        return await self._directories.directory_of(ledger_id).read_lac(ledger_id)

    async def force(self, ledger_id: int) -> None:
        """Return when everything accepted for the ledger before this call is durable.

        Raise if this bookie may have lost some of it, or the ledger is fenced: a writer with adds
        acknowledged by an earlier process would take the answer for all of its entries.
        """
        directory = self._directories.directory_of(ledger_id)
        directory.check_complete(ledger_id)
        await directory.log.wait_durable(directory.log.end - 1)

    def last_add_confirmed(self, ledger_id: int) -> int:
        """Return the highest LAC in a durable record of this ledger; -1 for none."""
        return self._directories.directory_of(ledger_id).known_ledger(ledger_id).lac

    def watch_lac(self, ledger_id: int, after: int, callback: Callable[[], None]) -> Cancel:
        """Call `callback` once when the LAC passes `after`, or the ledger is fenced or deleted.

        If that is already so, the call comes before the return.
        """
        state = self._directories.directory_of(ledger_id).known_ledger(ledger_id)
        if state.lac > after or state.fenced:
            callback()
            return lambda: None
        return state.watch(after, callback)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that is gone from the metadata; it is never created again here."""
        directory = self._directories.directory_for(ledger_id)
        position = directory.delete(ledger_id)
        self._directories.register(ledger_id, directory)
        await directory.log.wait_durable(position)

    def is_fenced(self, ledger_id: int) -> bool:
        return self._directories.directory_of(ledger_id).known_ledger(ledger_id).fenced

    def ledgers(self) -> list[int]:
        """Return the ids of all ledgers on this bookie, sorted."""
        return sorted(
            ledger_id
            for directory in self._directories.ledger_directories
            for ledger_id, state in directory.ledgers.items()
            if not state.deleted
        )

    def directory_of(self, ledger_id: int) -> str:
        """Return the directory of the ledger."""
        return self._directories.directory_of(ledger_id).path

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """Return the ids of the ledger's entries on this bookie, sorted."""
        directory = self._directories.directory_of(ledger_id)
        return await directory.entry_ids(ledger_id)

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of adds that are accepted and not durable yet, or wait for the metadata."""
        waiting = 0 if self._unknown_ledgers is None else self._unknown_ledgers.bytes_waiting
        return waiting + sum(
            directory.bytes_in_flight for directory in self._directories.ledger_directories
        )

    @property
    def writable(self) -> bool:
        """True if the bookie accepts new ledgers; its registration says the same."""
        return any(directory.writable for directory in self._directories.ledger_directories)

    @property
    def limbo(self) -> bool:
        """True if records of unknown ledgers were lost: an absent entry may have been here."""
        return self._directories.limbo

    async def end_doubt(self, generation: int) -> None:
        """End the doubt: every ledger that may have lost records is marked.

        No ledger that was created since `generation` has lost any.
        """
        await self.limbo_ledgers.end_doubt(generation)
        if self._unknown_ledgers is not None:
            self._unknown_ledgers.generation = generation
        self.changed()

    def answer_within(self, answering: Answering) -> None:
        """Call the `done`s of each commit within `answering()`, which sends what they queue."""
        self._answering = answering

    def answering(self) -> AbstractContextManager[None]:
        return self._answering()

    def add_writable_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` when `writable` may have changed."""
        self._writable_listeners.append(listener)

    def log_ends(self) -> dict[str, int]:
        """Return, for each directory, the position up to which any later start finds the log.

        The last batch of a killed process does not count until it is known to be durable.
        """
        return {each.directory.path: each.log_mark for each in self._directories.runners}

    def add_segment_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a segment of a log has begun.  There is one listener."""
        for runner in self._directories.runners:
            runner.segment_began = listener

    def set_read_only(self, read_only: bool, reason: str = "order") -> None:
        """Refuse plain adds for this reason, or withdraw it; other reasons stay."""
        if read_only:
            self._read_only_reasons.add(reason)
        else:
            self._read_only_reasons.discard(reason)
        for directory in self._directories.ledger_directories:
            directory.read_only = self.read_only
            directory.update_writable()
        self.changed()

    @property
    def read_only(self) -> bool:
        """True if read-only mode was requested, apart from disk space and failures."""
        return bool(self._read_only_reasons)

    @property
    def takes_recovery(self) -> bool:
        """True if a directory has space for fences and recovery adds, at least."""
        return any(
            not (directory.out_of_reserve or directory.closing or directory.log.failure)
            for directory in self._directories.ledger_directories
        )

    @property
    def out_of_space(self) -> bool:
        """True if a directory has too little space for plain adds."""
        return any(directory.out_of_space for directory in self._directories.ledger_directories)

    def statistics(self) -> StoreStatistics:
        return gather(
            self._directories.runners,
            ledgers=len(self._homes),
            bytes_in_flight=self.bytes_in_flight,
            read_only=self.read_only,
        )

    def attach(self, runner: DirectoryRunner) -> None:
        """Attach a directory, which calls the methods below; `open_store` calls this."""
        self._directories.attach(runner)

    def doubted(self) -> None:
        """A directory may have lost records: until that is resolved, any entry may be missing."""
        self._directories.update_doubt()
        if self._unknown_ledgers is not None:
            self._unknown_ledgers.generation = IN_DOUBT
        self.changed()

    def adopted(self, runner: DirectoryRunner) -> None:
        """Register the ledgers of a rebuilt index: the old index may have lacked some."""
        for ledger_id in runner.directory.ledgers:
            self._directories.register(ledger_id, runner.directory)

    @property
    def rebuilding(self) -> list[IndexRebuild]:
        """The rebuilds of damaged indexes that are under way."""
        runners = self._directories.runners
        return [each.rebuilder.progress for each in runners if each.rebuilder.progress]

    def changed(self) -> None:
        for listener in self._writable_listeners:
            listener()


@asynccontextmanager
async def open_store(
    *,
    disk: Disk,
    directories: Sequence[str],
    index: OpenIndex,
    clock: WallClock,
    limits: StoreLimits | None = None,
    ask: AskMetadata | None = None,
    in_doubt: bool = False,
    rebuild: RebuildListener = lambda _: None,
    is_behind: IsBehind | None = None,
) -> AsyncGenerator[LedgerStore]:
    """Open the store in these directories, which no other process may use meanwhile.

    `ask` returns what the metadata know about a ledger; without it no deleted ledger is forgotten.
    With `in_doubt` records may be lost even if the directories look whole.  `is_behind` is called
    after all logs were read and before anything is written to them; True means the same.
    `rebuild` is called when an index is found damaged, and with the progress of the new one.
    On exit the store refuses requests and makes a checkpoint: the next start has little to read.
    """
    assert directories, "a store needs a directory"
    limits = limits or StoreLimits()
    bytes_max = limits.in_flight_bytes_max
    unknown_ledgers = UnknownLedgerCheck(ask, bytes_max=bytes_max) if ask is not None else None
    store = LedgerStore(disk, unknown_ledgers)
    generation = await read_generation(disk, directories)
    async with AsyncExitStack() as stack:
        runners: list[DirectoryRunner] = []
        for path in directories:
            opening = open_directory(
                disk,
                path,
                index,
                clock,
                limits,
                listeners=DirectoryListeners(
                    answering=store.answering,
                    changed=store.changed,
                    doubted=store.doubted,
                    adopted=store.adopted,
                    rebuild=rebuild,
                ),
            )
            runners.append(await stack.enter_async_context(opening))
        ends = {each.directory.path: each.log_reached for each in runners}
        behind = is_behind is not None and await is_behind(ends)
        # A start that was cut short may have recorded the doubt in one log, and not in the others.
        doubted = any(each.in_doubt for each in runners)
        for runner in runners:
            await runner.start(in_doubt=in_doubt or generation is None or behind or doubted)
            store.attach(runner)
        if unknown_ledgers is not None:
            unknown_ledgers.generation = IN_DOUBT if store.limbo else generation or NEVER_LOST
        yield store
