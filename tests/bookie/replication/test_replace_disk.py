"""A bookie that lost its disks comes back empty, and breaks no promise of the old disks."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.ledger.admin_states import AdminState
from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.replication.decommission import (
    Decommission,
    DecommissionError,
    DecommissionLimits,
)
from daybook.bookie.replication.replace_disk import DiskReplacement, Readmission
from daybook.bookie.server.start_count import StartCounter
from daybook.bookie.storage.status import StoreStatus
from daybook.wire.digest import master_key
from daybook.wire.messages.bookie import Status
from daybook.wire.messages.bookie_v3 import encode_add, from_v3
from tests.bookie.replication.cluster import PATHS, Cluster, entry_bytes, open_cluster, until
from tests.bookie.replication.test_limbo import is_free, store_of
from tests.bookie.storage.conftest import status_of

LIMITS = DecommissionLimits(read_only_timeout_s=30.0, poll_s=5.0)


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(4) as cluster:
        yield cluster


def replacement(cluster: Cluster, bookie: BookieId) -> DiskReplacement:
    context, orders = cluster.client.context, cluster.orders
    underreplication = cluster.underreplication
    return DiskReplacement(
        Decommission(context, underreplication, orders, bookie, LIMITS),
        Readmission(context, underreplication, orders, bookie),
        orders,
    )


async def with_new_disks(cluster: Cluster, name: str) -> None:
    cluster.lose(name)
    await cluster.world.ended[name].wait()
    del cluster.world.platters[name]
    await cluster.world.start(name)


async def add(cluster: Cluster, bookie: BookieId, ledger_id: int, entry_id: int) -> Status:
    """Add an entry like a writer that has not noticed anything."""
    frame = partial(
        encode_add,
        ledger_id=ledger_id,
        entry_id=entry_id,
        master_key=master_key(b""),
        entry=entry_bytes(ledger_id, entry_id, "good"),
        recovery=False,
    )
    return from_v3((await cluster.client.context.requests.ask(bookie, frame, 10)).status)


async def recovered_ledger(cluster: Cluster) -> tuple[int, BookieId]:
    """Return a ledger whose frozen writer does not know of its recovery, and a bookie of it."""
    writer = await cluster.write(5, close=False)
    writer.abandon()
    bookie = (await cluster.metadata(writer.ledger_id)).fragments[0].ensemble[0]
    await cluster.client.open(writer.ledger_id, recover=True)
    return writer.ledger_id, bookie


async def test_fences_of_the_old_disks_are_there_again(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id, bookie = await recovered_ledger(cluster)
    assert await add(cluster, bookie, ledger_id, 99) is Status.FENCED
    async with cluster.recovering():
        await replacement(cluster, bookie).empty()
        assert await cluster.fully_copied()
        await with_new_disks(cluster, bookie.partition(":")[0])
        assert bookie in await readonly_bookies(cluster.store, PATHS)
        assert await add(cluster, bookie, ledger_id, 99) is not Status.OK
        assert await replacement(cluster, bookie).finish() == 1
        await until(lambda: writable(cluster, bookie))
        assert await add(cluster, bookie, ledger_id, 99) is Status.FENCED
        assert await cluster.orders.read(bookie) is None
    await cluster.write(3)
    assert await cluster.fully_copied()


async def test_an_image_of_the_disks_before_the_new_ones_is_in_doubt(
    cluster: Cluster, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the cookie generation tells: the cookie has the same text, and the starts of the new
    disks are counted from 1.
    """
    behind: list[bool] = []
    is_behind = StartCounter.is_behind

    async def look(counter: StartCounter, ends: Mapping[str, int]) -> bool:
        behind.append(await is_behind(counter, ends))
        return behind[-1]

    for _ in range(6):
        await cluster.write(20)
    cluster.lose("b3")
    await cluster.world.ended["b3"].wait()
    await cluster.world.start("b3")
    image = cluster.world.platters["b3"].image("d0")
    bookie = BookieId("b3:3181")
    async with cluster.recovering():
        await replacement(cluster, bookie).empty()
        await with_new_disks(cluster, "b3")
        await replacement(cluster, bookie).finish()
        await until(lambda: writable(cluster, bookie))
    ledger_id = (await cluster.write(5, Quorums(4, 4, 2))).ledger_id
    cluster.lose("b3")
    await cluster.world.ended["b3"].wait()
    cluster.world.platters["b3"].put_back(image)
    monkeypatch.setattr(StartCounter, "is_behind", look)
    await cluster.world.start("b3")
    assert behind == [False], "the number of starts and the end of the log say nothing"
    assert await status_of(store_of(cluster, "b3").read(ledger_id, 0)) is StoreStatus.UNKNOWN
    await until(lambda: is_free(cluster, "b3"))
    assert await cluster.fully_copied([ledger_id])


async def writable(cluster: Cluster, bookie: BookieId) -> bool:
    return bookie in await writable_bookies(cluster.store, PATHS)


async def test_one_whose_disks_are_gone_already_is_replaced_from_its_peers(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    for _ in range(4):
        await cluster.write(10)
    ledger_id, bookie = await recovered_ledger(cluster)
    cluster.lose(bookie.partition(":")[0])
    async with cluster.recovering():
        await replacement(cluster, bookie).empty()
        assert await cluster.fully_copied()
        await with_new_disks(cluster, bookie.partition(":")[0])
        # A command that was killed while it waited starts from the beginning.
        await replacement(cluster, bookie).empty()
        assert await replacement(cluster, bookie).finish() == 5
    assert await add(cluster, bookie, ledger_id, 99) is Status.FENCED


async def test_it_is_not_admitted_before_it_is_back(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    _, bookie = await recovered_ledger(cluster)
    readmission = Readmission(
        cluster.client.context, cluster.underreplication, cluster.orders, bookie
    )
    async with cluster.recovering():
        await replacement(cluster, bookie).empty()
        with pytest.raises(DecommissionError, match="Start it with empty directories"):
            await readmission.admit()  # the old process still runs
        order = await cluster.orders.read(bookie)
        assert order is not None
        assert order.kind is AdminState.LEFT


async def test_without_its_fences_it_is_not_admitted(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    _, bookie = await recovered_ledger(cluster)
    name = bookie.partition(":")[0]
    async with cluster.recovering():
        await replacement(cluster, bookie).empty()
        await with_new_disks(cluster, name)
        cluster.world.network.crash(name)  # registered, and it does not answer
        with pytest.raises(DecommissionError, match="is not fenced there"):
            await replacement(cluster, bookie).finish()
        assert await cluster.orders.read(bookie) is not None
        await trio.sleep(5)
        assert not await writable(cluster, bookie)
