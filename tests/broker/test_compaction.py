"""Compaction of topics by key, and what consumers with `readCompacted` get; over raw frames."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.compaction.topic_compaction import CompactionStatus, TopicCompaction
from daybook.broker.limits import CompactionLimits, TopicLimits
from daybook.managed_ledger.compacted import CURSOR, LEDGER
from daybook.managed_ledger.position import Position
from daybook.wire.batch import encode_batch, iter_batch, parse_metadata
from daybook.wire.messages.consumer import Delivery
from daybook.wire.messages.registry import unsigned
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.broker import TOPIC, Client, Cluster, open_broker, payload_of
from tests.harness.fake_log import FakeLog

EARLIEST_ID = pb.MessageIdData(ledgerId=unsigned(-1), entryId=unsigned(-1))
LEDGER_ENTRIES = 4
FIRST = 5


class World:
    """One broker with one topic and its producer."""

    def __init__(self, cluster: Cluster, producer: Client) -> None:
        self.cluster = cluster
        self.broker = cluster.broker
        self.producer = producer
        self.sent = 0

    @property
    def log(self) -> FakeLog:
        return self.broker.log()

    @property
    def compaction(self) -> TopicCompaction:
        return self.broker.topics.loaded[TOPIC].compaction

    async def send(self, *messages: tuple[str, str]) -> list[Position]:
        """Send messages of (key, value), one in an entry; an empty value is a tombstone."""
        for key, value in messages:
            self.producer.send(self.sent, value.encode(), partition_key=key)
            self.sent += 1
        receipts = await self.producer.receipts(len(messages))
        return [Position(ledger, entry) for _, ledger, entry in receipts]

    async def compact(self) -> CompactionStatus:
        self.compaction.start()
        await self.compaction.wait_ended()
        return self.compaction.status

    def trim(self, ledgers: int) -> None:
        """Delete so many ledgers of the log, as retention does."""
        self.log.trimmed = ledgers * LEDGER_ENTRIES

    async def take_over(self) -> None:
        """Lose the topic, as if its broker had died, and load it again."""
        bundle = self.broker.policies.known_bundle_of(TopicName.parse(TOPIC))
        assert bundle is not None
        self.broker.topics.drop_bundle(bundle)
        await trio.sleep(5)
        self.producer = await self.cluster.client()
        await self.producer.producer(producer_name="p")

    async def reader(self, **options: Any) -> Client:
        """Return a client with a reader from the first message on."""
        client = await self.cluster.client()
        options = {"durable": False, "start_message_id": EARLIEST_ID, "name": "r"} | options
        all_options: dict[str, Any] = {"read_compacted": True, "permits": 1000} | options
        await client.subscribe(**all_options)
        return client

    async def read(self, **options: Any) -> list[tuple[str, str]]:
        """Return what a new reader gets."""
        client = await self.reader(**options)
        return await got(client)


async def got(client: Client) -> list[tuple[str, str]]:
    """Return the messages that have come to a client, as (key, value), without removed ones."""
    await client.settle(1)
    found = client.bodies(Delivery)
    client.got.clear()
    return [message for delivery in found for message in messages_of(delivery)]


def messages_of(delivery: Delivery) -> list[tuple[str, str]]:
    metadata, body = parse_metadata(delivery.payload)
    if not metadata.HasField("num_messages_in_batch"):
        return [(metadata.partition_key, bytes(body).decode())]
    singles = iter_batch(bytes(body), metadata.num_messages_in_batch)
    return [(each.key or "", data.decode()) for each, data in singles if not each.compacted_out]


def batch(sequence_id: int, messages: Sequence[tuple[str, str]]) -> bytes:
    singles = [
        (pb.SingleMessageMetadata(payload_size=0, partition_key=key), value.encode())
        for key, value in messages
    ]
    body = encode_batch(singles)
    return payload_of(sequence_id, body, num_messages_in_batch=len(singles))


@asynccontextmanager
async def compacting(**limits: Any) -> AsyncGenerator[World]:
    topic_limits = TopicLimits(compaction=CompactionLimits(**limits))
    async with open_broker(topic_limits=topic_limits) as cluster:
        cluster.broker.logs.ledger_entries = LEDGER_ENTRIES
        client = await cluster.client()
        await client.producer(producer_name="p")
        yield World(cluster, client)


async def test_a_reader_gets_the_last_message_of_each_key_in_order(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "2"))
        assert await world.compact() is CompactionStatus.SUCCESS
        assert await world.read() == [("a", "2"), ("c", "1"), ("b", "2")]


async def test_a_topic_without_a_compacted_ledger_is_read_whole(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"))
        assert await world.read() == [("a", "1"), ("a", "2")]


async def test_messages_behind_the_horizon_come_from_the_topic(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("a", "2"), ("b", "1"))
        await world.compact()
        await world.send(("a", "3"), ("a", "4"))
        assert await world.read() == [("a", "2"), ("b", "1"), ("a", "3"), ("a", "4")]


async def test_a_tombstone_removes_the_key_and_itself(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        await world.send(("a", "1"), ("b", "1"), ("a", ""))
        await world.compact()
        assert await world.read() == [("b", "1")]


async def test_the_last_value_stays_when_its_ledger_is_trimmed(
    autojump_clock: MockClock,
) -> None:
    async with compacting() as world:
        await world.send(*[("a", str(n)) for n in range(4)], ("b", "1"))
        await world.compact()
        await world.send(*[("c", str(n)) for n in range(5)])
        world.trim(2)
        assert await world.read() == [("a", "3"), ("b", "1"), ("c", "3"), ("c", "4")]
        await world.compact()  # It starts from the compacted ledger.
        assert await world.read() == [("a", "3"), ("b", "1"), ("c", "4")]
        await world.take_over()
        assert await world.read() == [("a", "3"), ("b", "1"), ("c", "4")]
        assert len(world.broker.logs.compacted) == 1, "the old ledger is deleted"


async def test_the_cursor_names_ledger_and_horizon(autojump_clock: MockClock) -> None:
    async with compacting() as world:
        positions = await world.send(("a", "1"), ("a", "2"))
        await world.compact()
        cursor = world.log.cursors[CURSOR]
        assert cursor.mark_delete == positions[-1]
        assert list(world.broker.logs.compacted) == [cursor.properties[LEDGER]]
        assert CURSOR not in world.broker.topics.loaded[TOPIC].subscriptions.by_name


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared])
async def test_only_exclusive_and_failover_consumers_read_compacted(
    autojump_clock: MockClock, kind: Any
) -> None:
    async with compacting() as world:
        client = await world.cluster.client()
        refused = await client.subscribe(kind=kind, read_compacted=True)
        assert isinstance(refused, pb.CommandError)
        assert refused.error == pb.NotAllowedError
