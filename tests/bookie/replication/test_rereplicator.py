"""Changes of a ledger during re-replication, and bookies whose copies contradict their lists."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.bookie_client import BookieClient
from daybook.bookie.ledger.metadata import LedgerMetadata, encode_metadata
from daybook.bookie.ledger.protocol.placement import BookieId, Fragment, Quorums
from daybook.bookie.replication.checker import Checker
from daybook.bookie.replication.host import AutoRecovery
from daybook.bookie.replication.protocol.replica_check import BookieStatus
from daybook.bookie.replication.rereplicator import RepairOutcome
from daybook.bookie.replication.status_records import Alarm, AlarmKind
from daybook.wire.messages.bookie import Status
from daybook.wire.metadata.memory import DirectLink, Request
from daybook.wire.metadata.store import ANY
from daybook.wire.rate_limit import RateLimit
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
HERE = dict.fromkeys((B1, B2, B3, B4), BookieStatus.WRITABLE)
WHOLE: dict[int, Entry] = dict.fromkeys(range(4), "good")
BAD: dict[int, Entry] = {**WHOLE, 2: "bad"}


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(4) as cluster:
        yield cluster


async def mend(
    running: AutoRecovery, cluster: Cluster, ledger_id: int, *lacking: str
) -> RepairOutcome:
    await running.watcher.wait_ready()
    bookies = [bookie_id(name) for name in lacking or ("b3",)]
    await cluster.underreplication.mark(ledger_id, bookies, 0)
    return await running.worker.rereplicate(ledger_id)


async def marked(cluster: Cluster) -> list[int]:
    return [ledger_id async for ledger_id in cluster.underreplication.marked_ledgers()]


async def alarms(cluster: Cluster) -> list[tuple[int, AlarmKind]]:
    return [(alarm.ledger_id, alarm.trouble) for alarm in await cluster.status_records.alarms()]


async def has_alarm(cluster: Cluster) -> bool:
    return bool(await cluster.status_records.alarms())


async def ensembles(cluster: Cluster, ledger_id: int) -> list[Sequence[BookieId]]:
    return [f.ensemble for f in (await cluster.metadata(ledger_id)).fragments]


# -- sources


async def test_a_source_that_is_damaged_is_an_alarm_and_no_loop(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Lists say that the entry exists; only copying shows that it does not."""
    ledger_id = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE, "b2": BAD})
    async with cluster.recovering() as running:
        cluster.lose("b1")
        await until(lambda: has_alarm(cluster))
        (alarm,) = await cluster.status_records.alarms()
        assert (alarm.ledger_id, alarm.trouble, alarm.entries) == (
            ledger_id,
            AlarmKind.NO_COPY,
            ((2, 2),),
        )
        assert "b1:3181: gone, and may have one" in alarm.why
        assert await ensembles(cluster, ledger_id) == [(B1, B2)]
        copied = running.worker.status().copied_entries
        await trio.sleep(600)
        assert running.worker.status().copied_entries == copied
        await cluster.world.start("b1")
        await until(lambda: cluster.fully_copied())
        assert B2 not in (await ensembles(cluster, ledger_id))[0]
        assert await alarms(cluster) == []


async def test_a_damaged_source_that_is_not_the_only_one_is_passed_over(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    await cluster.plant(closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": BAD, "b3": WHOLE})
    async with cluster.recovering():
        cluster.lose("b1")
        await until(lambda: cluster.fully_copied_but(B2))
        assert await alarms(cluster) == []


async def test_an_entry_of_which_all_who_are_left_are_in_doubt_is_an_alarm(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    gap: dict[int, Entry] = {0: "good", 1: "good", 3: "good"}
    ledger_id = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": gap, "b2": gap})
    async with cluster.recovering() as running:
        for name in ("b1", "b2"):
            cluster.world.running[name].store._directories.ledger_directories[
                0
            ].bookie_in_doubt = True
        assert await mend(running, cluster, ledger_id, "b1") is RepairOutcome.NO_COPY
        (alarm,) = await cluster.status_records.alarms()
        assert alarm.entries == ((2, 2),)
        assert "some cannot say whether they had one" in alarm.why


async def test_a_bookie_that_has_too_much_to_do_has_no_damage(
    cluster: Cluster, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that it lists and does not return at the moment is unknown, not lost."""
    metadata = closed_on((0, ["b1", "b2", "b3"]))
    copies = {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
    ledger_id = await cluster.plant(metadata, copies)
    read = BookieClient.read

    def busy(
        self: BookieClient,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        callback: Callable[[Status | None, memoryview], None],
    ) -> None:
        if bookie == B2:
            callback(Status.TOO_MANY_REQUESTS, memoryview(b""))
        else:
            read(self, bookie, ledger_id, entry_id, callback)

    monkeypatch.setattr(BookieClient, "read", busy)
    (report,) = await Checker(cluster.client.context).check(
        ledger_id, metadata, HERE, verify=list(HERE)
    )
    assert report.silent == (B2,)
    assert (report.moves, report.fills, report.no_copy) == ((), (), ())


async def test_reading_all_copies_has_its_pace(cluster: Cluster, autojump_clock: Clock) -> None:
    entries: dict[int, Entry] = dict.fromkeys(range(40), "good")
    metadata = closed_on((0, ["b1", "b2"]), entries=40)
    ledger_id = await cluster.plant(metadata, {"b1": entries, "b2": entries})
    checker = Checker(cluster.client.context, RateLimit(9.0, burst=1.0))  # one entry per second
    began = trio.current_time()
    await checker.check(ledger_id, metadata, HERE, verify=[B1])
    assert trio.current_time() - began > 35
    began = trio.current_time()
    await checker.check(ledger_id, metadata, HERE)
    assert trio.current_time() - began < 5, "lists cost next to nothing"


# -- one ledger does not hold up the others


async def test_metadata_that_make_no_sense_are_an_alarm_and_hold_up_nobody(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    absurd = await cluster.plant(closed_on((0, ["b1", "b2"])), {})
    value = encode_metadata(replace(closed_on((0, ["b1", "b2"])), last_entry_id=1 << 60))
    await cluster.store.set(PATHS.ledger(absurd), value, ANY)
    garbled = await cluster.plant(closed_on((0, ["b1", "b2"])), {})
    await cluster.store.set(PATHS.ledger(garbled), b"?", ANY)
    healthy = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE})
    async with cluster.recovering() as running:
        for ledger_id in (absurd, garbled, healthy):
            await cluster.underreplication.mark(ledger_id, [B2], 0)
        await until(lambda: cluster.fully_copied([healthy]))
        await until(lambda: settled(cluster, [absurd, garbled]))
        assert await alarms(cluster) == [
            (absurd, AlarmKind.UNREADABLE),
            (garbled, AlarmKind.UNREADABLE),
        ]
        assert await running.auditor.check_ledgers() == 0


async def settled(cluster: Cluster, ledger_ids: list[int]) -> bool:
    return await marked(cluster) == ledger_ids and len(await alarms(cluster)) == len(ledger_ids)


async def test_what_goes_wrong_with_one_ledger_holds_up_nobody(
    cluster: Cluster, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE})
    second = await cluster.plant(closed_on((0, ["b1", "b2"])), {"b1": WHOLE})
    check = Checker.check

    async def failing(self: Checker, ledger_id: int, *args: object, **named: object) -> object:
        if ledger_id == first:
            raise ZeroDivisionError
        return await check(self, ledger_id, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Checker, "check", failing)
    async with cluster.recovering():
        for ledger_id in (first, second):
            await cluster.underreplication.mark(ledger_id, [B2], 0)
        await until(lambda: cluster.fully_copied([second]))
        await trio.sleep(120)
        assert first in await marked(cluster)


async def test_an_alarm_goes_when_somebody_else_has_mended_it(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The other worker is Apache's, which knows no alarms."""
    await cluster.status_records.raise_alarm(Alarm(77, AlarmKind.NO_SPARE, "none", 5))
    async with cluster.recovering():
        await trio.sleep(2 * LIMITS.poll_s)
        assert await alarms(cluster) == []


async def test_a_second_loss_comes_before_what_is_in_the_queue(autojump_clock: Clock) -> None:
    """Ledgers wait for their turn; the one that has lost a second copy comes next."""
    async with open_cluster(6) as cluster:
        slow = replace(LIMITS, rate_bytes_per_s=9.0, burst_bytes=1.0)  # four seconds per ledger
        queue = [
            await cluster.plant(closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": WHOLE})
            for _ in range(20)
        ]
        urgent = await cluster.plant(
            closed_on((0, ["b2", "b3", "b4"])), {"b2": WHOLE, "b3": WHOLE, "b4": WHOLE}
        )
        order: list[int] = []
        async with cluster.recovering(limits=replace(slow, lost_delay_s=1.0)) as running:
            mend_one = running.worker.rereplicate

            async def noted(ledger_id: int) -> RepairOutcome:
                order.append(ledger_id)
                return await mend_one(ledger_id)

            running.worker.rereplicate = noted  # type: ignore[method-assign]
            for ledger_id in (*queue, urgent):
                await cluster.underreplication.mark(ledger_id, [B4], 0)
            await until(lambda: counted(order, 3), every_s=0.5)
            del order[:]
            cluster.lose("b3")
            cluster.lose("b4")
            await trio.sleep(5)
            await until(lambda: counted(order, 3), every_s=0.5)
            assert urgent in order[:3]


async def counted(order: list[int], count: int) -> bool:
    return len(order) >= count


# -- changes during re-replication


class _Held(DirectLink):
    """A link that holds back the metadata update of one ledger until it is let go."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.reached = trio.Event()
        self.go_on = trio.Event()
        self._path = path

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        if request.write and request.path == self._path:
            self.reached.set()
            await self.go_on.wait()
        await super().request(request, execute)


async def mend_while(
    cluster: Cluster, running: AutoRecovery, ledger_id: int, happen: Callable[[], Awaitable[None]]
) -> RepairOutcome:
    """Re-replicate a ledger; `happen` runs after the copying, before the metadata update."""
    held = _Held(PATHS.ledger(ledger_id))
    await cluster.underreplication.pause()  # the worker does nothing by itself
    await running.watcher.wait_ready()
    await until(lambda: lost(running, B3))
    outcomes: list[RepairOutcome] = []
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            outcomes.append(await mend(running, cluster, ledger_id))

        cluster.world.sessions["r1"].link = held
        nursery.start_soon(work)
        await held.reached.wait()
        await happen()
        held.go_on.set()
    return outcomes[0]


async def lost(running: AutoRecovery, bookie: BookieId) -> bool:
    return running.watcher.statuses()[bookie] is BookieStatus.LOST


async def test_a_worker_that_lost_its_lock_changes_nothing_that_another_has_mended(
    autojump_clock: Clock,
) -> None:
    async with open_cluster(6) as cluster:
        ledger_id = await cluster.plant(
            closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
        )
        after: list[LedgerMetadata] = []
        async with cluster.recovering("r1") as frozen, cluster.recovering("r2") as other:
            cluster.lose("b3")

            async def other_mends() -> None:
                lock = f"{PATHS.underreplication}/locks/urL{ledger_id:010d}"
                await cluster.store.delete(lock, ANY)  # its session has ended, unnoticed
                await until(lambda: lost(other, B3))
                assert await mend(other, cluster, ledger_id) is RepairOutcome.REPAIRED
                after.append(await cluster.metadata(ledger_id))

            outcome = await mend_while(cluster, frozen, ledger_id, other_mends)
            assert outcome in (RepairOutcome.REPAIRED, RepairOutcome.LATER)
            assert await cluster.metadata(ledger_id) == after[0]
            assert B3 not in after[0].fragments[0].ensemble
            assert await cluster.fully_copied()


async def test_a_ledger_that_is_deleted_meanwhile_is_gone(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = await cluster.plant(
        closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
    )
    async with cluster.recovering() as running:
        cluster.lose("b3")

        async def delete() -> None:
            await cluster.client.delete(ledger_id)

        assert await mend_while(cluster, running, ledger_id, delete) is RepairOutcome.GONE
        assert await marked(cluster) == []
        assert await cluster.store.get(PATHS.ledger(ledger_id)) is None


async def test_a_ledger_that_goes_into_recovery_meanwhile_keeps_its_fragments(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The recovering client relies on the metadata that it has read."""
    opened = LedgerMetadata(
        quorums=Quorums(3, 3, 2),
        fragments=(Fragment(0, (B1, B2, B3)), Fragment(4, (B1, B2, B4))),
    )
    ledger_id = await cluster.plant(opened, {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE})
    cluster.written[ledger_id] = []
    async with cluster.recovering() as running:
        cluster.lose("b3")
        catalog = cluster.client.context.metadata_store

        async def begin_recovery() -> None:
            stored = await catalog.read(ledger_id)
            await catalog.update(ledger_id, stored, lambda m, version: m.in_recovery())

        # Fragment 0 has no other bookie to go to but b4, which serves.
        assert await mend_while(cluster, running, ledger_id, begin_recovery) is RepairOutcome.LATER
        assert await ensembles(cluster, ledger_id) == [(B1, B2, B3), (B1, B2, B4)]
        reader = await cluster.client.open(ledger_id, recover=True)
        assert reader.last_add_confirmed == 3
        await cluster.underreplication.resume()
        await until(lambda: moved(cluster, ledger_id))
        assert await ensembles(cluster, ledger_id) == [(B1, B2, B4), (B1, B2, B4)]


async def moved(cluster: Cluster, ledger_id: int) -> bool:
    return all(B3 not in ensemble for ensemble in await ensembles(cluster, ledger_id))
