"""The client in the simulator: brokers die and come back, connections break, nothing is lost.

The brokers are fakes that share a log.  One seed gives one run: faults and their times are drawn
from it.
"""

import random
from functools import partial

import pytest
import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.message_id import MessageId
from daybook.wire.batch import iter_batch, parse_metadata
from tests.clients.python.fake_broker import FakeBroker, FakeCluster
from tests.harness.clocks import VirtualClock
from tests.harness.network import SimulatedNetwork
from tests.simulation.scheduler import Scheduler, run

TOPIC = "persistent://public/default/t"
MESSAGES = 300
LIMITS = ClientLimits(keep_alive_s=1, request_timeout_s=3, connect_timeout_s=2)


class Trouble:
    """Causes faults for a while, then leaves everything in order."""

    def __init__(self, rng: random.Random, cluster: FakeCluster, network: SimulatedNetwork) -> None:
        self.rng = rng
        self.cluster = cluster
        self.network = network

    async def run(self, nursery: trio.Nursery) -> None:
        for _ in range(12):
            await trio.sleep(self.rng.uniform(0, 1))
            broker = self.cluster.broker_of(TOPIC)
            match self.rng.randrange(7):
                case 0:
                    await self.kill(nursery, broker)
                case 1:
                    self.network.cut(broker.host)
                case 2:
                    self.cluster.owner[TOPIC] = self.rng.choice(list(self.cluster.brokers))
                    broker.close_producers()
                    broker.close_consumers()
                case 3:
                    await self.lose_receipts(nursery, broker)
                case 4:
                    broker.silent = True
                    await trio.sleep(self.rng.uniform(0, 4))
                    broker.silent = False
                    self.network.cut(broker.host)  # The broker has forgotten its requests.
                case 5:
                    broker.send_errors = [2] * self.rng.randrange(4)
                case _:
                    self.network.block(broker.host, "client")
                    await trio.sleep(self.rng.uniform(0, 3))
                    self.network.unblock(broker.host, "client")
                    self.network.cut(broker.host)

    async def lose_receipts(self, nursery: trio.Nursery, broker: FakeBroker) -> None:
        broker.hold_receipts = True
        await trio.sleep(self.rng.uniform(0, 0.5))
        if self.rng.random() < 0.5:
            await self.kill(nursery, broker)
        else:
            broker.release_receipts()

    async def kill(self, nursery: trio.Nursery, broker: FakeBroker) -> None:
        broker.kill()
        self.network.crash(broker.host)
        broker.hold_receipts = broker.silent = False
        self.cluster.owner[TOPIC] = self.rng.choice(list(self.cluster.brokers))
        await trio.sleep(self.rng.uniform(0, 1))
        await nursery.start(broker.run)


class Run:
    """One producer and one consumer, and the outcome of their messages."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cluster = FakeCluster()
        self.ids: dict[int, MessageId] = {}
        self.failures: list[BrokerError] = []
        self.delivered: set[int] = set()
        self.acked: set[MessageId] = set()
        self.acked_twice: list[MessageId] = []

    async def main(self, scheduler: Scheduler) -> None:
        del scheduler
        seed = self.seed
        network = SimulatedNetwork(random.Random(seed + 1))
        async with trio.open_nursery() as nursery:
            for name in ("b1", "b2", "b3"):
                broker = FakeBroker(self.cluster, name, network.of(name), name)
                self.cluster.brokers[name] = broker
                await nursery.start(broker.run)
            connecting = connect(
                self.cluster.url,
                limits=LIMITS,
                network=network.of("client"),
                clock=VirtualClock(),
                rng=random.Random(seed + 2),
            )
            trouble = Trouble(random.Random(seed + 3), self.cluster, network)
            with trio.fail_after(600):
                async with connecting as client, trio.open_nursery() as work:
                    work.start_soon(trouble.run, nursery)
                    work.start_soon(self.consume, client)
                    work.start_soon(self.produce, client)
            nursery.cancel_scope.cancel()

    async def produce(self, client: Client) -> None:
        rng = random.Random(self.seed + 4)
        async with await client.create_producer("t", send_timeout_s=None) as producer:
            for n in range(MESSAGES):
                producer.send_nowait(b"%d" % n, on_result=partial(self.note, n))
                if rng.random() < 0.3:
                    await trio.sleep(rng.uniform(0, 0.15))
            await producer.flush()

    def note(self, n: int, message_id: MessageId | None, error: BrokerError | None) -> None:
        if error is not None:
            self.failures.append(error)
        if message_id is not None:
            self.ids[n] = message_id

    async def consume(self, client: Client) -> None:
        rng = random.Random(self.seed + 5)
        consumer = await client.subscribe("t", "s", initial_position="earliest", ack_receipts=True)
        done: set[int] = set()
        while len(done) < MESSAGES:
            message = await consumer.receive()
            if message.message_id in self.acked:
                self.acked_twice.append(message.message_id)
            self.delivered.add(int(message.data or b""))
            if rng.random() < 0.9:
                await consumer.ack(message)
                self.acked.add(message.message_id)
                done.add(int(message.data or b""))
            else:
                consumer.nack(message)

    def stored(self) -> dict[MessageId, int]:
        found: dict[MessageId, int] = {}
        for number, entry in enumerate(self.cluster.topics[TOPIC].entries):
            metadata, body = parse_metadata(memoryview(entry.payload))
            for index, (_, data) in enumerate(iter_batch(body, metadata.num_messages_in_batch)):
                found[MessageId(7, number, index)] = int(data)
        return found


@pytest.mark.parametrize("seed", [*range(12), 160])  # 160: sending noticed the loss first
def test_nothing_is_lost_or_reordered(seed: int) -> None:
    what = Run(seed)
    run(what.main, seed=seed)
    log = what.stored()
    assert what.failures == []
    assert {log[message_id] for message_id in what.ids.values()} == set(range(MESSAGES))
    assert all(log[message_id] == n for n, message_id in what.ids.items())
    first_time = list(dict.fromkeys(log.values()))
    assert first_time == list(range(MESSAGES))
    assert what.delivered == set(range(MESSAGES))
    assert what.acked_twice == []
