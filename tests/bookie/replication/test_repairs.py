"""Damage that a bookie finds on its own disk is repaired with copies from other bookies."""

import errno
from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.storage.status import StoreError, StoreStatus
from tests.bookie.replication.cluster import Cluster, bookie_id, open_cluster, until
from tests.bookie.storage.conftest import status_of

B1, B2, B3 = (bookie_id(f"b{n}") for n in range(1, 4))


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(3) as cluster:
        yield cluster


def flip_bits(cluster: Cluster, name: str, ledger_id: int, *entry_ids: int) -> None:
    """Flip bits on the disk of that bookie, in the payloads of these entries."""
    platter = cluster.world.platters[name]
    for path in [path for path in platter.paths() if path.startswith("d0/log/")]:
        content = platter.content(path)
        for entry_id in entry_ids:
            at = content.find(cluster.written[ledger_id][entry_id])
            if at >= 0:
                platter.corrupt(path, at + 3, bytes([content[at + 3] ^ 0x10]))


async def damaged(cluster: Cluster, name: str, ledger_id: int) -> list[int]:
    found: list[int] = []
    store = cluster.world.running[name].store
    for entry_id in range(len(cluster.written[ledger_id])):
        status = await status_of(store.read(ledger_id, entry_id))
        if status is StoreStatus.IO_ERROR:
            found.append(entry_id)
    return found


async def restart(cluster: Cluster, name: str) -> None:
    """Restart the bookie, so that it reads from its disk."""
    cluster.lose(name)
    await cluster.world.start(name)


async def unmarked(cluster: Cluster) -> bool:
    return not [ledger_id async for ledger_id in cluster.underreplication.marked_ledgers()]


async def ensemble(cluster: Cluster, ledger_id: int) -> tuple[BookieId, ...]:
    (fragment,) = (await cluster.metadata(ledger_id)).fragments
    return fragment.ensemble


async def test_bits_that_flip_are_found_and_copied_back_in_place(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """There is no spare bookie: the damaged one itself gets its entries again."""
    ledger_id = (await cluster.write(60, size=500)).ledger_id
    before = await ensemble(cluster, ledger_id)
    await restart(cluster, "b2")
    flip_bits(cluster, "b2", ledger_id, 7, 8, 40)
    async with cluster.recovering() as running:
        await cluster.world.running["b2"].store.maintenance.scrub()
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
        assert running.worker.status().copied_entries >= 3
    assert await ensemble(cluster, ledger_id) == before
    assert await damaged(cluster, "b2", ledger_id) == []
    assert cluster.world.running["b2"].damage_reporter.ledgers_marked == 1
    await restart(cluster, "b2")
    assert await damaged(cluster, "b2", ledger_id) == []
    assert await cluster.fully_copied()


async def test_damage_that_a_reader_meets_is_copied_back(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = (await cluster.write(30, size=500)).ledger_id
    await restart(cluster, "b3")
    flip_bits(cluster, "b3", ledger_id, 11)
    async with cluster.recovering():
        assert not await cluster.has(B3, ledger_id, 11)
        await until(lambda: cluster.fully_copied())
    assert await damaged(cluster, "b3", ledger_id) == []


async def test_damage_on_two_bookies_is_repaired_from_the_third(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Each has entries that the other lacks."""
    ledger_id = (await cluster.write(40, size=500)).ledger_id
    for name, entries in (("b1", (3, 4, 20)), ("b2", (4, 5, 30)), ("b3", (6, 20))):
        await restart(cluster, name)
        flip_bits(cluster, name, ledger_id, *entries)
    async with cluster.recovering():
        for name in ("b1", "b2", "b3"):
            await cluster.world.running[name].store.maintenance.scrub()
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
    assert await cluster.status_records.alarms() == []


async def test_damage_without_another_copy_is_an_alarm(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = (await cluster.write(20, Quorums(1, 1, 1), size=500)).ledger_id
    (only,) = await ensemble(cluster, ledger_id)
    name = only.partition(":")[0]
    await restart(cluster, name)
    flip_bits(cluster, name, ledger_id, 9)
    async with cluster.recovering():
        await cluster.world.running[name].store.maintenance.scrub()
        await until(lambda: has_alarm(cluster))
        (alarm,) = await cluster.status_records.alarms()
        assert (alarm.ledger_id, alarm.entries) == (ledger_id, ((9, 9),))
    assert await ensemble(cluster, ledger_id) == (only,)


async def has_alarm(cluster: Cluster) -> bool:
    return bool(await cluster.status_records.alarms())


async def test_a_directory_that_fails_is_emptied_onto_others(autojump_clock: Clock) -> None:
    async with open_cluster(4) as cluster:
        writers = [await cluster.write(5) for _ in range(6)]
        async with cluster.recovering():
            cluster.world.platters["b1"].fail_next("sync", OSError(errno.EIO, "input/output error"))
            await fail_log(cluster, "b1")
            await until(lambda: marked_for(cluster, B1))
            await trio.sleep(120)
            for writer in writers:
                assert await cluster.readable(writer.ledger_id)


async def fail_log(cluster: Cluster, name: str) -> None:
    """Let the disk reject the next record."""
    store = cluster.world.running[name].store
    with pytest.raises(StoreError):
        await store.fence(1 << 40, b"key")


async def marked_for(cluster: Cluster, bookie: BookieId) -> bool:
    stranded = cluster.world.running[bookie.partition(":")[0]].store.maintenance.stranded_ledgers()
    return cluster.world.running["b1"].damage_reporter.ledgers_marked >= len(stranded) - 1 > 0


async def test_records_that_were_lost_are_copied_back_and_no_absence_is_believed(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The log of one bookie has lost a part: each ledger naming it is checked entry by entry."""
    ledger_id = (await cluster.write(60, size=500)).ledger_id
    cluster.lose("b2")
    await cluster.world.ended["b2"].wait()
    platter = cluster.world.platters["b2"]
    platter.lose_indexes()  # so that the whole log is read again
    flip_bits(cluster, "b2", ledger_id, 10, 11, 12)
    await cluster.world.start("b2")
    assert cluster.world.running["b2"].store.limbo
    async with cluster.recovering():
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
