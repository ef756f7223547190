"""Targets of copies that are moved, and the number of them under way at once."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import ReadUnknownError
from daybook.bookie.ledger.admin_states import AdminRecord, AdminState
from daybook.bookie.ledger.client import Quorums
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.replication.host import AutoRecovery
from daybook.bookie.replication.protocol.replica_check import BookieStatus
from daybook.bookie.replication.replicator import CopyLimits, Replicator, Room
from daybook.wire.rate_limit import RateLimit
from tests.bookie.replication.cluster import (
    Cluster,
    Entry,
    bookie_id,
    closed_on,
    open_cluster,
    until,
)

WHOLE: dict[int, Entry] = dict.fromkeys(range(4), "good")
SEEDS = pytest.mark.parametrize("number", range(2))


@asynccontextmanager
async def in_racks(racks: dict[str, str], seed: int = 1) -> AsyncGenerator[Cluster]:
    """Run bookies that announce these racks."""
    async with open_cluster(0, seed) as cluster:
        cluster.world.racks.update(racks)
        for name in racks:
            await cluster.world.start(name)
        yield cluster


async def ensemble(cluster: Cluster, ledger_id: int) -> tuple[BookieId, ...]:
    return (await cluster.metadata(ledger_id)).fragments[0].ensemble


@SEEDS
async def test_a_copy_goes_to_the_rack_that_is_missing_now(
    number: int, autojump_clock: Clock
) -> None:
    racks = {"b1": "/a", "b2": "/a", "b3": "/b", "b4": "/a", "b5": "/a", "b6": "/b", "b7": "/a"}
    async with in_racks(racks, seed=number) as cluster:
        ledger_id = await cluster.plant(
            closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
        )
        async with cluster.recovering():
            cluster.lose("b3")
            await until(lambda: cluster.fully_copied())
        assert await ensemble(cluster, ledger_id) == tuple(map(bookie_id, ("b1", "b2", "b6")))


@SEEDS
async def test_a_member_that_takes_no_entries_has_a_rack(
    number: int, autojump_clock: Clock
) -> None:
    racks = {"b1": "/a", "b2": "/b", "b3": "/b", "b4": "/a", "b5": "/b"}
    async with in_racks(racks, seed=number) as cluster:
        copies = {"b1": WHOLE, "b2": WHOLE}
        ledger_id = await cluster.plant(closed_on((0, ["b1", "b2"])), copies)
        await cluster.orders.give(bookie_id("b1"), AdminRecord(AdminState.READ_ONLY, 0))
        async with cluster.recovering() as running:
            await until(lambda: is_readonly(running, "b1"))
            cluster.lose("b2")
            await until(lambda: cluster.fully_copied())
        first, second = await ensemble(cluster, ledger_id)
        assert first == bookie_id("b1")
        assert second in (bookie_id("b3"), bookie_id("b5"))


async def test_a_copy_goes_to_the_rack_with_fewer_members_whether_these_take_entries_or_not(
    autojump_clock: Clock,
) -> None:
    """No draw decides.  If b1 and b2 did not count, b5 alone would add a second rack."""
    racks = {"b1": "/a", "b2": "/a", "b3": "/b", "b4": "/b", "b5": "/a", "b6": "/b"}
    async with in_racks(racks) as cluster:
        names = ["b1", "b2", "b3", "b4"]
        ledger_id = await cluster.plant(closed_on((0, names)), dict.fromkeys(names, WHOLE))
        for name in ("b1", "b2"):
            await cluster.orders.give(bookie_id(name), AdminRecord(AdminState.READ_ONLY, 0))
        async with cluster.recovering() as running:
            for name in ("b1", "b2"):
                await until(lambda name=name: is_readonly(running, name))  # type: ignore[misc]
            cluster.lose("b4")
            await until(lambda: cluster.fully_copied())
        assert await ensemble(cluster, ledger_id) == tuple(map(bookie_id, ("b1", "b2", "b3", "b6")))


async def is_readonly(running: AutoRecovery, name: str) -> bool:
    return running.watcher.statuses().get(bookie_id(name)) is BookieStatus.READONLY


async def test_one_rack_is_better_than_one_copy_less(autojump_clock: Clock) -> None:
    racks = {"b1": "/a", "b2": "/b", "b3": "/a"}
    async with in_racks(racks) as cluster:
        ledger_id = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE, "b2": WHOLE})
        async with cluster.recovering():
            cluster.lose("b2")
            await until(lambda: cluster.fully_copied())
        assert await ensemble(cluster, ledger_id) == (bookie_id("b1"), bookie_id("b3"))


# -- many pieces at once


async def copy_a_third(cluster: Cluster, ledger_id: int, to: BookieId, limits: CopyLimits) -> float:
    """Copy one third of a ledger with WQ = 1; return the simulated seconds that it took."""
    metadata = await cluster.metadata(ledger_id)
    held = [range(n, n + 1) for n in range(0, metadata.last_entry_id + 1, 3)]
    copied: list[int] = []
    replicator = Replicator(
        cluster.client.context,
        RateLimit(1e9, 1e9),
        lambda entries, size: copied.append(entries),
        limits,
    )
    began = trio.current_time()
    await replicator.copy(ledger_id, metadata, held, to)
    took = trio.current_time() - began
    assert sum(copied) == len(held)
    for run in held:
        assert await cluster.has(to, ledger_id, run.start)
    return took


async def test_a_striped_ledger_does_not_cost_a_round_trip_for_each_entry(
    autojump_clock: Clock,
) -> None:
    async with open_cluster(5) as cluster:
        ledger_id = (await cluster.write(300, Quorums(3, 1, 1))).ledger_id
        named = await ensemble(cluster, ledger_id)
        one, other = (b for b in map(BookieId, cluster.world.bookies) if b not in named)
        at_once = await copy_a_third(cluster, ledger_id, one, CopyLimits())
        by_one = await copy_a_third(cluster, ledger_id, other, CopyLimits(pieces_max=1))
        assert at_once < by_one / 10


async def test_a_read_that_fails_among_many_is_told(autojump_clock: Clock) -> None:
    async with open_cluster(5) as cluster:
        ledger_id = (await cluster.write(300, Quorums(3, 1, 1))).ledger_id
        named = await ensemble(cluster, ledger_id)
        to = next(b for b in map(BookieId, cluster.world.bookies) if b not in named)
        cluster.world.stop(named[1].partition(":")[0])
        metadata = await cluster.metadata(ledger_id)
        replicator = Replicator(cluster.client.context, RateLimit(1e9, 1e9))
        with pytest.raises(ReadUnknownError):
            await replicator.copy(ledger_id, metadata, [range(300)], to)


@pytest.mark.parametrize(
    ("size", "at_once"),
    [(10, 3), (60, 1), (50, 2), (500, 1)],
    ids=["in pieces", "in bytes", "to the last byte", "one that is larger goes alone"],
)
async def test_what_is_on_its_way_is_bounded(
    size: int, at_once: int, autojump_clock: Clock
) -> None:
    room = Room(CopyLimits(pieces_max=3, bytes_max=100))
    under_way = most = done = 0

    async def go() -> None:
        nonlocal under_way, most, done
        await room.enter(size)
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1
        room.leave(size)
        done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(go)
    assert (most, done) == (at_once, 7)
