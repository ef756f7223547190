"""The running brokers remove ledgers that nothing names, and no others."""

import re

import trio

from daybook.bookie.ledger.client import LedgerClient, Quorums
from daybook.managed_ledger.records import custom_metadata
from daybook.managed_ledger.tree import tree_id
from daybook.wire.topics import TopicName
from tests.simulation import scheduler
from tests.simulation.caretaker import as_caretaker
from tests.simulation.cluster import Cluster, eventually, start_cluster
from tests.simulation.scheduler import Scheduler

NAME = TopicName.parse("persistent://public/default/t")
GONE = "public/default/persistent/gone"
QUORUMS = Quorums(1, 1, 1)


def test_ledgers_of_topics_that_are_gone_and_of_served_ones_are_removed_by_brokers() -> None:
    async def main(handle: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = await start_cluster(handle, 1, nursery)
            ids = await _leave_ledgers(cluster)
            names = ("broker-1", "broker-2")
            await eventually(lambda: not {ids["gone"], ids["gone cursor"]} & _ledgers(cluster))
            left = set(ids.values()) - {ids["gone"], ids["gone cursor"]}
            assert left <= _ledgers(cluster)
            # The broker that owns the topic knows its ledgers for certain when it has opened the
            # topic.
            await _load(cluster)
            await eventually(lambda: ids["unlisted"] not in _ledgers(cluster))
            assert left - {ids["unlisted"]} <= _ledgers(cluster)
            # The creation of a former owner may arrive when the topic is open at the next one.
            late = await _leave_one(cluster)
            await eventually(lambda: late not in _ledgers(cluster))
            await eventually(lambda: sum(_removed(cluster, name) for name in names) == 4)
            said = cluster.logs.lines["removed ledgers that nothing names"]
            assert 3 <= said <= 4
            assert cluster.deaths == []
            cluster.end()

    scheduler.run(main, seed=1)


async def _leave_ledgers(cluster: Cluster) -> dict[str, int]:
    ids: dict[str, int] = {}

    async def work(client: LedgerClient) -> None:
        tree = await tree_id(client.context.metadata_store.store, cluster.rng)
        for what, custom in (
            ("gone", custom_metadata(GONE, tree=tree)),
            ("gone cursor", custom_metadata(GONE, "s", tree)),
            ("unlisted", custom_metadata(NAME.managed_ledger_name, tree=tree)),
            ("older version", custom_metadata(GONE)),
            ("another tree", custom_metadata(GONE, tree="another")),
            ("somebody's", {"application": b"mine"}),
        ):
            writer = await client.create(QUORUMS, custom=custom)
            writer.abandon()
            ids[what] = writer.ledger_id

    loaded = await _load(cluster)
    await as_caretaker(cluster, "caretaker", work)
    # No broker has the topic open: nobody knows what its owner is about to do.
    await cluster.call(loaded, lambda: _unload(cluster, loaded))
    return ids


async def _leave_one(cluster: Cluster) -> int:
    ids: list[int] = []

    async def work(client: LedgerClient) -> None:
        tree = await tree_id(client.context.metadata_store.store, cluster.rng)
        custom = custom_metadata(NAME.managed_ledger_name, tree=tree)
        writer = await client.create(QUORUMS, custom=custom)
        writer.abandon()
        ids.append(writer.ledger_id)

    await as_caretaker(cluster, "caretaker of a late one", work)
    return ids[0]


async def _load(cluster: Cluster) -> str:
    """Load the topic and return the broker that loaded it."""
    for name in ("broker-1", "broker-2"):
        running = cluster.broker(name)
        assert running is not None

        async def look(name: str = name) -> None:
            running = cluster.broker(name)
            assert running is not None
            bundle = await running.operations.policies.bundle_of(NAME)
            await running.ownership.acquire(bundle)
            if running.ownership.owns_bundle(bundle):
                await running.topics.get(NAME, create=True)

        await cluster.call(name, look)
        if NAME.full in running.topics.loaded:
            return name
    raise AssertionError("nobody serves the topic")


async def _unload(cluster: Cluster, name: str) -> None:
    running = cluster.broker(name)
    assert running is not None
    await running.topics.unload(NAME)


def _removed(cluster: Cluster, name: str) -> int:
    running = cluster.broker(name)
    assert running is not None
    text = running.metrics.exposition().decode()
    found = re.search(r"^daybook_broker_orphaned_ledgers_removed_total\{.*\} (\d+)", text, re.M)
    assert found is not None
    return int(found[1])


def _ledgers(cluster: Cluster) -> set[int]:
    paths = cluster.metadata.tree._nodes
    found = (re.fullmatch(r"/ledgers/00/(\d{4})/L(\d{4})", path) for path in paths)
    return {int(each[1] + each[2]) for each in found if each is not None}
