"""Runs of entries that are added, written and answered together."""

import errno
import random
from collections.abc import Callable, Sequence

import trio
from trio.testing import wait_all_tasks_blocked

from daybook.bookie.storage.ledger_directory import LAST_ENTRY
from daybook.bookie.storage.log import Done
from daybook.bookie.storage.records import RECORD_HEADER_BYTES, Buffer, SharedRun
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from tests.bookie.storage.conftest import Answers, Host, status_of
from tests.bookie.storage.oracle import entry, key, run_of
from tests.harness.disk import Platter

OK, FENCED, UNAUTHORIZED = StoreStatus.OK, StoreStatus.FENCED, StoreStatus.UNAUTHORIZED
IO_ERROR, TOO_MANY, READ_ONLY, BAD_REQUEST = (
    StoreStatus.IO_ERROR,
    StoreStatus.TOO_MANY,
    StoreStatus.READ_ONLY,
    StoreStatus.BAD_REQUEST,
)


def entries(ledger_id: int, first: int, count: int, *, lac: int = -1) -> list[bytes]:
    return [
        entry(ledger_id, entry_id, lac=lac, size=1 + 50 * entry_id)
        for entry_id in range(first, first + count)
    ]


class Runs(Answers):
    """Collects the answers to runs, too."""

    def add_run(
        self,
        ledger_id: int,
        first: int,
        count: int,
        *,
        lac: int = -1,
        master_key: bytes | None = None,
    ) -> None:
        self._wanted += 1
        self._store.add_run(
            run_of(ledger_id, first, entries(ledger_id, first, count, lac=lac)),
            key(ledger_id) if master_key is None else master_key,
            self._done,
        )


async def test_a_run_is_stored_as_its_entries_would_be(host: Host) -> None:
    """The log is the same byte for byte: its readers do not know runs."""
    one_by_one = Host(Platter(random.Random(1)))
    async with host.store() as store, one_by_one.store() as other:
        runs, singles = Runs(store), Answers(other)
        runs.add(7, 0)
        singles.add(7, 0)
        await runs.all()
        await singles.all()
        runs.add_run(7, 1, 20, lac=0)
        for entry_id in range(1, 21):
            singles.add(7, entry_id, lac=0, size=1 + 50 * entry_id)
        assert await runs.all() == [OK]
        assert await singles.all() == [OK] * 20
        for entry_id in range(1, 21):
            assert await store.read(7, entry_id) == await other.read(7, entry_id)
        assert store.statistics().entries_added == other.statistics().entries_added == 21
        assert store.statistics().bytes_added == other.statistics().bytes_added
        assert store.last_add_confirmed(7) == 0
    (log,), (other_log,) = host.logs(), one_by_one.logs()
    assert host.platter.content(log) == one_by_one.platter.content(other_log)


async def test_the_first_run_of_a_ledger_makes_it(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add_run(7, 0, 5)
        assert await runs.all() == [OK]
        assert [bytes(await store.read(7, number)) for number in range(5)] == entries(7, 0, 5)
    async with host.store() as store:
        assert [bytes(await store.read(7, number)) for number in range(5)] == entries(7, 0, 5)


async def test_a_run_is_answered_once_when_all_of_it_is_durable(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add(7, 0)
        await runs.all()
        free = host.platter.stick()
        runs.add_run(7, 1, 3)
        runs.add_run(7, 4, 3)
        await wait_all_tasks_blocked()
        early = list(runs.statuses)
        free.set()
        assert await runs.all() == [OK, OK]
        assert early == []


async def test_a_fenced_ledger_takes_no_run(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add_run(7, 0, 3)
        await runs.all()
        await store.fence(7, key(7))
        runs.add_run(7, 3, 3)
        assert runs.statuses == [FENCED]
        assert await status_of(store.read(7, 3)) is StoreStatus.NO_ENTRY


async def test_a_run_with_another_key_is_refused(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add_run(7, 0, 3)
        await runs.all()
        runs.add_run(7, 3, 3, master_key=b"wrong")
        assert runs.statuses == [UNAUTHORIZED]


async def test_no_run_is_taken_where_no_plain_add_is(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add_run(7, 0, 3)
        await runs.all()
        store.set_read_only(True)
        runs.add_run(7, 3, 3)
        runs.add_run(8, 0, 3)
        assert runs.statuses == [READ_ONLY, READ_ONLY]


async def test_a_run_with_ids_that_cannot_be_is_refused(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add_run(-1, 0, 3)
        runs.add_run(7, -5, 3)
        assert runs.statuses == [BAD_REQUEST, BAD_REQUEST]


async def test_a_run_that_was_here_before_keeps_its_first_bytes(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add(7, 1, note="first")
        runs.add(7, 3, note="first")
        runs.add(7, 9)
        await runs.all()
        runs.add_run(7, 0, 6)
        assert await runs.all() == [OK]
        assert await store.read(7, LAST_ENTRY) == entry(7, 9)
        for entry_id, data in enumerate(entries(7, 0, 6)):
            first = entry(7, entry_id, note="first")
            assert await store.read(7, entry_id) == (first if entry_id in (1, 3) else data)


async def test_there_is_room_for_a_whole_run_or_for_nothing_of_it(host: Host) -> None:
    """A run of which a part was refused would be refused again, entry by entry."""
    async with host.store(in_flight_bytes_max=5000) as store:
        runs = Runs(store)
        freed = host.platter.stick()
        runs.add_run(7, 0, 40)  # the ledger is not known yet
        in_flight = store.bytes_in_flight
        runs.add_run(7, 40, 40)
        runs.add_run(8, 0, 3)
        freed.set()  # before any assertion, since a store with a stuck disk does not end
        assert in_flight > 3 * 5000
        assert await runs.all() == [TOO_MANY, TOO_MANY, OK]
        runs.add_run(7, 0, 80)  # half of the run is known
        assert await runs.all() == [OK]
        assert await store.entry_ids(7) == list(range(80))


async def test_entries_of_a_run_that_are_looked_up_need_no_room_twice(host: Host) -> None:
    async with host.store(in_flight_bytes_max=5000) as store:
        runs = Runs(store)
        runs.add_run(7, 90, 10)
        await runs.all()
        await store.maintenance.checkpoint()
        runs.add_run(7, 0, 40)
        assert await runs.all() == [OK]
        assert await store.entry_ids(7) == [*range(40), *range(90, 100)]


async def test_a_run_is_found_behind_a_checkpoint_and_by_recovery(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        for first in range(0, 600, 200):
            runs.add_run(7, first, 200)
        assert await runs.all() == [OK] * 3
        await store.maintenance.checkpoint()
        assert await store.entry_ids(7) == list(range(600))
        assert await store.read(7, 599) == entries(7, 599, 1)[0]


async def test_a_disk_that_fails_fails_the_run(host: Host) -> None:
    async with host.store() as store:
        runs = Runs(store)
        runs.add(7, 0)
        await runs.all()
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        runs.add_run(7, 1, 3)
        assert await runs.all() == [IO_ERROR]


class HeldStore(LedgerStore):
    """A store that accepts no run as a whole, and whose adds are answered by the test."""

    def __init__(self) -> None:
        super().__init__(Platter(random.Random(1)).mount())
        self.dones: list[Callable[[StoreStatus], None]] = []

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: Buffer,
        entry: memoryview,
        *,
        recovery: bool,
        done: Callable[[StoreStatus], None],
        admitted: bool = False,
    ) -> None:
        self.dones.append(done)

    def _admits(self, ledger_id: int) -> bool:
        return True


def test_a_run_is_ok_only_if_each_entry_is() -> None:
    heard: list[StoreStatus] = []
    store = HeldStore()
    store.add_run(run_of(7, 0, entries(7, 0, 3)), key(7), heard.append)
    first, second, third = store.dones
    first(OK)
    second(READ_ONLY)
    assert heard == []
    third(OK)
    assert heard == [READ_ONLY]


def test_of_several_refusals_a_fence_says_most() -> None:
    heard: list[StoreStatus] = []
    store = HeldStore()
    store.add_run(run_of(7, 0, entries(7, 0, 3)), key(7), heard.append)
    for done, status in zip(store.dones, (READ_ONLY, FENCED, OK), strict=True):
        done(status)
    assert heard == [FENCED]


async def test_runs_and_single_entries_are_answered_in_order(host: Host) -> None:
    async with host.store() as store:
        heard: list[int] = []

        def says(entry_id: int) -> Callable[[StoreStatus], None]:
            return lambda _: heard.append(entry_id)

        for first in range(0, 40, 4):
            store.add_run(run_of(7, first, entries(7, first, 3)), key(7), says(first))
            last = memoryview(entry(7, first + 3))
            store.add(7, first + 3, key(7), last, recovery=False, done=says(first + 3))
            await trio.lowlevel.checkpoint()
        await store.force(7)
        assert heard == sorted(heard)
        assert len(heard) == 20


class Pieces(Runs):
    """Runs of several ledgers in one piece, as they arrive; each run has an answer of its own."""

    def add_runs(self, *wanted: tuple[int, int, int], lac: int = -1, of: int = 0) -> int:
        """Add (ledger, first, count) each, with the key of ledger `of`; return how many it took."""
        runs: list[SharedRun] = []
        piece = b""
        for ledger_id, first, count in wanted:
            run = run_of(ledger_id, first, entries(ledger_id, first, count, lac=lac))
            master_key = key(of or ledger_id)
            runs.append(SharedRun(ledger_id, first, master_key, list(run.sizes), len(piece)))
            piece += run.data
        return self._store.try_add_runs(runs, 0, memoryview(bytearray(piece)), self._taken)

    def _taken(self, runs: Sequence[SharedRun], size: int) -> Done:
        assert size == sum(RECORD_HEADER_BYTES + bytes_ for run in runs for bytes_ in run.sizes)
        self._wanted += len(runs)

        def done(status: StoreStatus) -> None:
            for _ in runs:
                self._done(status)

        return done


async def test_runs_of_several_ledgers_are_stored_as_their_entries_would_be(host: Host) -> None:
    one_by_one = Host(Platter(random.Random(1)))
    wanted = [(7, 1, 1), (8, 1, 3), (9, 1, 1), (7, 2, 2), (9, 2, 1)]
    async with host.store() as store, one_by_one.store() as other:
        pieces, singles = Pieces(store), Answers(other)
        for answers in (pieces, singles):
            for ledger_id in (7, 8, 9):
                answers.add(ledger_id, 0)
            await answers.all()
        assert pieces.add_runs(*wanted, lac=0) == len(wanted)
        for ledger_id, first, count in wanted:
            for entry_id in range(first, first + count):
                singles.add(ledger_id, entry_id, lac=0, size=1 + 50 * entry_id)
        assert await pieces.all() == [OK] * 5
        assert await singles.all() == [OK] * 8
        for ledger_id, last in ((7, 3), (8, 3), (9, 2)):
            assert await store.entry_ids(ledger_id) == list(range(last + 1))
            assert await store.read(ledger_id, LAST_ENTRY) == entries(ledger_id, last, 1, lac=0)[0]
            assert store.last_add_confirmed(ledger_id) == 0
        assert store.statistics().entries_added == other.statistics().entries_added
        assert store.statistics().bytes_added == other.statistics().bytes_added
    (log,), (other_log,) = host.logs(), one_by_one.logs()
    assert host.platter.content(log) == one_by_one.platter.content(other_log)


async def test_runs_of_several_ledgers_are_answered_when_they_are_durable(host: Host) -> None:
    async with host.store() as store:
        pieces = Pieces(store)
        for ledger_id in (7, 8):
            pieces.add(ledger_id, 0)
        await pieces.all()
        free = host.platter.stick()
        assert pieces.add_runs((7, 1, 2), (8, 1, 2)) == 2
        await wait_all_tasks_blocked()
        early = list(pieces.statuses)
        free.set()
        assert await pieces.all() == [OK, OK]
        assert early == []
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        assert pieces.add_runs((7, 3, 1), (8, 3, 1)) == 2
        assert await pieces.all() == [IO_ERROR, IO_ERROR]


async def test_taken_are_the_runs_in_front_of_one_that_has_to_be_looked_at(host: Host) -> None:
    async with host.store() as store:
        pieces = Pieces(store)
        for ledger_id in (7, 8, 9):
            pieces.add(ledger_id, 0)
        await pieces.all()
        await store.fence(9, key(9))
        assert pieces.add_runs((7, 1, 1), (9, 1, 1), (8, 1, 1)) == 1, "it is fenced"
        assert pieces.add_runs((7, 2, 2), (8, 1, 1), (6, 0, 1), (8, 2, 1)) == 2, "it is new"
        assert pieces.add_runs((8, 2, 1), (7, 3, 1)) == 1, "it is here"
        assert pieces.add_runs((8, 3, 1), (7, 4, 2), (8, 3, 1)) == 2, "it has just come"
        assert pieces.add_runs((7, 6, 1), (8, 4, 1), of=7) == 1, "it has another key"
        assert await pieces.all() == [OK] * 7
        store.set_read_only(True)
        assert pieces.add_runs((8, 4, 1), (7, 7, 1)) == 0, "no plain add is taken"
        assert await store.entry_ids(7) == list(range(7))
        assert await store.entry_ids(8) == list(range(4))
        assert await store.entry_ids(9) == [0]


async def test_runs_that_may_be_answered_early_are_taken_by_themselves(host: Host) -> None:
    async with host.store(ack_early=True) as store:
        pieces = Pieces(store)
        for ledger_id in (7, 8):
            pieces.add(ledger_id, 0)
        await pieces.all()
        assert pieces.add_runs((7, 1, 2), (8, 1, 2)) == 1
        assert pieces.statuses == [OK]
        await store.force(7)
        assert await store.entry_ids(7) == [0, 1, 2]
        assert await store.entry_ids(8) == [0]
