"""The caretaker of the bookies: a host with a ledger client of its own.

take_out    ask a bookie to leave, and wait until no ledger names it (`Decommission`)
close_all   in the end: recover each ledger that was left open, so that every ledger is closed
mended      in the end: wait until a bookie can read every entry that it should have
replicate   in the end: ask for an audit, and wait until no ledger lacks copies
reclaim     in the end: bookies drop deleted ledgers, and have nothing else
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from daybook.bookie.errors import LedgerError, RegistryError
from daybook.bookie.ledger.admin_states import AdminStates
from daybook.bookie.ledger.client import LedgerClient, open_ledger_client
from daybook.bookie.ledger.metadata import LedgerState
from daybook.bookie.ledger.protocol.placement import BookieId, fragment_at
from daybook.bookie.ledger.recovery import recover_ledger
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.registry.underreplication import Check, Underreplication
from daybook.bookie.replication.decommission import (
    Decommission,
    DecommissionError,
    DecommissionLimits,
)
from daybook.wire.arena import ArenaPool
from daybook.wire.metadata.store import MetadataError
from daybook.wire.outbox import Flusher
from tests.history.events import Replicated
from tests.history.recorder import Recorder
from tests.simulation.audit import MetadataAudit
from tests.simulation.cluster import Cluster, Life
from tests.simulation.settings import BOOKIE_PORT

_PATHS = LedgerPaths()
_AGAIN_S = 0.5
_LIMITS = DecommissionLimits(poll_s=1.0)

Work = Callable[[LedgerClient], Awaitable[None]]


async def as_caretaker(cluster: Cluster, name: str, work: Work) -> None:
    """Do the work on a host of that name, which exists for this only; try again if it fails."""
    errors: list[BaseException] = []

    async def main(life: Life, status: trio.TaskStatus[object]) -> None:
        status.started(life)
        try:
            while not await _tried(cluster, life, work):
                await cluster.run.sleep(_AGAIN_S)
        except Exception as error:
            errors.append(error)

    await cluster.live(name, main)
    if (life := cluster.lives.get(name)) is not None:
        await life.ended.wait()
    if errors:
        raise errors[0]


async def _tried(cluster: Cluster, life: Life, work: Work) -> bool:
    """Return False if the work could not be done now."""
    seams, done = cluster.seams(life), False
    try:
        async with seams.metadata.open(life.host) as store, trio.open_nursery() as nursery:
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            async with open_ledger_client(
                store=store,
                network=seams.network,
                rng=seams.chance(),
                clock=seams.clock,
                arenas=ArenaPool(),
                flusher=flusher,
            ) as client:
                await work(client)
                done = True
            nursery.cancel_scope.cancel()
    except* (MetadataError, RegistryError, LedgerError, DecommissionError) as errors:
        cluster.logs.of(life.host).warning("once more", why=str(errors.exceptions[0]))
    return done


async def take_out(cluster: Cluster, bookie: str, interrupted_s: float | None) -> None:
    """Return when no ledger names the bookie any longer and its cookie is gone."""
    leaving = BookieId(f"{bookie}:{BOOKIE_PORT}")

    async def work(client: LedgerClient) -> None:
        nonlocal interrupted_s
        patience_s, interrupted_s = interrupted_s, None
        store = client.context.metadata_store.store
        underreplication, orders = (
            Underreplication(store, _PATHS, "decommission"),
            AdminStates(store, _PATHS),
        )
        decommission = Decommission(client.context, underreplication, orders, leaving, _LIMITS)
        with trio.move_on_after(float("inf") if patience_s is None else patience_s) as scope:
            await decommission.run()
        if scope.cancelled_caught:
            raise DecommissionError("interrupted")

    await as_caretaker(cluster, f"caretaker-of-{bookie}", work)


async def close_all(cluster: Cluster, audit: MetadataAudit) -> None:
    """Recover every open ledger; with no writers and all bookies well, each recovery ends."""

    async def work(client: LedgerClient) -> None:
        for ledger_id, metadata in list(audit.ledgers.items()):
            if metadata.state is not LedgerState.CLOSED:
                stored = await client.context.metadata_store.read(ledger_id)
                await recover_ledger(client.context, ledger_id, stored)

    await as_caretaker(cluster, "caretaker", work)


async def mended(cluster: Cluster, name: str, audit: MetadataAudit) -> None:
    """Wait until a scrub finds no damage in the bookie's ledgers, and none of them is in limbo."""
    bookie = BookieId(f"{name}:{BOOKIE_PORT}")
    while True:
        running = cluster.bookie(name)
        assert running is not None
        maintenance = running.store.maintenance
        await cluster.call(name, maintenance.scrub)
        damaged = any(_is_owed(audit, bookie, *each) for each in maintenance.damaged_entries())
        if not (damaged or running.store.limbo or running.store.rebuilding):
            return
        await cluster.run.sleep(_AGAIN_S)


def _is_owed(audit: MetadataAudit, bookie: BookieId, ledger_id: int, entry_id: int) -> bool:
    metadata = audit.ledgers.get(ledger_id)
    if metadata is None or entry_id > metadata.last_entry_id:
        return False
    ensemble = fragment_at(metadata.fragments, entry_id).ensemble
    return bookie in [ensemble[at] for at in metadata.quorums.write_set(entry_id)]


async def replicate(cluster: Cluster, recorder: Recorder) -> None:
    """Wait until auto-recovery has checked everything and has nothing left to do."""
    await as_caretaker(cluster, "caretaker", partial(_replicate, cluster.run.sleep))
    recorder.note(Replicated())


async def _replicate(sleep: Callable[[float], Awaitable[None]], client: LedgerClient) -> None:
    store = client.context.metadata_store.store
    underreplication = Underreplication(store, _PATHS, "caretaker")
    for _ in range(2):  # The first check may have begun before it was asked for.
        before = await _checks(underreplication)
        await underreplication.request_audit()
        while await _checks(underreplication) == before:
            await sleep(_AGAIN_S)
    while [ledger_id async for ledger_id in underreplication.marked_ledgers()]:
        await sleep(_AGAIN_S)


async def _checks(underreplication: Underreplication) -> int:
    """Return a number that changes with each completed check of all ledgers."""
    path = f"{underreplication.paths.underreplication}/{Check.LEDGERS.value}"
    record = await underreplication.store.get(path)
    return -1 if record is None else record.stat.version


async def reclaim(cluster: Cluster, bookies: list[str], audit: MetadataAudit) -> list[str]:
    """Return the deleted ledgers that bookies still have after a garbage collection."""
    kept: list[str] = []
    for name in bookies:
        running = cluster.bookie(name)
        assert running is not None
        await cluster.call(name, partial(running.housekeeping.make_room))
        deleted = sorted(set(running.store.ledgers()) - set(audit.ledgers))
        if deleted:
            kept.append(f"{name} keeps entries of deleted ledgers: {deleted}")
    return kept
