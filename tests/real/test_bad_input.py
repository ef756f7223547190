"""Hostile peers at the ports of real processes: they are cut, and others do not notice.

Memory stays bounded.  Beside each of them runs ordinary traffic through the same broker and the
same bookies.
"""

import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from clients.python.client import connect
from clients.testing.standalone import StandaloneProcess
from tests.real.traffic import Traffic, open_traffic
from wire.messages.registry import encode
from wire.proto import pulsar_pb2 as pb

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("cluster")]

MB = 1 << 20
GROWTH_MAX = 300 * MB  # of a process that is attacked
PAUSE_MAX_S = 5.0
CONNECT = encode(pb.CommandConnect(client_version="test", protocol_version=21))

Attack = Callable[[int], Awaitable[None]]  # on a port


async def _is_cut(stream: trio.SocketStream) -> None:
    """Read until the other side has had enough."""
    with trio.fail_after(60):
        try:
            while await stream.receive_some(MB):
                pass
        except trio.BrokenResourceError:
            pass


async def random_bytes(port: int) -> None:
    for seed in range(20):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            # A length that fits, so that something is to be parsed.
            body = random.Random(seed).randbytes(1000)
            try:
                await stream.send_all(struct.pack(">I", len(body)) + body)
            except trio.BrokenResourceError:
                continue
            await _is_cut(stream)


async def lengths_that_cannot_be(port: int) -> None:
    for length in (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 64 * MB, 0):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(struct.pack(">I", length) + bytes(100))
            await _is_cut(stream)


async def half_a_frame(port: int) -> None:
    """A hundred that begin a large frame and say no more.  They may stay, at little cost."""
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(100)]
    for stream in streams:
        await stream.send_all(struct.pack(">I", 4 * MB) + bytes(1000))
    await trio.sleep(1)  # the time in which all of them hold on
    for stream in streams:
        await stream.aclose()


async def a_flood_of_connections(port: int) -> None:
    streams: list[trio.SocketStream] = []
    for _ in range(1500):
        try:
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
        except OSError:
            break  # refused, which is an answer
    for stream in streams:
        stream.socket.close()


@asynccontextmanager
async def _beside(cluster: StandaloneProcess, topic: str, pid: int) -> AsyncIterator[Traffic]:
    before = _resident_bytes(pid)
    async with open_traffic(cluster.service_url, topic) as traffic:
        yield traffic
        await traffic.wait_acknowledged(50)
        await traffic.finish()
        assert max(traffic.pauses_s) < PAUSE_MAX_S
    assert _resident_bytes(pid) - before < GROWTH_MAX


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _port(part: dict[str, object]) -> int:
    return int(str(part["address"]).rpartition(":")[2])


async def _owner(cluster: StandaloneProcess, topic: str) -> dict[str, object]:
    async with connect(cluster.service_url) as client:
        await (await client.create_producer(topic)).aclose()
        url = await client.lookup(topic)
    (owner,) = [b for b in cluster.ready["brokers"] if b["service_url"] == url]
    return dict(owner)


@pytest.mark.parametrize("kind", ["broker", "bookie"])
@pytest.mark.parametrize(
    "attack", [random_bytes, lengths_that_cannot_be, half_a_frame, a_flood_of_connections]
)
async def test_the_culprit_is_cut_and_others_go_on(
    cluster: StandaloneProcess, topic: str, kind: str, attack: Attack
) -> None:
    topic = f"{topic}-{kind}"
    victim = await _owner(cluster, topic) if kind == "broker" else dict(cluster.ready["bookies"][0])
    async with _beside(cluster, topic, int(str(victim["pid"]))):
        await attack(_port(victim))


async def test_a_client_that_never_reads_messages_gets_no_more_than_fits(
    cluster: StandaloneProcess, topic: str
) -> None:
    """It permits a million messages and takes none of them."""
    backlog = f"{topic}-backlog"
    victim = await _owner(cluster, backlog)
    data = random.Random(1).randbytes(MB // 4)
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(backlog) as producer,
    ):
        for _ in range(600):
            await producer.wait_room()
            producer.send_nowait(data)
        await producer.flush()
    async with _beside(cluster, topic, int(str(victim["pid"]))) as traffic:
        streams: list[trio.SocketStream] = []
        for number in range(8):
            stream = await trio.open_tcp_stream("127.0.0.1", _port(victim))
            subscribe = pb.CommandSubscribe(
                topic=f"persistent://public/default/{backlog}",
                subscription=f"deaf-{number}",
                subType=pb.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
            flow = pb.CommandFlow(consumer_id=1, messagePermits=1_000_000)
            await stream.send_all(CONNECT + encode(subscribe) + encode(flow))
            streams.append(stream)
        await traffic.wait_acknowledged(500)
        for stream in streams:
            await stream.aclose()


async def test_a_client_that_never_reads_answers_is_not_read_from(
    cluster: StandaloneProcess, topic: str
) -> None:
    victim = await _owner(cluster, f"{topic}-asked")
    async with _beside(cluster, topic, int(str(victim["pid"]))) as traffic:
        stream = await trio.open_tcp_stream("127.0.0.1", _port(victim))
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = encode(pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=1))
        await stream.send_all(CONNECT)
        with trio.move_on_after(3):
            while True:
                await stream.send_all(ask * 1000)
        await traffic.wait_acknowledged(100)
        await stream.aclose()
