"""Re-replication: auto-recovery over real bookies on simulated disks.

There is one test for each rule of the worker; each fails when its rule is broken.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.metadata import LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.replication.host import AutoRecovery
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.rereplicator import RepairOutcome
from daybook.bookie.replication.status_records import AlarmKind
from daybook.wire.metadata.memory import DirectLink, Request
from daybook.wire.metadata.store import ANY
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

B1, B2, B3, B4 = (bookie_id(f"b{n}") for n in range(1, 5))
WHOLE: dict[int, Entry] = dict.fromkeys(range(4), "good")
SLOW = replace(LIMITS, rate_bytes_per_s=100.0, burst_bytes=1.0)


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(4) as cluster:
        yield cluster


async def bookies_of(cluster: Cluster, ledger_id: int) -> set[BookieId]:
    return {b for f in (await cluster.metadata(ledger_id)).fragments for b in f.ensemble}


async def marked(cluster: Cluster) -> list[int]:
    return [ledger_id async for ledger_id in cluster.underreplication.marked_ledgers()]


async def unmarked(cluster: Cluster) -> bool:
    return not await marked(cluster)


async def mend(
    running: AutoRecovery, cluster: Cluster, ledger_id: int, *lacking: str
) -> RepairOutcome:
    """Mark the ledger as damaged and re-replicate it, after the bookies have been checked."""
    await running.watcher.wait_ready()
    bookies = [bookie_id(name) for name in lacking or ("b3",)]
    await cluster.underreplication.mark(ledger_id, bookies, 0)
    return await running.worker.rereplicate(ledger_id)


async def alarms(cluster: Cluster) -> list[tuple[int, AlarmKind]]:
    return [(alarm.ledger_id, alarm.trouble) for alarm in await cluster.status_records.alarms()]


# -- its purpose


async def test_all_is_copied_again_when_a_bookie_is_gone(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledgers = [(await cluster.write(count)).ledger_id for count in (0, 1, 40)]
    striped = await cluster.write(30, Quorums(3, 2, 2))
    async with cluster.recovering() as running:
        await until(lambda: cluster.fully_copied())
        cluster.lose("b1")
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
        for ledger_id in (*ledgers, striped.ledger_id):
            assert B1 not in await bookies_of(cluster, ledger_id)
        assert running.worker.repaired >= 1
    cluster.lose("b2")
    for ledger_id in ledgers[1:]:
        assert await cluster.readable(ledger_id)


async def test_what_a_writer_left_on_an_ack_quorum_is_filled(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Entries in the middle of the ledger are copied to the bookie that the metadata names."""
    cluster.lose("b4")
    writer = await cluster.write(10, close=False)
    cluster.lose("b3")
    await cluster.append(writer, 10)  # on two of three bookies
    await cluster.world.start("b3")
    await cluster.append(writer, 10)
    await writer.close()
    before = (await cluster.metadata(writer.ledger_id)).fragments
    assert not await cluster.fully_copied()
    async with cluster.recovering():
        await until(lambda: cluster.fully_copied())
    assert (await cluster.metadata(writer.ledger_id)).fragments == before


async def test_a_damaged_copy_is_replaced(cluster: Cluster, autojump_clock: Clock) -> None:
    bad: dict[int, Entry] = {**WHOLE, 2: "bad"}
    ledger_id = await cluster.plant(
        closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": bad, "b3": WHOLE}
    )
    async with cluster.recovering(limits=replace(LIMITS, thorough=True)):
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
        assert await bookies_of(cluster, ledger_id) == {B1, B3, B4}


async def test_a_lock_that_could_not_be_given_back_keeps_nobody_from_mending_again(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = await cluster.plant(
        closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
    )
    lock = f"{PATHS.underreplication}/locks/urL{ledger_id:010d}"
    async with cluster.recovering() as running:
        link = cluster.world.sessions["r1"].link
        assert isinstance(link, DirectLink)
        link.lose_next(applied=False, operation="get", path=lock)
        assert await mend(running, cluster, ledger_id) is RepairOutcome.REPAIRED
        assert await cluster.store.get(lock) is not None
        cluster.lose("b3")
        await until(lambda: cluster.fully_copied())

        async def given_back() -> bool:
            return await cluster.store.get(lock) is None

        await until(given_back)


# -- metadata


def durable(cluster: Cluster, name: str, ledger_id: int) -> int:
    """Return how many entries are on the bookie's disk; read directly, since answers take time."""
    (directory,) = cluster.world.running[name].store._directories.ledger_directories
    state = directory.ledgers.get(ledger_id)
    if state is None or state.recent is None:
        return 0
    assert state.indexed_last < 0, "a checkpoint has taken some of them away"
    return sum(position < directory.log.durable for position in state.recent.positions)


async def test_metadata_name_a_bookie_only_when_it_has_everything(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The disks are checked just before the metadata update of the ledger."""
    whole: dict[int, Entry] = dict.fromkeys(range(40), "good")
    ledger_id = await cluster.plant(
        closed_on((0, ["b1", "b2", "b3"]), entries=40), {"b1": whole, "b2": whole, "b3": whole}
    )
    path = PATHS.ledger(ledger_id)
    seen: list[int] = []

    class Looking(DirectLink):
        async def request(self, request: Request, execute: Callable[[], None]) -> None:
            if request.write and request.path == path:
                seen.append(durable(cluster, "b4", ledger_id))
            await super().request(request, execute)

    async with cluster.recovering():
        cluster.world.sessions["r1"].link = Looking()
        cluster.lose("b3")
        await until(lambda: cluster.fully_copied())
        assert await bookies_of(cluster, ledger_id) == {B1, B2, B4}
        assert seen == [40]


async def test_a_target_that_fails_changes_nothing(cluster: Cluster, autojump_clock: Clock) -> None:
    copies = {"b1": WHOLE, "b2": WHOLE}
    ledger_id = await cluster.plant(closed_on((0, ["b1", "b2", "b3"])), copies)
    cluster.lose("b3")
    cluster.world.network.crash("b4")  # it does not answer, and is still registered
    async with cluster.recovering() as running:
        await trio.sleep(LIMITS.lost_delay_s + 1)
        assert await mend(running, cluster, ledger_id) in (
            RepairOutcome.LATER,
            RepairOutcome.NO_SPARE,
        )
        assert await bookies_of(cluster, ledger_id) == {B1, B2, B3}
        assert ledger_id in await marked(cluster)
        cluster.lose("b4")
        await cluster.world.start("b4")
        await trio.sleep(LIMITS.poll_s)
        assert await mend(running, cluster, ledger_id) is RepairOutcome.REPAIRED
        assert await bookies_of(cluster, ledger_id) == {B1, B2, B4}


# -- open ledgers


async def test_an_open_ledger_is_left_to_its_writer(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(10, close=False)
    (spare,) = {B1, B2, B3, B4} - await bookies_of(cluster, writer.ledger_id)
    gone = sorted(await bookies_of(cluster, writer.ledger_id))[0]
    async with cluster.recovering():
        cluster.lose(gone.partition(":")[0])
        await trio.sleep(2 * LIMITS.lost_delay_s)
        metadata = await cluster.metadata(writer.ledger_id)
        assert metadata.state is LedgerState.OPEN
        assert metadata.last_fragment.ensemble.count(spare) == 0
        assert await marked(cluster) == [writer.ledger_id]
        await cluster.append(writer, 10)  # the writer changes its ensemble by itself
        assert spare in (await cluster.metadata(writer.ledger_id)).last_fragment.ensemble
        await writer.close()
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))


async def test_settled_fragments_of_an_open_ledger_are_copied(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(10, close=False)
    gone = sorted(await bookies_of(cluster, writer.ledger_id))[0]
    cluster.lose(gone.partition(":")[0])
    await cluster.append(writer, 10)
    metadata = await cluster.metadata(writer.ledger_id)
    assert len(metadata.fragments) == 2
    async with cluster.recovering():
        await until(lambda: unmarked(cluster))
        await trio.sleep(2 * LIMITS.lost_delay_s)
        await until(lambda: cluster.fully_copied())
        assert gone not in await bookies_of(cluster, writer.ledger_id)
        assert (await cluster.metadata(writer.ledger_id)).state is LedgerState.OPEN
    await cluster.append(writer, 10)
    await writer.close()
    assert await cluster.readable(writer.ledger_id)


async def test_an_open_ledger_is_fenced_only_if_that_is_set(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(10, close=False)
    gone = sorted(await bookies_of(cluster, writer.ledger_id))[0]
    async with cluster.recovering(limits=replace(LIMITS, fence_open_after_s=60.0)):
        cluster.lose(gone.partition(":")[0])
        await until(lambda: unmarked(cluster))
        await until(lambda: cluster.fully_copied())
        assert (await cluster.metadata(writer.ledger_id)).closed


async def test_a_recovery_that_nobody_ended_is_ended(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(10, close=False)
    catalog = cluster.client.context.metadata_store
    stored = await catalog.read(writer.ledger_id)
    await catalog.update(writer.ledger_id, stored, lambda m, v: m.in_recovery())
    gone = sorted(await bookies_of(cluster, writer.ledger_id))[0]
    async with cluster.recovering() as running:
        assert await mend(running, cluster, writer.ledger_id) is RepairOutcome.LATER
        in_recovery = await cluster.metadata(writer.ledger_id)
        assert in_recovery.state is LedgerState.IN_RECOVERY
        cluster.lose(gone.partition(":")[0])
        await until(lambda: cluster.fully_copied())
        assert (await cluster.metadata(writer.ledger_id)).closed


# -- alarms


async def test_no_copy_left_is_an_alarm_and_no_loop(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    gap: dict[int, Entry] = {0: "good", 1: "good", 3: "good"}
    ledger_id = await cluster.plant(
        closed_on((0, ["b1", "b2", "b3"])), {"b1": gap, "b2": gap, "b3": WHOLE}
    )
    async with cluster.recovering() as running:
        cluster.lose("b3")
        await until(lambda: has_alarm(cluster))
        assert await alarms(cluster) == [(ledger_id, AlarmKind.NO_COPY)]
        (alarm,) = await cluster.status_records.alarms()
        assert alarm.entries == ((2, 2),)
        assert "b3:3181: gone, and may have one" in alarm.why
        # The bookie that may have the last copy stays in the ensemble, and no work is repeated.
        assert B3 in await bookies_of(cluster, ledger_id)
        copied = running.worker.status().copied_entries
        await trio.sleep(120)
        assert running.worker.status().copied_entries == copied
        assert await marked(cluster) == [ledger_id]
        await cluster.world.start("b3")
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
        assert await alarms(cluster) == []


async def has_alarm(cluster: Cluster) -> bool:
    return bool(await cluster.status_records.alarms())


async def test_without_a_spare_nothing_is_locked(cluster: Cluster, autojump_clock: Clock) -> None:
    cluster.lose("b4")
    writer = await cluster.write(10)
    async with cluster.recovering() as running:
        cluster.lose("b3")
        await until(lambda: has_alarm(cluster))
        assert await alarms(cluster) == [(writer.ledger_id, AlarmKind.NO_SPARE)]
        creations: list[str] = []
        session = cluster.world.sessions["r1"]

        class Looking(DirectLink):
            async def request(self, request: Request, execute: Callable[[], None]) -> None:
                if request.operation == "create":
                    creations.append(request.path)
                await super().request(request, execute)

        session.link = Looking()
        assert await mend(running, cluster, writer.ledger_id) is RepairOutcome.NO_SPARE
        assert not [path for path in creations if "/locks/" in path]
        await cluster.world.start("b4")
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
        assert await alarms(cluster) == []


# -- when not to copy


async def test_one_that_comes_back_in_time_costs_nothing(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(10)
    before = await cluster.metadata(writer.ledger_id)
    async with cluster.recovering() as running:
        for name in ("b1", "b2", "b3"):
            cluster.lose(name)
            await trio.sleep(LIMITS.lost_delay_s / 2)
            await cluster.world.start(name)
            await trio.sleep(2 * LIMITS.lost_delay_s)
        assert running.worker.status().copied_entries == 0
    assert await cluster.metadata(writer.ledger_id) == before


async def test_copying_ends_when_the_bookie_is_back(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(40)
    before = await cluster.metadata(writer.ledger_id)
    gone = before.fragments[0].ensemble[0].partition(":")[0]
    async with cluster.recovering(limits=SLOW) as running:
        cluster.lose(gone)
        await until(lambda: under_way(running))
        await cluster.world.start(gone)
        await until(lambda: unmarked(cluster))
        assert await cluster.metadata(writer.ledger_id) == before
        assert running.worker.status().copied_entries < 40


async def under_way(running: AutoRecovery) -> bool:
    return running.worker.status().ledger_id is not None


async def test_paused_means_that_nothing_is_copied(cluster: Cluster, autojump_clock: Clock) -> None:
    writer = await cluster.write(10)
    async with cluster.recovering() as running:
        await cluster.underreplication.pause()
        for bookie in sorted(await bookies_of(cluster, writer.ledger_id))[:1]:
            cluster.lose(bookie.partition(":")[0])
        await trio.sleep(2 * LIMITS.lost_delay_s)
        assert running.worker.status().copied_entries == 0
        assert await marked(cluster) == []
        await cluster.underreplication.resume()
        await until(lambda: cluster.fully_copied())


async def test_pausing_ends_what_is_under_way(cluster: Cluster, autojump_clock: Clock) -> None:
    writer = await cluster.write(40)
    gone = sorted(await bookies_of(cluster, writer.ledger_id))[0].partition(":")[0]
    async with cluster.recovering(limits=SLOW) as running:
        cluster.lose(gone)
        await until(lambda: under_way(running))
        await cluster.underreplication.pause()
        await trio.sleep(5)
        copied = running.worker.status().copied_entries
        assert not await under_way(running)
        assert await cluster.underreplication.locks() == {}
        await trio.sleep(100)
        assert running.worker.status().copied_entries == copied
        await cluster.underreplication.resume()
        await until(lambda: cluster.fully_copied())


async def test_whoever_has_no_cookie_any_more_is_replaced_too(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = await cluster.plant(closed_on((0, ["b1", "b2", "b9"])), {"b1": WHOLE, "b2": WHOLE})
    async with cluster.recovering() as running:
        await running.watcher.wait_ready()
        assert await mend(running, cluster, ledger_id, "b9") is RepairOutcome.LATER  # it may be new
        await until(lambda: cluster.fully_copied())
        assert bookie_id("b9") not in await bookies_of(cluster, ledger_id)


async def test_the_rate_is_bounded(cluster: Cluster, autojump_clock: Clock) -> None:
    ledger_id = (await cluster.write(40, size=1000)).ledger_id
    gone = sorted(await bookies_of(cluster, ledger_id))[0].partition(":")[0]
    limits = replace(LIMITS, rate_bytes_per_s=1000.0, burst_bytes=1.0)
    async with cluster.recovering(limits=limits) as running:
        await running.watcher.wait_ready()
        cluster.lose(gone)
        await until(lambda: under_way(running))
        started = trio.current_time()
        await until(lambda: cluster.fully_copied(), every_s=1)
        assert trio.current_time() - started > 30  # 40 KB


async def test_what_has_the_fewest_copies_comes_first(autojump_clock: Clock) -> None:
    async with open_cluster(5) as cluster:
        once = {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
        ledgers = [await cluster.plant(closed_on((0, ["b1", "b2", "b3"])), once) for _ in range(3)]
        worse = await cluster.plant(
            closed_on((0, ["b2", "b3", "b1"])), {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
        )
        worst = await cluster.plant(
            closed_on((0, ["b3", "b4", "b5"])), {"b3": WHOLE, "b4": WHOLE, "b5": WHOLE}
        )
        order: list[int] = []
        async with cluster.recovering(limits=replace(LIMITS, lost_delay_s=0.0)) as running:
            mend_one = running.worker.rereplicate

            async def noted(ledger_id: int) -> RepairOutcome:
                order.append(ledger_id)
                return await mend_one(ledger_id)

            running.worker.rereplicate = noted  # type: ignore[method-assign]
            await cluster.underreplication.pause()
            cluster.lose("b4")
            cluster.lose("b3")
            await trio.sleep(60)
            for ledger_id in (*ledgers, worse, worst):
                await cluster.underreplication.mark(ledger_id, [B3], 0)
            await cluster.underreplication.resume()
            await until(lambda: unmarked(cluster))
        # The ensemble of `worst` has one bookie left, the others two.
        assert order[0] == worst
        assert set(order) == {*ledgers, worse, worst}


# -- several workers, and changes of a ledger meanwhile


async def test_two_workers_share_the_work(cluster: Cluster, autojump_clock: Clock) -> None:
    for _ in range(6):
        await cluster.write(5)
    async with AsyncExitStack() as stack:
        runnings = [
            await stack.enter_async_context(cluster.recovering(name)) for name in ("r1", "r2")
        ]
        await trio.sleep(10)
        assert [running.election.elected for running in runnings].count(True) == 1
        cluster.lose("b2")
        await until(lambda: cluster.fully_copied())
        await until(lambda: unmarked(cluster))
        assert await cluster.underreplication.locks() == {}


async def test_a_session_that_is_lost_ends_the_work_and_it_is_taken_up(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(40)
    gone = sorted(await bookies_of(cluster, writer.ledger_id))[0].partition(":")[0]
    async with cluster.recovering(limits=SLOW) as running:
        cluster.lose(gone)
        await until(lambda: under_way(running))
        path = f"{PATHS.underreplication}/locks/urL{writer.ledger_id:010d}"
        lock = await cluster.store.get(path)
        assert lock is not None
        before = running.worker.status().copied_entries
        cluster.world.metadata.expire(cluster.world.sessions["r1"].store_session_id)
        assert await cluster.store.get(path) is None

        async def locked_again() -> bool:
            record = await cluster.store.get(path)
            return record is not None and record.stat.owner != lock.stat.owner

        await until(locked_again, every_s=0.1)
        # The copying under way has ended: nothing was copied without the lock.
        assert running.worker.status().copied_entries == before
        await until(lambda: cluster.fully_copied())


async def test_the_mark_of_a_deleted_ledger_goes(cluster: Cluster, autojump_clock: Clock) -> None:
    writer = await cluster.write(5)
    async with cluster.recovering() as running:
        await cluster.client.delete(writer.ledger_id)
        assert await mend(running, cluster, writer.ledger_id) is RepairOutcome.GONE
        assert await marked(cluster) == []


async def test_a_ledger_that_somebody_else_mends_is_left_alone(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(5)
    other = cluster.underreplication
    async with cluster.recovering() as running:
        await other.lock(writer.ledger_id)
        assert await mend(running, cluster, writer.ledger_id) is RepairOutcome.TAKEN
        await other.release(writer.ledger_id)
        assert await mend(running, cluster, writer.ledger_id) is RepairOutcome.REPAIRED


async def test_marks_of_another_layout_are_left_alone(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    writer = await cluster.write(5)
    await cluster.underreplication.mark(writer.ledger_id, [B1], 0)
    await cluster.store.set(f"{PATHS.underreplication}/LAYOUT", b'type: "X"\nversion: 1\n', ANY)
    async with cluster.recovering() as running:
        await trio.sleep(30)
        assert running.worker.status().doing.startswith("cannot work: ")
        assert await marked(cluster) == [writer.ledger_id]


async def test_progress_is_shown_to_everybody(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.write(40)
    limits: ReplicationLimits = replace(SLOW, rate_bytes_per_s=200.0)
    async with cluster.recovering(limits=limits):
        cluster.lose("b1")
        cluster.lose("b2")

        async def copying() -> bool:
            return any(status.rest_bytes > 0 for status in await cluster.status_records.workers())

        await until(copying)
        (status,) = await cluster.status_records.workers()
        assert status.worker == "r1"
        assert status.pending == 1
