"""One topic with hundreds of subscriptions, and thousands of connections that work now and then.

    nice python -m tests.real.many_subscriptions --subscriptions 200 --connections 2000

The cluster has one broker and three bookies.  In the first part one producer sends at a steady
rate, and each subscription receives and acknowledges every message.  In the second part each
connection belongs to a client of its own: half of them produce, and the others share subscriptions
of the same topics.  A client sends a message once in `--every` seconds, at a random time.  Each
part prints its rates, the latency of a send, the memory of the broker, and how often the broker
read from bookies.  The program fails if a message is missing.
"""

import argparse
import random
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

from daybook.clients.python.connect import connect
from daybook.clients.python.consumer import Consumer
from daybook.clients.python.http import http_request
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.tcp import TcpNetwork
from tests.harness.standalone import part, resident_bytes
from tests.real.many_clients import MB, raise_descriptors

SIZE = 1024
_TOPICS = 20
_CONNECTING_MAX = 50  # clients that are being opened at a time
_PATIENCE_S = 600.0
_READS = re.compile(r"^daybook_broker_bookie_reads_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of one part."""

    name: str
    sent: int
    received: int
    took_s: float
    waits_ms: Sequence[float]  # from the send to the receipt
    broker_bytes_before: int
    broker_bytes: int
    bookie_reads: int

    def __str__(self) -> str:
        ordered = sorted(self.waits_ms)
        return (
            f"{self.name}: {self.sent} messages sent at {self.sent / self.took_s:,.0f}/s,"
            f" {self.received} received at {self.received / self.took_s:,.0f}/s; a send took"
            f" {statistics.median(ordered):.1f} ms, p99 {ordered[len(ordered) * 99 // 100]:.1f} ms;"
            f" broker {self.broker_bytes_before / MB:.1f} MB before,"
            f" {self.broker_bytes / MB:.1f} MB at the end; {self.bookie_reads} reads at bookies"
        )


class Measured:
    """Takes the figures of a part: memory and reads before and after, and the waits of sends."""

    def __init__(self, cluster: StandaloneProcess) -> None:
        self._broker = part(cluster, "broker-1")
        self._before = 0
        self._reads_before = 0
        self._began = 0.0
        self.sent = self.received = 0
        self._number = 0  # the number of the last message, which begins with it
        self.waits_ms: list[float] = []

    async def begin(self) -> None:
        self._before, self._reads_before = self.broker_bytes, await self.bookie_reads()

    def begin_time(self) -> None:
        self._began = trio.current_time()

    async def send(self, producer: Producer) -> None:
        began = trio.current_time()
        self._number += 1
        await producer.send(self._number.to_bytes(8, "big") + bytes(SIZE - 8))
        self.waits_ms.append((trio.current_time() - began) * 1000)
        self.sent += 1

    @property
    def broker_bytes(self) -> int:
        return resident_bytes(int(self._broker["pid"]))

    async def bookie_reads(self) -> int:
        host, _, port = str(self._broker["admin_url"]).removeprefix("http://").rpartition(":")
        network = TcpNetwork()
        answer = await http_request(
            network, host, int(port), "GET", "/metrics", None, timeout_s=60.0
        )
        (count,) = _READS.findall(answer.body.decode())
        return int(float(count))

    async def end(self, name: str) -> Part:
        took_s = trio.current_time() - self._began
        reads = await self.bookie_reads() - self._reads_before
        return Part(
            name,
            self.sent,
            self.received,
            took_s,
            self.waits_ms,
            self._before,
            self.broker_bytes,
            reads,
        )


def client_of(cluster: StandaloneProcess) -> connect:
    """Return a client that is patient: the machine may be busy with thousands of them."""
    limits = ClientLimits(operation_timeout_s=_PATIENCE_S)
    return connect(cluster.service_url, timeout_s=_PATIENCE_S, limits=limits)


async def subscriptions(
    cluster: StandaloneProcess, count: int, rate: float, seconds: float
) -> Part:
    """Have all subscriptions of one topic receive every message."""
    figures, messages = Measured(cluster), int(rate * seconds)
    await figures.begin()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(cluster))
        consumers = [
            await stack.enter_async_context(await client.subscribe("many", f"s{number}"))
            for number in range(count)
        ]
        producer = await stack.enter_async_context(
            await client.create_producer("many", batch_delay_s=0.0, send_timeout_s=None)
        )

        async def receive(consumer: Consumer) -> None:
            seen: set[bytes] = set()  # A message may come again when the broker is late.
            while len(seen) < messages:
                found = await consumer.receive_batch()
                consumer.ack_nowait(found)
                before = len(seen)
                seen.update((each.data or b"")[:8] for each in found)
                figures.received += len(seen) - before

        figures.begin_time()
        began = trio.current_time()
        with trio.fail_after(_PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for consumer in consumers:
                    nursery.start_soon(receive, consumer)
                for number in range(messages):
                    await trio.sleep_until(began + number / rate)
                    nursery.start_soon(figures.send, producer)
        assert figures.received == messages * count
        return await figures.end(f"{count} subscriptions of one topic")


async def connections(
    cluster: StandaloneProcess, count: int, every_s: float, seconds: float
) -> Part:
    """Have half of the clients produce now and then, and the others share what arrives."""
    figures, rng = Measured(cluster), random.Random(1)
    await figures.begin()
    opening, opened = trio.CapacityLimiter(_CONNECTING_MAX), 0
    producing, seen = count - count // 2, set[bytes]()
    all_open, over, changed = trio.Event(), trio.Event(), trio.Event()

    async def wait_all() -> None:
        nonlocal opened
        opened += 1
        if opened == count:
            all_open.set()
        await all_open.wait()

    async def produce(number: int) -> None:
        nonlocal producing
        async with AsyncExitStack() as stack:
            async with opening:
                client = await stack.enter_async_context(client_of(cluster))
                producer = await stack.enter_async_context(
                    await client.create_producer(f"often-{number % _TOPICS}", send_timeout_s=None)
                )
            await wait_all()
            end = trio.current_time() + seconds
            while (until := trio.current_time() + rng.uniform(0, 2 * every_s)) < end:
                await trio.sleep_until(until)
                await figures.send(producer)
            producing -= 1
            changed.set()
            await over.wait()

    async def consume(number: int) -> None:
        async with AsyncExitStack() as stack:
            async with opening:
                client = await stack.enter_async_context(client_of(cluster))
                consumer = await stack.enter_async_context(
                    await client.subscribe(
                        f"often-{number % _TOPICS}",
                        "all",
                        type="shared",
                        initial_position="earliest",
                    )
                )
            await wait_all()
            while not over.is_set():
                message = None
                with trio.move_on_after(1.0):
                    message = await consumer.receive()
                if message is not None:
                    consumer.ack_nowait(message)
                    seen.add((message.data or b"")[:8])
                    figures.received = len(seen)
                    changed.set()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(consume if number % 2 else produce, number // 2)
        with trio.fail_after(_PATIENCE_S):
            await all_open.wait()
            figures.begin_time()
            while producing or figures.received < figures.sent:
                changed = trio.Event()
                await changed.wait()
        found = await figures.end(f"{count} connections that work now and then")
        over.set()
    assert found.received == found.sent, found
    return found


async def measure(
    cluster: StandaloneProcess,
    *,
    subscription_count: int,
    rate: float,
    connection_count: int,
    every_s: float,
    seconds: float,
    show: Callable[[Part], object] = lambda _: None,
) -> list[Part]:
    """Return the figures of both parts."""
    found = [await subscriptions(cluster, subscription_count, rate, seconds)]
    show(found[-1])
    found.append(await connections(cluster, connection_count, every_s, seconds))
    show(found[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.many_subscriptions")
    parser.add_argument("--subscriptions", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100.0, help="messages a second of the topic")
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two messages")
    parser.add_argument("--seconds", type=float, default=30.0, help="the length of each part")
    options = parser.parse_args()
    raise_descriptors()

    async def run(cluster: StandaloneProcess) -> None:
        await measure(
            cluster,
            subscription_count=options.subscriptions,
            rate=options.rate,
            connection_count=options.connections,
            every_s=options.every,
            seconds=options.seconds,
            show=lambda found: print(found, flush=True),
        )

    with StandaloneProcess(brokers=1) as cluster:
        trio.run(run, cluster)
    return 0


if __name__ == "__main__":
    sys.exit(main())
