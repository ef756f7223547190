"""Bookies that may have lost records: they report it, copy what they lack, and leave limbo."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.metadata import LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.server.data_integrity import marks_for_ledger
from daybook.bookie.storage.limbo import LimboMark
from daybook.bookie.storage.markers import BIRTH_FILE
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore
from daybook.wire.digest import master_key
from daybook.wire.messages.bookie import Status
from daybook.wire.messages.bookie_v3 import encode_add, from_v3
from daybook.wire.metadata.memory import DirectLink, Request
from tests.bookie.replication.cluster import (
    PATHS,
    Cluster,
    bookie_id,
    closed_on,
    entry_bytes,
    open_cluster,
    until,
)
from tests.bookie.storage.conftest import status_of

B1, B2, B3 = (bookie_id(f"b{n}") for n in range(1, 4))
UNKNOWN = StoreStatus.UNKNOWN


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(3, settings={"sync": "deferred"}) as cluster:
        yield cluster


def store_of(cluster: Cluster, name: str) -> LedgerStore:
    return cluster.world.running[name].store


async def is_free(cluster: Cluster, name: str) -> bool:
    """Return True if the bookie is not in limbo."""
    store = store_of(cluster, name)
    return not store.limbo and not store.limbo_ledgers.ledgers() and store.writable


async def lose_unsynced(
    cluster: Cluster, *names: str, entries: int = 10, close: bool = False
) -> int:
    """Write a ledger, open or closed, whose entries are acknowledged by all and lost by these."""
    writer = await cluster.write(5, close=False)
    for name in names:
        log = store_of(cluster, name)._directories.ledger_directories[0].log
        log.pause()
        log.resume = lambda: None  # type: ignore[method-assign]  # not by a checkpoint either
    await cluster.append(writer, entries)
    await trio.sleep(0.1)
    if close:
        await writer.close()
    for name in names:
        cluster.world.lose_power(name)
    return writer.ledger_id


async def add(
    cluster: Cluster, bookie: BookieId, ledger_id: int, entry_id: int, *, recovery: bool = False
) -> Status:
    """Add an entry like a client that does not know of the loss."""
    frame = partial(
        encode_add,
        ledger_id=ledger_id,
        entry_id=entry_id,
        master_key=master_key(b""),
        entry=entry_bytes(ledger_id, entry_id, "good"),
        recovery=recovery,
    )
    return from_v3((await cluster.client.context.requests.ask(bookie, frame, 10)).status)


async def test_what_was_lost_without_a_sync_is_copied_back(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The bookie does it itself: no other client recovers or copies anything here."""
    closed = (await cluster.write(20)).ledger_id
    await lose_unsynced(cluster, "b2", close=True)
    await cluster.world.start("b2")
    assert not await is_free(cluster, "b2")
    await until(lambda: is_free(cluster, "b2"))
    assert await cluster.fully_copied()
    assert store_of(cluster, "b2").is_fenced(closed)
    statistics = cluster.world.running["b2"].data_integrity.statistics()
    assert (statistics.ledgers, statistics.in_doubt) == (0, False)
    assert statistics.ledgers_cleared == 2
    assert statistics.entries_copied == 10
    await cluster.write(5)


async def test_a_copy_goes_on_in_small_steps_where_there_is_little_memory(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Seed 920379: each try copied one entry and failed, and the next one came much later."""
    await lose_unsynced(cluster, "b2", close=True)
    await cluster.world.start("b2")
    for directory in store_of(cluster, "b2")._directories.ledger_directories:
        directory._in_flight_bytes_max = 1
    began_s = trio.current_time()
    await until(lambda: is_free(cluster, "b2"), every_s=0.01)
    assert trio.current_time() - began_s < 2, "no try failed"
    assert await cluster.fully_copied()


async def test_an_open_ledger_is_recovered_before_the_rest_of_it_is_copied(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Recovery needs two of three, so its adds may be here in time or not: no entry of the ten has
    to be copied, and when the limbo is over none is missing.
    """
    ledger_id = await lose_unsynced(cluster, "b2")
    await cluster.world.start("b2")
    assert await store_of(cluster, "b2").entry_ids(ledger_id) == list(range(5))
    await until(lambda: is_free(cluster, "b2"), every_s=0.001)
    metadata = await cluster.metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 14)
    assert await cluster.fully_copied()
    statistics = cluster.world.running["b2"].data_integrity.statistics()
    assert statistics.ledgers_cleared == 1
    assert statistics.entries_copied <= 10


async def test_nothing_that_is_absent_is_denied_before_it_is_repaired(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = await lose_unsynced(cluster, "b2")
    for name in ("b1", "b3"):
        cluster.lose(name)
    await cluster.world.start("b2")
    store = store_of(cluster, "b2")
    await until(lambda: has_trouble(cluster, "b2"))
    assert store.limbo_ledgers.ledgers() == [ledger_id]
    assert await status_of(store.read(ledger_id, 12)) is UNKNOWN
    assert not store.limbo
    assert store.writable, "of other ledgers it takes entries"
    metadata = await cluster.metadata(ledger_id)
    assert not metadata.closed, "nobody knows yet where it ends"
    for name in ("b1", "b3"):
        await cluster.world.start(name)
    await until(lambda: is_free(cluster, "b2"))
    await until(lambda: cluster.fully_copied())


async def has_trouble(cluster: Cluster, name: str) -> bool:
    return any(cluster.world.running[name].data_integrity.ledgers().values())


async def test_when_all_lose_power_nothing_that_was_synced_anywhere_is_lost(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Two bookies lose entries that the third has."""
    closed = (await cluster.write(20)).ledger_id
    ledger_id = await lose_unsynced(cluster, "b1", "b2")
    cluster.world.lose_power("b3")
    for name in ("b1", "b2", "b3"):
        await cluster.world.start(name)
    await trio.sleep(300)
    assert await cluster.fully_copied([closed])
    metadata = await cluster.metadata(ledger_id)
    assert not metadata.closed, "none can say that there was no entry behind the last one"
    for name in ("b1", "b2", "b3"):
        assert store_of(cluster, name).limbo_ledgers.ledgers() == [ledger_id]
        assert store_of(cluster, name).writable


async def test_it_may_die_again_while_it_repairs(cluster: Cluster, autojump_clock: Clock) -> None:
    ledger_ids = [(await cluster.write(20)).ledger_id for _ in range(4)]
    ledger_ids.append(await lose_unsynced(cluster, "b2"))
    for delay_s in (0.0, 0.01, 0.02, 0.05, 0.1):
        await cluster.world.start("b2")
        await trio.sleep(delay_s)
        store = store_of(cluster, "b2")
        here = set(await store.entry_ids(ledger_ids[-1]))
        if here < set(range(15)):
            assert await status_of(store.read(ledger_ids[-1], max(set(range(15)) - here))) in (
                UNKNOWN,
                StoreStatus.OK,
            )
        cluster.world.lose_power("b2")
    await cluster.world.start("b2")
    await until(lambda: is_free(cluster, "b2"))
    await until(lambda: cluster.fully_copied())


class Deaf(DirectLink):
    """A link that drops the answers to requests that `refuses` picks."""

    def __init__(self, refuses: Callable[[Request], bool]) -> None:
        super().__init__()
        self.refuses = refuses
        self.refused = 0

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        if self.refuses(request):
            self.refused += 1
            self.lose_next(applied=False)
        await super().request(request, execute)


@pytest.mark.parametrize("operation", ["get", "get_children", "set"])
async def test_metadata_that_do_not_all_come_end_no_doubt(
    cluster: Cluster, autojump_clock: Clock, operation: str
) -> None:
    ledger_ids = [(await cluster.write(5)).ledger_id for _ in range(3)]
    await lose_unsynced(cluster, "b2")
    path = {
        "get": PATHS.ledger(ledger_ids[-1]),
        "get_children": PATHS.ledger(ledger_ids[-1]).rpartition("/")[0],
        "set": PATHS.cookie(B2),
    }[operation]
    link = Deaf(lambda request: (request.operation, request.path) == (operation, path))
    await cluster.world.start("b2", link)
    store = store_of(cluster, "b2")
    await trio.sleep(30)
    assert link.refused > 1
    assert store.limbo
    assert not store.writable
    assert "records were lost" in cluster.world.running["b2"].why_unhealthy()
    assert await status_of(store.read(ledger_ids[0], 99)) is UNKNOWN
    assert await status_of(store.read(12345, 0)) is UNKNOWN
    link.refuses = lambda _: False
    await until(lambda: is_free(cluster, "b2"))
    assert cluster.world.running["b2"].why_unhealthy() == ""


async def test_an_index_that_is_damaged_while_the_bookie_serves_is_made_again(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Once, health and metrics reported nothing, and the index stayed damaged."""
    ledger_id = (await cluster.write(5)).ledger_id
    store, running = store_of(cluster, "b2"), cluster.world.running["b2"]
    assert await is_free(cluster, "b2")
    await store.maintenance.checkpoint()
    index = cluster.world.platters["b2"].index("d0/index")
    index.bad.update(index.stored_keys())
    assert await status_of(store.read(ledger_id, 3)) is StoreStatus.IO_ERROR
    assert running.why_unhealthy().startswith("the index of d0 is damaged and is being rebuilt")
    assert store.statistics().index_rebuilds == 1
    assert not store.writable
    await until(lambda: is_free(cluster, "b2"))
    assert running.why_unhealthy() == ""
    await store.read(ledger_id, 3)
    assert running.data_integrity.statistics().ledgers_cleared == 1


async def test_a_clean_stop_leaves_no_limbo(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.write(5)
    cluster.world.stop("b2")
    await cluster.world.start("b2")
    assert await is_free(cluster, "b2")
    assert f"d0/{BIRTH_FILE}" not in cluster.world.platters["b2"].paths()


async def test_a_loss_that_nobody_can_make_good_is_an_alarm_and_stays_unknown(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The ledger has one copy."""
    ledger_id = (await cluster.write(10, Quorums(1, 1, 1))).ledger_id
    (fragment,) = (await cluster.metadata(ledger_id)).fragments
    name = fragment.ensemble[0].partition(":")[0]
    cluster.world.stop(name)
    await cluster.world.ended[name].wait()
    platter = cluster.world.platters[name]
    platter.lose_indexes()
    for path in [path for path in platter.paths() if path.startswith("d0/log/")]:
        at = platter.content(path).find(cluster.written[ledger_id][4])
        if at >= 0:
            platter.corrupt(path, at, b"\0\0\0")
    await cluster.world.start(name)
    async with cluster.recovering():
        await until(lambda: has_alarm(cluster))
    store = store_of(cluster, name)
    assert await status_of(store.read(ledger_id, 4)) is UNKNOWN
    assert await status_of(store.read(ledger_id, 5)) is StoreStatus.OK
    assert store.limbo_ledgers.ledgers() == [ledger_id]
    assert "entry 4" in cluster.world.running[name].data_integrity.ledgers()[ledger_id]


async def has_alarm(cluster: Cluster) -> bool:
    return bool(await cluster.status_records.alarms())


# ---- a bookie that lost its disks does not trust ledgers that it does not know


async def lost_before(cluster: Cluster) -> None:
    """Erase b3's disks; it reports that."""
    cluster.world.settings = {"cookie_repair": "auto"}
    cluster.lose("b3")
    await cluster.world.ended["b3"].wait()
    del cluster.world.platters["b3"]
    await cluster.world.start("b3")
    await until(lambda: is_free(cluster, "b3"))


async def test_empty_disks_are_filled_again_where_that_is_allowed(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    for _ in range(3):
        await cluster.write(20)
    open_ledger = (await cluster.write(20, close=False)).ledger_id
    await lost_before(cluster)
    await until(lambda: cluster.fully_copied())
    assert (await cluster.metadata(open_ledger)).closed
    await cluster.write(20)
    await until(lambda: cluster.fully_copied())
    cluster.lose("b3")
    await cluster.world.start("b3")
    assert await is_free(cluster, "b3")


async def test_a_late_writer_finds_no_reborn_bookie_that_believes_it(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """The ledger may name this bookie, which was in an ensemble before, and had a fence."""
    elsewhere = closed_on((0, ["b1", "b2"]))
    ended = await cluster.plant(elsewhere, {"b1": {0: "good"}, "b2": {0: "good"}})
    copied = await cluster.plant(elsewhere, {"b1": {0: "good"}, "b2": {0: "good"}})
    deleted = (await cluster.write(5)).ledger_id
    older = (await cluster.write(5, Quorums(1, 1, 1), close=False)).ledger_id
    on = (await cluster.metadata(older)).last_fragment.ensemble
    await cluster.client.delete(deleted)
    await lost_before(cluster)
    assert await add(cluster, B3, ended, 9) is Status.FENCED
    assert await add(cluster, B3, deleted, 9) is Status.FENCED
    assert await add(cluster, B3, copied, 0, recovery=True) is Status.OK
    assert await add(cluster, B3, copied, 9) is Status.FENCED
    assert await add(cluster, B3, deleted, 9, recovery=True) is Status.FENCED
    if B3 not in on:
        assert await add(cluster, B3, older, 9) is Status.READ_ONLY
    young = (await cluster.write(5, close=False)).ledger_id
    assert await add(cluster, B3, young, 9) is Status.OK
    cluster.lose("b3")
    await cluster.world.start("b3")
    assert await add(cluster, B3, ended + 0, 10) is Status.FENCED
    assert await add(cluster, B3, deleted, 10) is Status.FENCED


async def test_an_old_image_of_a_disk_is_in_doubt(cluster: Cluster, autojump_clock: Clock) -> None:
    """The image has cookies that match, and lacks all later entries."""
    await cluster.write(5)
    cluster.lose("b3")
    await cluster.world.ended["b3"].wait()
    old = cluster.world.platters.pop("b3")
    cluster.world.settings = {"cookie_repair": "auto"}
    await cluster.world.start("b3")
    await until(lambda: is_free(cluster, "b3"))
    ledger_id = (await cluster.write(20)).ledger_id
    cluster.lose("b3")
    await cluster.world.ended["b3"].wait()
    cluster.world.platters["b3"] = old
    cluster.world.settings = {}
    await cluster.world.start("b3")
    await until(lambda: is_free(cluster, "b3"))
    assert cluster.world.running["b3"].data_integrity.statistics().entries_copied >= 20
    assert await cluster.fully_copied([ledger_id])


@pytest.mark.parametrize(
    ("state", "ensembles", "expected"),
    [
        ("open", (["b1", "b2"],), LimboMark(1, limbo=True, fence=True)),
        ("open", (["b1", "b2"], ["b3", "b2"]), LimboMark(1, limbo=True, fence=False)),
        ("open", (["b3", "b2"],), LimboMark(1, limbo=False, fence=False)),
        ("closed", (["b1", "b2"],), LimboMark(1, limbo=True, fence=True)),
        ("closed", (["b1", "b2"], ["b3", "b2"]), LimboMark(1, limbo=True, fence=True)),
        ("closed", (["b3", "b2"],), LimboMark(1, limbo=False, fence=True)),
        ("in recovery", (["b1", "b2"], ["b3", "b2"]), LimboMark(1, limbo=True, fence=True)),
    ],
)
def test_what_a_ledger_says_of_what_may_be_lost(
    state: str, ensembles: tuple[list[str], ...], expected: LimboMark
) -> None:
    metadata = closed_on(*((2 * n, names) for n, names in enumerate(ensembles)))
    if state != "closed":
        kind = LedgerState.OPEN if state == "open" else LedgerState.IN_RECOVERY
        metadata = replace(metadata, state=kind, last_entry_id=-1, length=0)
    assert marks_for_ledger(1, metadata, B1) == expected
