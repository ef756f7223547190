"""Bookies that lose their disks after an acknowledgement, before the metadata names them."""

from collections.abc import Callable
from functools import partial

import trio
import trio.lowlevel
from trio.abc import Clock

from daybook.bookie.ledger.protocol.placement import BookieId, Quorums
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.wire.metadata.memory import DirectLink, Request
from tests.bookie.replication.cluster import (
    PATHS,
    Cluster,
    Entry,
    bookie_id,
    closed_on,
    open_client,
    open_cluster,
    until,
)
from tests.harness.disk import Platter

WHOLE: dict[int, Entry] = dict.fromkeys(range(4), "good")
DENIALS = (StoreStatus.NO_ENTRY, StoreStatus.NO_LEDGER)


AGAIN: dict[str, object] = {"cookie_repair": "auto"}  # they start with empty directories, too


class HeldLink(DirectLink):
    """A link that holds back a write of the record; with `dies` it carries no later request."""

    def __init__(
        self,
        cluster: Cluster,
        ledger_id: int,
        newcomer: BookieId,
        *,
        number: int = 1,
        dies: bool = False,
    ) -> None:
        super().__init__()
        self._path = PATHS.ledger(ledger_id)
        self._cookie = PATHS.cookie(newcomer)
        self._newcomer = cluster.world.running[name_of(newcomer)].store
        self.had: list[int] | None = None  # the new bookie's ledgers when its cookie was read
        self._before = number - 1
        self._dies = dies
        self.reached = trio.Event()
        self.go_on = trio.Event()
        self.carried_out = trio.Event()

    async def request(self, request: Request, execute: Callable[[], None]) -> None:
        if request.path == self._cookie and self.had is None:
            self.had = self._newcomer.ledgers()
        wanted = request.write and request.path == self._path and not self.reached.is_set()
        if wanted and not self._before:
            self.reached.set()
            await self.go_on.wait()
            execute()
            self.carried_out.set()
            if self._dies:
                await trio.sleep_forever()
        else:
            self._before -= wanted
            await super().request(request, execute)


def name_of(bookie: BookieId) -> str:
    return bookie.partition(":")[0]


async def lose_disks(cluster: Cluster, bookie: BookieId) -> None:
    """Start the bookie with empty disks; it knows which ledgers may have lost entries on it."""
    world, name = cluster.world, name_of(bookie)
    world.stop(name)
    world.platters[name] = Platter(world.rng, latency_s=(0.0002, 0.002))
    await world.start(name)
    while world.running[name].store.limbo:  # noqa: ASYNC110
        await trio.sleep(0.001)


async def denials(cluster: Cluster, ledger_id: int) -> list[tuple[BookieId, int]]:
    """Return the bookies that the metadata names and that deny an entry."""
    metadata = await cluster.metadata(ledger_id)
    found: list[tuple[BookieId, int]] = []
    for entry_id in range(metadata.last_entry_id + 1):
        for bookie in metadata.ensemble_at(entry_id):
            name = name_of(bookie)
            if cluster.world.scopes[name].cancel_called:
                continue
            try:
                await cluster.world.running[name].store.read(ledger_id, entry_id)
            except StoreError as error:
                if error.status in DENIALS:
                    found.append((bookie, entry_id))
    return found


async def test_copies_whose_disks_are_gone_before_the_metadata_name_them(
    autojump_clock: Clock,
) -> None:
    async with open_cluster(4, settings=AGAIN) as cluster:
        ledger_id = await cluster.plant(
            closed_on((0, ["b1", "b2", "b3"])), {"b1": WHOLE, "b2": WHOLE, "b3": WHOLE}
        )
        async with cluster.recovering():
            session = cluster.world.sessions["r1"]
            link = session.link = HeldLink(cluster, ledger_id, bookie_id("b4"), dies=True)
            cluster.lose("b3")
            await link.reached.wait()  # all entries are copied
            await lose_disks(cluster, bookie_id("b4"))
            link.go_on.set()
            await link.carried_out.wait()
            session.crash()
            assert await denials(cluster, ledger_id) == []
            assert link.had == [], "its life is looked up before the first copy"
        cluster.world.metadata.expire(session.store_session_id)
        async with cluster.recovering("r2"):
            await until(lambda: cluster.fully_copied())


async def test_entries_that_recovery_wrote_and_whose_disks_are_gone_before_it_ends(
    autojump_clock: Clock,
) -> None:
    """The last metadata names a bookie that replaced an absent one: earlier metadata does not."""
    async with open_cluster(3, settings=AGAIN) as cluster:
        world = cluster.world
        writer = await cluster.write(10, Quorums(2, 2, 2), close=False)
        ledger_id, named = writer.ledger_id, writer.metadata.last_fragment.ensemble
        (newcomer,) = (b for b in map(BookieId, world.bookies) if b not in named)
        writer.abandon()
        cluster.lose(name_of(named[1]))
        session = world.metadata.session("r1")
        link = HeldLink(cluster, ledger_id, newcomer, number=2)
        session.link = link
        async with open_client(world, session, "r1") as client, trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.open, ledger_id, recover=True))
            await link.reached.wait()  # all entries that may be confirmed are written back
            await lose_disks(cluster, newcomer)
            link.go_on.set()
        assert (await cluster.metadata(ledger_id)).closed
        assert newcomer in (await cluster.metadata(ledger_id)).last_fragment.ensemble
        assert await denials(cluster, ledger_id) == []
        assert link.had == [], "its life is looked up before the first entry"
