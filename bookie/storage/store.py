"""The front of the storage: what the server of a bookie calls.

    async with open_store(disk=disk, directories=["d0"], index=open_rocks_index,
                          clock=clock) as store:
        store.add(ledger_id, 0, master_key, entry, recovery=False, done=answer)
        entry = await store.read(ledger_id, 0)

**OK means durable**: entries, fences and explicit LACs survive a loss of power from then on.  What
is refused is refused at once; what is accepted is answered in order, many at a time, in one go per
commit, in the trio thread, followed by one call of each commit listener.  `done` must not raise.

**"No" means never acknowledged here**; anything else is UNKNOWN or IO_ERROR.

A ledger lives in one directory, where its first record was written.  That is how it is found again,
whatever the number and order of the directories: each has its own log, index and lock.  A new
ledger goes to the writable directory that has the fewest; one that may have been here, and was
forgotten since, only if the metadata do not object (`contacts`).
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from bookie.storage.contacts import Ask, FirstContacts, Standing, refusal_of
from bookie.storage.disk import Disk
from bookie.storage.index import OpenIndex
from bookie.storage.ledgers import Cancel
from bookie.storage.limits import StoreLimits
from bookie.storage.log import Done, LogLimits
from bookie.storage.memory import NEVER_LOST, read_birth
from bookie.storage.records import RECORD_HEADER_BYTES, Buffer, entries_of_run
from bookie.storage.scrub import Finding
from bookie.storage.statistics import StoreStatistics, gather
from bookie.storage.status import StoreError, StoreStatus
from bookie.storage.suspects import Suspect, Suspects
from bookie.storage.together import Together
from bookie.storage.upkeep import Upkeep, open_volume
from bookie.storage.volume import LAST_ENTRY, Volume
from wire.clock import WallClock

__all__ = [
    "LAST_ENTRY",
    "RECORD_HEADER_BYTES",
    "Finding",
    "LedgerStore",
    "LogLimits",
    "StoreError",
    "StoreLimits",
    "StoreStatistics",
    "StoreStatus",
    "entries_of_run",
    "open_store",
]


class StorageLayoutError(Exception):
    """The directories do not belong together."""


class LedgerStore:
    """The ledgers of a bookie.  One trio thread."""

    def __init__(self, disk: Disk, contacts: FirstContacts | None = None) -> None:
        self._contacts = contacts
        self._upkeeps: list[Upkeep] = []
        self._volumes: list[Volume] = []
        self._routes: dict[int, Volume] = {}
        self._suspects = Suspects(disk, self._volumes, self._routes)
        self._commit_listeners: list[Callable[[], None]] = []
        self._writable_listeners: list[Callable[[], None]] = []
        self._finding_listeners: list[Callable[[Finding], None]] = []
        self._read_only_reasons: set[str] = set()
        self._reclaiming = trio.Lock()
        self._scrubbing = trio.Lock()

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
        volume = self._routes.get(ledger_id)
        if entry_id < 0 or ledger_id < 0:
            done(StoreStatus.BAD_REQUEST)
        elif volume is not None:
            volume.add(ledger_id, entry_id, master_key, entry, recovery, done)
        elif self._contacts is None or not self._may_be_forgotten(ledger_id):
            self._add_new(ledger_id, entry_id, master_key, entry, recovery, done)
        elif self._contacts.full:
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

            self._contacts.ask(self._upkeeps[0].nursery, ledger_id, len(entry), answer)

    def try_add_run(
        self,
        ledger_id: int,
        first: int,
        master_key: Buffer,
        run: memoryview,
        sizes: Sequence[int],
        done: Done,
    ) -> bool:
        """Plain adds of new entries to a known ledger; False, and nothing done, for any others.

        `run` has RECORD_HEADER_BYTES in front of each entry, which the store writes over: with
        these it goes to the disk as it is.  `done` is called once, when each is durable.
        """
        volume = self._routes.get(ledger_id)
        return volume is not None and volume.try_add_run(
            ledger_id, first, master_key, run, sizes, done
        )

    def add_run(
        self,
        ledger_id: int,
        first: int,
        master_key: Buffer,
        run: memoryview,
        sizes: Sequence[int],
        done: Done,
    ) -> None:
        """Plain adds of consecutive entries, at least one; `run` as of `try_add_run`.

        `done` is called once, for all: OK when each is durable; else it proves nothing of any.
        """
        if self.try_add_run(ledger_id, first, master_key, run, sizes, done):
            return
        together = Together(len(sizes), done)
        for entry_id, entry in enumerate(entries_of_run(run, sizes), first):
            self.add(ledger_id, entry_id, master_key, entry, recovery=False, done=together)

    def _fence_again(self, ledger_id: int) -> StoreStatus:
        """It has ended elsewhere, and was perhaps fenced here."""
        try:
            self._suspects.take(Suspect(ledger_id, limbo=False, fence=True))
        except StoreError as error:
            return error.status
        return StoreStatus.OK

    def _may_be_forgotten(self, ledger_id: int) -> bool:
        assert self._contacts is not None
        reborn = self._contacts.birth != NEVER_LOST
        return reborn or ledger_id <= self._highest_tombstone()

    def _add_new(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        recovery: bool,
        done: Done,
    ) -> None:
        volume = self._routes.get(ledger_id) or self._home_of_new(ledger_id)
        volume.add(ledger_id, entry_id, master_key, entry, recovery, done)
        self._settle(ledger_id, volume)

    def _highest_tombstone(self) -> int:
        return max(volume.highest_tombstone for volume in self._volumes)

    async def read(self, ledger_id: int, entry_id: int) -> memoryview:
        """The entry as it was stored; LAST_ENTRY is the one with the highest id."""
        volume = self._volume_of(ledger_id, entry_id)
        entry = volume.try_read(ledger_id, entry_id)
        return await volume.read(ledger_id, entry_id) if entry is None else entry

    def try_read(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """The same without waiting; None if `read` has to be asked."""
        return self._volume_of(ledger_id, entry_id).try_read(ledger_id, entry_id)

    async def fence(self, ledger_id: int, master_key: Buffer) -> None:
        """Let the ledger take recovery adds only, for ever.  Durable on return.

        Every add accepted before is durable, or refused, by then.
        """
        volume = self._routes.get(ledger_id) or self._home_of_new(ledger_id)
        position = volume.fence(ledger_id, master_key)
        self._settle(ledger_id, volume)
        await volume.log.wait_durable(position)

    async def fencing_read(self, ledger_id: int, entry_id: int, master_key: Buffer) -> memoryview:
        """Read from the state behind a durable fence: a "no" can become no "yes" any more."""
        await self.fence(ledger_id, master_key)
        return await self.read(ledger_id, entry_id)

    async def write_lac(self, ledger_id: int, master_key: Buffer, lac: int, body: Buffer) -> None:
        """Keep an explicit LAC; a lower one than the last is of no use and changes nothing."""
        if self._contacts is not None and ledger_id >= 0 and ledger_id not in self._routes:
            await self._check_first_contact(ledger_id)
        volume = self._routes.get(ledger_id) or self._home_of_new(ledger_id)
        position = volume.write_lac(ledger_id, master_key, lac, body)
        self._settle(ledger_id, volume)
        await volume.log.wait_durable(position)

    async def _check_first_contact(self, ledger_id: int) -> None:
        if self._contacts is not None and self._may_be_forgotten(ledger_id):
            standing = await self._contacts.standing_of(ledger_id)
            status = refusal_of(standing, recovery=False)
            if status is not StoreStatus.OK and ledger_id not in self._routes:
                raise StoreError(status, "it is unknown here, and may have been forgotten")

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, memoryview | None]:
        """Body of the explicit LAC, and the last entry: at least one of them."""
        return await self._volume_of(ledger_id).read_lac(ledger_id)

    async def force(self, ledger_id: int) -> None:
        """Return when everything that was accepted for the ledger before is durable."""
        volume = self._volume_of(ledger_id)
        volume.known(ledger_id)
        await volume.log.wait_durable(volume.log.end - 1)

    def last_add_confirmed(self, ledger_id: int) -> int:
        """The highest LAC that a durable record of this ledger carries; -1 for none."""
        return self._volume_of(ledger_id).known(ledger_id).lac

    def watch_lac(self, ledger_id: int, after: int, callback: Callable[[], None]) -> Cancel:
        """Call once when the LAC passes `after`, or the ledger is fenced or deleted.

        At once, before returning, if it is so already.
        """
        state = self._volume_of(ledger_id).known(ledger_id)
        if state.lac > after or state.fenced:
            callback()
            return lambda: None
        return state.watch(after, callback)

    async def delete(self, ledger_id: int) -> None:
        """Drop a ledger that is gone from the metadata; it is never made again here."""
        volume = self._routes.get(ledger_id) or self._home_of_new(ledger_id)
        position = volume.delete(ledger_id)
        self._settle(ledger_id, volume)
        await volume.log.wait_durable(position)

    async def tombstones_to_ask(self, count: int) -> list[int]:
        """Deleted ledgers of which the metadata have to say, each, whether they are gone still."""
        if self._contacts is None:
            return []  # one that is forgotten here would be as good as new
        found: list[int] = []
        for upkeep in self._upkeeps:
            found += await upkeep.tombstones.to_ask(count - len(found))
        return found

    async def end_tombstones(self, gone: list[int]) -> int:
        """They are gone still; forget those of which nothing is left; returns how many."""
        ended = 0
        for upkeep in self._upkeeps:
            ledgers = upkeep.volume.ledgers
            here = [ledger_id for ledger_id in gone if ledger_id in ledgers]
            ended += await upkeep.tombstones.end(here)
            for ledger_id in here:
                if ledger_id not in ledgers:
                    self._routes.pop(ledger_id, None)
        return ended

    def is_fenced(self, ledger_id: int) -> bool:
        return self._volume_of(ledger_id).known(ledger_id).fenced

    def ledgers(self) -> list[int]:
        """The ids of all ledgers that are here, sorted."""
        return sorted(
            ledger_id
            for volume in self._volumes
            for ledger_id, state in volume.ledgers.items()
            if not state.deleted
        )

    def directory_of(self, ledger_id: int) -> str:
        """Where the ledger lives."""
        return self._volume_of(ledger_id).directory

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """The ids of the entries of a ledger that are here, sorted."""
        volume = self._volume_of(ledger_id)
        return await volume.entry_ids(ledger_id)

    @property
    def bytes_in_flight(self) -> int:
        """Accepted and not durable yet."""
        waiting = 0 if self._contacts is None else self._contacts.bytes_waiting
        return waiting + sum(volume.bytes_in_flight for volume in self._volumes)

    @property
    def writable(self) -> bool:
        """Whether new ledgers are welcome here: what the registration of the bookie says."""
        return any(volume.writable for volume in self._volumes)

    @property
    def limbo(self) -> bool:
        """Records were lost, and nobody knows whose: what is absent may have been here."""
        return any(volume.limbo for volume in self._volumes)

    @property
    def suspects(self) -> Suspects:
        """The ledgers of which it is known that records of them may be lost."""
        return self._suspects

    async def end_doubt(self, birth: int) -> None:
        """All suspects are marked; ledgers created since `birth` cannot have lost anything."""
        await self._suspects.end_doubt(birth)
        if self._contacts is not None:
            self._contacts.birth = birth
        self.changed()

    def add_commit_listener(self, listener: Callable[[], None]) -> None:
        """Called after the `done`s of each commit: the moment to flush what they queued."""
        self._commit_listeners.append(listener)

    def add_writable_listener(self, listener: Callable[[], None]) -> None:
        """Called when `writable` may have changed."""
        self._writable_listeners.append(listener)

    async def checkpoint(self) -> None:
        """Bring the indexes up to date now, for instance before a planned restart."""
        for upkeep in self._upkeeps:
            await upkeep.checkpoint()

    def set_read_only(self, read_only: bool, reason: str = "order") -> None:
        """Take plain adds no more; or again, unless there is another reason not to."""
        if read_only:
            self._read_only_reasons.add(reason)
        else:
            self._read_only_reasons.discard(reason)
        for volume in self._volumes:
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
            for volume in self._volumes
        )

    @property
    def out_of_space(self) -> bool:
        """A directory has too little room for plain adds."""
        return any(volume.out_of_space for volume in self._volumes)

    async def reclaim(self) -> None:
        """Make room: remove segments of which nothing counts, empty those of which little does."""
        async with self._reclaiming:
            for upkeep in self._upkeeps:
                await upkeep.reclaimer.run_once()

    async def scrub(self) -> None:
        """Look once at everything that is written, at the rate that the limits say."""
        async with self._scrubbing, trio.open_nursery() as nursery:
            for upkeep in self._upkeeps:
                nursery.start_soon(upkeep.scrubber.run_once, self._found)

    @property
    def scrubbing(self) -> bool:
        return self._scrubbing.locked()

    def findings(self) -> list[Finding]:
        """What the scrub knows to be damaged."""
        return [each for upkeep in self._upkeeps for each in upkeep.scrubber.findings]

    def damaged_entries(self) -> list[tuple[int, int]]:
        """Ledger and entry: what reads and the scrub have found that the disk does not give."""
        known = {each for volume in self._volumes for each in volume.damaged}
        return sorted(known.union(*(finding.entries for finding in self.findings())))

    def stranded_ledgers(self) -> list[int]:
        """Those in directories that have failed since the start."""
        return sorted(
            ledger_id
            for volume in self._volumes
            if volume.log.failure or volume.places.failure
            for ledger_id, state in volume.ledgers.items()
            if not state.deleted
        )

    def add_finding_listener(self, listener: Callable[[Finding], None]) -> None:
        """Called with each finding once, until it is found in another place."""
        self._finding_listeners.append(listener)

    def _found(self, finding: Finding) -> None:
        for listener in self._finding_listeners:
            listener(finding)

    def statistics(self) -> StoreStatistics:
        return gather(
            self._upkeeps,
            ledgers=len(self._routes),
            bytes_in_flight=self.bytes_in_flight,
            read_only=self.read_only,
        )

    def _volume_of(self, ledger_id: int, entry_id: int = LAST_ENTRY) -> Volume:
        volume = self._routes.get(ledger_id)
        if volume is None:
            raise self._volumes[0].absent(StoreStatus.NO_LEDGER)
        if entry_id < LAST_ENTRY:
            raise StoreError(StoreStatus.BAD_REQUEST, f"entry {entry_id}")
        return volume

    def _home_of_new(self, ledger_id: int = 0) -> Volume:
        if ledger_id < 0:
            raise StoreError(StoreStatus.BAD_REQUEST, f"ledger {ledger_id}")
        usable = [volume for volume in self._volumes if volume.writable]
        usable = usable or [volume for volume in self._volumes if volume.log.failure is None]
        return min(usable or self._volumes, key=lambda volume: len(volume.ledgers))

    def _settle(self, ledger_id: int, volume: Volume) -> None:
        if ledger_id in volume.ledgers:
            self._routes.setdefault(ledger_id, volume)

    def attach(self, upkeep: Upkeep) -> None:
        """Take the ledgers of a directory; `open_store` calls this."""
        volume = upkeep.volume
        for ledger_id in volume.ledgers:
            other = self._routes.setdefault(ledger_id, volume)
            if other is not volume:
                raise StorageLayoutError(
                    f"ledger {ledger_id} is in {other.directory} and in {volume.directory}"
                )
        self._upkeeps.append(upkeep)
        self._volumes.append(volume)
        for each in self._volumes:
            each.doubt = self.limbo
            each.judge()

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
) -> AsyncGenerator[LedgerStore]:
    """The store in these directories, which nobody else may use meanwhile.

    `ask` says what the metadata know of a ledger; without it no deleted ledger is forgotten.
    `in_doubt`: whatever the directories say, records may be lost.
    On the way out nothing is taken any more, and the next start will have next to nothing to read.
    """
    assert directories, "a store needs a directory"
    limits = limits or StoreLimits()
    bytes_max = limits.in_flight_bytes_max
    contacts = FirstContacts(ask, bytes_max=bytes_max) if ask is not None else None
    store = LedgerStore(disk, contacts)
    birth = await read_birth(disk, directories)
    if contacts is not None:
        contacts.birth = birth or NEVER_LOST
    async with AsyncExitStack() as stack:
        for directory in directories:
            volume = open_volume(
                disk,
                directory,
                index,
                clock,
                limits,
                in_doubt=in_doubt or birth is None,
                committed=store.committed,
                changed=store.changed,
            )
            store.attach(await stack.enter_async_context(volume))
        yield store
