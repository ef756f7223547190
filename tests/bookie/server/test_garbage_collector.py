"""Ledgers are deleted only if their metadata is provably gone; silence and errors are no proof."""

import errno
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
import trio.testing

from daybook.bookie.registry.cookies import Cookie, create_cookie, delete_cookie
from daybook.bookie.registry.layout import ensure_layout
from daybook.bookie.registry.ledger_ids import prune_parents
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.server.garbage_collector import (
    GarbageCollector,
    Housekeeping,
    read_ledger_facts,
)
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.wire.clock import SystemClock
from daybook.wire.logging import silent_log
from daybook.wire.metadata.memory import MemorySession, MemoryStore
from daybook.wire.metadata.store import ANY, Record, StoreUnavailableError, Watch
from tests.bookie.storage.conftest import Answers, status_of
from tests.bookie.storage.oracle import EAGER
from tests.harness.clocks import FixedClock
from tests.harness.disk import Platter

PATHS = LedgerPaths()
OK, NO_LEDGER, FENCED = StoreStatus.OK, StoreStatus.NO_LEDGER, StoreStatus.FENCED
LEDGERS = [1, 2, 3, 77_777, 1 << 40]


class Metadata:
    """A session that may be made to fail, or to be late."""

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.asked: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None  # called before each request

    def __getattr__(self, name: str) -> object:
        return getattr(self.session, name)

    async def _ask(self, request: str) -> None:
        self.asked.append(request)
        if self.before is not None:
            await self.before(request)

    async def get(self, path: str, watch: Watch | None = None) -> Record | None:
        await self._ask(f"get {path}")
        return await self.session.get(path, watch)

    async def get_children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        await self._ask(f"list {path}")
        return await self.session.get_children(path, watch)

    async def sync(self, path: str) -> None:
        await self._ask(f"sync {path}")
        await self.session.sync(path)


class World:
    """A bookie's store, the metadata of its cluster, and its garbage collector."""

    def __init__(self, store: LedgerStore, session: MemorySession, cookie: Cookie) -> None:
        self.store = store
        self.session = session
        self.metadata = Metadata(session)
        self.cookie = cookie
        self.collector = GarbageCollector(
            store,
            self.metadata,  # type: ignore[arg-type]
            PATHS,
            cookie,
            silent_log(),
        )

    async def make(self, ledger_id: int) -> None:
        await self.session.create(PATHS.ledger(ledger_id), b"metadata", make_parents=True)
        answers = Answers(self.store)
        answers.add(ledger_id, 0)
        assert await answers.all() == [OK]

    async def delete(self, ledger_id: int) -> None:
        await self.session.delete(PATHS.ledger(ledger_id), ANY)
        await prune_parents(self.session, PATHS, ledger_id)


@pytest.fixture
def platter() -> Platter:
    return Platter(random.Random(1))


@asynccontextmanager
async def open_world(platter: Platter, *directories: str) -> AsyncGenerator[World]:
    session = MemoryStore(SystemClock()).session("bookie")
    instance_id = await ensure_layout(session, PATHS, Random(1))
    cookie = Cookie("b1", ("d0",), ("d0",), instance_id)
    await create_cookie(session, PATHS, cookie)
    async with open_store(
        disk=platter.mount(),
        directories=directories or ("d0",),
        index=platter.indexes().open,
        clock=FixedClock(),
        limits=StoreLimits(log=LogLimits(segment_bytes=2000), reclaim=EAGER, space_check_s=1),
        ask=partial(read_ledger_facts, session, PATHS),
    ) as store:
        world = World(store, session, cookie)
        for ledger_id in LEDGERS:
            await world.make(ledger_id)
        yield world


@pytest.fixture
async def world(platter: Platter) -> AsyncGenerator[World]:
    async with open_world(platter) as world:
        yield world


async def test_what_was_deleted_is_dropped_and_nothing_else(world: World) -> None:
    await world.collector.collect()
    assert world.store.ledgers() == LEDGERS
    for ledger_id in (2, 1 << 40):
        await world.delete(ledger_id)
    await world.collector.collect()
    assert world.store.ledgers() == [1, 3, 77_777]
    assert world.collector.ledgers_dropped == 2
    assert await status_of(world.store.read(2, 0)) is NO_LEDGER
    answers = Answers(world.store)
    answers.add(2, 1)  # a late add of a frozen writer
    assert await answers.all() == [FENCED]


async def test_any_request_that_fails_drops_nothing_more(world: World) -> None:
    for ledger_id in (2, 3):
        await world.delete(ledger_id)
    await world.collector.collect()
    requests = len(world.metadata.asked)
    for ledger_id in (77_777, 1 << 40):
        await world.delete(ledger_id)
    failed = 0
    for number in range(requests):
        asked = 0

        async def fail(_: str, number: int = number) -> None:
            nonlocal asked
            asked += 1
            if asked == number + 1:
                raise StoreUnavailableError("no answer")

        world.metadata.before = fail
        before = world.collector.collections_failed
        await world.collector.collect()
        failed += world.collector.collections_failed - before
        assert 1 in world.store.ledgers()
        if asked <= 5:  # single ledgers were not looked up yet
            assert world.store.ledgers() == [1, 77_777, 1 << 40]
    assert failed > 5


async def test_a_list_from_which_a_part_is_missing_drops_nothing_that_lives(world: World) -> None:
    """No matter what a listing leaves out, each ledger is looked up by itself."""

    async def listing(path: str, watch: Watch | None = None) -> list[str] | None:
        names = await world.session.get_children(path, watch)
        return None if path == f"{PATHS.root}/00/0007" else names

    world.metadata.get_children = listing  # type: ignore[method-assign]
    await world.collector.collect()
    assert world.store.ledgers() == LEDGERS
    assert world.collector.collections == 1


async def test_a_list_without_any_ledger_says_nothing(world: World) -> None:
    for ledger_id in LEDGERS:
        await world.delete(ledger_id)
    await world.collector.collect()
    assert world.store.ledgers() == LEDGERS
    await world.session.create(PATHS.ledger(5), b"metadata", make_parents=True)
    await world.collector.collect()
    assert world.store.ledgers() == []


async def test_a_root_that_is_gone_says_nothing(world: World) -> None:
    async def no_children(path: str, watch: Watch | None = None) -> list[str] | None:
        del path, watch
        await trio.lowlevel.checkpoint()
        return None

    world.metadata.get_children = no_children  # type: ignore[method-assign]
    await world.collector.collect()
    assert world.store.ledgers() == LEDGERS
    assert world.collector.collections_failed == 1


async def test_metadata_of_another_cluster_say_nothing_of_our_ledgers(world: World) -> None:
    await world.delete(2)
    await world.session.set(PATHS.instance_id, b"another", ANY)
    await world.collector.collect()
    assert world.store.ledgers() == LEDGERS
    await world.session.set(PATHS.instance_id, world.cookie.instance_id.encode(), ANY)
    await delete_cookie(world.session, PATHS, "b1", ANY)
    await world.collector.collect()
    assert world.store.ledgers() == LEDGERS
    assert world.collector.collections_failed == 2
    await create_cookie(world.session, PATHS, world.cookie)
    await world.collector.collect()
    assert 2 not in world.store.ledgers()


@pytest.mark.parametrize("garbage", [b"\xff\xfe", b""])
async def test_garbage_in_the_metadata_drops_nothing_and_harms_nobody(
    world: World, garbage: bytes
) -> None:
    await world.delete(2)
    for path in (PATHS.instance_id, PATHS.cookie("b1")):
        before = await world.session.get(path)
        assert before is not None
        await world.session.set(path, garbage, ANY)
        await world.collector.collect()
        assert world.store.ledgers() == LEDGERS
        await world.session.set(path, before.value, ANY)
    assert world.collector.collections_failed == 2
    await world.session.create(f"{PATHS.root}/00/xyz/L1", b"", make_parents=True)
    await world.collector.collect()
    assert 2 not in world.store.ledgers()


async def test_a_ledger_that_is_made_while_the_metadata_are_listed_stays(world: World) -> None:
    """No list that began earlier has it; so the bookie's own list is made before that."""
    lists = 0

    async def make(request: str) -> None:
        nonlocal lists
        lists += request.startswith("list")
        if request.startswith("list") and lists == 2:
            # The top of the tree was listed before: a new ledger below it is not found.
            await world.make(300_000_000)

    await world.delete(2)
    world.metadata.before = make
    await world.collector.collect()
    assert 300_000_000 in world.store.ledgers()
    assert 2 not in world.store.ledgers()
    answers = Answers(world.store)
    answers.add(300_000_000, 1)
    assert await answers.all() == [OK]


async def test_the_newest_state_is_asked_for_before_anything_is_believed(world: World) -> None:
    await world.delete(2)
    await world.collector.collect()
    asked = world.metadata.asked
    assert asked[0] == f"sync {PATHS.root}"
    path = PATHS.ledger(2)
    assert asked.index(f"sync {path}") == asked.index(f"get {path}") - 1


async def test_a_directory_that_has_failed_does_not_keep_others_from_theirs(
    platter: Platter,
) -> None:
    async with open_world(platter, "d0", "d1") as world:
        await world.delete(1)
        await world.delete(2)
        homes = {ledger_id: world.store.directory_of(ledger_id) for ledger_id in (1, 2)}
        assert sorted(homes.values()) == ["d0", "d1"]
        platter.fail_next("sync", OSError(errno.EIO, "input/output error"))
        await world.collector.collect()
        assert world.collector.drops_failed == world.collector.ledgers_dropped == 1


async def test_tombstones_end_when_the_metadata_say_once_more_that_they_are_gone(
    world: World,
) -> None:
    await world.make(5000)
    for ledger_id in (2, 3, 1 << 40):
        await world.delete(ledger_id)
    await world.collector.collect()
    await world.session.create(PATHS.ledger(3), b"of somebody else", make_parents=True)
    answers = Answers(world.store)
    for number in range(400):
        answers.add(5000, 1 + number)
        await answers.all()
        if number % 40 == 39:
            await world.collector.collect()
            await world.store.maintenance.reclaim()
    assert world.collector.tombstones_ended == 1
    assert world.store.statistics().tombstones == 2  # 3, and the highest one
    for ledger_id in (2, 3, 1 << 40):
        answers.add(ledger_id, 1)
    assert await answers.all() == [FENCED] * 3
    await world.session.create(PATHS.ledger(2), b"used again", make_parents=True)
    answers.add(2, 1)
    assert await answers.all() == [OK]


# ---- the periodic collection


def housekeeping(world: World, **intervals: float) -> Housekeeping:
    return Housekeeping(
        world.store,
        world.collector,
        reclaim_interval_s=intervals.get("reclaim", 100.0),
        scrub_interval_s=intervals.get("scrub", 0.0),
        rng=Random(1),
        log=silent_log(),
    )


async def test_it_happens_by_itself_and_makes_room(
    platter: Platter, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_world(platter) as world, trio.open_nursery() as nursery:
        answers = Answers(world.store)
        for entry_id in range(1, 60):
            answers.add(2, entry_id)
            await answers.all()
        await world.delete(2)
        nursery.start_soon(housekeeping(world, reclaim=100.0, scrub=1000.0).run)
        await trio.sleep(160)
        assert 2 not in world.store.ledgers()
        assert world.store.statistics().segments_removed > 1
        await trio.sleep(3600)
        assert world.store.statistics().scrubs >= 1
        nursery.cancel_scope.cancel()


async def test_a_disk_without_room_is_made_room_on_at_once(
    platter: Platter, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_world(platter) as world, trio.open_nursery() as nursery:
        nursery.start_soon(housekeeping(world, reclaim=100_000.0).run)
        await world.delete(2)
        platter.free_bytes = 1 << 20
        await trio.sleep(5)
        assert not world.store.writable
        assert 2 not in world.store.ledgers()
        rounds = world.collector.collections
        await trio.sleep(60)
        assert rounds + 3 <= world.collector.collections <= rounds + 13
        nursery.cancel_scope.cancel()


async def test_without_an_interval_it_happens_when_asked_for(
    platter: Platter, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_world(platter) as world, trio.open_nursery() as nursery:
        keeper = housekeeping(world, reclaim=0.0)
        nursery.start_soon(keeper.run)
        await world.delete(2)
        await trio.sleep(10_000)
        assert 2 in world.store.ledgers()
        keeper.want_room()
        await trio.sleep(1)
        assert 2 not in world.store.ledgers()
        nursery.cancel_scope.cancel()
