"""A newcomer that sends its first frame in pieces wakes the process when the frame is whole."""

import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpStream
from tests.harness.counted_stream import CountedStream

PATIENCE_S = 30
FRAME = struct.pack(">I", 3000) + bytes(3000)


class Newcomer:
    """A peer with a plain socket, and the connection that receives from it."""

    def __init__(self, flusher: Flusher, *, trusted: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.peer = socket.create_connection(listener.getsockname())
            sock, _ = listener.accept()
        sock.setblocking(False)
        self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = CountedStream(TcpStream(sock))
        self.connection = FrameConnection(
            self.stream,
            arenas=ArenaPool(),
            flusher=flusher,
            frame_bytes_max=1 << 20,
            newcomer_frame_bytes_max=1 << 16,
        )
        if trusted:
            self.connection.trust()

    async def drip(self, data: bytes) -> None:
        """Send byte by byte; each one arrives before the next is sent."""
        for byte in data:
            self.peer.sendall(bytes((byte,)))
            await wait_all_tasks_blocked()


@asynccontextmanager
async def newcomer(*, trusted: bool = False) -> AsyncGenerator[Newcomer]:
    flusher = Flusher()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        one = Newcomer(flusher, trusted=trusted)
        with trio.fail_after(PATIENCE_S):
            yield one
        one.connection.close()
        one.peer.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_newcomer_that_sends_byte_by_byte_wakes_nobody_meanwhile(*, trusted: bool) -> None:
    async with newcomer(trusted=trusted) as one, trio.open_nursery() as nursery:
        nursery.start_soon(one.connection.receive)
        await one.drip(FRAME[:4])
        before = one.stream.waited
        await one.drip(FRAME[4:40])
        assert one.stream.waited - before == (36 if trusted else 0)
        one.peer.sendall(FRAME[40:])  # `receive` returns, or the test fails by its patience


async def test_a_small_frame_after_one_in_pieces_is_received_at_once() -> None:
    async with newcomer() as one:
        for _ in range(2):
            one.peer.sendall(FRAME[:100])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.connection.receive)
                await wait_all_tasks_blocked()
                one.peer.sendall(FRAME[100:])
            one.peer.sendall(bytes(4))
            (frame,) = await one.connection.receive()
            assert not frame


async def test_the_wait_for_a_frame_may_be_cancelled() -> None:
    async with newcomer() as one:
        one.peer.sendall(FRAME[:100])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.connection.receive)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        one.peer.sendall(FRAME[100:101])
        await one.stream.wait_readable()
        one.peer.sendall(FRAME[101:])
        (frame,) = await one.connection.receive()
        assert len(frame) == 3000


@pytest.mark.parametrize("reset", [False, True])
async def test_the_end_within_a_frame_is_noticed_at_once(*, reset: bool) -> None:
    async with newcomer() as one, trio.open_nursery() as nursery:
        one.peer.sendall(FRAME[:100])
        nursery.start_soon(one.connection.receive)
        await wait_all_tasks_blocked()
        if reset:
            one.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.peer.close()
