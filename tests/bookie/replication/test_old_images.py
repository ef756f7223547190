"""Directories restored from a copy: no acknowledged entry is denied or lost because of them."""

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.metadata import LedgerState
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.registry.start_counts import read_starts
from daybook.bookie.storage.status import StoreStatus
from tests.bookie.replication.cluster import PATHS, Cluster, open_cluster, until
from tests.bookie.replication.test_limbo import is_free, store_of
from tests.bookie.storage.conftest import status_of

NAMES = ("b1", "b2", "b3")


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(3, settings={"position_interval_s": 0.5}) as cluster:
        yield cluster


async def is_recorded(cluster: Cluster, name: str) -> bool:
    """Return True if the metadata store knows the bookie's log ends."""
    stored = await read_starts(cluster.store, PATHS, f"{name}:3181")
    return stored is not None and stored.record.positions == store_of(cluster, name).log_ends()


async def entries_behind_an_image(cluster: Cluster, *old: str) -> int:
    """Write a ledger; these bookies' disks are put back to before its last entries."""
    writer = await cluster.write(5, close=False)
    images = {name: cluster.world.platters[name].image("d0") for name in old}
    await cluster.append(writer, 20)
    for name in old:
        await until(lambda name=name: is_recorded(cluster, name), every_s=0.1)  # type: ignore[misc]
    for name in old:
        cluster.world.lose_power(name)
        await cluster.world.ended[name].wait()
        cluster.world.platters[name].put_back(images[name])
    return writer.ledger_id


async def recover(cluster: Cluster, ledger_id: int) -> None:
    context = cluster.client.context
    await recover_ledger(context, ledger_id, await context.metadata_store.read(ledger_id))


async def test_an_image_of_one_and_another_one_behind_lose_nothing(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Once, two denied 200 entries that the third had, and recovery ended the ledger below them."""
    writer = await cluster.write(5, close=False)
    image = cluster.world.platters["b1"].image("d0")
    cluster.world.lose_power("b2")
    await cluster.append(writer, 20)  # b1 and b3 have these
    await until(lambda: is_recorded(cluster, "b1"), every_s=0.1)
    cluster.world.lose_power("b1")
    await cluster.world.ended["b1"].wait()
    cluster.world.platters["b1"].put_back(image)
    cluster.world.lose_power("b3")  # it has all entries, and answers later
    for name in ("b1", "b2"):
        await cluster.world.start(name)
    assert not store_of(cluster, "b2").limbo
    status = await status_of(store_of(cluster, "b1").read(writer.ledger_id, 20))
    assert status is StoreStatus.UNKNOWN
    with pytest.raises(LedgerError), trio.fail_after(120):
        await recover(cluster, writer.ledger_id)
    await cluster.world.start("b3")
    await until(lambda: cluster.readable(writer.ledger_id))
    metadata = await cluster.metadata(writer.ledger_id)
    assert metadata.last_entry_id == 24 or not metadata.closed
    await recover_when_possible(cluster, writer.ledger_id)
    metadata = await cluster.metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 24)


async def recover_when_possible(cluster: Cluster, ledger_id: int) -> None:
    with trio.fail_after(600):
        while True:
            try:
                await recover(cluster, ledger_id)
            except LedgerError:
                await trio.sleep(1)
            else:
                return


async def test_one_image_is_copied_back(cluster: Cluster, autojump_clock: Clock) -> None:
    ledger_id = await entries_behind_an_image(cluster, "b2")
    await cluster.world.start("b2")
    assert not await is_free(cluster, "b2")
    await until(lambda: is_free(cluster, "b2"))
    assert await cluster.fully_copied()
    metadata = await cluster.metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 24)


async def test_all_machines_put_back_are_in_doubt_and_take_new_ledgers_within_a_minute(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """ZooKeeper was not put back: nobody can say what the last entries were."""
    ledger_id = await entries_behind_an_image(cluster, *NAMES)
    for name in NAMES:
        await cluster.world.start(name)
    with trio.fail_after(60):
        await until(lambda: all_writable(cluster), every_s=0.5)
        await cluster.write(5)
    for name in NAMES:
        assert store_of(cluster, name).limbo_ledgers.ledgers() == [ledger_id]
        assert await status_of(store_of(cluster, name).read(ledger_id, 20)) is StoreStatus.UNKNOWN
    with pytest.raises(LedgerError), trio.fail_after(120):
        await recover(cluster, ledger_id)
    assert not (await cluster.metadata(ledger_id)).closed


async def all_writable(cluster: Cluster) -> bool:
    await trio.lowlevel.checkpoint()
    return all(store_of(cluster, name).writable for name in NAMES)
