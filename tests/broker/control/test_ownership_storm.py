"""Three brokers under random faults, from a seed: finally each bundle has one knowing owner."""

import random
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.errors import BrokerError
from daybook.broker.ownership.membership import owners
from daybook.broker.protocol.bundles import BundleName
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import Cluster, ControlPlane, open_cluster

HOSTS = ("one", "two", "three")
TOPICS = [TopicName.parse(f"topic-{index}") for index in range(8)]
STEPS = 60


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.brokers: dict[str, ControlPlane] = {}

    async def run(self) -> None:
        for host in HOSTS:
            self.brokers[host] = await self.cluster.start(host)
        async with trio.open_nursery() as nursery:
            for _ in range(STEPS):
                await self.step(nursery)
                await trio.sleep(self.rng.choice([0, 0.001, 0.05, 0.5, 3.0]))
            for broker in self.alive:
                broker.session.link._losses.clear()  # type: ignore[attr-defined]
                broker.session.resume()
            await trio.sleep(40)  # longer than any request takes
            for broker in self.alive:
                broker.session.link._losses.clear()  # type: ignore[attr-defined]

    @property
    def alive(self) -> list[ControlPlane]:
        return [self.brokers[host] for host in HOSTS if host in self.brokers]

    async def step(self, nursery: trio.Nursery) -> None:
        rng = self.rng
        broker = rng.choice(self.alive)
        match rng.choice(
            ["lookup"] * 6 + ["release"] * 3 + ["lose"] * 4 + ["contact"] * 3 + ["end"]
        ):
            case "lookup":
                nursery.start_soon(self.lookup, rng.choice(TOPICS))
            case "release":
                nursery.start_soon(self.release, broker)
            case "lose":
                operation = rng.choice(["multi", "multi", "create", ""])
                broker.session.link.lose_next(  # type: ignore[attr-defined]
                    applied=rng.random() < 0.5, operation=operation
                )
            case "contact":
                if rng.random() < 0.5:
                    broker.session.suspend()
                else:
                    broker.session.resume()
            case "end":
                if rng.random() < 0.5:
                    self.cluster.store.expire(broker.session_id)
                else:
                    nursery.start_soon(self.replace, broker)

    async def lookup(self, topic: TopicName) -> None:
        brokers = self.alive
        self.rng.shuffle(brokers)
        with suppress(BrokerError, StopIteration, RuntimeError):  # A client tries again.
            await self.cluster.lookup(brokers, topic, hops_max=4)

    async def release(self, broker: ControlPlane) -> None:
        if broker.ownership.owned:
            with suppress(BrokerError):
                await broker.ownership.release(self.rng.choice(broker.ownership.owned))

    async def replace(self, broker: ControlPlane) -> None:
        """Kill the broker and start it again; the old session expires some time."""
        if self.brokers.get(broker.host) is not broker or len(self.brokers) == 1:
            return
        del self.brokers[broker.host]
        broker.kill()
        await trio.sleep(self.rng.choice([0.0, 0.2, 5.0]))
        self.brokers[broker.host] = await self.cluster.start(broker.host)
        await trio.sleep(2.0)
        self.cluster.store.expire(broker.session_id)


@pytest.mark.parametrize("seed", range(40))
async def test_after_the_storm_every_bundle_has_one_owner(
    seed: int, autojump_clock: MockClock
) -> None:
    async with open_cluster() as cluster:
        storm = Storm(cluster, seed)
        await storm.run()
        assert len(storm.alive) == len(HOSTS)
        for topic in TOPICS:
            for broker in storm.alive:
                others = [b for b in storm.alive if b is not broker]
                result, _ = await cluster.lookup([broker, *others], topic)
                (owner,) = [b for b in storm.alive if b.ownership.owns(topic)]
                assert result.service_url == owner.identity.service_url
                assert owner.ownership.may_load(topic)
        claimed: dict[BundleName, int] = {}
        for broker in storm.alive:
            for bundle in broker.ownership.owned:
                assert bundle not in claimed
                claimed[bundle] = broker.session_id
        recorded = {o.bundle: o.session for o in await owners(storm.alive[0].session)}
        assert {b: s for b, s in recorded.items() if b in claimed} == claimed
