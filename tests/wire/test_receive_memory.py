"""The memory of receiving is small: idle connections, half frames, and allocations that fail."""

import errno
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from daybook.wire import arena as arena_module
from daybook.wire.arena import LITTLE_BYTES, Arena, ArenaPool, new_arena
from daybook.wire.connection import FrameConnection, FramePace
from daybook.wire.errors import OversizeError
from daybook.wire.outbox import Flusher
from daybook.wire.transport import Buffer

MIB = 1 << 20


class FedStream:
    """A stream that delivers the bytes that a test feeds; nothing is sent."""

    encrypted = False
    certificate = None

    peer = "peer:1"

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._ended = self.closed = False
        self._changed = trio.Event()
        self.taken = 0

    def feed(self, data: bytes) -> None:
        self._arrived += data
        self._notify()

    def end(self) -> None:
        self._ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def try_recv_into(self, buffer: memoryview) -> int | None:
        if self.closed:
            raise trio.ClosedResourceError("closed")
        count = min(len(buffer), len(self._arrived))
        if not count:
            return 0 if self._ended else None
        buffer[:count] = self._arrived[:count]
        del self._arrived[:count]
        self.taken += count
        return count

    async def wait_readable(self, bytes_min: int = 1) -> None:
        del bytes_min
        while not (self._arrived or self._ended or self.closed):
            await self._changed.wait()
        if self.closed:
            raise trio.ClosedResourceError("closed")
        await trio.lowlevel.checkpoint()

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self.closed = True
        self._notify()


class Served:
    """A connection with a receive loop like the product's: its variables stay while it waits."""

    def __init__(
        self,
        arenas: ArenaPool,
        *,
        pace: FramePace | None = None,
        newcomer_frame_bytes_max: int | None = None,
        newcomer_arenas: ArenaPool | None = None,
    ) -> None:
        self.stream = FedStream()
        self.frames = FrameConnection(
            self.stream,
            arenas=arenas,
            flusher=Flusher(),
            frame_bytes_max=5 * MIB,
            pace=pace or FramePace(),
            newcomer_frame_bytes_max=newcomer_frame_bytes_max,
            newcomer_arenas=newcomer_arenas,
        )
        self.sizes: list[int] = []
        self.kept: list[memoryview] = []
        self.keeps = False
        self.ended = False
        self.refused = ""

    async def run(self) -> None:
        try:
            while batch := await self.frames.receive():
                for frame in batch:
                    self.sizes.append(len(frame))
                    if self.keeps:
                        self.kept.append(frame[1:])
        except OversizeError as error:
            self.refused = str(error)
        self.ended = True


def frame(size: int) -> bytes:
    return struct.pack(">I", size) + bytes(size)


@asynccontextmanager
async def serving(*served: Served) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for each in served:
            nursery.start_soon(each.run)
        yield
        for each in served:
            each.frames.close()
        nursery.cancel_scope.cancel()


async def test_an_idle_connection_keeps_no_arena_through_its_receive_loop() -> None:
    """Each received a megabyte and fell silent; the pool holds four, and all get theirs."""
    arenas = ArenaPool(total_bytes_max=4 * MIB)
    many = [Served(arenas) for _ in range(40)]
    async with serving(*many):
        with trio.fail_after(60):
            for each in many:
                each.stream.feed(frame(300_000) * 3 + frame(10))
                while len(each.sizes) < 4:
                    await wait_all_tasks_blocked()
        assert arenas.total_bytes <= 4 * MIB
        assert all(each.sizes == [300_000] * 3 + [10] for each in many)


async def test_connections_with_little_to_receive_need_no_arena() -> None:
    """Thousands of clients make their handshake, are pinged, and leave."""
    arenas = ArenaPool(total_bytes_max=4 * MIB)
    many = [Served(arenas) for _ in range(300)]
    async with serving(*many):
        for each in many:
            each.stream.feed(frame(2000) + frame(30_000))
        await wait_all_tasks_blocked()
        assert all(each.sizes == [2000, 30_000] for each in many)
        assert arenas.total_bytes == 0
        for each in many:
            each.stream.end()
        await wait_all_tasks_blocked()
        assert all(each.ended for each in many)


@pytest.mark.parametrize("before", [0, 10, 1_000_000])
async def test_an_end_of_file_and_small_frames_need_no_arena(before: int) -> None:
    """All arenas are in use, for good: small frames are received all the same, and the end."""
    arenas = ArenaPool(total_bytes_max=2 * MIB)
    served = Served(arenas)
    async with serving(served):
        sizes: list[int] = []
        if before:
            served.stream.feed(frame(before))
            await wait_all_tasks_blocked()
            sizes = [before]
        held = [arenas.try_acquire(1) for _ in range(2)]
        assert None not in held
        assert arenas.try_acquire(1) is None
        served.stream.feed(frame(100) + frame(60_000) * 30)
        await wait_all_tasks_blocked()
        assert served.sizes == [*sizes, 100, *[60_000] * 30]
        served.stream.end()
        await wait_all_tasks_blocked()
        assert served.ended


async def test_what_announces_a_large_frame_keeps_nothing() -> None:
    arenas = ArenaPool(total_bytes_max=8 * MIB)
    stalled = [Served(arenas) for _ in range(100)]
    other = Served(arenas)
    async with serving(*stalled, other):
        for each in stalled:
            each.stream.feed(struct.pack(">I", 5 * MIB) + bytes(10_000))
        await wait_all_tasks_blocked()
        assert arenas.total_bytes == 0
        other.stream.feed(frame(5 * MIB))
        with trio.fail_after(60):
            while not other.sizes:  # noqa: ASYNC110  it asks for memory now and then
                await trio.sleep(0.01)
        assert other.sizes == [5 * MIB]


async def test_stalled_half_frames_make_room_for_others(autojump_clock: MockClock) -> None:
    """apache/bookkeeper#3929: the memory of receive buffers grew without end."""
    """Forty-nine began a frame of five megabytes, sent half and stall: nobody waits long."""
    arenas = ArenaPool(total_bytes_max=128 * MIB)
    stalled = [Served(arenas, pace=FramePace(stall_s=3600)) for _ in range(49)]
    slow, other = Served(arenas), Served(arenas)
    async with serving(*stalled, slow, other):
        slow.stream.feed(struct.pack(">I", 2 * MIB) + bytes(200_000))
        await wait_all_tasks_blocked()
        for each in stalled:
            each.stream.feed(struct.pack(">I", 5 * MIB) + bytes(2 * MIB))
        await trio.sleep(0.05)
        assert arenas.total_bytes <= 128 * MIB
        other.stream.feed(frame(900_000))  # It may not take the standard arenas.
        await trio.sleep(0.5)
        assert other.sizes == [900_000]
        other.stream.feed(frame(5 * MIB))
        while len(other.sizes) < 2:
            assert trio.current_time() < 60
            slow.stream.feed(bytes(12_800))  # 128 KB a second: slow, and honest
            await trio.sleep(0.1)
        assert any("memory is short" in each.frames.close_reason for each in stalled)
        slow.stream.feed(bytes(2 * MIB))
        while not slow.sizes:  # noqa: ASYNC110  it asks for memory now and then
            await trio.sleep(0.1)
        assert slow.sizes[0] == 2 * MIB


async def test_half_a_frame_is_cut_by_progress_and_not_by_age(autojump_clock: MockClock) -> None:
    """5 MB at 128 KB/s take 40 s and arrive; a byte a second is cut off, and so is silence."""
    arenas = ArenaPool()
    pace = FramePace(stall_s=5.5)
    honest, trickling, silent = (Served(arenas, pace=pace) for _ in range(3))
    async with serving(honest, trickling, silent):
        for each in (honest, trickling, silent):
            each.stream.feed(struct.pack(">I", 5 * MIB))
        for second in range(41):
            honest.stream.feed(bytes(128 << 10 if second < 40 else 0))
            trickling.stream.feed(b"x")
            await trio.sleep(1)
            assert silent.ended == (second > 4), second
            assert trickling.ended or second < 33
            assert not trickling.ended or second > 27
        assert honest.sizes == [5 * MIB]
        assert "too slowly" in trickling.frames.cut_reason
        assert "did not finish" in silent.frames.cut_reason


async def test_a_peer_that_we_do_not_read_from_is_not_late(autojump_clock: MockClock) -> None:
    """Back-pressure for an hour in the middle of a frame: the clock does not run."""
    stream = FedStream()
    frames = FrameConnection(
        stream,
        arenas=ArenaPool(),
        flusher=Flusher(),
        frame_bytes_max=5 * MIB,
        pace=FramePace(stall_s=5.0),
    )
    stream.feed(frame(10) + frame(MIB)[: MIB // 2])
    assert [len(each) for each in await frames.receive()] == [10]
    await trio.sleep(3600)
    async with trio.open_nursery() as nursery:

        async def resume() -> None:
            await trio.sleep(4)
            stream.feed(bytes(MIB - MIB // 2 + 4))

        nursery.start_soon(resume)
        assert [len(each) for each in await frames.receive()] == [MIB]
    frames.close()


async def test_a_clock_that_jumps_is_no_silence() -> None:
    clock = MockClock()
    stream = FedStream()

    async def main() -> None:
        frames = FrameConnection(
            stream,
            arenas=ArenaPool(),
            flusher=Flusher(),
            frame_bytes_max=MIB,
            pace=FramePace(stall_s=5.0),
        )
        stream.feed(frame(1000)[:100])
        got: list[int] = []

        async def read() -> None:
            got.extend(len(each) for each in await frames.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            clock.jump(30)  # The process was stopped, and its peer, too.
            await wait_all_tasks_blocked()
            assert not frames.closed
            stream.feed(frame(1000)[100:])
        assert got == [1000]
        frames.close()

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))


async def test_before_it_is_trusted_a_peer_may_send_little() -> None:
    arenas = ArenaPool()
    served = Served(arenas, newcomer_frame_bytes_max=LITTLE_BYTES)
    async with serving(served):
        served.stream.feed(frame(LITTLE_BYTES - 4)[:-1])
        await wait_all_tasks_blocked()
        assert arenas.total_bytes == 0
        served.stream.feed(b"x")
        await wait_all_tasks_blocked()
        assert served.sizes == [LITTLE_BYTES - 4]
        served.stream.feed(frame(100) + frame(LITTLE_BYTES + 1))
        await wait_all_tasks_blocked()
        assert served.sizes == [LITTLE_BYTES - 4, 100]
        assert f"at most {LITTLE_BYTES}" in served.refused
    trusted = Served(arenas, newcomer_frame_bytes_max=LITTLE_BYTES)
    trusted.frames.trust()
    async with serving(trusted):
        trusted.stream.feed(frame(5 * MIB))
        await wait_all_tasks_blocked()
        assert trusted.sizes == [5 * MIB]


async def test_payloads_that_are_kept_stay_whole() -> None:
    """A slice of a frame outlives its connection's next `receive`, in arenas and without."""
    arenas = ArenaPool(total_bytes_max=16 * MIB)
    served = Served(arenas)
    served.keeps = True
    sent = [bytes([1 + number]) * size for number, size in enumerate([5, 70_000, 2 * MIB, 9, 400])]
    async with serving(served):
        for body in sent:
            served.stream.feed(struct.pack(">I", len(body)) + body)
            await wait_all_tasks_blocked()
        served.stream.feed(frame(3 * MIB) + frame(1))
        await wait_all_tasks_blocked()
        assert [bytes(view) for view in served.kept[: len(sent)]] == [body[1:] for body in sent]


async def test_those_who_hold_an_arena_do_not_wait_for_each_other_in_a_circle(
    autojump_clock: MockClock,
) -> None:
    """Each has filled a standard arena, and needs a larger one: there is no room for a second."""
    arenas = ArenaPool(total_bytes_max=20 * MIB)
    many = [Served(arenas) for _ in range(20)]
    async with serving(*many):
        for each in many:
            each.stream.feed(frame(5 * MIB)[:MIB])
        await trio.sleep(0.01)
        for each in many:
            each.stream.feed(frame(5 * MIB)[MIB:])
        with trio.fail_after(60):
            while not all(each.sizes for each in many):  # noqa: ASYNC110  it asks for memory now and then
                await trio.sleep(0.1)
        assert arenas.total_bytes <= 26 * MIB


# -- allocations that fail


class _NoMemory:
    """Replaces `new_arena`: the next `fails` allocations fail."""

    def __init__(self, fails: int) -> None:
        self.fails = fails

    def __call__(self, size: int) -> Arena:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.ENOMEM, "cannot allocate memory")
        return new_arena(size)


def test_an_allocation_that_fails_leaves_no_share_of_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arenas = ArenaPool(total_bytes_max=4 * MIB)
    monkeypatch.setattr(arena_module, "new_arena", no_memory := _NoMemory(20))
    for _ in range(10):
        assert arenas.try_acquire(1) is None
    assert arenas.total_bytes == 0
    assert no_memory.fails == 0
    held = [arenas.try_acquire(1) for _ in range(5)]
    assert [arena is not None for arena in held] == [True] * 4 + [False]


def test_an_allocation_that_fails_frees_what_is_free_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arenas = ArenaPool(total_bytes_max=16 * MIB)
    first, second = arenas.try_acquire(1), arenas.try_acquire(1)
    assert first is not None
    assert second is not None
    arenas.release(first)
    arenas.release(second)
    del first, second
    monkeypatch.setattr(arena_module, "new_arena", _NoMemory(1))
    assert arenas.try_acquire(5 * MIB) is not None
    assert arenas.total_bytes == 5 * MIB


async def test_receiving_goes_on_when_memory_was_short(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    arenas = ArenaPool(total_bytes_max=4 * MIB)
    monkeypatch.setattr(arena_module, "new_arena", _NoMemory(30))
    served = Served(arenas)
    async with serving(served):
        served.stream.feed(frame(3 * MIB) + frame(5))
        while len(served.sizes) < 2:
            assert trio.current_time() < 60
            await trio.sleep(0.1)
    assert served.sizes == [3 * MIB, 5]


async def test_a_connection_that_is_gone_keeps_nothing(autojump_clock: MockClock) -> None:
    """Half a frame has come; the connection is closed, and all of the pool is free again."""
    arenas = ArenaPool(total_bytes_max=8 * MIB)
    served = Served(arenas)
    async with serving(served):
        served.stream.feed(struct.pack(">I", 5 * MIB) + bytes(3 * MIB))
        await trio.sleep(1)
        assert arenas.total_bytes
        served.stream.end()
        await wait_all_tasks_blocked()
        assert served.ended
    del served
    assert arenas.try_acquire(6 * MIB) is not None
    assert arenas.total_bytes == 6 * MIB
