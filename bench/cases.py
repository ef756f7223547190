"""One function for each figure.  Each takes a running cluster and returns rows of the table."""

import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from bench import limit
from bench.profile import Profile
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.standalone import owner_of, pids, wait_running

_KILLS = 50
BATCH_BYTES = 128 << 10
WARM_UP_S = 2.0
MEASURE_S = 8.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: name, value, unit, and the target."""

    name: str
    value: float
    unit: str
    target: str
    good: bool
    note: str = ""


class Rate:
    """Counts acknowledged messages after the warm-up."""

    def __init__(self) -> None:
        self.count = 0
        self.failures = 0

    def __call__(self, message_id: object, failure: object) -> None:
        if failure is None:
            self.count += 1
        else:
            self.failures += 1


async def produce(
    client: Client, topic: str, size: int, batch_bytes: int, measure_s: float = MEASURE_S
) -> float:
    """Return the messages a second that were acknowledged after the warm-up."""
    data = random.Random(1).randbytes(size)
    rate = Rate()
    async with await client.create_producer(
        topic, batch_bytes_max=batch_bytes, batch_messages_max=10_000, pending_bytes_max=32 << 20
    ) as producer:
        started = trio.current_time()
        counted_from, counted = started + WARM_UP_S, 0
        while (now := trio.current_time()) < started + WARM_UP_S + measure_s:
            if not counted and now >= counted_from:
                counted, counted_from = rate.count, now
            for _ in range(200):
                if not producer.has_room:
                    await producer.wait_room()
                producer.send_nowait(data, on_result=rate)
            await trio.lowlevel.checkpoint()
        done, elapsed = rate.count - counted, trio.current_time() - counted_from
        await producer.flush()
    assert not rate.failures
    return done / elapsed


async def produce_1kb(cluster: StandaloneProcess) -> list[Figure]:
    """Send 1 KB messages in batches of 128 KB; compare with the relay that writes three files."""
    async with connect(cluster.service_url) as client:
        with Profile(cluster) as profile:
            rate = await produce(client, "bench-1kb", 1024, BATCH_BYTES)
    mb_s = rate * 1024 / 1e6
    most = await trio.to_thread.run_sync(limit.writing_mb_s, BATCH_BYTES, 1 << 30)
    ratio = mb_s / most
    return [
        Figure("produce 1 KB, batches of 128 KB", mb_s, "MB/s", "", True, profile.text),
        Figure("  of the relay limit", ratio, "", ">= 0.35", ratio >= 0.35, f"{most:.0f} MB/s"),
    ]


async def produce_100b(cluster: StandaloneProcess) -> list[Figure]:
    async with connect(cluster.service_url) as client:
        with Profile(cluster) as profile:
            rate = await produce(client, "bench-100b", 100, BATCH_BYTES)
    good = rate >= 250_000
    return [Figure("produce 100 B, batched", rate, "msg/s", ">= 250,000", good, profile.text)]


async def latency(cluster: StandaloneProcess) -> list[Figure]:
    """Measure 1 KB messages at 1,000 a second, from the call to the receipt.

    At this rate batches do not fill.
    """
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer("bench-latency", batch_delay_s=0.0) as producer,
    ):
        with Profile(cluster) as profile:
            took = await _publish_in_time(producer)
    p50, p99 = took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3
    sync = await trio.to_thread.run_sync(limit.sync_ms)
    return [
        Figure("1 KB at 1,000/s: p50", p50, "ms", "<= 2", p50 <= 2, profile.text),
        Figure("1 KB at 1,000/s: p99", p99, "ms", "<= 10", p99 <= 10, f"one sync: {sync:.2f} ms"),
    ]


async def _publish_in_time(producer: Producer) -> list[float]:
    """Return the seconds from the call to the receipt, sorted."""
    data = random.Random(1).randbytes(1024)
    took: list[float] = []
    start = trio.current_time() + 0.1
    for i in range(int(1000 * (WARM_UP_S + MEASURE_S))):
        await trio.sleep_until(start + i / 1000)
        sent = time.perf_counter()

        def note(_: object, failure: object, sent: float = sent) -> None:
            assert failure is None
            took.append(time.perf_counter() - sent)

        producer.send_nowait(data, on_result=note)
    await producer.flush()
    return sorted(took[int(1000 * WARM_UP_S) :])


async def consume(cluster: StandaloneProcess) -> list[Figure]:
    """Read a backlog of 1 KB messages, one by one and in batches, each on its own subscription."""
    topic, count = "bench-backlog", 1_000_000
    await _fill(cluster, topic, ("single", "batch"), count)
    most = await trio.to_thread.run_sync(limit.reading_mb_s, BATCH_BYTES, 1 << 30)
    figures: list[Figure] = []
    for name, target in (("single", 150), ("batch", 300)):
        async with (
            connect(cluster.service_url) as client,
            await client.subscribe(topic, name, receiver_queue_size=10_000) as consumer,
        ):
            started = trio.current_time()
            with Profile(cluster) as profile:
                await (_drain_single if name == "single" else _drain_batches)(consumer, count)
            mb_s = count * 1024 / (trio.current_time() - started) / 1e6
        how = "one by one" if name == "single" else "in batches"
        note = f"{mb_s / most:.2f} of the limit ({most:.0f} MB/s); {profile.text}"
        figures.append(
            Figure(f"consume 1 KB, {how}", mb_s, "MB/s", f">= {target}", mb_s >= target, note)
        )
    return figures


async def _fill(
    cluster: StandaloneProcess, topic: str, subscriptions: Sequence[str], count: int
) -> None:
    data = random.Random(1).randbytes(1024)
    async with connect(cluster.service_url) as client:
        for name in subscriptions:
            async with await client.subscribe(topic, name, initial_position="earliest"):
                pass
        async with await client.create_producer(
            topic, batch_bytes_max=BATCH_BYTES, batch_messages_max=10_000
        ) as producer:
            for i in range(count):
                if i % 200 == 0 or not producer.has_room:
                    await producer.wait_room()
                producer.send_nowait(data)
            await producer.flush()


async def _drain_single(consumer: Consumer, count: int) -> None:
    for _ in range(count):
        message = await consumer.receive()
        consumer.ack_nowait(message)


async def _drain_batches(consumer: Consumer, count: int) -> None:
    while count > 0:
        batch = await consumer.receive_batch(10_000)
        consumer.ack_nowait(batch)
        count -= len(batch)


async def takeover(cluster: StandaloneProcess) -> list[Figure]:
    """Kill the owner 50 times, and measure from the kill to the next acknowledged publish."""
    topic, times, lost = "bench-takeover", [], 0
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer(topic, send_timeout_s=60) as producer,
        await client.subscribe(topic, "check", initial_position="earliest") as consumer,
    ):
        sent = 0
        for _ in range(_KILLS):
            await producer.send(b"%d" % sent)
            sent += 1
            owner = await owner_of(cluster, topic)
            pid = (await pids(cluster))[owner]
            os.kill(pid, signal.SIGKILL)
            started = trio.current_time()
            await producer.send(b"%d" % sent)
            sent += 1
            times.append(trio.current_time() - started)
            await wait_running(cluster)
        got: set[int] = set()
        with trio.move_on_after(30):
            while len(got) < sent:
                got |= {int(m.data or b"") for m in await consumer.receive_batch()}
        lost = sent - len(got)
    times.sort()
    median, what = times[_KILLS // 2], f"takeover, {_KILLS} kills"
    return [
        Figure(f"{what}: median", median, "s", "<= 0.15", median <= 0.15),
        Figure(f"{what}: max", times[-1], "s", "<= 0.5", times[-1] <= 0.5),
        Figure(f"{what}: lost", lost, "", "0", lost == 0),
    ]


def standalone_start() -> list[Figure]:
    """Measure a fresh `daybook standalone`: time to the first receipt, and idle memory."""
    started = time.perf_counter()
    with StandaloneProcess() as cluster:

        async def first() -> None:
            async with (
                connect(cluster.service_url) as client,
                await client.create_producer("first") as producer,
            ):
                await producer.send(b"first")

        trio.run(first)
        took = time.perf_counter() - started
        time.sleep(3)  # time until the cluster is idle
        memory = sum(map(_pss_mb, _family(cluster.pid)))
    return [
        Figure("standalone: first acknowledged publish", took, "s", "<= 8", took <= 8),
        Figure("standalone, idle: memory (PSS)", memory, "MB", "<= 700", memory <= 700),
    ]


def _family(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


Case = Callable[[StandaloneProcess], Awaitable[list[Figure]]]
CASES: dict[str, Case] = {
    "produce-1kb": produce_1kb,
    "produce-100b": produce_100b,
    "latency": latency,
    "consume": consume,
    "takeover": takeover,
}
