"""A bookie leaves, and no entry has fewer copies meanwhile."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest
import trio
from trio.abc import Clock

from daybook.bookie.errors import NotEnoughBookiesError
from daybook.bookie.ledger.admin_states import AdminRecord, AdminState, AdminStates
from daybook.bookie.ledger.protocol.placement import Quorums
from daybook.bookie.registry.cookies import known_bookies
from daybook.bookie.registry.registrations import readonly_bookies, writable_bookies
from daybook.bookie.registry.underreplication import Underreplication
from daybook.bookie.replication.decommission import (
    Decommission,
    DecommissionError,
    DecommissionLimits,
    RemainingLedgers,
)
from daybook.wire.metadata.memory import DirectLink, Request
from daybook.wire.metadata.store import ANY
from tests.bookie.replication.cluster import LIMITS as RECOVERING
from tests.bookie.replication.cluster import PATHS, Cluster, bookie_id, open_cluster, until

B1 = bookie_id("b1")
LIMITS = DecommissionLimits(read_only_timeout_s=30.0, poll_s=5.0)


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with open_cluster(4) as cluster:
        yield cluster


def leaving(cluster: Cluster) -> Decommission:
    return Decommission(
        cluster.client.context, cluster.underreplication, cluster.orders, B1, LIMITS
    )


async def named(cluster: Cluster) -> bool:
    return bool((await leaving(cluster).remaining()).ledgers)


async def test_all_is_moved_and_then_it_is_forgotten(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    for count in (0, 1, 30, 30, 30):
        await cluster.write(count)
    assert await named(cluster)
    told: list[RemainingLedgers] = []
    async with cluster.recovering():
        await leaving(cluster).run(on_progress=told.append)
    assert not await named(cluster)
    assert told[0].ledgers
    assert not told[-1].ledgers
    assert B1 not in await known_bookies(cluster.store, PATHS)
    order = await cluster.orders.read(B1)
    assert order is not None
    assert order.kind is AdminState.LEFT
    cluster.lose("b1")
    assert await cluster.fully_copied()


async def test_no_entry_has_fewer_copies_meanwhile(cluster: Cluster, autojump_clock: Clock) -> None:
    await cluster.write(20)
    await cluster.write(20)
    worst: list[bool] = []
    async with cluster.recovering(), trio.open_nursery() as nursery:

        async def watch() -> None:
            while True:
                worst.append(await cluster.fully_copied())
                await trio.sleep(0.5)

        nursery.start_soon(watch)
        await leaving(cluster).run()
        nursery.cancel_scope.cancel()
    assert len(worst) > 2
    assert all(worst)


async def test_a_writer_goes_on_without_it(cluster: Cluster, autojump_clock: Clock) -> None:
    writers = [await cluster.write(5, close=False) for _ in range(4)]
    async with cluster.recovering():
        await leaving(cluster).request(wait_retention=False)
        assert B1 not in await writable_bookies(cluster.store, PATHS)
        assert B1 in await readonly_bookies(cluster.store, PATHS)
        kept = await leaving(cluster).remaining()
        assert kept.at_writers == kept.ledgers != ()
        for writer in writers:
            await cluster.append(writer, 5)
        assert not (await leaving(cluster).remaining()).at_writers
        await leaving(cluster).run()
        for writer in writers:
            await writer.close()
        await until(lambda: cluster.fully_copied())


async def test_it_may_be_cancelled(cluster: Cluster, autojump_clock: Clock) -> None:
    for _ in range(3):
        await cluster.write(10)
    await leaving(cluster).request(wait_retention=False)
    await leaving(cluster).cancel()

    async def back() -> bool:
        return B1 in await writable_bookies(cluster.store, PATHS)

    await until(back)
    async with cluster.recovering():
        await trio.sleep(60)
    assert await named(cluster)


async def test_waiting_for_retention_copies_nothing(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledgers = [(await cluster.write(10)).ledger_id for _ in range(4)]
    async with cluster.recovering() as running, trio.open_nursery() as nursery:

        async def retain() -> None:
            await trio.sleep(100)
            for ledger_id in ledgers:
                await cluster.client.delete(ledger_id)

        nursery.start_soon(retain)
        await leaving(cluster).run(wait_retention=True)
        assert running.worker.status().copied_entries == 0
    assert B1 not in await known_bookies(cluster.store, PATHS)


async def test_what_is_named_is_not_forgotten(cluster: Cluster, autojump_clock: Clock) -> None:
    for _ in range(4):
        await cluster.write(1)
    with pytest.raises(DecommissionError):
        await leaving(cluster).forget()
    assert B1 in await known_bookies(cluster.store, PATHS)


async def test_without_others_to_take_the_place_nothing_begins(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    await cluster.write(5, Quorums(4, 3, 2))
    with pytest.raises(DecommissionError, match="no bookie could take the place"):
        await leaving(cluster).run()
    assert await cluster.orders.read(B1) is None


async def test_whoever_leaves_is_not_named_by_new_ledgers(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """It is not named even as an absent bookie in the place of a third one."""
    await leaving(cluster).request(wait_retention=False)
    cluster.lose("b2")
    await trio.sleep(1)
    for _ in range(20):
        await cluster.write(1)
    assert not await named(cluster)
    await cluster.orders.give(bookie_id("b2"), AdminRecord(AdminState.RETIRE, 0))
    with pytest.raises(NotEnoughBookiesError, match="leaving, and not counted: b1"):
        await cluster.write(1)
    # A bookie that is read-only for a while is named: it is meant to come back.
    await cluster.orders.give(bookie_id("b2"), AdminRecord(AdminState.READ_ONLY, 0))
    await cluster.write(1)


async def test_with_nobody_left_to_take_the_place_it_says_so(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    for _ in range(5):
        await cluster.write(5)
    async with cluster.recovering(), trio.open_nursery() as nursery:
        await leaving(cluster).request(wait_retention=False)

        async def leave_too() -> None:
            await trio.sleep(0.1)
            for name in ("b2", "b3"):
                await cluster.orders.give(bookie_id(name), AdminRecord(AdminState.LEAVE, 0))

        nursery.start_soon(leave_too)
        with pytest.raises(DecommissionError, match="start another bookie") as raised:
            await leaving(cluster)._empty(wait_retention=False, on_progress=lambda kept: None)
        assert "recommission" in str(raised.value)
        # With another bookie the decommission goes on where it stopped.
        await cluster.orders.withdraw(bookie_id("b2"))
        await cluster.orders.withdraw(bookie_id("b3"))
        await until(lambda: writable(cluster, 3))
        await leaving(cluster).run()
    assert await cluster.fully_copied()


async def writable(cluster: Cluster, count: int) -> bool:
    return len(await writable_bookies(cluster.store, PATHS)) == count


async def test_while_nobody_copies_it_says_so(cluster: Cluster, autojump_clock: Clock) -> None:
    for _ in range(4):
        await cluster.write(5)
    with pytest.raises(DecommissionError, match="nothing is copied"):
        await leaving(cluster).run()
    await cluster.underreplication.pause()
    async with cluster.recovering():
        with pytest.raises(DecommissionError, match="autorecovery resume"):
            await leaving(cluster).run()
        await cluster.underreplication.resume()
        await leaving(cluster).run()


async def test_metadata_that_nobody_can_read_keep_it_and_that_is_said(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    ledger_id = (await cluster.write(1)).ledger_id
    await cluster.store.set(PATHS.ledger(ledger_id), b"?", ANY)
    for wait_retention in (False, True):
        with pytest.raises(DecommissionError, match=f"ledgers {ledger_id} do not parse"):
            await leaving(cluster).run(wait_retention=wait_retention)
    assert B1 in await known_bookies(cluster.store, PATHS)


async def test_it_is_begun_again_wherever_it_was_killed(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    """It is killed at each request to the metadata store; completed steps stay completed."""
    for _ in range(4):
        await cluster.write(3)
    kills = 0
    async with cluster.recovering():
        while True:
            session = cluster.world.metadata.session(f"cli{kills}")
            orders = AdminStates(session, PATHS)
            underreplication = Underreplication(session, PATHS, "cli")
            context = cluster.client.context
            with trio.CancelScope() as scope:
                session.link = _Killing(scope, after=kills)
                await Decommission(context, underreplication, orders, B1, LIMITS).run()
            if not scope.cancelled_caught:
                break
            kills += 1
    assert kills > 10
    order = await cluster.orders.read(B1)
    assert order is not None
    assert order.kind is AdminState.LEFT
    assert B1 not in await known_bookies(cluster.store, PATHS)
    assert await cluster.fully_copied()


class _Killing(DirectLink):
    """A link that kills the client after so many requests."""

    def __init__(self, scope: trio.CancelScope, *, after: int) -> None:
        super().__init__()
        self._scope = scope
        self._left = after

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        if not self._left:
            self._scope.cancel()
            await trio.lowlevel.checkpoint()
        self._left -= 1
        await super().request(request, execute)


async def test_one_that_is_not_here_is_not_waited_for_when_it_leaves(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    for _ in range(4):
        await cluster.write(5)
    cluster.lose("b1")
    async with cluster.recovering(limits=replace(RECOVERING, lost_delay_s=1e6)):
        await leaving(cluster).run()
    assert await cluster.fully_copied()


async def test_one_that_does_not_obey_is_not_waited_for(
    cluster: Cluster, autojump_clock: Clock
) -> None:
    cluster.lose("b1")
    await cluster.world.start("b1")
    cluster.world.sessions["b1"].crash()  # its registration stays, and it gets no notices
    with pytest.raises(DecommissionError, match="still accepts new entries"):
        await leaving(cluster).run()


async def test_an_order_holds_across_restarts(cluster: Cluster, autojump_clock: Clock) -> None:
    orders = AdminStates(cluster.store, PATHS)
    await orders.give(B1, AdminRecord(AdminState.READ_ONLY, 5))
    cluster.lose("b1")
    await cluster.world.start("b1")
    assert B1 in await readonly_bookies(cluster.store, PATHS)
    assert B1 not in await writable_bookies(cluster.store, PATHS)
    assert cluster.world.running["b1"].store.read_only


def test_an_order_is_read_as_it_was_written() -> None:
    order = AdminRecord(AdminState.LEAVE, 17)
    assert order.encode() == b'{"version": 1, "order": "leave", "since_ms": 17}'
    assert AdminRecord.decode(order.encode()) == order
