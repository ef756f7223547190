"""One client asks 20,000 questions at once: what another client of the same broker notices.

The other client opens a connection of its own to the same broker and measures, one after the other,
a PING, a look-up and a send; first while nobody else asks, then beside the flood.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from bench.cases import Figure
from daybook.clients.python.connect import connect
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.arena import ArenaPool
from daybook.wire.batch import encode_payload
from daybook.wire.connection import FrameConnection
from daybook.wire.messages.client import encode_send
from daybook.wire.messages.registry import Command, decode_frame, encode
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork

LOOKUPS = 20_000
IDLE_ROUNDS = 300
FLOODS = 3
TOPIC = "persistent://public/default/bench-flood"
_FRAME_BYTES_MAX = 6 << 20
_T = pb.BaseCommand


class _Peer:
    """A raw connection that waits for one answer at a time."""

    def __init__(self, frames: FrameConnection) -> None:
        self.frames = frames
        self.answers = 0
        self.refused = 0

    async def expect(self, count: int = 1) -> None:
        """Receive until so many frames have arrived."""
        while count > 0:
            batch = await self.frames.receive()
            assert batch, self.frames.close_reason
            for number, frame in enumerate(batch, 1):
                if not number % 32:
                    await trio.lowlevel.checkpoint()  # The probe is in this process, too.
                command = decode_frame(frame)
                count -= not (isinstance(command, Command) and command.type == _T.PING)
                if isinstance(command, Command) and command.type == _T.LOOKUP_RESPONSE:
                    self.answers += 1
                    self.refused += command.body.HasField("error")


async def lookups_beside(cluster: StandaloneProcess) -> list[Figure]:
    """Return latencies of a second connection, idle and during three floods of 20,000 look-ups.

    The first floods go to the broker that serves the topic, which answers from memory; the last
    ones go to a broker that does not, which asks the metadata store each time.
    """
    owner = await _owner_of_the_topic(cluster)
    urls = [str(broker["service_url"]) for broker in cluster.ready["brokers"]]
    other = next(url for url in urls if url != owner)
    async with _open_peers() as open_peer:
        at_the_owner = await _beside(open_peer, owner, "the owner")
        return at_the_owner + await _beside(open_peer, other, "another broker")


OpenPeer = Callable[[str], Awaitable[_Peer]]


@asynccontextmanager
async def _open_peers() -> AsyncGenerator[OpenPeer]:
    flusher, arenas = Flusher(), ArenaPool()

    async def open_peer(url: str) -> _Peer:
        host, _, port = url.removeprefix("pulsar://").rpartition(":")
        stream = await TcpNetwork().connect(host, int(port))
        frames = FrameConnection(
            stream, arenas=arenas, flusher=flusher, frame_bytes_max=_FRAME_BYTES_MAX
        )
        frames.send([encode(pb.CommandConnect(client_version="x", protocol_version=19))])
        peer = _Peer(frames)
        await peer.expect()
        return peer

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        yield open_peer
        nursery.cancel_scope.cancel()


async def _beside(open_peer: OpenPeer, url: str, where: str) -> list[Figure]:
    probe = await open_peer(url)
    steps = _steps(probe)
    if where == "the owner":
        probe.frames.send([encode(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))])
        await probe.expect()
    else:
        steps.pop()
    idle = {name: [await _timed(step) for _ in range(IDLE_ROUNDS)] for name, step in steps}
    beside: dict[str, list[float]] = {name: [] for name, _ in steps}
    took, refused = 0.0, 0
    for _ in range(FLOODS):
        flooder = await open_peer(url)
        done = trio.Event()
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_flood, flooder, done)
            while not done.is_set():
                for name, step in steps:
                    beside[name].append(await _timed(step))
        took += time.perf_counter() - began
        refused += flooder.refused
        flooder.frames.close()
    note = f"{refused / FLOODS:.0f} refused, to be asked again"
    figures = [
        Figure(f"20,000 look-ups of one client at {where}", took / FLOODS, "s", "", True, note)
    ]
    for name, _ in steps:
        figures += _rows(name, sorted(idle[name]), sorted(beside[name]))
    return figures


async def _flood(flooder: _Peer, done: trio.Event) -> None:
    lookup = pb.CommandLookupTopic(topic=TOPIC, request_id=7)
    flooder.frames.send([encode(lookup) * LOOKUPS])
    await flooder.expect(LOOKUPS)
    done.set()


async def _owner_of_the_topic(cluster: StandaloneProcess) -> str:
    async with connect(cluster.service_url) as client:
        async with await client.create_producer(TOPIC) as producer:
            await producer.send(b"x")
        return await client.lookup(TOPIC)


def _steps(probe: _Peer) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
    sequence = iter(range(1 << 40))

    async def ping() -> None:
        probe.frames.send([encode(pb.CommandPing())])
        await probe.expect()

    async def lookup() -> None:
        probe.frames.send([encode(pb.CommandLookupTopic(topic=TOPIC, request_id=9))])
        await probe.expect()

    async def send() -> None:
        number = next(sequence)
        metadata = pb.MessageMetadata(
            producer_name="probe", sequence_id=number, publish_time=1_700_000_000_000
        )
        payload = encode_payload(metadata, b"x" * 100)
        probe.frames.send([encode_send(1, number, len(payload)), payload])
        await probe.expect()

    return [("PING", ping), ("look-up", lookup), ("send", send)]


async def _timed(step: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await step()
    return (time.perf_counter() - began) * 1e3


def _rows(name: str, idle: list[float], beside: list[float]) -> list[Figure]:
    def at(times: list[float], share: float) -> float:
        return times[min(len(times) - 1, int(len(times) * share))]

    quiet = ", ".join(f"{at(idle, share):.2f}" for share in (0.5, 0.99, 1.0))
    note = f"idle p50, p99, max: {quiet} ms; {len(beside)} times"
    p99 = at(beside, 0.99)
    return [
        Figure(f"  {name} beside it: p50", at(beside, 0.5), "ms", "", True, note),
        Figure(f"  {name} beside it: p99", p99, "ms", "<= 50", p99 <= 50),
        Figure(f"  {name} beside it: max", beside[-1], "ms", "", True),
    ]


CASES = {"flood": lookups_beside}
