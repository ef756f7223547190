"""A frame that travels alone costs one call of its receiver, and no end or error is missed for it.

The connection does not ask the socket again after a read that took everything.
"""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.wire.arena import LITTLE_BYTES, ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpStream
from tests.harness.counted_stream import CountedStream

PATIENCE_S = 30


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


class Ends:
    """A connection, the plain socket of its peer, and the frames that a task has received."""

    def __init__(self, flusher: Flusher) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.peer = socket.create_connection(listener.getsockname())
            sock, _ = listener.accept()
        sock.setblocking(False)
        self.peer.settimeout(PATIENCE_S)
        self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = CountedStream(TcpStream(sock))
        self.connection = FrameConnection(
            self.stream, arenas=ArenaPool(), flusher=flusher, frame_bytes_max=1 << 20
        )
        self.got: list[bytes] = []
        self.ended = False
        self.may_read = trio.Event()
        self.may_read.set()

    async def read(self) -> None:
        while not self.ended:
            await self.may_read.wait()
            frames = await self.connection.receive()
            self.got += [bytes(view) for view in frames]
            self.ended = not frames

    def reset(self) -> None:
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()

    def close(self) -> None:
        self.peer.close()
        self.connection.close()


@asynccontextmanager
async def opened() -> AsyncIterator[Ends]:
    flusher = Flusher()
    ends = Ends(flusher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        await wait_all_tasks_blocked()
        with trio.fail_after(PATIENCE_S):
            yield ends
        ends.close()
        nursery.cancel_scope.cancel()


async def received(ends: Ends, body: bytes) -> None:
    """Return when the connection has received this frame."""
    got: list[bytes] = []
    while body not in got:
        frames = await ends.connection.receive()
        assert frames, ends.connection.close_reason
        got += [bytes(view) for view in frames]


async def test_lone_frames_cost_one_call_each() -> None:
    async with opened() as ends:
        for i in range(10):
            ends.peer.sendall(frame(b"%d" % i))
            await received(ends, b"%d" % i)
        assert ends.stream.asked == 10
        assert ends.stream.waited == 9  # The first one was there when it was asked for.


async def test_the_rest_of_a_frame_is_asked_for_at_once() -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"first") + frame(b"second")[:5])
        await received(ends, b"first")
        ends.peer.sendall(frame(b"second")[5:])
        waited = ends.stream.waited
        await received(ends, b"second")
        assert ends.stream.waited == waited


async def test_a_read_that_filled_its_memory_is_followed_by_another_one() -> None:
    async with opened() as ends:
        large = frame(bytes(LITTLE_BYTES - 4))
        ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ends.peer.sendall(large + frame(b"more"))
        await received(ends, bytes(LITTLE_BYTES - 4))
        waited = ends.stream.waited
        await received(ends, b"more")
        assert ends.stream.waited == waited


async def test_a_frame_that_comes_before_the_wait_is_received() -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"first"))
        await received(ends, b"first")
        ends.peer.sendall(frame(b"second"))
        await received(ends, b"second")


async def test_an_end_that_came_with_the_last_frame_is_seen() -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"last"))
        ends.peer.close()
        await received(ends, b"last")
        assert await ends.connection.receive() == []
        assert ends.connection.close_reason == "the peer closed the connection"


async def test_an_end_that_comes_while_the_connection_waits_is_seen() -> None:
    async with opened() as ends, trio.open_nursery() as nursery:
        ends.peer.sendall(frame(b"last"))
        nursery.start_soon(ends.read)
        await wait_all_tasks_blocked()
        assert ends.got == [b"last"]
        assert not ends.ended
        ends.peer.close()


async def test_an_end_in_the_middle_of_a_frame_is_told() -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"last") + b"\0\0")
        ends.peer.close()
        await received(ends, b"last")
        assert await ends.connection.receive() == []
        assert "in the middle of a frame" in ends.connection.close_reason


async def test_a_peer_that_has_only_ended_its_own_direction_still_gets_answers() -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"question"))
        ends.peer.shutdown(socket.SHUT_WR)
        await received(ends, b"question")
        with ends.connection.together():
            ends.connection.send([frame(b"answer")])
        assert ends.peer.recv(100) == frame(b"answer")
        assert await ends.connection.receive() == []


async def test_a_reset_after_the_last_frame_is_seen() -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"last"))
        await received(ends, b"last")
        ends.reset()
        assert await ends.connection.receive() == []
        assert "reset" in ends.connection.close_reason


async def test_a_receiver_that_is_cancelled_while_it_waits_misses_nothing(
    autojump_clock: MockClock,
) -> None:
    async with opened() as ends:
        ends.peer.sendall(frame(b"first"))
        await received(ends, b"first")
        for i in range(3):
            with trio.move_on_after(1) as scope:
                await ends.connection.receive()
            assert scope.cancelled_caught
            ends.peer.sendall(frame(b"%d" % i))
            await received(ends, b"%d" % i)
        ends.peer.close()
        assert await ends.connection.receive() == []


async def test_closing_wakes_a_receiver_that_waits_without_asking() -> None:
    async with opened() as ends, trio.open_nursery() as nursery:
        ends.peer.sendall(frame(b"first"))
        await received(ends, b"first")
        nursery.start_soon(ends.read)
        await wait_all_tasks_blocked()
        ends.connection.close("enough")


STEPS = st.sampled_from(["frame", "part", "rest", "settle", "pause", "resume"])


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=10), st.sampled_from(["end", "reset"]))
def test_whatever_the_order_all_frames_arrive_and_then_the_end(steps: list[str], last: str) -> None:
    """Frames, parts of frames, pauses of the reader, and an end or a reset come in any order."""

    async def run() -> None:
        sent: list[bytes] = []
        part = b""  # the rest of a frame that has begun
        async with opened() as ends, trio.open_nursery() as nursery:
            nursery.start_soon(ends.read)
            for number, step in enumerate(steps):
                body = b"%d" % number
                match step:
                    case "frame" | "part":
                        ends.peer.sendall(part)
                        part = b""
                        sent.append(body)
                        if step == "part":
                            part = frame(body)[3:]
                        ends.peer.sendall(frame(body)[: len(frame(body)) - len(part)])
                    case "rest":
                        ends.peer.sendall(part)
                        part = b""
                    case "pause" if ends.may_read.is_set():
                        ends.may_read = trio.Event()
                    case "resume":
                        ends.may_read.set()
                    case _:
                        await wait_all_tasks_blocked()
            if last == "end":
                ends.peer.close()
            else:
                ends.reset()
            ends.may_read.set()
        assert ends.ended
        whole = sent[:-1] if part else sent
        # A reset takes away what the reader has not taken yet, and never changes the order.
        assert ends.got == (whole if last == "end" else whole[: len(ends.got)])

    with suppress(BrokenPipeError):
        trio.run(run)


@pytest.mark.parametrize("ending", ["end", "reset"])
async def test_the_end_of_a_connection_that_is_read_slowly(ending: str) -> None:
    """The reader looks long after the end has come, and it has read everything before."""
    async with opened() as ends:
        ends.peer.sendall(frame(b"last"))
        await received(ends, b"last")
        if ending == "end":
            ends.peer.close()
        else:
            ends.reset()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert await ends.connection.receive() == []
