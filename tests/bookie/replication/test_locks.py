"""A lock that was not released keeps all other workers away, so its owner releases it later.

The session of a bookie lasts for months, and for as long no other worker could copy that ledger.
"""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from trio.abc import Clock

from daybook.bookie.registry.underreplication import Underreplication
from daybook.wire.metadata.memory import DirectLink
from tests.bookie.replication.cluster import (
    LIMITS,
    PATHS,
    Cluster,
    Entry,
    bookie_id,
    closed_on,
    open_cluster,
    until,
)

B1 = bookie_id("b1")
LOCKS = f"{PATHS.underreplication}/locks"
WHOLE: dict[int, Entry] = dict.fromkeys(range(40), "good")
SLOW = replace(LIMITS, rate_bytes_per_s=100.0, burst_bytes=1.0)


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(4) as cluster:
        yield cluster


def lose_the_release(cluster: Cluster) -> None:
    """Lose the first read of a lock: a worker reads a lock in order to release it."""
    session = cluster.world.sessions["r1"]
    assert isinstance(session.link, DirectLink)
    session.link.lose_next(operation="get", path=f"{LOCKS}/", applied=False)


async def marked(cluster: Cluster) -> list[int]:
    return [ledger_id async for ledger_id in cluster.underreplication.marked_ledgers()]


async def test_a_lock_that_could_not_be_given_back_is_later(
    cluster: Cluster, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Seeds 600596 and 600351, once: there was no contact when the lock was to be released."""
    ledger_id = (await cluster.write(5)).ledger_id

    async def whole() -> bool:
        return not await marked(cluster)

    async with cluster.recovering() as running:
        await running.watcher.wait_ready()
        lose_the_release(cluster)
        await cluster.underreplication.mark(ledger_id, [B1], 0)
        await until(whole)
        assert f"the lock of ledger {ledger_id} stays for now" in caplog.text
        await cluster.underreplication.mark(ledger_id, [B1], 0)
        await until(whole)
        assert await cluster.underreplication.locks() == {}


async def test_a_lock_that_came_about_late_is_given_back(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The request was carried out after the worker had given up."""
    async with cluster.recovering() as running:
        await running.watcher.wait_ready()
        session = cluster.world.sessions["r1"]
        await Underreplication(session, PATHS, "r1").lock(7)

        async def unlocked() -> bool:
            return await cluster.underreplication.locks() == {}

        await until(unlocked)


async def test_it_is_given_back_before_the_next_ledger_is_mended(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The next ledger may take long, and no other worker could copy the first one meanwhile."""
    here = closed_on((0, ["b1", "b2", "b3"]), entries=40)
    ledgers = [await cluster.plant(here, dict.fromkeys(("b1", "b2", "b3"), WHOLE)) for _ in "12"]
    async with cluster.recovering(limits=SLOW) as running:
        await running.watcher.wait_ready()
        lose_the_release(cluster)
        cluster.lose("b1")

        async def at_the_second() -> bool:
            return await marked(cluster) == [running.worker.status().ledger_id]

        await until(at_the_second, every_s=0.5)
        (second,) = await marked(cluster)
        assert second in ledgers
        assert [*await cluster.underreplication.locks()] == [second]
