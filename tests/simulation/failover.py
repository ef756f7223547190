"""The first scenario of the simulated cluster: a broker, a bookie and a session are lost in one
run.

The run has one producer and one consumer, three bookies and two brokers.  The oracle knows which
messages were acknowledged and delivered: no acknowledged message is lost, first deliveries come in
order, and no message is delivered that was not sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError
from daybook.clients.python.message_id import MessageId
from tests.simulation.cluster import Cluster, eventually, start_cluster
from tests.simulation.scheduler import HOST, Scheduler, run

TOPIC = "persistent://public/default/story"
MESSAGES = 400


@dataclass(frozen=True, slots=True)
class Result:
    trace: str
    steps: int
    acknowledged: int
    delivered: int
    virtual_s: float


class Oracle:
    """The run as clients saw it."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self.delivered: list[int] = []

    def check(self) -> None:
        assert self.acknowledged == sorted(self.acknowledged), "receipts out of order"
        lost = set(self.acknowledged) - set(self.delivered)
        assert not lost, f"lost: {sorted(lost)[:10]}"
        first = list(dict.fromkeys(self.delivered))
        assert first == sorted(first), "delivered out of order"
        assert not self.delivered or max(self.delivered) < self.sent, "delivered what nobody sent"


def run_failover(seed: int, trace: Callable[[str], object] | None = None) -> Result:
    """Run it once.  Raise AssertionError if a message was lost, or came out of order."""

    async def main(scheduler: Scheduler) -> Result:
        oracle = Oracle()
        async with trio.open_nursery() as nursery:
            cluster = await start_cluster(scheduler, seed, nursery)
            say(trace, "the cluster is up")
            await _story(cluster, Random(seed), oracle, trace)
            cluster.end()
            nursery.cancel_scope.cancel()
        oracle.check()
        scheduler.record("end", oracle.acknowledged[-1], len(oracle.delivered))
        return Result(
            scheduler.trace.hexdigest()[:16],
            scheduler.policy.steps,
            len(oracle.acknowledged),
            len(oracle.delivered),
            scheduler.clock.now,
        )

    return run(main, seed=seed)


async def _story(
    cluster: Cluster, rng: Random, oracle: Oracle, trace: Callable[[str], object] | None
) -> None:
    async with (
        connect(
            cluster.service_url,
            timeout_s=None,
            network=cluster.network.of("client"),
            clock=cluster.clock,
            rng=Random(rng.random()),
        ) as client,
        trio.open_nursery() as nursery,
    ):
        HOST.set("client")
        await nursery.start(_consume, client, oracle)
        nursery.start_soon(_produce, client, oracle, rng)
        await eventually(lambda: len(oracle.acknowledged) >= 50)
        owner = await client.lookup(TOPIC)
        broker = owner.removeprefix("pulsar://").partition(":")[0]
        say(trace, f"{broker} owns the topic, and is killed")
        cluster.kill(broker)
        await eventually(lambda: len(oracle.acknowledged) >= 120)
        await cluster.start(broker)
        bookie = f"bookie-{rng.randint(1, 3)}"
        say(trace, f"{bookie} loses its power")
        cluster.kill(bookie, power=True)
        await eventually(lambda: len(oracle.acknowledged) >= 200)
        await cluster.start(bookie)
        owner = await client.lookup(TOPIC)
        broker = owner.removeprefix("pulsar://").partition(":")[0]
        say(trace, f"the session of {broker} expires")
        cluster.metadata.expire(broker)
        await eventually(
            lambda: (
                len(oracle.acknowledged) == MESSAGES
                and set(oracle.acknowledged) <= set(oracle.delivered)
            )
        )
        nursery.cancel_scope.cancel()


async def _produce(client: Client, oracle: Oracle, rng: Random) -> None:
    async with await client.create_producer(TOPIC, send_timeout_s=None) as producer:
        for number in range(MESSAGES):

            def note(_: MessageId | None, error: BrokerError | None, number: int = number) -> None:
                assert error is None, f"{number}: {error!r}"
                oracle.acknowledged.append(number)

            await producer.wait_room()
            oracle.sent = number + 1
            producer.send_nowait(b"%d" % number, key=f"k{number % 5}", on_result=note)
            await trio.sleep(rng.random() * 0.04)
        await producer.flush()


async def _consume(
    client: Client, oracle: Oracle, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    async with await client.subscribe(TOPIC, "story", initial_position="earliest") as consumer:
        task_status.started()
        while True:
            batch = await consumer.receive_batch(50)
            oracle.delivered += [int(message.data or b"") for message in batch]
            await consumer.ack(batch)


def say(trace: Callable[[str], object] | None, text: str) -> None:
    if trace is not None:
        trace(f"{trio.current_time():9.3f} s  {text}")
