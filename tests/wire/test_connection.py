"""Frames over streams: TCP and the simulated network behave alike."""

import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from daybook.wire.arena import ArenaPool
from daybook.wire.connection import CLIENT_PACE, FrameConnection, FramePace
from daybook.wire.errors import OversizeError
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork
from daybook.wire.transport import Network, Stream
from tests.harness.network import SimulatedNetwork
from tests.simulation import scheduler


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


async def stream_pair(network: Network, host: str) -> tuple[Stream, Stream]:
    listener = await network.listen(host, 0)
    here = await network.connect(host, listener.port)
    there = await listener.accept()
    listener.close()
    return here, there


@asynccontextmanager
async def connections(
    frame_bytes_max: int = 1 << 20, pace: FramePace = CLIENT_PACE
) -> AsyncIterator[tuple[FrameConnection, FrameConnection]]:
    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        pair = [
            FrameConnection(
                stream,
                arenas=ArenaPool(),
                flusher=flusher,
                frame_bytes_max=frame_bytes_max,
                pace=pace,
            )
            for stream in await stream_pair(TcpNetwork(), "127.0.0.1")
        ]
        yield pair[0], pair[1]
        for end in pair:
            end.close()
        nursery.cancel_scope.cancel()


async def receive_all(connection: FrameConnection, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        frames = await connection.receive()
        assert frames, connection.close_reason
        got += [bytes(view) for view in frames]
    return got


async def test_frames_arrive_whole_and_in_order() -> None:
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.choice([0, 1, 100, 5000, 70_000, 900_000])) for _ in range(60)]
    async with connections() as (here, there):
        for body in bodies:
            here.send([frame(body)[:4], memoryview(body)])
        assert await receive_all(there, len(bodies)) == bodies
        await here.wait_below(0)
        assert here.pending_bytes == 0


async def test_views_stay_valid_while_they_are_held() -> None:
    async with connections() as (here, there):
        held: list[memoryview] = []
        for i in range(40):
            here.send([frame(bytes([i]) * 200_000)])
            while len(held) <= i:
                held += [view[:] for view in await there.receive()]
        assert [view[0] for view in held] == list(range(40))
        assert all(bytes(view) == bytes([i]) * 200_000 for i, view in enumerate(held))


async def test_a_frame_above_the_limit_is_refused_before_it_arrives() -> None:
    async with connections(frame_bytes_max=1000) as (here, there):
        here.send([struct.pack(">I", 1001)])
        with pytest.raises(OversizeError):
            await there.receive()
        there.close()
        assert await here.receive() == []


async def test_a_negative_length_is_refused() -> None:
    async with connections() as (here, there):
        here.send([b"\xff\xff\xff\xff"])
        with pytest.raises(OversizeError):
            await there.receive()


async def test_half_a_frame_then_silence_closes_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = 0.005  # Bytes between sockets may be on their way.
    async with connections(pace=FramePace(5.0)) as (here, there):
        here.send([b"\0\0\0\x09half"])
        with trio.fail_after(60):
            assert await there.receive() == []
        assert "did not finish" in there.close_reason


async def test_the_end_of_the_stream_is_no_frame() -> None:
    async with connections() as (here, there):
        here.send([frame(b"last")])
        await here.aclose()
        assert await receive_all(there, 1) == [b"last"]
        assert await there.receive() == []
        assert there.closed


async def test_a_peer_that_never_reads_is_seen_in_pending_bytes() -> None:
    async with connections() as (here, there):
        for _ in range(64):
            here.send([frame(bytes(1 << 20 - 1))])
        await trio.testing.wait_all_tasks_blocked()
        assert here.pending_bytes > 0
        with trio.move_on_after(0.01) as scope:
            await here.wait_below(0)
        assert scope.cancelled_caught
        there.close()
        await here.wait_below(0)
        assert here.closed


async def test_closing_wakes_the_reader() -> None:
    async with connections() as (here, _), trio.open_nursery() as nursery:

        async def read() -> None:
            assert await here.receive() == []

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        here.close("enough")
        assert here.close_reason == "enough"


async def test_closing_wakes_the_reader_that_waits_for_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Half a large frame has come; the arena for the rest of it comes when it is too late."""
    autojump_clock.autojump_threshold = 0.005  # Bytes between sockets may be on their way.
    arenas = ArenaPool(total_bytes_max=4 << 20)
    flusher = Flusher()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        here, there = [
            FrameConnection(s, arenas=arenas, flusher=flusher, frame_bytes_max=8 << 20)
            for s in await stream_pair(TcpNetwork(), "127.0.0.1")
        ]
        held = [await arenas.acquire(1 << 20) for _ in range(5)]  # one more than the bound allows
        here.send([struct.pack(">I", 2 << 20) + bytes(100_000)])
        received: list[list[memoryview]] = []

        async def read() -> None:
            received.append(await there.receive())

        nursery.start_soon(read)
        await trio.sleep(1)
        there.close("cut")
        for arena in held:
            assert arena is not None
            arenas.release(arena)
        del held, arena
        with trio.fail_after(60):
            while not received:  # noqa: ASYNC110  it asks for memory now and then
                await trio.sleep(0.01)
        assert received == [[]]
        assert there.close_reason == "cut"
        everything = arenas.try_acquire(4 << 20)
        assert everything is not None  # The late arena was given back.
        assert arenas.total_bytes <= arenas.total_bytes_max
        here.close()
        nursery.cancel_scope.cancel()


async def test_idle_connections_own_no_arena_when_others_need_one() -> None:
    """Twenty connections received something and fell silent; a pool of four arenas is enough."""
    arenas = ArenaPool(total_bytes_max=4 << 20)
    flusher = Flusher()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        readers: list[FrameConnection] = []
        for i in range(20):
            here, there = await stream_pair(TcpNetwork(), "127.0.0.1")
            made = [
                FrameConnection(s, arenas=arenas, flusher=flusher, frame_bytes_max=1 << 20)
                for s in (here, there)
            ]
            readers += made
            made[0].send([frame(b"%d" % i)])
            with trio.fail_after(120):
                assert await receive_all(made[1], 1) == [b"%d" % i]
            nursery.start_soon(made[1].receive)
            await trio.testing.wait_all_tasks_blocked()
        assert arenas.total_bytes <= arenas.total_bytes_max
        for connection in readers:
            connection.close()
        nursery.cancel_scope.cancel()


def test_an_arena_is_recycled_only_when_no_view_is_left() -> None:
    pool = ArenaPool(arena_bytes=1 << 16, total_bytes_max=1 << 17)
    first = pool.try_acquire(1)
    assert first is not None
    view = memoryview(first)[5:9]
    pool.release(first)
    del first
    second = pool.try_acquire(1)
    assert second is not None
    assert pool.try_acquire(1) is None, "the first one is still seen by somebody"
    del view
    assert pool.try_acquire(1) is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=20), st.integers(0, 2**32))
def test_frames_do_not_depend_on_how_the_bytes_arrive(bodies: list[bytes], seed: int) -> None:
    """The frames arrive on the simulated network, in segments of random size."""

    async def main(_: scheduler.Scheduler) -> list[bytes]:
        rng = random.Random(seed)
        network = SimulatedNetwork(rng)
        got: list[bytes] = []
        async with trio.open_nursery() as nursery:
            flusher = Flusher()
            nursery.start_soon(flusher.run)
            listener = await network.of("b").listen("b", 0)
            stream = await network.of("a").connect("b", listener.port)
            there = FrameConnection(
                await listener.accept(),
                arenas=ArenaPool(arena_bytes=1 << 17),
                flusher=flusher,
                frame_bytes_max=4096,
            )
            data = b"".join(map(frame, bodies))
            while data:
                size = rng.randint(1, 2000)
                taken = stream.try_send([data[:size]])
                data = data[taken:]
                await trio.sleep(rng.random() * 0.001)
            stream.close()
            while frames := await there.receive():
                got += [bytes(view) for view in frames]
            nursery.cancel_scope.cancel()
        return got

    assert scheduler.run(main, seed=seed) == bodies
