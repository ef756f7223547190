"""A workload for a store, and the promises that hold after any crash (`safety.md`: B1 to B4)."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import trio
import trio.lowlevel

from daybook.bookie.storage.limits import CompactionLimits, StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.records import RECORD_HEADER_BYTES, Run
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.store import LedgerStore

_HEADER = struct.Struct(">qqqq")


def key(ledger_id: int) -> bytes:
    return f"key of {ledger_id}".encode()


def entry(ledger_id: int, entry_id: int, *, lac: int = -1, size: int = 60, note: str = "") -> bytes:
    """Return an entry as it arrives, with a body that tells where it belongs."""
    body = f"{ledger_id}:{entry_id}:{note}:".encode()
    return _HEADER.pack(ledger_id, entry_id, lac, 0) + body.ljust(size, b".")


def run_of(ledger_id: int, first: int, entries: Sequence[bytes]) -> Run:
    """Return a run of these entries, with room in front of each."""
    room = bytes(RECORD_HEADER_BYTES)
    data = bytearray(b"".join(room + entry for entry in entries))
    return Run(ledger_id, first, memoryview(data), [len(entry) for entry in entries])


# Nearly every segment is compacted, a few entries at a time.
EAGER = CompactionLimits(
    live_share_max=0.95, bytes_per_s=inf, portion_bytes=7000, chunk_bytes=3000, spare_bytes=0
)


def small_limits(**changes: object) -> StoreLimits:
    """Return limits so small that rolls and checkpoints happen all the time."""
    limits = {
        "log": LogLimits(segment_bytes=20_000, group_bytes_max=7000),
        "checkpoint_entries": 9,
        "checkpoint_bytes": 18_000,
        "free_bytes_min": 0,
        "space_check_s": 1e6,
        "reclaim": EAGER,
    }
    return StoreLimits(**{**limits, **changes})  # type: ignore[arg-type]


@dataclass
class Oracle:
    """The operations tried and their answers; one object through all crashes of a run."""

    tried: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    acked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)  # returned to a reader
    refused: list[tuple[int, int, StoreStatus]] = field(default_factory=list)
    fenced: set[int] = field(default_factory=set)  # fences that were answered
    may_be_fenced: set[int] = field(default_factory=set)
    # LACs returned by, or accepted by, the store
    lacs: dict[int, int] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    may_be_deleted: set[int] = field(default_factory=set)
    pending: int = 0
    idle: trio.Event = field(default_factory=trio.Event)

    def add(
        self,
        store: LedgerStore,
        ledger_id: int,
        entry_id: int,
        *,
        lac: int = -1,
        recovery: bool = False,
        note: str = "",
        size: int = 60,
    ) -> None:
        data = entry(ledger_id, entry_id, lac=lac, note=note, size=size)
        self.tried.setdefault((ledger_id, entry_id), []).append(data)
        must_refuse = ledger_id in self.fenced and not recovery

        def done(status: StoreStatus) -> None:
            self.pending -= 1
            if not self.pending:
                self.idle.set()
            if status is StoreStatus.OK:
                assert not must_refuse, f"a plain add to {ledger_id}, which is fenced"
                assert ledger_id not in self.deleted
                # All readers must find the first one that is acknowledged from now on.
                self.acked.setdefault((ledger_id, entry_id), b"")
            else:
                self.refused.append((ledger_id, entry_id, status))

        self.pending += 1
        store.add(
            ledger_id, entry_id, key(ledger_id), memoryview(data), recovery=recovery, done=done
        )

    def add_run(
        self, store: LedgerStore, ledger_id: int, first: int, count: int, *, lac: int = -1
    ) -> None:
        """Add consecutive entries of all sizes, with one answer."""
        entries = [
            entry(ledger_id, entry_id, lac=lac, note="run", size=1 + 700 * (entry_id % 3))
            for entry_id in range(first, first + count)
        ]
        places = [(ledger_id, first + index) for index in range(count)]
        for place, data in zip(places, entries, strict=True):
            self.tried.setdefault(place, []).append(data)
        must_refuse = ledger_id in self.fenced

        def done(status: StoreStatus) -> None:
            self.pending -= 1
            if not self.pending:
                self.idle.set()
            if status is StoreStatus.OK:
                assert not must_refuse, f"a run to {ledger_id}, which is fenced"
                assert ledger_id not in self.deleted
                for place in places:
                    self.acked.setdefault(place, b"")
            else:
                self.refused.append((ledger_id, first, status))

        self.pending += 1
        store.add_run(run_of(ledger_id, first, entries), key(ledger_id), done)

    async def settled(self, store: LedgerStore) -> None:
        """Wait for all answers, then check the answers to readers."""
        while self.pending:
            self.idle = trio.Event()
            await self.idle.wait()
        for ledger_id in store.ledgers():
            lac = store.last_add_confirmed(ledger_id)
            assert lac >= self.lacs.get(ledger_id, -1)
            if lac >= 0:
                self.lacs[ledger_id] = lac

    async def fence(self, store: LedgerStore, ledger_id: int) -> None:
        self.may_be_fenced.add(ledger_id)
        await store.fence(ledger_id, key(ledger_id))
        self.fenced.add(ledger_id)

    async def write_lac(self, store: LedgerStore, ledger_id: int, lac: int) -> None:
        body = b"lac %02d" % lac
        try:
            await store.write_lac(ledger_id, key(ledger_id), lac, body)
        except StoreError as error:
            if error.status is StoreStatus.FENCED and ledger_id in self.may_be_deleted:
                return
            raise
        self.lacs[ledger_id] = max(self.lacs.get(ledger_id, -1), lac)
        self.bodies[ledger_id] = max(self.bodies.get(ledger_id, b""), body)

    async def delete(self, store: LedgerStore, ledger_id: int) -> None:
        self.may_be_deleted.add(ledger_id)
        await store.delete(ledger_id)
        self.deleted.add(ledger_id)

    async def look(self, store: LedgerStore, ledger_id: int, entry_id: int) -> None:
        """Read during other operations: an entry that was returned once must stay."""
        status, data = await read(store, ledger_id, entry_id)
        if status is StoreStatus.OK:
            assert self.seen.setdefault((ledger_id, entry_id), data) == data

    async def check(self, store: LedgerStore) -> None:
        """Check that every promise holds."""
        assert not store.limbo, store.statistics().losses
        for place in sorted(self.tried):
            await self._check_entry(store, *place)
        for ledger_id in sorted(self.lacs):
            if ledger_id not in self.may_be_deleted:
                assert store.last_add_confirmed(ledger_id) >= self.lacs[ledger_id]
        for ledger_id, body in sorted(self.bodies.items()):
            if ledger_id not in self.may_be_deleted:
                assert ((await store.read_lac(ledger_id))[0] or b"") >= body
        for ledger_id in sorted({ledger_id for ledger_id, _ in self.acked}):
            await self._check_key(store, ledger_id)

    async def _check_entry(self, store: LedgerStore, ledger_id: int, entry_id: int) -> None:
        place = (ledger_id, entry_id)
        status, data = await read(store, ledger_id, entry_id)
        if status is StoreStatus.IO_ERROR and store.statistics().failure:
            return  # the host is dead, the crash has only not reached us yet
        if status is not StoreStatus.OK:
            assert status in (StoreStatus.NO_ENTRY, StoreStatus.NO_LEDGER)
            if ledger_id in self.may_be_deleted:
                return
            assert place not in self.acked, f"{place} was acknowledged, and is gone"
            assert place not in self.seen, f"{place} was read, and is gone"
            return
        assert ledger_id not in self.deleted, f"{place} is deleted, and is back"
        assert data in self.tried[place], f"{place} has bytes that nobody wrote"
        assert self.seen.setdefault(place, data) == data, f"{place} has changed"

    async def _check_key(self, store: LedgerStore, ledger_id: int) -> None:
        statuses: list[StoreStatus] = []
        data = memoryview(entry(ledger_id, 10**6))
        store.add(ledger_id, 10**6, b"wrong", data, recovery=True, done=statuses.append)
        if ledger_id in self.may_be_deleted and ledger_id not in store.ledgers():
            # Its key may be forgotten.
            assert statuses[0] in (StoreStatus.UNAUTHORIZED, StoreStatus.FENCED)
        else:
            assert statuses == [StoreStatus.UNAUTHORIZED]

    async def check_fences(self, store: LedgerStore) -> None:
        """Check that the old writer's adds are refused where a fence or deletion was answered."""
        for ledger_id in sorted(self.fenced | self.deleted):
            statuses: list[StoreStatus] = []
            data = memoryview(entry(ledger_id, 999))
            store.add(ledger_id, 999, key(ledger_id), data, recovery=False, done=statuses.append)
            refused = ([StoreStatus.FENCED], [StoreStatus.IO_ERROR])  # a dead host gives the latter
            assert statuses in refused, f"{ledger_id} takes adds again"


async def read(store: LedgerStore, ledger_id: int, entry_id: int) -> tuple[StoreStatus, bytes]:
    try:
        return StoreStatus.OK, bytes(await store.read(ledger_id, entry_id))
    except StoreError as error:
        return error.status, b""


async def workload(store: LedgerStore, oracle: Oracle) -> None:
    """Do some of everything: groups, rolls, checkpoints, fences among adds, late and double ids."""
    for round_number in range(8):
        for ledger_id in (1, 2, 3):
            for number in range(2):
                entry_id = 2 * round_number + number
                oracle.add(store, ledger_id, entry_id, lac=entry_id - 1, size=20 + 3000 * number)
        await oracle.look(store, 1, 2 * round_number)
        await oracle.settled(store)
    oracle.add(store, 2, 18)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(oracle.fence, store, 2)
        await trio.lowlevel.checkpoint()
        oracle.add(store, 2, 19)
        oracle.add(store, 2, 19, recovery=True, lac=8)
        oracle.add(store, 3, 30, lac=7)
    await oracle.settled(store)
    await oracle.write_lac(store, 1, 7)
    await oracle.fence(store, 4)  # not known before
    for entry_id in (32, 31, 34, 33):  # late entries
        oracle.add(store, 1, entry_id, lac=10)
    oracle.add(store, 1, 31, note="again")
    oracle.add(store, 1, 3, note="again")
    await oracle.settled(store)
    oracle.add(store, 3, 29, recovery=True, size=900)
    await oracle.delete(store, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintenance.reclaim)
        oracle.add(store, 4, 0, recovery=True)
        oracle.add(store, 5, 0)
        for entry_id in range(0, 16, 5):
            await oracle.look(store, 1, entry_id)
    for first in (0, 5, 3):  # new ones, with a gap, some of it again
        oracle.add_run(store, 6, first, 4, lac=first - 1)
    await oracle.settled(store)
    oracle.add_run(store, 6, 9, 30)
    oracle.add(store, 6, 39)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(oracle.fence, store, 6)
        await trio.lowlevel.checkpoint()
        oracle.add_run(store, 6, 40, 2)
    await oracle.settled(store)
    await store.maintenance.reclaim()
    await oracle.check_fences(store)


async def random_workload(store: LedgerStore, oracle: Oracle, rng: random.Random) -> None:
    """Make thirty random steps, several at a time."""
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            ledger_id = rng.randrange(6)
            match rng.randrange(12):
                case 0:
                    nursery.start_soon(oracle.fence, store, ledger_id)
                case 1:
                    nursery.start_soon(oracle.write_lac, store, ledger_id, rng.randrange(9))
                case 2 if rng.random() < 0.2:
                    nursery.start_soon(oracle.delete, store, ledger_id)
                case 3:
                    nursery.start_soon(
                        rng.choice((store.maintenance.checkpoint, store.maintenance.reclaim))
                    )
                case 4 | 5:
                    nursery.start_soon(oracle.look, store, ledger_id, rng.randrange(40))
                case 6:
                    await oracle.settled(store)
                case 7:
                    first = rng.randrange(40)
                    oracle.add_run(store, ledger_id, first, rng.randrange(1, 9), lac=first - 1)
                case _:
                    for entry_id in range(first := rng.randrange(40), first + rng.randrange(6)):
                        oracle.add(
                            store,
                            ledger_id,
                            entry_id,
                            lac=rng.randrange(-1, entry_id + 1),
                            recovery=rng.random() < 0.4,
                            note=rng.choice("ab"),
                            size=rng.choice((1, 20, 600, 5000)),
                        )
            await trio.lowlevel.checkpoint()
    await oracle.settled(store)
