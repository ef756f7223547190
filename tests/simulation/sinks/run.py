"""The frame of every run with sinks: a simulated cluster, one topic, its readers and an audit."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from random import Random

import trio

from daybook.broker.errors import BrokerError as AdminRefusal
from daybook.broker.namespaces.policy_table import DEDUPLICATION
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.wire.topics import TopicName
from tests.simulation.cluster import Cluster, HostDiedError
from tests.simulation.scheduler import HOST, Scheduler, run
from tests.simulation.settings import Settings
from tests.simulation.sinks.audit import SinkAudit
from tests.simulation.sinks.drivers import PARTITIONS, TOPIC, Drivers, Habits, partition
from tests.simulation.sinks.watching import watched

LIMIT_S = 3_000.0
BROKERS = ("broker-1", "broker-2")
BOOKIES = ("bookie-1", "bookie-2", "bookie-3", "bookie-4")


@dataclass
class Stage:
    """The parts of a run."""

    scheduler: Scheduler
    cluster: Cluster
    rng: Random
    audit: SinkAudit
    drivers: Drivers
    say: Callable[[str], None]

    async def make_topic(self, *, deduplication: bool) -> None:
        running = self.cluster.broker("broker-1")
        assert running is not None
        topic = TopicName.parse(TOPIC)
        await running.operations.create_partitioned(topic, PARTITIONS)
        if deduplication:
            await running.operations.set_topic_policy(topic, DEDUPLICATION, True)

    def client(self, host: str) -> AbstractAsyncContextManager[Client]:
        return connect(
            self.cluster.service_url,
            timeout_s=None,
            network=self.cluster.network.of(host),
            clock=self.cluster.clock,
            rng=Random(host),
        )

    async def produce(self) -> None:
        """Send other messages to the topic."""
        HOST.set("client")
        async with (
            self.client("client") as client,
            await client.create_producer(TOPIC, send_timeout_s=None) as producer,
        ):
            while True:
                await producer.send(b"other")
                await trio.sleep(self.rng.uniform(0.05, 0.5))

    async def tail(self, index: int) -> None:
        """Read a topic partition behind its writers, and tell the audit what is there."""
        host = f"tail-{index}"
        HOST.set(host)
        topic = partition(index)
        async with (
            self.client(host) as client,
            await client.create_reader(topic, start="earliest") as reader,
        ):
            while True:
                message = await reader.receive()
                if message.producer_name.startswith("daybook.sink."):
                    text = (message.data or b"").decode()
                    self.audit.found(topic, message.producer_name, message.sequence_id, text)

    async def read(self) -> dict[str, list[tuple[str, int, str]]]:
        """Return the entries of sinks by topic partition: (producer, sequence id, text)."""
        found: dict[str, list[tuple[str, int, str]]] = {}
        async with self.client("reader") as client:
            for topic in map(partition, range(PARTITIONS)):
                entries = found[topic] = []
                async with await client.create_reader(topic, start="earliest") as reader:
                    while await reader.has_message_available():
                        message = await reader.receive()
                        if message.producer_name.startswith("daybook.sink."):
                            text = (message.data or b"").decode()
                            entries.append((message.producer_name, message.sequence_id, text))
        return found

    async def unload(self, name: str) -> None:
        running = self.cluster.broker(name)
        if running is None:
            return
        topic = TopicName.parse(TOPIC)
        with suppress(AdminRefusal, HostDiedError), trio.move_on_after(5.0):
            await self.cluster.call(name, lambda: running.operations.unload_topic(topic))

    async def check_end(self) -> None:
        """Read the topic, and wait until no ledger of the query that has the sink is left."""
        self.audit.check_end(await self.read())
        with trio.fail_after(600.0):
            while left := self.audit.left():
                self.say(f"the ledgers of {left} are left")
                await trio.sleep(5.0)


Main = Callable[[Stage], Awaitable[None]]


def play(
    seed: int,
    main: Main,
    *,
    settings: Settings,
    habits: Habits,
    deduplication: bool = False,
    busy: bool = True,
    tails: bool = True,
    say: Callable[[str], None] | None = None,
) -> Stage:
    """Run `main`, with `tails` beside readers, and with `busy` beside a producer; check the end.

    Raise AssertionError if a promise was broken.
    """

    async def whole(scheduler: Scheduler) -> Stage:
        def tell(text: str) -> None:
            if say is not None:
                say(f"{trio.current_time():9.3f} s  {text}")

        def tell_line(line: str, host: str) -> None:
            tell(f"{host}: {line}")

        rng = Random(seed)
        async with trio.open_nursery() as nursery:
            log = None if say is None else tell_line
            cluster = Cluster(scheduler, seed, nursery, settings, log)
            for name in (*BOOKIES, *BROKERS):
                await cluster.start(name)
            cluster.metadata.tree.observer = audit.changed
            drivers = Drivers(cluster, audit, rng, habits, tell)
            stage = Stage(scheduler, cluster, rng, audit, drivers, tell)
            await stage.make_topic(deduplication=deduplication)
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as actors:
                    if busy:
                        actors.start_soon(stage.produce)
                    for index in range(PARTITIONS if tails else 0):
                        actors.start_soon(stage.tail, index)
                    await main(stage)
                    await stage.check_end()
                    actors.cancel_scope.cancel()
            problems = [*audit.problems, *cluster.deaths, *cluster.logs.errors]
            cluster.end()
            nursery.cancel_scope.cancel()
        assert problems == [], f"seed {seed}: {problems[:5]}"
        return stage

    audit = SinkAudit()
    with watched(audit):
        return run(whole, seed=seed)
