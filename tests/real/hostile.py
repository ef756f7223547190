"""Hostile peers at the port of a real process: they do what no good client does.

Each attack returns when it is over; an attack that must be cut off fails if it is not.
"""

import itertools
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

import trio

from daybook.wire.batch import encode_payload_head
from daybook.wire.messages.bookie import encode_read
from daybook.wire.messages.client import encode_send
from daybook.wire.messages.registry import encode
from daybook.wire.proto import pulsar_pb2 as pb

MB = 1 << 20
PATIENCE_S = 180.0  # A port cuts off hostile peers in seconds, unless the machine is busy.
HOLD_S = 1.0  # seconds for which many hold their connections
NEVER_READ_S = 3.0  # seconds in which a peer sends requests and does not read
GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
CONNECT = encode(pb.CommandConnect(client_version="test", protocol_version=21))


@dataclass(frozen=True, slots=True)
class Target:
    """A port, and an object that exists behind it."""

    kind: str  # broker, bookie, or http
    port: int
    topic: str = ""
    ledger_id: int = 0


Attack: TypeAlias = Callable[[Target], Awaitable[None]]


@asynccontextmanager
async def connected(target: Target, *, small: bool = False) -> AsyncIterator[trio.SocketStream]:
    """Connect; with `small` the kernel buffers little of what is not read."""
    sock = trio.socket.socket()
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(("127.0.0.1", target.port))
    async with trio.SocketStream(sock) as stream:
        yield stream


async def wait_cut(stream: trio.SocketStream) -> None:
    """Read until the other side closes the connection."""
    with trio.fail_after(PATIENCE_S), suppress(*GONE):
        while await stream.receive_some(MB):
            pass


# -- nonsense


async def random_bytes(target: Target) -> None:
    for seed in range(20):
        body = random.Random(seed).randbytes(1000)
        # For binary ports the length fits, so that the rest is parsed.
        head = b"" if target.kind == "http" else struct.pack(">I", len(body))
        async with connected(target) as stream:
            with suppress(*GONE):
                await stream.send_all(head + body + b"\r\n\r\n")
                await wait_cut(stream)


async def lengths_that_cannot_be(target: Target) -> None:
    lengths = [-1, 10**30] if target.kind == "http" else [0, 64 * MB, 2**31 - 1, 2**31, 2**32 - 1]
    for length in lengths:
        async with connected(target) as stream:
            with suppress(*GONE):
                await stream.send_all(_frame_of(target, length) + bytes(100))
                await wait_cut(stream)


def _frame_of(target: Target, length: int) -> bytes:
    if target.kind == "http":
        return b"PUT /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length
    return struct.pack(">I", length)


# -- many


async def half_a_frame(target: Target) -> None:
    """Open three hundred connections, begin a large frame on each and fall silent.  They may stay
    for a while, at little cost; not all may stay where none has completed its handshake.
    """
    body = bytes(1000) if target.kind != "http" else b"half"
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            with suppress(*GONE):
                async with connected(target) as stream:
                    await stream.send_all(_frame_of(target, 4 * MB) + body)
                    with suppress(trio.TooSlowError):
                        await wait_cut(stream)

        for _ in range(300):
            nursery.start_soon(one)
        await trio.sleep(HOLD_S)
        nursery.cancel_scope.cancel()


async def large_frames_that_stall(target: Target) -> None:
    """Send half of a large frame on a hundred connections, and a byte now and then."""
    if target.kind == "http":
        return  # HTTP has no frames.
    hello = CONNECT if target.kind == "broker" else encode_read(target.ledger_id, 0)
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            with suppress(*GONE):
                async with connected(target) as stream:
                    await stream.send_all(hello)
                    await stream.receive_some(MB)
                    await stream.send_all(_frame_of(target, 5 * MB - 1000) + bytes(2 * MB))
                    while True:
                        await trio.sleep(HOLD_S / 4)
                        await stream.send_all(b"x")

        for _ in range(100):
            nursery.start_soon(one)
        await trio.sleep(5 * HOLD_S)
        nursery.cancel_scope.cancel()


async def silence(target: Target) -> None:
    """Send nothing, or half of something, on a few connections until they are cut off."""
    async with trio.open_nursery() as nursery:

        async def one(words: bytes) -> None:
            async with connected(target) as stream:
                await stream.send_all(words)
                await wait_cut(stream)

        nursery.start_soon(one, b"")
        nursery.start_soon(one, _frame_of(target, MB)[:3])
        nursery.start_soon(one, _frame_of(target, MB) + bytes(100))


async def a_flood_of_connections(target: Target) -> None:
    """Open fifteen hundred connections, and hold them."""
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            with suppress(*GONE):
                async with connected(target):
                    await trio.sleep_forever()

        for _ in range(1500):
            nursery.start_soon(one)
            await trio.lowlevel.checkpoint()
        await trio.sleep(HOLD_S)
        nursery.cancel_scope.cancel()


async def a_flood_of_look_ups(target: Target) -> None:
    """Look up an existing or missing topic 20,000 times, and read all answers."""
    if target.kind != "broker":
        return
    ask = encode(pb.CommandLookupTopic(topic=target.topic, request_id=1))
    none = encode(pb.CommandPartitionedTopicMetadata(topic=target.topic + "-no", request_id=2))
    async with connected(target) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, CONNECT + ask * 20_000 + none * 5_000)
        answers, rest = 0, b""
        with trio.fail_after(PATIENCE_S):
            while answers < 25_001:
                data = await stream.receive_some(MB)
                assert data, "who asks much is not cut, and is answered or refused"
                rest += data
                at = 0
                while len(rest) - at >= 4 and len(rest) - at >= 4 + (
                    size := int.from_bytes(rest[at : at + 4], "big")
                ):
                    at += 4 + size
                    answers += 1
                rest = rest[at:]


# -- peers that never read


async def unread_answers(target: Target) -> None:
    """Send requests for as much data as there is, and read none of it."""
    match target.kind:
        case "broker":
            words = CONNECT
            ask = encode(pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=1))
        case "bookie":
            words, ask = b"", encode_read(target.ledger_id, 0)
        case _:
            words, ask = b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connected(target, small=True) as stream:
        with trio.move_on_after(NEVER_READ_S), suppress(*GONE):
            await stream.send_all(words)
            while True:
                await stream.send_all(ask * 1000)


async def unread_messages(target: Target) -> None:
    """Subscribe eight times, permit a million messages each, and read none of them."""
    async with trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            subscribe = pb.CommandSubscribe(
                topic=target.topic,
                subscription=f"deaf-{number}",
                subType=pb.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
            flow = pb.CommandFlow(consumer_id=1, messagePermits=1_000_000)
            async with connected(target, small=True) as stream:
                await stream.send_all(CONNECT + encode(subscribe) + encode(flow))
                await trio.sleep_forever()

        for number in range(8):
            nursery.start_soon(one, number)
        await trio.sleep(NEVER_READ_S)
        nursery.cancel_scope.cancel()


async def unread_receipts(target: Target) -> None:
    """Send as fast as possible, and read no receipt."""
    producer = pb.CommandProducer(topic=target.topic, producer_id=1, request_id=1)
    async with connected(target, small=True) as stream:
        await stream.send_all(CONNECT + encode(producer))
        await stream.receive_some(1)  # The producer is being created; only that answer is read.
        await trio.sleep(0.5)
        with trio.move_on_after(NEVER_READ_S), suppress(*GONE):
            for first in itertools.count(0, 500):
                await stream.send_all(b"".join(_send(n) for n in range(first, first + 500)))


def _send(sequence_id: int) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="deaf", sequence_id=sequence_id, publish_time=1_700_000_000_000
    )
    body = b"x" * 100
    head = encode_payload_head(metadata, body)
    return encode_send(1, sequence_id, len(head) + len(body)) + head + body
