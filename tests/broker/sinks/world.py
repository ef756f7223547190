"""A cluster of three bookies and two brokers, and drivers that write batches through any broker.

A *row* is (index of a partition, text).  The rows of a batch are given by task: each task stages
its rows in the order of the list.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import trio

from daybook.broker.admin.sink_bodies import BatchBody, Share
from daybook.broker.admin.sink_operations import CommittedView, SinkOperations, SinkView
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.sinks.ledgers import sink_ledger_of
from daybook.managed_ledger.sinks.staging import encode_body, staged_entry
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.simulation.cluster import Cluster
from tests.simulation.scheduler import Scheduler, run
from tests.simulation.settings import Settings

TOPIC = "persistent://public/default/t"
PARTITIONS = 2
SINK = "orders"
QUERY = "6ad0b0f3-0b3c-4f7f-9d2e-1c1c1c1c1c1c"
CHECKPOINT = "/checkpoints/orders"
WAIT_S = 20.0

Rows = Sequence[tuple[int, str]]


def staged(text: str) -> bytes:
    return staged_entry(pb.MessageMetadata(event_time=7), text.encode())


def partition(index: int) -> str:
    return f"{TOPIC}-partition-{index}"


@dataclass
class World:
    cluster: Cluster
    here: str = "broker-1"  # the broker that drivers talk to
    counted: dict[str, int] = field(default_factory=lambda: {TOPIC: PARTITIONS})

    @property
    def sinks(self) -> SinkOperations:
        return self.sinks_of(self.here)

    def sinks_of(self, broker: str) -> SinkOperations:
        running = self.cluster.broker(broker)
        assert running is not None
        return running.sinks

    async def call(self, act: Callable[[SinkOperations], Awaitable[object]]) -> object:
        """Run a call at the broker that drivers talk to, as a task of that broker."""
        sinks = self.sinks
        return await self.cluster.call(self.here, lambda: act(sinks))

    async def make_topic(self) -> None:
        broker = self.cluster.broker(self.here)
        assert broker is not None
        await broker.operations.create_partitioned(TopicName.parse(TOPIC), PARTITIONS)

    # -- what a driver and its tasks do

    def batch(
        self, batch_id: int, shares: Sequence[Share | None] = (), **other: object
    ) -> BatchBody:
        body = BatchBody(QUERY, batch_id, dict(self.counted), CHECKPOINT, shares=list(shares))
        for name, value in other.items():
            setattr(body, name, value)
        return body

    async def stage(self, batch_id: int, rows: Rows, *, salt: int = 0, query: str = QUERY) -> Share:
        """Run one task."""
        sinks = self.sinks
        body = self.batch(batch_id, query_id=query)

        async def task() -> Share:
            begun = await sinks.begin(SINK, body)
            attempt, first = str(begun["attempt"]), 0
            for index, text in rows:
                data = encode_body([staged(text)])
                first = await sinks.append(SINK, attempt, partition(index), first, data)
            hash_ = sum(hash((index, text)) + salt for index, text in rows) % (1 << 64)
            return await sinks.close(SINK, attempt, len(rows), hash_)

        return await self.cluster.call(self.here, task)

    async def stage_all(self, batch_id: int, tasks: Sequence[Rows]) -> list[Share | None]:
        return [await self.stage(batch_id, rows) if rows else None for rows in tasks]

    async def commit(
        self, batch_id: int, shares: Sequence[Share | None], **other: object
    ) -> CommittedView:
        sinks, body = self.sinks, self.batch(batch_id, shares, **other)
        return await self.cluster.call(self.here, lambda: sinks.commit(SINK, body))

    async def roll_forward(self, wait_s: float = WAIT_S) -> SinkView:
        sinks = self.sinks
        return await self.cluster.call(self.here, lambda: sinks.roll_forward(SINK, wait_s))

    async def write(self, batch_id: int, tasks: Sequence[Rows]) -> list[Share | None]:
        """Write a whole batch, and wait until it is applied."""
        shares = await self.stage_all(batch_id, tasks)
        assert (await self.commit(batch_id, shares)).outcome == "committed"
        assert (await self.roll_forward()).state == "APPLIED"
        return shares

    # -- what is in the topic

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        network = self.cluster.network.of("client")
        async with connect(
            self.cluster.service_url, network=network, clock=self.cluster.clock, rng=Random(1)
        ) as client:
            yield client

    async def read(self, index: int) -> list[str]:
        """Return the texts in a partition, and check the sequence ids of the sink."""
        return await self.read_topic(partition(index))

    async def read_topic(self, topic: str) -> list[str]:
        texts: list[str] = []
        sequences: dict[str, list[int]] = {}
        async with (
            self.client() as client,
            await client.create_reader(topic, start="earliest") as reader,
        ):
            while await reader.has_message_available():
                message = await reader.receive()
                texts.append((message.data or b"").decode())
                if message.producer_name.startswith("daybook.sink."):
                    found = sequences.setdefault(message.producer_name, [])
                    if message.entry.sequence_id not in found[-1:]:
                        found.append(message.entry.sequence_id)
        for found in sequences.values():
            assert found == list(range(found[0], found[0] + len(found)))
        return texts

    async def owner(self, topic: str) -> str:
        """Return the broker that serves a topic; a reader loads it."""
        await self.read_topic(topic)
        for name in ("broker-1", "broker-2"):
            running = self.cluster.broker(name)
            if running is not None and topic in running.topics.loaded:
                return name
        raise AssertionError(f"nobody serves {topic}")

    async def after_appends(self, topic: str, count: int) -> None:
        """Wait until a broker has appended so many entries to a topic that it serves."""
        running = self.cluster.broker(await self.owner(topic))
        assert running is not None
        log = running.topics.loaded[topic].log
        assert isinstance(log, ManagedLedger)
        while log.appended_entries < count:
            await log.wait_changed()

    async def ledgers_of_sinks(self) -> set[int]:
        """Return the staging ledgers and manifests that exist."""
        client = self.sinks.sinks.ledgers.client
        found: set[int] = set()
        async for ledger_id in client.list_ledgers():
            stored = await client.stored_metadata(ledger_id)
            if sink_ledger_of(stored.metadata.custom) is not None:
                found.add(ledger_id)
        return found


def simulated(story: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    async def main(scheduler: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(scheduler, seed, nursery, Settings(http=True))
            for name in ("bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"):
                await cluster.start(name)
            world = World(cluster)
            await world.make_topic()
            with trio.fail_after(3600):
                await story(world)
            assert cluster.deaths == []
            assert cluster.logs.errors == []
            cluster.end()
            nursery.cancel_scope.cancel()

    run(main, seed=seed)
