"""C++ clients return one permit for an unreadable batch: they must still get other messages."""

import pytest
from trio.testing import MockClock

from daybook.wire.messages.consumer import Delivery, encode_ack
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import TOPIC, Client, Cluster, open_broker

_TYPES = (
    pb.CommandSubscribe.Exclusive,
    pb.CommandSubscribe.Failover,
    pb.CommandSubscribe.Shared,
)
_BATCHES, _MESSAGES, _PERMITS = 20, 10, 20
_CPP = "Pulsar-CPP-v3.8.0"


async def _consumer(
    cluster: Cluster, version: str, kind: pb.CommandSubscribe.SubType, permits: int = _PERMITS
) -> Client:
    client = await cluster.client(version=version)
    await client.producer()
    answer = await client.subscribe(kind=kind, permits=permits)
    assert isinstance(answer, pb.CommandSuccess)
    for n in range(_BATCHES):
        client.send_batch(n, _MESSAGES)
    await client.receipts(_BATCHES)
    await client.settle()
    return client


def _permits(cluster: Cluster) -> int:
    subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name["sub"]
    (key,) = subscription.consumers
    return subscription.dispatch.permits_of(key)


async def _discard(client: Client, error: int, *, acks: int = 1) -> int:
    """Discard entries as C++ does, with `acks` acks each; return the number of batches."""
    count = 0
    while client.bodies(Delivery):
        (got,) = await client.deliveries(1)
        ack = encode_ack(1, [(got.ledger_id, got.entry_id, None)], validation_error=error)
        client.frames.send([ack] * acks)
        client.flow(1)
        count += 1
        await client.settle()
    return count


@pytest.mark.parametrize("kind", _TYPES)
async def test_batches_that_cannot_be_read_do_not_use_up_the_permits(
    autojump_clock: MockClock, kind: pb.CommandSubscribe.SubType
) -> None:
    async with open_broker() as cluster:
        client = await _consumer(cluster, _CPP, kind)
        assert await _discard(client, pb.CommandAck.DecompressionError) == _BATCHES
        assert _permits(cluster) == _PERMITS


@pytest.mark.parametrize("kind", _TYPES)
async def test_permits_are_freed_once_for_each_batch(
    autojump_clock: MockClock, kind: pb.CommandSubscribe.SubType
) -> None:
    async with open_broker() as cluster:
        client = await _consumer(cluster, _CPP, kind)
        await _discard(client, pb.CommandAck.ChecksumMismatch, acks=3)
        assert _permits(cluster) == _PERMITS


@pytest.mark.parametrize("kind", _TYPES)
async def test_a_batch_that_was_read_in_part_frees_no_permits(
    autojump_clock: MockClock, kind: pb.CommandSubscribe.SubType
) -> None:
    async with open_broker() as cluster:
        client = await _consumer(cluster, _CPP, kind)
        assert await _discard(client, pb.CommandAck.BatchDeSerializeError) < _BATCHES
        assert _permits(cluster) <= 0


@pytest.mark.parametrize("version", ["Pulsar-Java-v4.0.0", "Pulsar Go 0.14", "test"])
async def test_a_client_that_may_return_all_permits_gets_none(
    autojump_clock: MockClock, version: str
) -> None:
    async with open_broker() as cluster:
        client = await _consumer(cluster, version, pb.CommandSubscribe.Shared)
        assert await _discard(client, pb.CommandAck.DecryptionError) < _BATCHES
        assert _permits(cluster) <= 0


@pytest.mark.parametrize("kind", _TYPES)
async def test_what_was_delivered_to_nobody_frees_no_permits(
    autojump_clock: MockClock, kind: pb.CommandSubscribe.SubType
) -> None:
    async with open_broker() as cluster:
        client = await _consumer(cluster, _CPP, kind, permits=1)
        before = _permits(cluster)
        ids = [(5, n, None) for n in range(5, 10)]
        client.frames.send([encode_ack(1, ids, validation_error=pb.CommandAck.DecompressionError)])
        await client.settle()
        assert _permits(cluster) == before
