"""The ledgers that the auditor marks, when, and which host does it."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.registry.underreplication import Check
from tests.bookie.replication.cluster import (
    LIMITS,
    Cluster,
    Entry,
    bookie_id,
    closed_on,
    open_cluster,
    until,
)

# The worker finds no source or target: marks stay.
MARKING = replace(LIMITS, lost_delay_s=60.0)
WHOLE: dict[int, Entry] = dict.fromkeys(range(4), "good")


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(3) as cluster:
        yield cluster


async def marked(cluster: Cluster) -> list[int]:
    return [ledger_id async for ledger_id in cluster.underreplication.marked_ledgers()]


async def test_ledgers_of_a_lost_bookie_are_marked_with_its_name(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    on_it = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE, "b2": WHOLE})
    await cluster.plant(closed_on((0, ["b2"])), {"b2": WHOLE})
    async with cluster.recovering() as running:
        await cluster.underreplication.pause()
        cluster.lose("b1")
        await trio.sleep(2 * MARKING.lost_delay_s)
        assert await running.auditor.audit_bookies() == 1
        assert await marked(cluster) == [on_it]
        mark = await cluster.underreplication.read_mark(on_it)
        assert mark is not None
        assert mark.missing == (bookie_id("b1"),)


async def test_a_readonly_bookie_is_not_lost(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE, "b2": WHOLE})
    async with cluster.recovering() as running:
        cluster.world.running["b1"].store.set_read_only(True)
        await trio.sleep(2 * MARKING.lost_delay_s)
        assert await running.auditor.audit_bookies() == 0


async def test_all_lists_are_compared_when_somebody_asks(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    async with cluster.recovering():

        async def checked() -> bool:
            return await cluster.underreplication.check_began_ms(Check.LEDGERS) is not None

        await until(checked)
        ledger_id = await cluster.plant(
            closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": {0: "good"}, "b3": WHOLE}
        )
        await trio.sleep(600)
        assert not await cluster.fully_copied([ledger_id])
        await cluster.underreplication.request_audit()
        await until(lambda: cluster.fully_copied([ledger_id]))


async def test_nobody_is_waited_for_when_somebody_asks(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE, "b2": WHOLE})
    async with cluster.recovering(limits=replace(LIMITS, lost_delay_s=1e6)) as running:
        await running.watcher.wait_ready()
        await trio.sleep(10)
        cluster.lose("b1")
        await trio.sleep(300)
        assert await marked(cluster) == []
        await cluster.underreplication.request_audit()
        await until(lambda: cluster.fully_copied([ledger_id]))


async def test_being_cut_off_makes_nobody_lost(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE, "b2": WHOLE})
    async with cluster.recovering() as running:
        await running.watcher.wait_ready()
        before = running.watcher.statuses()
        cluster.world.sessions["r1"].suspend()
        for name in ("b1", "b2"):
            cluster.lose(name)
        await trio.sleep(3 * MARKING.lost_delay_s)
        assert running.watcher.statuses() == before
        cluster.world.sessions["r1"].resume()
        await until(lambda: changed(running.watcher.statuses() != before))


async def changed(condition: bool) -> bool:
    return condition
