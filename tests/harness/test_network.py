"""The simulated network: a connection loses and reorders nothing until it breaks."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from daybook.wire.errors import ConnectionLostError, NobodyListensError
from daybook.wire.transport import Stream
from tests.harness.network import SimulatedNetwork, Slow
from tests.simulation import scheduler
from tests.simulation.scheduler import Scheduler

PORT = 1

Story = Callable[[SimulatedNetwork, Stream, Stream], Awaitable[None]]


def connected(story: Story, *, split: float = 0.0, seed: int = 1) -> None:
    """Play the story with a connection from `a` to `b`."""

    async def main(handle: Scheduler) -> None:
        network = SimulatedNetwork(random.Random(seed), split=split, timers=handle)
        listener = await network.of("b").listen("b", PORT)
        here = await network.of("a").connect("b", PORT)
        await story(network, here, await listener.accept())

    scheduler.run(main, seed=seed)


async def receive(stream: Stream) -> bytes:
    buffer = bytearray(1 << 16)
    while (count := stream.try_recv_into(memoryview(buffer))) is None:
        await stream.wait_readable()
    return bytes(buffer[:count])


async def receive_all(stream: Stream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += await receive(stream)
    return found


async def receive_until_broken(stream: Stream) -> bytes:
    found = b""
    with suppress(ConnectionLostError):
        while True:
            found += await receive(stream)
    return found


@pytest.mark.parametrize("split", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_as_they_were_sent(split: float, seed: int) -> None:
    async def story(_: SimulatedNetwork, here: Stream, there: Stream) -> None:
        parts = [bytes([n]) * (n + 1) for n in range(100)]
        for part in parts:
            assert here.try_send([part]) == len(part)
        everything = b"".join(parts)
        assert await receive_all(there, len(everything)) == everything
        here.close()
        assert await receive(there) == b""

    connected(story, split=split, seed=seed)


def test_a_blocked_link_holds_back_and_delivers_when_it_is_free_again() -> None:
    async def story(network: SimulatedNetwork, here: Stream, there: Stream) -> None:
        network.block("a", "b")
        here.try_send([b"one"])
        there.try_send([b"back"])
        assert await receive(here) == b"back"  # only the other direction is blocked
        with trio.move_on_after(10) as scope:
            await receive(there)
        assert scope.cancelled_caught
        network.unblock("a", "b")
        here.try_send([b"two"])
        assert await receive_all(there, 6) == b"onetwo"

    connected(story)


def test_nobody_connects_over_a_blocked_link() -> None:
    async def story(network: SimulatedNetwork, here: Stream, there: Stream) -> None:
        del here, there
        network.block("b", "a")
        with pytest.raises(ConnectionLostError):
            await network.of("a").connect("b", PORT)
        with pytest.raises(NobodyListensError):
            await network.of("c").connect("b", PORT + 1)

    connected(story)


def test_a_sender_waits_when_nobody_reads() -> None:
    async def story(_: SimulatedNetwork, here: Stream, there: Stream) -> None:
        sent = 0
        while count := here.try_send([b"x" * 100_000]):
            sent += count
        with trio.move_on_after(10) as scope:
            await here.wait_writable()
        assert scope.cancelled_caught
        await receive(there)
        await here.wait_writable()
        assert sent == 1 << 20

    connected(story)


def test_a_slow_link_takes_its_time() -> None:
    async def story(network: SimulatedNetwork, here: Stream, there: Stream) -> None:
        network.slow("a", "b", Slow(1.0, 1000.0))
        here.try_send([b"x" * 2000])
        await receive_all(there, 2000)
        assert 2.0 < trio.current_time() < 2.1
        network.slow("a", "b", None)
        here.try_send([b"y"])
        await receive(there)
        assert trio.current_time() < 2.1

    connected(story)


@pytest.mark.parametrize("seed", range(8))
def test_after_a_torn_reset_a_first_part_arrives_and_then_the_error(seed: int) -> None:
    async def story(network: SimulatedNetwork, here: Stream, there: Stream) -> None:
        here.try_send([b"0123456789"])
        network.cut("a", torn=True)
        with pytest.raises(ConnectionLostError):
            here.try_send([b"more"])
        found = await receive_until_broken(there)
        assert b"0123456789".startswith(found)
        assert len(found) < 10
        assert network.open_streams == []

    connected(story, seed=seed)


@pytest.mark.parametrize("seed", range(8))
def test_of_a_process_that_is_killed_a_last_part_arrives_and_nothing_is_left(seed: int) -> None:
    async def story(network: SimulatedNetwork, here: Stream, there: Stream) -> None:
        here.try_send([b"0123456789"])
        there.try_send([b"never read"])
        network.crash("a", torn=True)
        assert b"0123456789".startswith(await receive_until_broken(there))
        assert network.open_streams == []

    connected(story, seed=seed)


def test_a_machine_that_vanishes_tells_nobody_and_refuses_when_it_is_back() -> None:
    async def story(network: SimulatedNetwork, here: Stream, there: Stream) -> None:
        del there
        network.vanish("b")
        here.try_send([b"anybody there?"])
        with trio.move_on_after(10) as scope:
            await receive(here)
        assert scope.cancelled_caught
        with pytest.raises(ConnectionLostError):
            await network.of("a").connect("b", PORT)
        network.appear("b")
        with pytest.raises(ConnectionLostError):
            await receive(here)
        with pytest.raises(NobodyListensError):
            await network.of("a").connect("b", PORT)

    connected(story)


def test_without_timers_it_works_on_any_clock() -> None:
    async def main(_: Scheduler) -> None:
        network = SimulatedNetwork(random.Random(1))
        listener = await network.of("b").listen("b", PORT)
        here = await network.of("a").connect("b", PORT)
        there = await listener.accept()
        here.try_send([b"x"])
        assert await receive(there) == b"x"

    scheduler.run(main, seed=1)
