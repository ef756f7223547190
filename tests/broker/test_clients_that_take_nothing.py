"""Clients that send and read no answers: they make room, are cut off, and use little memory."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.limits import ConnectionLimits, TopicLimits
from daybook.broker.protocol import session
from daybook.broker.service.connection import ClientConnection
from daybook.wire.messages.registry import encode
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness import stream
from tests.harness.broker import TOPIC, Client, Cluster, connection_of, open_broker

_LIMITS = ConnectionLimits(unread_bytes_max=100_000, unread_total_bytes=10_000_000)


@pytest.fixture(autouse=True)
def _short_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the sockets' buffers, which are not the subject here."""
    monkeypatch.setattr(stream, "BUFFER_BYTES_MAX", 50_000)


def _connections(cluster: Cluster, name: str = "sub") -> list[ClientConnection]:
    subscription = cluster.broker.topics.loaded[TOPIC].subscriptions.by_name[name]
    return [connection_of(consumer) for consumer in subscription.consumers.values()]


async def _deaf_client(cluster: Cluster) -> Client:
    """Return a client with an exclusive consumer that reads nothing from now on."""
    client = await cluster.client()
    assert isinstance(await client.subscribe(), pb.CommandSuccess)
    client.reading = False
    client.flow(1)
    sender = await cluster.client()
    await sender.producer()
    sender.send(0)
    await sender.receipts(1)
    await client.settle()
    return client


async def _flood(client: Client, frame: bytes, count: int = 40_000) -> None:
    """Send it as fast as the broker reads, until it no longer reads."""
    for _ in range(count // 1_000):
        client.frames.send([frame * 1_000])
        await client.settle(0.01)


def _close_nothing() -> bytes:
    """Return a request that is answered at once, and whose answer must not be left out."""
    return encode(pb.CommandCloseProducer(producer_id=9, request_id=1))


async def test_one_pong_that_waits_answers_any_number_of_pings(autojump_clock: MockClock) -> None:
    async with open_broker(connection_limits=_LIMITS) as cluster:
        client = await _deaf_client(cluster)
        (connection,) = _connections(cluster)
        await _flood(client, encode(pb.CommandPing()))
        assert client.frames.pending_bytes == 0  # All was read.
        assert connection._frames.pending_bytes <= 2 * len(encode(pb.CommandPong()))


async def test_every_ping_of_a_client_that_reads_is_answered(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        for _ in range(3):
            client.tell(pb.CommandPing())
            await client.wait(pb.CommandPong)


async def test_a_client_that_is_not_read_from_makes_way_for_an_exclusive_consumer(
    autojump_clock: MockClock,
) -> None:
    limits = TopicLimits()
    async with open_broker(connection_limits=_LIMITS, topic_limits=limits) as cluster:
        deaf = await _deaf_client(cluster)
        await _flood(deaf, _close_nothing())
        assert deaf.frames.pending_bytes  # The broker no longer reads.
        other = await cluster.client()
        began = trio.current_time()
        assert isinstance(await other.subscribe(), pb.CommandSuccess)
        assert trio.current_time() - began <= limits.probe_s + 1


async def test_a_client_that_is_read_slowly_and_takes_its_answers_keeps_its_consumer(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(connection_limits=_LIMITS) as cluster:
        slow = await _deaf_client(cluster)
        await _flood(slow, _close_nothing())
        assert slow.frames.pending_bytes
        async with trio.open_nursery() as nursery:
            slow.reading = True
            nursery.start_soon(slow.run)
            other = await cluster.client()
            assert isinstance(await other.subscribe(), pb.CommandError)
            nursery.cancel_scope.cancel()


async def test_a_client_that_is_not_read_from_and_takes_nothing_is_cut(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(connection_limits=_LIMITS) as cluster:
        client = await _deaf_client(cluster)
        await _flood(client, _close_nothing())
        await trio.sleep(3 * cluster.broker.config.keep_alive_s + 1)
        assert not _connections(cluster)


async def test_a_client_that_pings_and_takes_no_answer_is_cut(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await _deaf_client(cluster)
        client.frames.send([_close_nothing() * 10_000])
        for _ in range(20):
            client.tell(pb.CommandPing())
            await trio.sleep(5)
        assert not _connections(cluster)


async def test_what_waits_for_all_who_read_nothing_is_bounded(autojump_clock: MockClock) -> None:
    """apache/pulsar#12509, #7270: the memory of a broker grew without end."""
    limits = replace(_LIMITS, unread_bytes_max=200_000, unread_total_bytes=400_000)
    async with open_broker(connection_limits=limits) as cluster:
        clients = [await cluster.client() for _ in range(10)]
        for client in clients:
            client.reading = False
            client.frames.send([_close_nothing() * 30_000])
        await clients[0].settle(5)
        together = cluster.broker.context.unread
        assert 400_000 < together.bytes < 400_000 + 10 * (64 << 10) + 10 * 5_000
        await clients[0].settle(3 * cluster.broker.config.keep_alive_s + 1)
        assert together.bytes == 0


def test_a_client_that_takes_a_byte_in_each_interval_is_not_cut() -> None:
    machine = session.SessionProtocol(())
    machine.connect("test", 19)
    assert machine.ticked(1, sent_bytes=10, pending_bytes=5) == []
    assert machine.ticked(2, sent_bytes=10, pending_bytes=5) == []
    assert machine.ticked(3, sent_bytes=11, pending_bytes=4) == []
    assert machine.ticked(4, sent_bytes=11, pending_bytes=4) == []
    assert machine.ticked(5, sent_bytes=11, pending_bytes=0) == []
    assert machine.ticked(6, sent_bytes=11, pending_bytes=9) == []
    (cut,) = machine.ticked(7, sent_bytes=11, pending_bytes=9)
    assert isinstance(cut, session.Close)
