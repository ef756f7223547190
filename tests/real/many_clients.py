"""Thousands of idle clients: their cost, and that they leave nothing behind.

    python -m tests.real.many_clients --official 2000 --raw 5000 --bookie 1500

The cluster has one broker and three bookies.  The official clients are real ones, many in a few
processes; each looks up a topic and is idle.  A raw client makes the handshake and answers pings.
At the bookie a raw client has one read answered.  A producer of our own is the probe.  For each
step the program prints the memory of the broker and of the bookie, their connections, and the
probe's latency.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from daybook.clients.python.connect import connect
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.messages.bookie import encode_read
from daybook.wire.messages.registry import encode
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.standalone import part, resident_bytes
from tests.real.hostile import CONNECT, GONE

MB = 1 << 20
PATIENCE_S = 300.0
_PONG = encode(pb.CommandPong())
_OFFICIAL_PER_PROCESS = 250
_CONNECTING_MAX = 100  # at once: fewer than a port keeps in its backlog
_PROBES = 200
_PROBE_PAUSE_S = 0.02
_REST_S = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """The measurements at one moment."""

    name: str
    broker_bytes: int
    bookie_bytes: int
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.name:32} broker {self.broker_bytes / MB:6.1f} MB, bookie"
            f" {self.bookie_bytes / MB:6.1f} MB, probe p50 {self.p50_ms:5.1f} ms,"
            f" p99 {self.p99_ms:6.1f} ms"
        )


def raise_descriptors() -> None:
    """Raise the limit of open files; child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def held(
    port: int, count: int, hello: bytes, answer: bytes = b""
) -> AsyncIterator[Callable[[], int]]:
    """Hold `count` raw clients.  Each has its hello answered; `answer` answers later commands."""
    room, here = trio.CapacityLimiter(_CONNECTING_MAX), 0
    all_here = trio.Event()

    async def one() -> None:
        nonlocal here
        async with room:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(hello)
            assert await stream.receive_some(4096), "it was cut at once"
        here += 1
        if here == count:
            all_here.set()
        try:
            with suppress(*GONE):
                while await stream.receive_some(4096):
                    if answer:
                        await stream.send_all(answer)
        finally:
            here -= 1
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
        if count:
            with trio.fail_after(PATIENCE_S):
                await all_here.wait()
        yield lambda: here
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def official_clients(service_url: str, count: int) -> AsyncIterator[None]:
    """Run official clients in processes of their own, which end with their standard input."""
    workers: list[trio.Process] = []
    try:
        for first in range(0, count, _OFFICIAL_PER_PROCESS):
            size = min(_OFFICIAL_PER_PROCESS, count - first)
            worker = await trio.lowlevel.open_process(
                [
                    sys.executable,
                    "-m",
                    "tests.real.many_clients",
                    "--worker",
                    service_url,
                    str(size),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            workers.append(worker)
            with trio.fail_after(PATIENCE_S):
                assert worker.stdout is not None
                assert await worker.stdout.receive_some(10), "the official clients did not start"
        yield
    finally:
        with trio.CancelScope(shield=True):
            for worker in workers:
                await _end(worker)


async def _end(worker: trio.Process) -> None:
    assert worker.stdin is not None
    await worker.stdin.aclose()
    with trio.move_on_after(60) as scope:
        await worker.wait()
    if scope.cancelled_caught:
        worker.kill()
        await worker.wait()


def official_worker(service_url: str, count: int) -> None:
    """Run `count` clients, each with a connection, until the end of standard input."""
    import pulsar  # only the workers need its threads

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    clients = [
        pulsar.Client(
            service_url,
            io_threads=1,
            message_listener_threads=1,
            operation_timeout_seconds=60,
            logger=logger,
        )
        for _ in range(count)
    ]
    for client in clients:
        client.get_topic_partitions("persistent://public/default/many-clients")
    print("ready", flush=True)
    sys.stdin.read()
    for client in clients:
        client.close()


async def probe(producer: Producer) -> tuple[float, float]:
    """Return the latency of a send in milliseconds: the median, and the 99th percentile."""
    waits: list[float] = []
    with trio.fail_after(PATIENCE_S):
        for _ in range(_PROBES):
            began = trio.current_time()
            await producer.send(b"probe")
            waits.append((trio.current_time() - began) * 1000)
            await trio.sleep(_PROBE_PAUSE_S)
    return statistics.median(waits), sorted(waits)[len(waits) * 99 // 100]


async def measure(
    cluster: StandaloneProcess,
    *,
    official: int,
    raw: int,
    bookie: int,
    show: Callable[[Step], object] = lambda _: None,
) -> list[Step]:
    """Return the steps: before, with each kind of clients, and after all of them have gone."""
    broker, storage = part(cluster, "broker-1"), part(cluster, "bookie-1")
    broker_port, bookie_port = (
        int(each["address"].rpartition(":")[2]) for each in (broker, storage)
    )
    steps: list[Step] = []

    async with (
        connect(cluster.service_url) as client,
        await client.create_producer("many-clients") as producer,
    ):

        async def look(name: str) -> None:
            p50_ms, p99_ms = await probe(producer)
            here, there = (resident_bytes(int(each["pid"])) for each in (broker, storage))
            steps.append(Step(name, here, there, p50_ms, p99_ms))
            show(steps[-1])

        async def settle() -> None:
            await trio.sleep(_REST_S)
            await look("all gone")

        await look("before")
        async with official_clients(cluster.service_url, official):
            await look(f"{official} official clients")
            # A new client finds a broker that serves new clients as before.
            async with connect(cluster.service_url) as other:
                await other.partitions("many-clients")
        await settle()
        async with held(broker_port, raw, CONNECT, _PONG) as here:
            await look(f"{raw} raw clients")
            assert here() == raw, "some were cut"
        await settle()
        # The process keeps freed memory for itself: as many clients again must not need more.
        async with held(broker_port, raw, CONNECT, _PONG):
            await look(f"{raw} raw clients again")
        await settle()
        async with held(bookie_port, bookie, encode_read(1 << 40, 0)) as here:
            await look(f"{bookie} raw clients of a bookie")
            assert here() == bookie, "some were cut"
        await settle()
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.many_clients")
    parser.add_argument("--official", type=int, default=2000)
    parser.add_argument("--raw", type=int, default=5000)
    parser.add_argument("--bookie", type=int, default=1500)
    parser.add_argument("--worker", nargs=2, metavar=("URL", "COUNT"))
    options = parser.parse_args()
    raise_descriptors()
    if options.worker:
        official_worker(options.worker[0], int(options.worker[1]))
        return 0
    with StandaloneProcess(brokers=1) as cluster:
        run: Callable[[], Awaitable[list[Step]]] = lambda: measure(  # noqa: E731
            cluster, official=options.official, raw=options.raw, bookie=options.bookie, show=print
        )
        trio.run(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
