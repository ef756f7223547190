"""A ledger whose recovery can never end is closed with loss accepted, on the bookies as well."""

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import RecoveryAbortedError
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol.placement import Fragment, Quorums
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.replication.unsafe_recovery import AcceptedLoss, accept_loss
from tests.bookie.replication.cluster import Cluster, Entry, bookie_id, open_cluster
from tests.bookie.replication.test_repairs import damaged, flip_bits, restart

B1, B2, B3 = (bookie_id(f"b{n}") for n in range(1, 4))


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(5) as cluster:
        yield cluster


async def plant(cluster: Cluster, **last: int) -> int:
    """Create an open ledger; each bookie has the entries up to the given one."""
    opened = LedgerMetadata(quorums=Quorums(3, 3, 2), fragments=(Fragment(0, (B1, B2, B3)),))
    copies: dict[str, dict[int, Entry]] = {
        name: dict.fromkeys(range(end + 1), "good") for name, end in last.items()
    }
    ledger_id = await cluster.plant(opened, copies)
    cluster.written[ledger_id] = [b"entry %03d" % n for n in range(max(last.values()) + 1)]
    return ledger_id


async def forced(cluster: Cluster, ledger_id: int) -> AcceptedLoss:
    """Run the unsafe recovery, after ordinary recovery has failed."""
    context = cluster.client.context
    stored = await context.metadata_store.read(ledger_id)
    with pytest.raises(RecoveryAbortedError):
        await recover_ledger(context, ledger_id, stored)
    return await accept_loss(context, ledger_id, stored)


async def test_bookies_that_are_gone_are_given_up(cluster: Cluster, autojump_clock: Clock) -> None:
    ledger_id = await plant(cluster, b1=9, b2=5, b3=5)
    cluster.lose("b1")
    cluster.lose("b2")
    await trio.sleep(5)
    accepted = await forced(cluster, ledger_id)
    assert accepted.given_up == [B1, B2]
    assert accepted.lost_from == 6
    metadata = await cluster.metadata(ledger_id)
    assert metadata.closed
    assert metadata.last_entry_id == 5
    cluster.written[ledger_id] = cluster.written[ledger_id][:6]
    assert await cluster.readable(ledger_id)


async def test_one_in_doubt_that_has_some_entries_is_given_up(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """It answers for its last entry; only about later ones it has to say "unknown"."""
    ledger_id = await plant(cluster, b1=9, b2=5, b3=5)
    cluster.lose("b1")
    cluster.world.running["b2"].store._directories.ledger_directories[0].bookie_in_doubt = True
    await trio.sleep(5)
    accepted = await forced(cluster, ledger_id)
    assert accepted.given_up == [B1, B2]
    assert accepted.lost_from == 6
    assert (await cluster.metadata(ledger_id)).last_entry_id == 5


async def test_one_that_cannot_read_its_last_entry_is_given_up(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """Such a bookie does not even report that it is fenced."""
    ledger_id = await plant(cluster, b1=9, b2=7, b3=5)
    cluster.lose("b1")
    await restart(cluster, "b2")
    flip_bits(cluster, "b2", ledger_id, 7)
    assert await damaged(cluster, "b2", ledger_id) == [7]
    await trio.sleep(5)
    accepted = await forced(cluster, ledger_id)
    assert accepted.given_up == [B1, B2]
    assert accepted.lost_from == 7
    assert (await cluster.metadata(ledger_id)).last_entry_id == 6


async def test_those_that_cannot_read_an_entry_on_the_way_are_given_up(
    autojump_clock: Clock,
) -> None:
    async with open_cluster(3) as cluster:
        writer = await cluster.write(10, close=False, size=500)
        ledger_id = writer.ledger_id
        writer.abandon()
        (fragment,) = (await cluster.metadata(ledger_id)).fragments
        gone, *left = (bookie.partition(":")[0] for bookie in fragment.ensemble)
        for name in left:
            await restart(cluster, name)
            flip_bits(cluster, name, ledger_id, 6)
        cluster.lose(gone)
        await cluster.world.start("b4")
        await trio.sleep(5)
        accepted = await forced(cluster, ledger_id)
        assert set(accepted.given_up) == set(fragment.ensemble)
        assert accepted.lost_from == 6
        assert (await cluster.metadata(ledger_id)).last_entry_id == 5
        cluster.written[ledger_id] = cluster.written[ledger_id][:6]
        assert await cluster.readable(ledger_id)


async def test_one_that_is_silent_is_waited_for(cluster: Cluster, autojump_clock: Clock) -> None:
    ledger_id = await plant(cluster, b1=9, b2=7, b3=5)
    cluster.lose("b1")
    cluster.world.network.crash("b2")  # its registration stays
    with pytest.raises(RecoveryAbortedError):
        await forced(cluster, ledger_id)
    assert not (await cluster.metadata(ledger_id)).closed
