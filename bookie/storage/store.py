"""The front of the storage: what the server of a bookie calls to serve requests.

    async with open_store(disk=disk, directories=["d0"], index=open_rocks_index,
                          clock=clock) as store:
        store.add(ledger_id, 0, master_key, entry, recovery=False, done=answer)
        entry = await store.read(ledger_id, 0)

**OK means durable**: entries, fences and explicit LACs survive a loss of power from then on.  What
is refused is refused at once; what is accepted is answered in order, many at a time, in one go per
commit, in the trio thread, followed by one call of each commit listener.  `done` must not raise.

**"No" means never acknowledged here**; anything else is UNKNOWN or IO_ERROR.

A ledger that is new here goes to a directory that takes it (`directories`); one that may have been
here, and was forgotten since, only if the metadata do not object (`contacts`).

Not here: what is done behind the requests (`maintenance`), and how a doubt ends (`suspects`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

from daybook.bookie.storage.contacts import Ask, FirstContacts, Standing, refusal_of
from daybook.bookie.storage.directories import Directories
from daybook.bookie.storage.disk import Disk
from daybook.bookie.storage.index import OpenIndex
from daybook.bookie.storage.ledgers import Cancel
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import Done
from daybook.bookie.storage.maintenance import Maintenance
from daybook.bookie.storage.memory import IN_DOUBT, NEVER_LOST, read_birth
from daybook.bookie.storage.rebuild import IndexRebuild, TellRebuild
from daybook.bookie.storage.records import Buffer, Run, SharedRun, entries_of_run
from daybook.bookie.storage.statistics import StoreStatistics, gather
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.suspects import Suspect, Suspects
from daybook.bookie.storage.together import Together
from daybook.bookie.storage.upkeep import Tellers, Upkeep, open_volume
from daybook.bookie.storage.volume import Taken
from daybook.wire.clock import WallClock

IsBehind: TypeAlias = Callable[[Mapping[str, int]], Awaitable[bool]]
"""Is told where the log of each directory ends; says whether one of them lacks something."""


class LedgerStore:
    """The ledgers of a bookie.  One trio thread."""

    def __init__(self, disk: Disk, contacts: FirstContacts | None = None) -> None:
        self._contacts = contacts
        self._directories = Directories()
        self._homes = self._directories.homes
        self.suspects = Suspects(disk, self._directories)
        self.maintenance = Maintenance(self._directories, forgets=contacts is not None)
        self._commit_listeners: list[Callable[[], None]] = []
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
    ) -> None:
        """Store an entry.  `done` is called once: at once if refused, else when it is durable."""
        volume = self._homes.get(ledger_id)
        if entry_id < 0 or ledger_id < 0:
            done(StoreStatus.BAD_REQUEST)
        elif volume is not None:
            volume.add(ledger_id, entry_id, master_key, entry, recovery, done)
        elif self._contacts is None or not self._may_be_forgotten(ledger_id):
            self._add_new(ledger_id, entry_id, master_key, entry, recovery, done)
        elif self._contacts.is_full(ledger_id):
            done(StoreStatus.TOO_MANY)
        else:

            def answer(standing: Standing) -> None:
                status = refusal_of(standing, recovery=recovery)
                if status is StoreStatus.OK and standing is Standing.ENDED:
                    status = self._fence_again(ledger_id)
                if status is StoreStatus.OK:
                    self._add_new(ledger_id, entry_id, master_key, entry, recovery, done)
                else:
                    done(status)

            self._contacts.ask(self._directories.upkeeps[0].nursery, ledger_id, len(entry), answer)

    def try_add_run(self, run: Run, master_key: Buffer, done: Done) -> bool:
        """Plain adds of new entries to a known ledger; False, and nothing done, for any others.

        The run is the store's from then on.  `done` is called once, when each is durable.
        """
        volume = self._homes.get(run.ledger_id)
        return volume is not None and volume.try_add_run(run, master_key, done)

    def try_add_runs(
        self, runs: Sequence[SharedRun], start: int, span: memoryview, taken: Taken
    ) -> int:
        """The same for runs of several ledgers that came one behind the other.

        Returns how many were accepted, from `start` on, in this order: those in front of the first
        one of which `try_add_run` would say False, or which is of another directory.  `taken` is
        called with them before that, and makes their `done`.
        """
        volume = self._homes.get(runs[start].ledger_id)
        return 0 if volume is None else volume.try_add_runs(runs, start, span, taken)

    def add_run(self, run: Run, master_key: Buffer, done: Done) -> None:
        """Plain adds.  The run is the store's from then on.

        `done` is called once, for all: OK when each is durable; else it proves nothing of any.
        """
        if self.try_add_run(run, master_key, done):
            return
        together = Together(len(run.sizes), done)
        for entry_id, entry in enumerate(entries_of_run(run.data, run.sizes), run.first):
            self.add(run.ledger_id, entry_id, master_key, entry, recovery=False, done=together)

    def _fence_again(self, ledger_id: int) -> StoreStatus:
        """It has ended elsewhere, and was perhaps fenced here."""
        try:
            self.suspects.take(Suspect(ledger_id, limbo=False, fence=True))
        except StoreError as error:
            return error.status
        return StoreStatus.OK

    def _may_be_forgotten(self, ledger_id: int) -> bool:
        assert self._contacts is not None
        reborn = self._contacts.birth != NEVER_LOST
        return reborn or ledger_id <= self._directories.highest_tombstone

    def _add_new(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        recovery: bool,
        done: Done,
    ) -> None:
        volume = self._directories.home_of(ledger_id)
        volume.add(ledger_id, entry_id, master_key, entry, recovery, done)
        self._directories.settle(ledger_id, volume)

    async def read(self, ledger_id: int, entry_id: int) -> memoryview:
        """The entry as it was stored; LAST_ENTRY is the one with the highest id."""
        volume = self._directories.volume_of(ledger_id, entry_id)
        reads = volume.reads
        entry = reads.try_read(ledger_id, entry_id)
        return await reads.read(ledger_id, entry_id) if entry is None else entry

    def try_read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """The same without waiting; None if `read` has to be asked."""
        return self._directories.volume_of(ledger_id, entry_id).reads.try_read(ledger_id, entry_id)

    async def fence(self, ledger_id: int, master_key: Buffer) -> None:
        """Let the ledger take recovery adds only, for ever.  Durable on return.

        Every add accepted before is durable, or refused, by then.
        """
        volume = self._directories.home_of(ledger_id)
        position = volume.states.fence(ledger_id, master_key)
        self._directories.settle(ledger_id, volume)
        await volume.log.wait_durable(position)

    async def fencing_read(self, ledger_id: int, entry_id: int, master_key: Buffer) -> memoryview:
        """Read from the state behind a durable fence: a "no" can become no "yes" any more."""
        await self.fence(ledger_id, master_key)
        return await self.read(ledger_id, entry_id)

    async def write_lac(self, ledger_id: int, master_key: Buffer, lac: int, body: Buffer) -> None:
        """Keep an explicit LAC; a lower one than the last is of no use and changes nothing."""
        if self._contacts is not None and ledger_id >= 0 and ledger_id not in self._homes:
            await self._check_first_contact(ledger_id)
        volume = self._directories.home_of(ledger_id)
        position = volume.states.write_lac(ledger_id, master_key, lac, body)
        self._directories.settle(ledger_id, volume)
        await volume.log.wait_durable(position)

    async def _check_first_contact(self, ledger_id: int) -> None:
        if self._contacts is not None and self._may_be_forgotten(ledger_id):
            standing = await self._contacts.standing_of(ledger_id)
            status = refusal_of(standing, recovery=False)
            if status is not StoreStatus.OK and ledger_id not in self._homes:
                raise StoreError(status, "it is unknown here, and may have been forgotten")

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, memoryview | None]:
        """Body of the explicit LAC, and the last entry: at least one of them."""
        return await self._directories.volume_of(ledger_id).reads.read_lac(ledger_id)

    async def force(self, ledger_id: int) -> None:
        """Return when everything that was accepted for the ledger before is durable.

        Never if this bookie may have lost some of it since, or the ledger is fenced: whoever was
        told of an add by an earlier process would take that for all of its entries.
        """
        volume = self._directories.volume_of(ledger_id)
        volume.reads.check_whole(ledger_id)
        await volume.log.wait_durable(volume.log.end - 1)

    def last_add_confirmed(self, ledger_id: int) -> int:
        """The highest LAC that a durable record of this ledger carries; -1 for none."""
        return self._directories.volume_of(ledger_id).reads.known(ledger_id).lac

    def watch_lac(self, ledger_id: int, after: int, callback: Callable[[], None]) -> Cancel:
        """Call once when the LAC passes `after`, or the ledger is fenced or deleted.

        At once, before returning, if it is so already.
        """
        state = self._directories.volume_of(ledger_id).reads.known(ledger_id)
        if state.lac > after or state.fenced:
            callback()
            return lambda: None
        return state.watch(after, callback)

    async def delete(self, ledger_id: int) -> None:
        """Drop a ledger that is gone from the metadata; it is never made again here."""
        volume = self._directories.home_of(ledger_id)
        position = volume.states.delete(ledger_id)
        self._directories.settle(ledger_id, volume)
        await volume.log.wait_durable(position)

    def is_fenced(self, ledger_id: int) -> bool:
        return self._directories.volume_of(ledger_id).reads.known(ledger_id).fenced

    def ledgers(self) -> list[int]:
        """The ids of all ledgers that are here, sorted."""
        return sorted(
            ledger_id
            for volume in self._directories.volumes
            for ledger_id, state in volume.ledgers.items()
            if not state.deleted
        )

    def directory_of(self, ledger_id: int) -> str:
        """Where the ledger lives."""
        return self._directories.volume_of(ledger_id).directory

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """The ids of the entries of a ledger that are here, sorted."""
        volume = self._directories.volume_of(ledger_id)
        return await volume.reads.entry_ids(ledger_id)

    @property
    def bytes_in_flight(self) -> int:
        """Accepted and not durable yet."""
        waiting = 0 if self._contacts is None else self._contacts.bytes_waiting
        return waiting + sum(volume.bytes_in_flight for volume in self._directories.volumes)

    @property
    def writable(self) -> bool:
        """Whether new ledgers are welcome here: what the registration of the bookie says."""
        return any(volume.writable for volume in self._directories.volumes)

    @property
    def limbo(self) -> bool:
        """Records were lost, and nobody knows whose: what is absent may have been here."""
        return self._directories.limbo

    async def end_doubt(self, birth: int) -> None:
        """All suspects are marked; ledgers created since `birth` cannot have lost anything."""
        await self.suspects.end_doubt(birth)
        if self._contacts is not None:
            self._contacts.birth = birth
        self.changed()

    def add_commit_listener(self, listener: Callable[[], None]) -> None:
        """Called after the `done`s of each commit: the moment to flush what they queued."""
        self._commit_listeners.append(listener)

    def add_writable_listener(self, listener: Callable[[], None]) -> None:
        """Called when `writable` may have changed."""
        self._writable_listeners.append(listener)

    def log_ends(self) -> dict[str, int]:
        """By directory: the position behind the last batch that a start would find."""
        return {each.volume.directory: each.log_reached for each in self._directories.upkeeps}

    def add_segment_listener(self, listener: Callable[[], None]) -> None:
        """Called when a segment of a log has begun.  There is one listener."""
        for upkeep in self._directories.upkeeps:
            upkeep.segment_began = listener

    def set_read_only(self, read_only: bool, reason: str = "order") -> None:
        """Take plain adds no more; or again, unless there is another reason not to."""
        if read_only:
            self._read_only_reasons.add(reason)
        else:
            self._read_only_reasons.discard(reason)
        for volume in self._directories.volumes:
            volume.read_only = self.read_only
            volume.judge()
        self.changed()

    @property
    def read_only(self) -> bool:
        """Somebody wants it so, whatever else there may be."""
        return bool(self._read_only_reasons)

    @property
    def takes_recovery(self) -> bool:
        """Whether there is room for what ends ledgers, at least."""
        return any(
            not (volume.out_of_reserve or volume.closing or volume.log.failure)
            for volume in self._directories.volumes
        )

    @property
    def out_of_space(self) -> bool:
        """A directory has too little room for plain adds."""
        return any(volume.out_of_space for volume in self._directories.volumes)

    def statistics(self) -> StoreStatistics:
        return gather(
            self._directories.upkeeps,
            ledgers=len(self._homes),
            bytes_in_flight=self.bytes_in_flight,
            read_only=self.read_only,
        )

    def attach(self, upkeep: Upkeep) -> None:
        """`open_store` calls this, and the two below are told by what it attaches."""
        self._directories.attach(upkeep)

    def doubted(self) -> None:
        """A directory may have lost records: until that is resolved, any may be missing."""
        self._directories.judge_doubt()
        if self._contacts is not None:
            self._contacts.birth = IN_DOUBT
        self.changed()

    def adopted(self, upkeep: Upkeep) -> None:
        """It may have found ledgers in its log that its old index had lost."""
        for ledger_id in upkeep.volume.ledgers:
            self._directories.settle(ledger_id, upkeep.volume)

    @property
    def rebuilding(self) -> list[IndexRebuild]:
        """The damaged indexes of which a new one is being made."""
        upkeeps = self._directories.upkeeps
        return [each.rebuilder.progress for each in upkeeps if each.rebuilder.progress]

    def committed(self) -> None:
        for listener in self._commit_listeners:
            listener()

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
    ask: Ask | None = None,
    in_doubt: bool = False,
    rebuild: TellRebuild = lambda _: None,
    is_behind: IsBehind | None = None,
) -> AsyncGenerator[LedgerStore]:
    """The store in these directories, which nobody else may use meanwhile.

    `ask` says what the metadata know of a ledger; without it no deleted ledger is forgotten.
    `in_doubt`: whatever the directories say, records may be lost.  `is_behind` is asked when all
    logs have been read and nothing has been written to them; if it says so it is the same.
    `rebuild` is told when an index was found damaged, and how far the new one is.
    On the way out nothing is taken any more, and the next start will have next to nothing to read.
    """
    assert directories, "a store needs a directory"
    limits = limits or StoreLimits()
    bytes_max = limits.in_flight_bytes_max
    contacts = FirstContacts(ask, bytes_max=bytes_max) if ask is not None else None
    store = LedgerStore(disk, contacts)
    birth = await read_birth(disk, directories)
    async with AsyncExitStack() as stack:
        upkeeps: list[Upkeep] = []
        for directory in directories:
            volume = open_volume(
                disk,
                directory,
                index,
                clock,
                limits,
                tellers=Tellers(
                    committed=store.committed,
                    changed=store.changed,
                    doubted=store.doubted,
                    adopted=store.adopted,
                    rebuild=rebuild,
                ),
            )
            upkeeps.append(await stack.enter_async_context(volume))
        ends = {each.volume.directory: each.log_reached for each in upkeeps}
        behind = is_behind is not None and await is_behind(ends)
        # A start that was cut short has perhaps told one log of a doubt, and not the others.
        doubted = any(each.in_doubt for each in upkeeps)
        for upkeep in upkeeps:
            await upkeep.start(in_doubt=in_doubt or birth is None or behind or doubted)
            store.attach(upkeep)
        if contacts is not None:
            contacts.birth = IN_DOUBT if store.limbo else birth or NEVER_LOST
        yield store
