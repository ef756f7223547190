"""Hostile or broken peers: they are disconnected, and no other client notices."""

import gc
import itertools
import random
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from daybook.bookie.server.session import ServerLimits
from daybook.wire.messages import bookie
from daybook.wire.messages.bookie import FRAME_BYTES_MAX, AddRun, Status
from tests.bookie.server.conftest import Running, Start
from tests.bookie.server.peer import PATIENCE_S, Peer, add_frame, dial, make_entry

MIB = 1 << 20


async def wait_until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  nothing tells
            await trio.sleep(0.002)


async def assert_unharmed(running: Running, ledger_id: int = 1) -> None:
    async with running.connect() as peer:
        assert await peer.add(ledger_id, 0) is Status.OK
        assert (await peer.read(ledger_id, 0)).entry == make_entry(ledger_id, 0)


@pytest.mark.parametrize(
    "data",
    {
        "a frame above the limit": struct.pack(">I", FRAME_BYTES_MAX + 1),
        "a negative length": struct.pack(">i", -1),
        "an empty frame": struct.pack(">I", 0),
        "three bytes": struct.pack(">I3x", 3),
        "an add without an entry": struct.pack(">II8x", 12, 0x02010000),
        "a read without ids": struct.pack(">II", 4, 0x02020000),
        "an opcode of v3": struct.pack(">II40x", 44, 0x02050000),
        "a version to come": struct.pack(">II40x", 44, 0x03010000),
        "a fencing read without its key": struct.pack(">II16x", 20, 0x02020001),
        "AUTH that does not parse": struct.pack(">II", 8, 0x02030000) + b"\xff\xff\xff\xff",
        "v3 that does not parse": struct.pack(">I", 5) + b"\x0a\xff\xff\xff\xff",
        "v3 without a header": struct.pack(">I", 2) + b"\x0a\x00",
        "http": b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
    }.items(),
    ids=lambda item: item[0],
)
async def test_a_frame_that_makes_no_sense_ends_its_connection(
    start: Start, data: tuple[str, bytes]
) -> None:
    async with start() as running:
        async with running.connect() as bystander, running.connect() as culprit:
            assert await bystander.add(7, 0) is Status.OK
            await culprit.send(data[1])
            assert await culprit.is_cut()
            assert await bystander.add(7, 1) is Status.OK
        await assert_unharmed(running)
        assert running.server.statistics().connections_cut == 1


async def test_what_was_acknowledged_before_the_bad_frame_stays(start: Start) -> None:
    async with start() as running:
        async with running.connect() as peer:
            assert await peer.add(7, 0) is Status.OK
            await peer.send(add_frame(7, 1), struct.pack(">II8x", 12, 0x02FF0000))
            assert await peer.is_cut()
        async with running.connect() as peer:
            assert (await peer.read(7, 0)).entry == make_entry(7, 0)


async def test_a_version_that_nobody_serves_is_told_so(start: Start) -> None:
    async with start() as running, running.connect() as peer:
        await peer.send(struct.pack(">II40x", 44, 0x03010000))
        frame = await peer.receive()
        assert frame is not None
        assert struct.unpack_from(">II", frame) == (0x03010000, Status.BAD_VERSION)
        assert await peer.receive() is None


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes_do_no_harm(start: Start, seed: int) -> None:
    rng = random.Random(seed)
    async with start(ServerLimits(frame_stall_s=0.05)) as running:
        for _ in range(40):
            async with running.connect() as peer:
                shape = rng.randrange(3)
                data = rng.randbytes(rng.randrange(300))
                if shape == 1:  # framed
                    data = struct.pack(">I", len(data)) + data
                elif shape == 2:  # a good frame with a few bad bits
                    frame = bytearray(add_frame(7, rng.randrange(10)))
                    for _ in range(rng.randrange(1, 5)):
                        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
                    data = bytes(frame)
                await peer.send(data)
        await assert_unharmed(running, 1 << 40)


async def test_half_a_frame_then_silence(start: Start) -> None:
    limits = ServerLimits(frame_stall_s=0.05)
    async with start(limits) as running:
        async with running.connect() as peer:
            await peer.send(add_frame(7, 0)[:40])
            assert await peer.is_cut()
        async with running.connect() as peer:
            assert await peer.add(7, 0) is Status.OK
            await peer.send(add_frame(7, 1)[:40])
            assert await peer.is_cut()
        await assert_unharmed(running)


async def test_who_never_says_a_word_is_cut(start: Start) -> None:
    limits = ServerLimits(first_frame_timeout_s=0.05)
    async with start(limits) as running, running.connect() as never:
        assert await never.is_cut()
        await wait_until(lambda: running.server.statistics().connections == 0)


async def test_who_falls_silent_is_cut(start: Start) -> None:
    limits = ServerLimits(idle_timeout_s=0.05)
    async with start(limits) as running, running.connect() as idle:
        await idle.send(add_frame(7, 0))
        assert await idle.is_cut()
        await wait_until(lambda: running.server.statistics().connections == 0)


async def test_a_flood_of_connections_is_bounded(start: Start) -> None:
    """Silent connections make room for others; they may not keep arenas."""
    limits = ServerLimits(connections_max=60, newcomers_max=20, arena_bytes_max=24 * MIB)
    async with start(limits) as running, running.connect() as bystander:
        assert await bystander.add(7, 0) is Status.OK
        flood = [await trio.open_tcp_stream("127.0.0.1", running.port) for _ in range(300)]
        assert await bystander.add(7, 1) is Status.OK
        await assert_unharmed(running)
        statistics = running.server.statistics()
        assert statistics.connections <= 60
        assert statistics.arena_bytes <= 24 * MIB
        for stream in flood:
            await stream.aclose()


async def test_too_many_connections_are_refused(start: Start) -> None:
    limits = ServerLimits(connections_max=5)
    async with start(limits) as running, trio.open_nursery() as nursery:
        peers = [await dial(running.port) for _ in range(5)]
        for number, peer in enumerate(peers):
            assert await peer.add(7, number) is Status.OK
        async with running.connect() as late:
            assert await late.is_cut()
        for peer in peers:
            nursery.start_soon(peer.stream.aclose)
        await wait_until(lambda: running.server.statistics().connections <= 4)
        await assert_unharmed(running)


async def test_half_frames_do_not_keep_memory_from_others(start: Start) -> None:
    """Each of them announces five megabytes; the pool is smaller than all of them together."""
    limits = ServerLimits(arena_bytes_max=40 * MIB)
    async with start(limits) as running, running.connect() as bystander:
        assert await bystander.add(7, 0) is Status.OK
        header = struct.pack(">II", FRAME_BYTES_MAX, 0x02010000)
        peers = [await dial(running.port) for _ in range(12)]
        for peer in peers:
            await peer.send(header)
        for i in range(1, 60):
            assert await bystander.add(7, i, bytes(MIB)) is Status.OK
        assert running.server.statistics().arena_bytes <= 46 * MIB
        for peer in peers:
            await peer.stream.aclose()


async def test_newcomers_with_half_frames_share_a_pool_of_their_own(start: Start) -> None:
    """None has sent a whole frame: together they keep no more than the pool of new connections."""
    limits = ServerLimits(arena_bytes_max=40 * MIB, newcomer_arena_bytes_max=6 * MIB)
    async with start(limits) as running:
        half = struct.pack(">II", FRAME_BYTES_MAX, 0x02010000) + bytes(100_000)
        peers = [await dial(running.port) for _ in range(30)]
        for peer in peers:
            await peer.send(half)
        await assert_unharmed(running)
        assert running.server.statistics().arena_bytes <= 7 * MIB
        for peer in peers:
            await peer.stream.aclose()


async def test_a_frame_that_trickles_in_is_cut(start: Start) -> None:
    limits = ServerLimits(frame_stall_s=3600, frame_window_s=0.1)
    async with start(limits) as running, running.connect() as peer:
        with suppress(trio.BrokenResourceError):
            for byte in add_frame(7, 0):
                await peer.send(bytes((byte,)))
                await trio.sleep(0.01)
        assert await peer.is_cut()


async def ask_on_and_on(peer: Peer) -> None:
    with suppress(trio.BrokenResourceError):
        while True:
            await peer.send(bookie.encode_read(7, 0) * 100)


async def test_who_never_reads_is_not_read_for(start: Start) -> None:
    limits = ServerLimits(connection_answer_bytes_max=MIB, stall_timeout_s=3600)
    async with start(limits) as running, running.connect() as other, trio.open_nursery() as nursery:
        assert await other.add(7, 0, bytes(MIB)) is Status.OK
        greedy = await dial(running.port, receive_bytes=4096)
        nursery.start_soon(ask_on_and_on, greedy)
        await wait_until(lambda: running.server.statistics().answer_bytes > MIB)
        for i in range(20):
            assert await other.add(8, i) is Status.OK
            assert running.server.statistics().answer_bytes < 8 * MIB
        assert running.server.statistics().connections_cut == 0
        nursery.cancel_scope.cancel()
        await greedy.stream.aclose()


async def test_who_never_reads_is_cut_in_the_end(start: Start) -> None:
    limits = ServerLimits(connection_answer_bytes_max=MIB, stall_timeout_s=0.2)
    async with start(limits) as running, running.connect() as other, trio.open_nursery() as nursery:
        assert await other.add(7, 0, bytes(MIB)) is Status.OK
        greedy = await dial(running.port, receive_bytes=4096)
        nursery.start_soon(ask_on_and_on, greedy)
        await wait_until(lambda: running.server.statistics().connections_cut == 1)
        assert await other.add(8, 0) is Status.OK
        nursery.cancel_scope.cancel()
        await greedy.stream.aclose()


async def test_those_who_take_nothing_are_cut_when_they_are_too_many(start: Start) -> None:
    limits = ServerLimits(connection_answer_bytes_max=2 * MIB, answer_bytes_max=6 * MIB)
    async with start(limits) as running, running.connect() as other:
        assert await other.add(7, 0, bytes(MIB)) is Status.OK
        peers = [await dial(running.port, receive_bytes=4096) for _ in range(12)]
        for peer in peers:
            await peer.send(bookie.encode_read(7, 0) * 20)
        await wait_until(lambda: running.server.statistics().connections_cut >= 4)
        assert running.server.statistics().answer_bytes <= 7 * MIB
        assert await other.add(7, 1) is Status.OK
        for peer in peers:
            await peer.stream.aclose()


async def test_adds_of_a_peer_that_never_reads_are_bounded(start: Start) -> None:
    """The bookie stops reading from it once its answers pile up."""
    limits = ServerLimits(connection_answer_bytes_max=20_000, stall_timeout_s=3600)
    async with start(limits) as running, running.connect() as other, trio.open_nursery() as nursery:
        mute = await dial(running.port, receive_bytes=4096)

        async def add_on_and_on() -> None:
            for first in itertools.count(0, 200):
                await mute.send(*(add_frame(7, first + i, b"") for i in range(200)))

        nursery.start_soon(add_on_and_on)
        await wait_until(lambda: running.server.statistics().answer_bytes > 20_000)
        for i in range(20):
            assert await other.add(8, i) is Status.OK
            assert running.server.statistics().answer_bytes < 500_000
        nursery.cancel_scope.cancel()
        answers = [await mute.answer() for _ in range(100)]
        assert all(isinstance(a, AddRun) and a.status == Status.OK for a in answers)
        await mute.stream.aclose()


async def test_bytes_in_flight_are_bounded(start: Start) -> None:
    limits = ServerLimits(add_bytes_max=4 * MIB, connection_add_bytes_max=2 * MIB)
    most = 0
    async with start(limits) as running, trio.open_nursery() as nursery:

        async def write(ledger_id: int) -> None:
            async with running.connect() as peer, trio.open_nursery() as inner:

                async def send() -> None:
                    for i in range(40):
                        await peer.send(add_frame(ledger_id, i, bytes(300_000)))

                inner.start_soon(send)
                for _ in range(40):
                    nonlocal most
                    answer = await peer.answer()
                    assert isinstance(answer, AddRun)
                    assert answer.status == Status.OK
                    most = max(most, running.server.statistics().add_bytes)

        for ledger_id in range(6):
            nursery.start_soon(write, ledger_id)
    assert most <= 4 * MIB + 2 * MIB


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_memory_stays_bounded_under_reads_that_nobody_takes(start: Start) -> None:
    limits = ServerLimits(connection_answer_bytes_max=MIB, answer_bytes_max=16 * MIB)
    async with start(limits) as running, running.connect() as other:
        for i in range(8):
            assert await other.add(7, i, bytes(MIB)) is Status.OK
        before = resident_bytes()
        peers = [await dial(running.port, receive_bytes=4096) for _ in range(10)]
        for peer in peers:
            await peer.send(b"".join(bookie.encode_read(7, i % 8) for i in range(500)))
        for _ in range(20):
            assert await other.add(8, 0) is Status.OK
        assert resident_bytes() - before < 60 * MIB
        for peer in peers:
            await peer.stream.aclose()


async def settled(running: Running) -> None:
    before = -1
    while before != running.server.statistics().answer_bytes:
        before = running.server.statistics().answer_bytes
        await trio.sleep(0.1)


def viewed_bytes() -> int:
    """Return the size of all objects that a memoryview keeps alive."""
    viewed: dict[int, int] = {}
    for each in gc.get_objects():
        if isinstance(each, memoryview):
            with suppress(ValueError, TypeError):  # it was released, or has no object
                viewed[id(each.obj)] = memoryview(each.obj).nbytes
    return sum(viewed.values())


def read_of_batch(ledger_id: int, first: int) -> bytes:
    return bookie.encode_batch_read(ledger_id, first, first, entries_max=1, bytes_max=10_000)


@pytest.mark.parametrize("size", [0, 9 << 10])
@pytest.mark.parametrize("ask", [bookie.encode_read, read_of_batch])
async def test_answers_that_nobody_takes_keep_little_more_than_themselves(
    start: Start, ask: Callable[[int, int], bytes], size: int
) -> None:
    """Each entry was read together with many of its neighbors."""
    limits = ServerLimits(connection_answer_bytes_max=64 * MIB)
    count, rounds = 600, 6  # the windows of the store hold fewer entries
    async with start(limits) as running, running.connect() as other:
        for i in range(count):
            await other.send(add_frame(7, i, bytes(70_000)), add_frame(8, i, bytes(size)))
        for _ in range(2 * count):
            answer = await other.answer()
            assert isinstance(answer, AddRun)
            assert answer.status == Status.OK
        mute = await dial(running.port, receive_bytes=4096)
        await mute.send(b"".join(bookie.encode_read(7, i) for i in range(150)))
        await settled(running)
        before, queued = viewed_bytes(), running.server.statistics().answer_bytes
        for _ in range(rounds):
            await mute.send(b"".join(ask(8, i) for i in range(count)))
            await settled(running)
        assert running.server.statistics().answer_bytes - queued > rounds * count * 60
        assert viewed_bytes() - before < 120 * MIB
        await mute.stream.aclose()
