"""Permits that a broker of ours has taken come back, whatever becomes of the entries.

The tests use a real broker over a log in memory, and a real client.  When nothing is under way, the
broker has as many permits as the client believes: otherwise one of them waits forever, sooner or
later.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from daybook.broker.dispatch.entries import delivered_head
from daybook.broker.dispatch.subscription import Subscription
from daybook.clients.python.arguments import SubscriptionTypeName
from daybook.clients.python.client import Client
from daybook.clients.python.consumer import Consumer, MessageSource
from daybook.clients.python.entries import permits_of
from daybook.clients.python.errors import CorruptMessageError
from daybook.clients.python.reader import Reader
from daybook.wire.batch import encode_batch
from daybook.wire.messages.consumer import Delivery
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.clients.python.real_broker import client_of, real_broker
from tests.harness.broker import TOPIC, Cluster, batch_of, payload_of

LAST = b"the last one"
QUEUE = 10
KINDS: tuple[SubscriptionTypeName, ...] = ("exclusive", "failover", "shared")


def damaged(entry: bytes) -> bytes:
    return entry[:-1] + bytes((entry[-1] ^ 1,))


ENTRIES: dict[str, Callable[[], bytes]] = {
    "a message": lambda: payload_of(0),
    "an empty message": lambda: payload_of(0, b""),
    "a batch": lambda: batch_of(0, 7),
    "a batch of one": lambda: batch_of(0, 1),
    "larger than the queue": lambda: batch_of(0, 3 * QUEUE),
    "encrypted": lambda: payload_of(
        0,
        num_messages_in_batch=7,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
    ),
    "a wrong checksum": lambda: damaged(batch_of(0, 7)),
    "no ZSTD": lambda: payload_of(
        0, num_messages_in_batch=7, compression=pb.ZSTD, uncompressed_size=100
    ),
    "too large when decompressed": lambda: payload_of(
        0, num_messages_in_batch=7, compression=pb.LZ4, uncompressed_size=1 << 30
    ),
    "cut off in the batch": lambda: payload_of(0, b"\0\0\0", num_messages_in_batch=7),
    "fewer messages than it says": lambda: payload_of(
        0,
        encode_batch([(pb.SingleMessageMetadata(payload_size=1), b"1")]),
        num_messages_in_batch=7,
    ),
    "a chunk": lambda: payload_of(0, uuid="u", num_chunks_from_msg=2, chunk_id=0),
    "no messages at all": lambda: payload_of(0, num_messages_in_batch=0),
    "fewer than none": lambda: payload_of(0, num_messages_in_batch=-5),
    "too many": lambda: payload_of(0, num_messages_in_batch=1 << 19),
    "a name that is no text": lambda: batch_of(0, 7).replace(b"\x01p", b"\x01\xff", 1),
    "no metadata": lambda: b"\0\0\0\x09abc",
    "nothing": lambda: b"",
}


@asynccontextmanager
async def serving(*entries: bytes) -> AsyncGenerator[tuple[Cluster, Client]]:
    """Run a broker whose topic has these entries and a last readable one, and a client."""
    async with real_broker() as cluster:
        await cluster.broker.logs.create(TopicName.parse(TOPIC), {})
        append(cluster, *entries, payload_of(0, LAST))
        async with client_of(cluster, "app") as client:
            yield cluster, client


def append(cluster: Cluster, *entries: bytes) -> None:
    for entry in entries:
        count = delivered_head(memoryview(entry)).messages
        cluster.broker.log().append([entry], count, lambda _, error: None)


def subscription_of(cluster: Cluster) -> Subscription:
    (subscription,) = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name.values()
    return subscription


async def check(cluster: Cluster, source: MessageSource) -> None:
    """Check that both sides count the same, with nothing under way."""
    await trio.sleep(1)
    subscription = subscription_of(cluster)
    (key,) = subscription.consumers
    (end,) = source._partition_consumers
    waiting = sum(permits_of(e.delivery, e.payload) for e in source._queue.waiting_of(end))
    assert subscription.dispatch.permits_of(key) == end._permits._outstanding - waiting


async def receive_to_the_end(source: Consumer | Reader, *, ack: bool = False) -> int:
    """Receive until the last message; return the number of unreadable entries."""
    unreadable = 0
    with trio.fail_after(600):
        while True:
            try:
                message = await source.receive()
            except CorruptMessageError as error:
                unreadable += 1
                if ack and isinstance(source, Consumer):
                    await source.ack(error.message_id)
                continue
            if ack and isinstance(source, Consumer):
                await source.ack(message)
            if message.data == LAST:
                return unreadable


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("kind", [*KINDS, "reader"])
async def test_permits_come_back_for_every_kind_of_entry(
    name: str, kind: str, autojump_clock: MockClock
) -> None:
    entries = [ENTRIES[name]() for _ in range(4 * QUEUE)]
    async with serving(*entries) as (cluster, client):
        if kind == "reader":
            source: Consumer | Reader = await client.create_reader(
                TOPIC, start="earliest", receiver_queue_size=QUEUE
            )
        else:
            source = await client.subscribe(
                TOPIC,
                "s",
                type=cast("SubscriptionTypeName", kind),
                initial_position="earliest",
                receiver_queue_size=QUEUE,
            )
        await receive_to_the_end(source, ack=kind == "shared")
        await check(cluster, source)


@pytest.mark.parametrize("kind", KINDS)
async def test_permits_come_back_for_batches_of_which_a_part_is_acknowledged(
    kind: SubscriptionTypeName, autojump_clock: MockClock
) -> None:
    async with serving(batch_of(0, 7), batch_of(1, 7)) as (cluster, client):
        consumer = await client.subscribe(
            TOPIC,
            "s",
            type=kind,
            initial_position="earliest",
            receiver_queue_size=QUEUE,
            nack_delay_s=0.1,
        )
        messages = [await consumer.receive() for _ in range(15)]
        await consumer.ack(messages[1:5] + messages[8:10])
        await consumer.flush_acks()
        consumer.nack(messages[0])
        consumer.nack(messages[7])
        await receive_to_the_end(consumer) if kind != "shared" else await trio.sleep(5)
        await check(cluster, consumer)


@pytest.mark.parametrize("kind", KINDS)
async def test_permits_come_back_for_what_is_done_or_given_back_before_it_is_taken(
    kind: SubscriptionTypeName, autojump_clock: MockClock
) -> None:
    """Some entries wait in the client when the consumer restarts, seeks, or acknowledges them."""
    entries = [ENTRIES[name]() for name in ("a batch", "encrypted", "a message") for _ in range(9)]
    async with serving(*entries) as (cluster, client):
        consumer = await client.subscribe(
            TOPIC,
            "s",
            type=kind,
            initial_position="earliest",
            receiver_queue_size=50,
            nack_delay_s=0.1,
        )
        first = await consumer.receive()
        await trio.sleep(1)
        consumer.nack(first)
        await trio.sleep(1)
        await check(cluster, consumer)
        await consumer.receive()
        (end,) = consumer._partition_consumers
        for waiting in consumer._queue.waiting_of(end)[:2]:
            end.ack((waiting.delivery.ledger_id, waiting.delivery.entry_id), -1)
        await check(cluster, consumer)
        await consumer.seek("earliest")
        await receive_to_the_end(consumer)
        await check(cluster, consumer)


async def test_a_reader_that_comes_back_counts_what_waits_in_it(autojump_clock: MockClock) -> None:
    """However often it is moved without a receive, no more waits in it than it asked for."""
    entries = [ENTRIES[name]() for _ in range(40) for name in ("a batch", "encrypted")]
    async with serving(*entries) as (cluster, client):
        reader = await client.create_reader(TOPIC, start="earliest", receiver_queue_size=30)
        for _ in range(5):
            await check(cluster, reader)
            (end,) = reader._partition_consumers
            waiting = reader._queue.waiting_of(end)
            assert sum(permits_of(each.delivery, each.payload) for each in waiting) < 30 + 7
            for consumer in list(subscription_of(cluster).consumers.values()):
                consumer.disconnect()
                subscription_of(cluster).remove(consumer)
            await trio.sleep(5)
        assert await receive_to_the_end(reader) == 40
        await check(cluster, reader)


async def test_what_was_on_its_way_to_a_consumer_that_begins_anew_does_not_count(
    autojump_clock: MockClock,
) -> None:
    """A client restarts while the broker sends: those entries come again, and count once."""
    async with serving(*(batch_of(n, 7) for n in range(20))) as (cluster, client):
        reader = await client.create_reader(TOPIC, start="earliest", receiver_queue_size=30)
        (end,) = reader._partition_consumers
        await trio.sleep(1)
        behind = reader._queue.waiting_of(end)[-1].delivery.entry_id + 1
        assert end.connection is not None
        end._start_over(end.connection)
        batch = batch_of(behind, 7)
        end.on_delivery(Delivery(end._id, 5, behind, -1, 0, None, None, memoryview(batch)))
        await check(cluster, reader)
        found = 0
        while (await reader.receive()).data != LAST:
            found += 1
        assert found == 20 * 7
        await check(cluster, reader)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    names=st.lists(st.sampled_from(sorted(ENTRIES)), min_size=1, max_size=30),
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 40),
    ack=st.booleans(),
)
def test_permits_come_back_in_any_mixture(
    names: list[str],
    kind: SubscriptionTypeName,
    size: int,
    ack: bool,
) -> None:
    async def main() -> None:
        async with serving(*(ENTRIES[name]() for name in names)) as (cluster, client):
            consumer = await client.subscribe(
                TOPIC, "s", type=kind, initial_position="earliest", receiver_queue_size=size
            )
            # Too many unacknowledged messages keep a shared consumer from the rest.
            await receive_to_the_end(consumer, ack=ack or kind == "shared")
            await check(cluster, consumer)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(entry=st.binary(max_size=200), ack_set=st.none() | st.integers(0, 1 << 20))
def test_broker_and_client_count_the_same(entry: bytes, ack_set: int | None) -> None:
    for data in (entry, *(made() + entry for made in ENTRIES.values())):
        counted = delivered_head(memoryview(data)).messages
        delivery = Delivery(1, 5, 0, -1, 0, ack_set, None, memoryview(b""))
        wanted = counted if ack_set is None else (ack_set & ((1 << counted) - 1)).bit_count()
        assert permits_of(delivery, data) == wanted
