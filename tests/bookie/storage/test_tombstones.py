"""A tombstone ends when nothing can bring its ledger back, whatever happens meanwhile."""

import errno
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from daybook.bookie.storage.index import ledger_key
from daybook.bookie.storage.ledger_state import LedgerState, decode_row, encode_row
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.bookie.storage.unknown_ledgers import LedgerFacts
from tests.bookie.storage.conftest import Answers, Host, has, status_of
from tests.bookie.storage.oracle import entry, key
from tests.bookie.storage.test_compaction import EVERYTHING, ROUNDS, SMALL, fill
from tests.harness.clocks import FixedClock
from tests.harness.disk import HostCrashedError, Platter

OK, FENCED, READ_ONLY = StoreStatus.OK, StoreStatus.FENCED, StoreStatus.READ_ONLY
NO_LEDGER = StoreStatus.NO_LEDGER


class World:
    """A host, and the set of its ledgers that have metadata."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.living: set[int] = set()
        self.reachable = True
        self.sleeps = False
        self.asked: list[int] = []

    async def ask(self, ledger_id: int) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        await trio.lowlevel.checkpoint()
        if self.sleeps:
            await trio.sleep_forever()
        return LedgerFacts(ledger_id in self.living) if self.reachable else None

    @asynccontextmanager
    async def store(self, **limits: object) -> AsyncGenerator[LedgerStore]:
        options = {"free_bytes_min": 0, **EVERYTHING, **limits}
        async with open_store(
            disk=self.host.platter.mount(),
            directories=["d0"],
            index=self.host.platter.indexes().open,
            clock=FixedClock(),
            limits=StoreLimits(**options),  # type: ignore[arg-type]
            ask=self.ask,
        ) as store:
            yield store

    async def end(self, store: LedgerStore) -> int:
        """End tombstones like the garbage collector."""
        asked = await store.maintenance.tombstones_to_ask(100)
        return await store.maintenance.end_tombstones(
            [each for each in asked if each not in self.living]
        )


@pytest.fixture
def world(host: Host) -> World:
    return World(host)


async def fill_and_delete(world: World, store: LedgerStore) -> None:
    """Fill ledgers 1 to 3 in the same segments, delete 1 and 2, and 50 as the highest one."""
    world.living |= {1, 2, 3, 50, 60}
    await fill(store, 1, 2, 3)
    for ledger_id in (1, 2, 50):
        world.living.remove(ledger_id)
        await store.delete(ledger_id)


async def roll(store: LedgerStore, round_number: int) -> None:
    """Write new data to segments of their own, and reclaim the older ones."""
    await fill(store, 60, first=ROUNDS * round_number)
    await store.maintenance.reclaim()


async def forget(world: World, store: LedgerStore) -> int:
    ended = 0
    for round_number in range(4):
        ended += await world.end(store)
        await roll(store, round_number)
    return ended + await world.end(store)


async def test_they_end_and_late_writers_are_refused_as_before(world: World) -> None:
    async with world.store() as store:
        await fill_and_delete(world, store)
        assert store.statistics().tombstones == 3
        assert await forget(world, store) == 2
        assert store.statistics().tombstones == 1  # the highest one
    index = world.host.platter.index("d0/index")
    assert await index.get(ledger_key(1)) is None
    for lose_index in (False, True):
        if lose_index:
            world.host.platter.lose_indexes()
        async with world.store() as store:
            assert not store.limbo
            answers = Answers(store)
            for ledger_id in (1, 2, 50):
                answers.add(ledger_id, 500)
                answers.add(ledger_id, 501, recovery=True)
            assert await answers.all() == [FENCED] * 6
            assert await status_of(store.write_lac(1, key(1), 5, b"lac")) is FENCED
            assert await status_of(store.write_lac(50, key(50), 5, b"lac")) is FENCED
            assert await status_of(store.read(1, 0)) is NO_LEDGER
            assert store.ledgers() == [3, 60]
            assert await store.read(3, 7) == entry(3, 7)


async def test_two_rounds_at_once_end_each_of_them_once(world: World) -> None:
    """Seed 302537 of the simulator: the slower round found them gone, and the bookie ended."""
    async with world.store() as store:
        await fill_and_delete(world, store)
        ended: list[int] = []

        async def end() -> None:
            ended.append(await world.end(store))

        for round_number in range(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end)
                nursery.start_soon(end)
            await roll(store, round_number)
        assert sum(ended) == 2
        assert store.statistics().tombstones == 1


async def test_nothing_ends_while_a_segment_may_hold_a_record_of_it(world: World) -> None:
    """Each index that is rebuilt from the log has the tombstone, or nothing."""
    async with world.store(**SMALL) as store:
        await fill_and_delete(world, store)
        await store.maintenance.checkpoint()
        # Many segments may have records of them.
        assert await store.maintenance.tombstones_to_ask(100) == []
        assert await store.maintenance.end_tombstones([1, 2, 50]) == 0
        assert store.statistics().tombstones == 3


async def test_nothing_ends_that_the_metadata_have_again(world: World) -> None:
    async with world.store() as store:
        await fill_and_delete(world, store)
        world.living.add(1)
        assert await forget(world, store) == 1
        answers = Answers(store)
        answers.add(1, 500)
        assert await answers.all() == [FENCED]
        assert await status_of(store.read(1, 0)) is NO_LEDGER


async def test_without_anybody_to_ask_nothing_ends(world: World) -> None:
    async with world.host.store(**EVERYTHING) as store:
        await fill_and_delete(world, store)
        assert await forget(world, store) == 0
        assert store.statistics().tombstones == 3


async def test_the_highest_one_stays_also_when_it_is_the_only_one(world: World) -> None:
    async with world.store() as store:
        await fill(store, 1)
        await store.delete(1)
        assert await forget(world, store) == 0
    world.host.platter.lose_indexes()
    async with world.store() as store:
        answers = Answers(store)
        answers.add(1, 500)
        assert await answers.all() == [FENCED]


async def test_an_unknown_ledger_is_let_in_if_the_metadata_have_it(world: World) -> None:
    async with world.store() as store:
        await fill_and_delete(world, store)
        await forget(world, store)
        world.living |= {1, 40}
        asked = len(world.asked)
        answers = Answers(store)
        for ledger_id in (40, 1):  # one that was elsewhere, and an id that is used again
            for entry_id in range(5):
                answers.add(ledger_id, entry_id, note="new")
        world.living.add(70)
        answers.add(70, 0)  # higher than any deleted id
        assert await answers.all() == [OK] * 11
        assert sorted(world.asked[asked:]) == [1, 40]  # once each
        assert await store.read(1, 4) == entry(1, 4, note="new")
        assert await status_of(store.read(1, 5)) is StoreStatus.NO_ENTRY
    world.host.platter.lose_indexes()
    async with world.store() as store:
        assert await store.read(1, 4) == entry(1, 4, note="new")
        assert await store.entry_ids(1) == list(range(5))


async def test_a_ledger_that_is_taken_in_again_is_there_after_a_kill(world: World) -> None:
    """The remains of its first use are gone, durably, before its second one begins."""
    try:
        async with world.store() as store:
            await fill_and_delete(world, store)
            await forget(world, store)
            world.living.add(1)
            answers = Answers(store)
            answers.add(1, 0, note="new")
            assert await answers.all() == [OK]
            world.host.platter.lose_power()
    except (HostCrashedError, BaseExceptionGroup) as error:
        if not has(error, HostCrashedError):
            raise
    async with world.store() as store:
        assert await store.read(1, 0) == entry(1, 0, note="new")


async def test_metadata_that_do_not_answer_let_nobody_in_and_nothing_is_said(world: World) -> None:
    async with world.store() as store:
        await fill_and_delete(world, store)
        await forget(world, store)
        world.reachable = False
        world.living.add(40)
        answers = Answers(store)
        answers.add(1, 500)
        answers.add(40, 0)
        answers.add(70, 0)
        assert sorted(await answers.all()) == [OK, READ_ONLY, READ_ONLY]
        world.reachable = True
        answers.add(40, 0)
        assert await answers.all() == [OK]


async def test_what_waits_for_the_metadata_is_bounded(world: World) -> None:
    async with world.store(in_flight_bytes_max=5000) as store:
        await store.delete(50)
        answers = Answers(store)
        world.living.add(40)
        for entry_id in range(20):
            answers.add(40, entry_id, size=1000)
        assert store.bytes_in_flight < 7000
        statuses = await answers.all()
        assert statuses.count(OK) > 3
        assert set(statuses) == {OK, StoreStatus.TOO_MANY}
        assert store.bytes_in_flight == 0


async def test_questions_to_the_metadata_are_bounded(world: World) -> None:
    """Each question is a task, which takes a hundred times the memory of the smallest entry."""
    async with world.store() as store:
        await store.delete(1 << 40)
        world.sleeps = True
        answers = Answers(store)
        for ledger_id in range(6000):
            answers.add(ledger_id, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.asked) <= 5000
        assert answers.statuses == [StoreStatus.TOO_MANY] * (6000 - len(world.asked))
        answers.add(world.asked[0], 1)  # costs no further question
        assert len(answers.statuses) == 6000 - len(world.asked)


async def test_adds_that_wait_for_the_metadata_are_answered_when_the_store_closes(
    world: World,
) -> None:
    answered: list[StoreStatus] = []
    async with world.store() as store:
        await store.delete(50)
        world.sleeps = True
        data = memoryview(entry(40, 0))
        store.add(40, 0, key(40), data, recovery=False, done=answered.append)
        assert answered == []
    assert answered == [READ_ONLY]


async def test_nothing_ends_while_records_are_known_to_be_lost(world: World) -> None:
    async with world.store() as store:
        await fill(store, 7)
    path = world.host.logs()[0]
    world.host.platter.corrupt(path, world.host.platter.content(path).index(b"7:"), b"X")
    world.host.platter.lose_indexes()
    async with world.store() as store:
        assert store.limbo
        for ledger_id in (100, 101):
            await store.delete(ledger_id)
        assert await store.maintenance.tombstones_to_ask(100) == []
        assert await store.maintenance.end_tombstones([100]) == 0


async def test_a_checkpoint_that_fails_leaves_the_tombstone(world: World) -> None:
    async with world.store() as store:
        await fill_and_delete(world, store)
        for round_number in range(4):
            asked = await store.maintenance.tombstones_to_ask(100)
            store._directories.runners[0].tombstones._confirmed.update(asked)
            await roll(store, round_number)
        ready = await store.maintenance.tombstones_to_ask(100)
        assert ready == [1, 2]
        world.host.platter.fail_next("index_write", OSError(errno.EIO, "index broken"))
        with pytest.raises(OSError, match="index broken"):
            await store.maintenance.end_tombstones(ready)
        assert store.statistics().tombstones == 3
        answers = Answers(store)
        answers.add(1, 500)
        assert await answers.all() == [FENCED]


async def life(world: World, crash_at: int) -> bool:
    """Do everything that leads to the end of tombstones; return False if it was cut short."""
    world.host.platter.crash_before(crash_at)
    try:
        async with world.store() as store:
            await fill_and_delete(world, store)
            await forget(world, store)
    except (HostCrashedError, BaseExceptionGroup) as error:
        if not has(error, HostCrashedError):  # other answers come from a dead host
            raise
        return False
    return True


async def operations_of_a_life() -> int:
    world = World(Host(Platter(random.Random(1))))
    assert await life(world, 1 << 30)
    return world.host.platter.operations


@pytest.mark.parametrize("block", range(4))
async def test_a_crash_at_any_step_leaves_the_tombstone_or_nothing(block: int) -> None:
    """No matter what remains of it, no late add is accepted, and no entry of it reappears."""
    operations = await operations_of_a_life()
    rng = random.Random(block)
    for _ in range(6):
        crash_at = rng.randrange(operations // 8, operations)
        world = World(Host(Platter(rng)))
        assert not await life(world, crash_at)
        (world.host.platter.lose_power if rng.random() < 0.7 else world.host.platter.kill)()
        if rng.random() < 0.5:
            world.host.platter.lose_indexes()
        for _ in range(2):
            await live_on(world)
            world.host.platter.lose_indexes()


async def live_on(world: World) -> None:
    async with world.store() as store:
        assert not store.limbo
        gone = sorted({1, 2, 50} - world.living)
        for ledger_id in set(gone) & set(store.ledgers()):
            await store.delete(ledger_id)  # its deletion was not answered: repeat it
        answers = Answers(store)
        for round_number in range(3):
            for ledger_id in gone:
                answers.add(ledger_id, 500 + round_number)
            assert set(await answers.all()) <= {FENCED}
            await world.end(store)
            await roll(store, 10 + round_number)
        for ledger_id in gone:
            assert await status_of(store.read(ledger_id, 0)) is NO_LEDGER
        for entry_id in range(ROUNDS):
            assert await store.read(3, entry_id) == entry(3, entry_id)


def test_a_row_says_where_records_may_be_and_one_of_version_1_that_it_does_not_know() -> None:
    state = LedgerState(5, b"key", first=100)
    state.mark_deleted(2000)
    state.middle = 1000
    again = decode_row(5, row := encode_row(state))
    assert (again.first, again.middle, again.stated, again.last) == (100, 1000, 2000, 2000)
    old = decode_row(5, b"\x01" + row[1:32] + row[64:])
    assert (old.master_key, old.deleted) == (b"key", True)
    assert (old.first, old.stated) == (0, 0)
    assert old.middle == old.last > 1 << 62
