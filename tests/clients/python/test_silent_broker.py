"""A broker whose host falls silent: connections open, none is refused, and no answer ever comes."""

import random

import pytest
import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from tests.clients.python.fake_broker import FakeBroker, FakeCluster
from tests.harness.clocks import VirtualClock
from tests.harness.network import SimulatedNetwork
from tests.simulation.scheduler import Scheduler, run

TOPIC = "persistent://public/default/t"
TAKEOVER_S = 2.0  # seconds that the cluster takes to notice
DOWN_MAX_S = 5.0


class _Run:
    """Two brokers; the one that serves the topic falls silent, the other one takes over."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cluster = FakeCluster()

    async def main(self, scheduler: Scheduler) -> None:
        del scheduler
        network = SimulatedNetwork(random.Random(self.seed))
        async with trio.open_nursery() as nursery:
            for name in ("b1", "b2"):
                broker = FakeBroker(self.cluster, name, network.of(name), name)
                self.cluster.brokers[name] = broker
                await nursery.start(broker.run)
            self.cluster.owner[TOPIC] = "b1"
            async with connect(
                self.cluster.url,
                network=network.of("client"),
                clock=VirtualClock(),
                rng=random.Random(self.seed),
            ) as client:
                with trio.fail_after(300):
                    await self.story(client)
            nursery.cancel_scope.cancel()

    async def story(self, client: Client) -> None:
        raise NotImplementedError

    async def fall_silent(self) -> None:
        self.cluster.brokers["b1"].silent = True
        await trio.sleep(TAKEOVER_S)
        self.cluster.owner[TOPIC] = "b2"


class _Sending(_Run):
    """Several users of one client find the new owner; none sends the others back to the old one."""

    async def story(self, client: Client) -> None:
        producers = [await client.create_producer("t") for _ in range(3)]
        consumer = await client.subscribe("t", "s", initial_position="earliest")
        for producer in producers:
            await producer.send(b"before")
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(producer.send, b"after")
            await self.fall_silent()
        assert trio.current_time() - started < DOWN_MAX_S
        data = [(await consumer.receive()).data for _ in range(6)]
        assert data.count(b"after") == 3
        assert trio.current_time() - started < 2 * DOWN_MAX_S


class _Idle(_Run):
    """An idle connection is probed seldom."""

    async def story(self, client: Client) -> None:
        await client.create_producer("t")
        broker = self.cluster.brokers["b1"]
        before = len(broker.received)
        await trio.sleep(60)
        assert 5 <= len(broker.received) - before <= 12


@pytest.mark.parametrize("seed", range(8))
def test_it_is_left_in_seconds_by_those_who_wait_for_it(seed: int) -> None:
    run(_Sending(seed).main, seed=seed)


def test_who_waits_for_nothing_asks_seldom() -> None:
    run(_Idle(1).main, seed=1)
