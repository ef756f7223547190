"""Adds acknowledged before they are durable: the bookie knows which of them may be lost."""

import errno
import random

import pytest
import trio.lowlevel

from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.markers import DIRTY_FILE
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from tests.bookie.storage.conftest import Answers, Host, has, status_of
from tests.bookie.storage.oracle import entry, key, small_limits
from tests.bookie.storage.test_runs import Runs, entries
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Platter
from tests.simulation import scheduler

FENCED = StoreStatus.FENCED
IO_ERROR = StoreStatus.IO_ERROR
NO_ENTRY = StoreStatus.NO_ENTRY
OK = StoreStatus.OK
READ_ONLY = StoreStatus.READ_ONLY
UNKNOWN = StoreStatus.UNKNOWN

EARLY = {"ack_early": True}


def is_dirty(host: Host, directory: str = "d0") -> bool:
    return f"{directory}/{DIRTY_FILE}" in host.platter.paths()


async def test_plain_adds_are_answered_at_once_and_all_else_when_it_is_durable(host: Host) -> None:
    async with host.store(**EARLY) as store:
        answers = Answers(store)
        answers.add(1, 0)
        assert answers.statuses == [], "its key is not on the disk yet"
        assert await answers.all() == [OK]
        answers.add(1, 1)
        assert answers.statuses == [OK]
        answers.add(1, 2, recovery=True)
        answers.add(1, 1)
        assert answers.statuses == [OK], "a recovery, and an id that was here, wait for the disk"
        assert await answers.all() == [OK] * 3
        assert await store.read(1, 1) == entry(1, 1)


async def test_a_run_is_answered_at_once_when_its_entries_would_be(host: Host) -> None:
    async with host.store(**EARLY) as store:
        answers = Runs(store)
        answers.add_run(1, 0, 3)
        assert answers.statuses == []
        assert await answers.all() == [OK]
        answers.add_run(1, 3, 3)
        assert answers.statuses == [OK]
        assert await store.read(1, 5) == entries(1, 5, 1)[0]


async def test_a_slow_disk_is_waited_for_in_the_end(host: Host) -> None:
    """Writers wait for it, too, so that a loss of power does not take everything."""
    async with host.store(**EARLY, early_bytes_max=1000) as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        store._directories.ledger_directories[0].log.pause()
        for entry_id in range(1, 21):
            answers.add(1, entry_id, size=100)
        assert 5 < len(answers.statuses) < 12
        store._directories.ledger_directories[0].log.resume()
        assert await answers.all() == [OK] * 20


async def test_what_is_not_durable_is_not_read(host: Host) -> None:
    """A reader that has seen an entry must find it again."""
    async with host.store(**EARLY) as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        answers.add(1, 1)
        assert store.try_read(1, 1) is None
        durable = store.statistics().commits
        assert await store.read(1, 1) == entry(1, 1)
        assert store.statistics().commits > durable


async def test_a_clean_stop_leaves_nothing_dirty(host: Host) -> None:
    async with host.store(**EARLY) as store:
        assert is_dirty(host)
        answers = Answers(store)
        for entry_id in range(20):
            answers.add(1, entry_id)
    assert not is_dirty(host)
    async with host.store() as store:
        assert not store.limbo
        assert [*await store.entry_ids(1)] == list(range(20))


async def test_the_default_is_never_dirty(host: Host) -> None:
    async with host.store() as store:
        answers = Answers(store)
        answers.add(1, 0)
        assert answers.statuses == []
        await answers.all()
        assert not is_dirty(host)


@pytest.mark.parametrize("early", [True, False])
async def test_after_an_unclean_stop_everything_is_in_doubt(host: Host, early: bool) -> None:
    async with host.doomed_store(**EARLY) as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        answers.add(1, 1)
        host.platter.lose_power()
    async with host.doomed_store(ack_early=early) as store:
        assert is_dirty(host) == early
        assert store.limbo
        assert await status_of(store.read(1, 1)) in (OK, UNKNOWN)
        assert await status_of(store.read(2, 0)) is UNKNOWN
        answers = Answers(store)
        answers.add(1, 2)
        answers.add(2, 0)
        assert await answers.all() == [READ_ONLY, READ_ONLY]
        host.platter.kill()
    async with host.store() as store:
        assert store.limbo, "a second crash forgets nothing"


async def test_a_log_that_failed_is_no_clean_stop(host: Host) -> None:
    """Acknowledged entries are not on the disk, though the process ended in order."""
    async with host.store(**EARLY) as store:
        answers = Answers(store)
        answers.add(1, 0)
        await answers.all()
        host.platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        answers.add(1, 1)
        assert await answers.all() == [OK]
        await trio.lowlevel.checkpoint()
        assert await status_of(store.read(1, 1)) is IO_ERROR
    assert is_dirty(host)
    async with host.store() as store:
        assert store.limbo


async def work(store: LedgerStore, told: "Told") -> None:
    for number in range(12):
        for ledger_id in (1, 2):
            told.add(store, ledger_id, number, recovery=number % 5 == 4)
        await trio.lowlevel.checkpoint()
    await store.fence(1, key(1))
    told.fenced = True
    told.add(store, 2, 50)
    await store.maintenance.checkpoint()
    told.add(store, 2, 51)


class Told:
    """The acknowledged entries; `safe` has those that were not deferred."""

    def __init__(self) -> None:
        self.acked: set[tuple[int, int]] = set()
        self.safe: set[tuple[int, int]] = set()
        self.fenced = False

    def add(
        self, store: LedgerStore, ledger_id: int, entry_id: int, *, recovery: bool = False
    ) -> None:
        def done(status: StoreStatus) -> None:
            if status is OK:
                self.acked.add((ledger_id, entry_id))
                if recovery:
                    self.safe.add((ledger_id, entry_id))

        data = memoryview(entry(ledger_id, entry_id))
        store.add(ledger_id, entry_id, key(ledger_id), data, recovery=recovery, done=done)

    async def check(self, store: LedgerStore) -> None:
        for place in sorted(self.acked):
            status = await status_of(store.read(*place))
            assert status is OK or (status is UNKNOWN and place not in self.safe), (place, status)
        if self.fenced:
            answers = Answers(store)
            answers.add(1, 99)
            assert await answers.all() == [FENCED]


async def live(platter: Platter, told: Told, *, early: bool, working: bool) -> bool:
    try:
        async with open_store(
            disk=platter.mount(),
            directories=["d0"],
            index=platter.indexes().open,
            clock=FixedClock(),
            limits=small_limits(ack_early=early),
        ) as store:
            if working:
                await work(store, told)
            else:
                await told.check(store)
            await trio.lowlevel.checkpoint()
            alive = not store.statistics().failure
    except (HostCrashedError, BaseExceptionGroup) as error:
        if not has(error, HostCrashedError) or has(error, AssertionError):
            raise
        return False
    return alive


async def crash_everywhere(seed: int) -> int:
    operation = 0
    while True:
        rng = random.Random(f"{seed} {operation}")
        platter, told = Platter(rng), Told()
        platter.crash_before(operation)
        if await live(platter, told, early=True, working=True):
            return operation
        for _ in range(rng.randrange(3)):
            (platter.lose_power if rng.random() < 0.8 else platter.kill)()
            platter.crash_before(rng.randrange(15))
            await live(platter, told, early=rng.random() < 0.5, working=False)
        platter.lose_power()
        assert await live(platter, told, early=rng.random() < 0.5, working=False)
        operation += 1


@pytest.mark.parametrize("seed", range(3))
def test_nothing_acknowledged_is_denied_whatever_operation_the_disk_dies_before(seed: int) -> None:
    survived = scheduler.run(lambda _: crash_everywhere(seed), seed=seed, steps_max=3_000_000)
    assert survived > 15


async def test_what_was_lost_is_not_forced(host: Host) -> None:
    """A writer that has reconnected would confirm entries that the last process acknowledged."""
    async with host.doomed_store(**EARLY) as store:
        answers = Answers(store)
        answers.add(1, 0)
        answers.add(2, 0)
        await answers.all()
        assert await status_of(store.force(1)) is OK
        answers.add(1, 1)
        assert answers.statuses == [OK]
        host.platter.lose_power()
    async with host.store(**EARLY) as store:
        assert await status_of(store.force(1)) is UNKNOWN
        await store.limbo_ledgers.mark([LimboMark(1, limbo=True, fence=True)])
        await store.end_doubt(77)
        assert await status_of(store.force(1)) is UNKNOWN
        await store.limbo_ledgers.clear(1)
        assert await status_of(store.read(1, 1)) is NO_ENTRY, "it was recovered without it"
        assert await status_of(store.force(1)) is FENCED
        assert await status_of(store.force(2)) is OK, "nobody suspects it"
