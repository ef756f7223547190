"""Many topics in one cluster of two brokers: what they cost when created, used, idle, taken over.

    nice python -m tests.real.scale --topics 100000 --loaded 10000

1. topics are created by REST, many at a time
2. they are listed, at once and in pages
3. each gets one message, with a receipt
4. the brokers unload them, because nobody uses them
5. some are read: each is loaded for that, and has its message
6. a client keeps `--loaded` producers open, and the broker that serves most of them is killed

Each step prints how long it took, the memory of the brokers and of ZooKeeper, the number of loaded
topics, and the load of the machine.  The program fails if a message is missing.
"""

import argparse
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from daybook.clients.python.admin import Admin
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import (
    AdminInDoubtError,
    AdminNotReadyError,
    BrokerError,
    ConflictError,
)
from daybook.clients.python.http import http_request
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire.tcp import TcpNetwork
from tests.harness.standalone import admin_of, order, owner_of, pids, resident_bytes

MB = 1 << 20
_AT_ONCE = 48
_PAGE = 1_000
_READS = 1_000
_PATIENCE_S = 3600.0
_LOOK_S = 1.0
_RETRY_S = 0.2
_IDLE_S = 20.0
_NAMESPACE = "public/default"
_LOADED = re.compile(r"^pulsar_broker_topics_count\{[^}]*\} (\d+)", re.MULTILINE)


def name_of(number: int) -> str:
    return f"persistent://{_NAMESPACE}/scale-{number:06}"


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of one step.  `each_ms` are the times of single operations."""

    name: str
    count: int
    took_s: float
    loaded: int
    brokers_mb: tuple[float, ...]
    zookeeper_mb: float
    load: float
    each_ms: Sequence[float] = field(default=())
    cpu_ms: Mapping[str, float] = field(default_factory=dict[str, float])  # by kind, for each

    def __str__(self) -> str:
        each = ""
        if self.each_ms:
            ordered = sorted(self.each_ms)
            p99 = ordered[len(ordered) * 99 // 100]
            each = f"; each {statistics.median(ordered):.0f} ms, p99 {p99:.0f} ms"
        cpu = ", ".join(f"{kind} {ms:.1f}" for kind, ms in self.cpu_ms.items())
        if cpu:
            each += f"; processor ms each: {cpu}"
        rate = self.count / self.took_s if self.took_s else 0.0
        brokers = " + ".join(f"{mb:.0f}" for mb in self.brokers_mb)
        return (
            f"{self.name:34} {self.count:7} in {self.took_s:7.1f} s = {rate:7.1f}/s{each};"
            f" {self.loaded} loaded, brokers {brokers} MB, ZooKeeper {self.zookeeper_mb:.0f} MB,"
            f" load {self.load:.1f}"
        )


async def for_each(
    numbers: Sequence[int],
    act: Callable[[int], Awaitable[None]],
    *,
    show: str = "",
    at_once: int = _AT_ONCE,
) -> list[float]:
    """Act on all numbers, several at a time, and return the milliseconds of each."""
    took: list[float] = []
    waiting = iter(numbers)
    began = time.monotonic()

    async def work() -> None:
        for number in waiting:
            begin = time.monotonic()
            await act(number)
            took.append((time.monotonic() - begin) * 1000)
            if show and not len(took) % 5_000:
                rate = len(took) / (time.monotonic() - began)
                print(f"    {show}: {len(took)}, {rate:.0f}/s", flush=True)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(numbers))):
            nursery.start_soon(work)
    return took


class Run:
    """One run against a cluster.  `steps` has the figures so far."""

    def __init__(
        self, cluster: StandaloneProcess, topics: int, loaded: int, show: Callable[[Step], object]
    ) -> None:
        self.cluster = cluster
        self.topics = topics
        self.held = loaded
        self.steps: list[Step] = []
        self._show = show
        self._used: dict[str, float] = {}  # milliseconds of processor at the end of the last step
        self._network = TcpNetwork()
        self._brokers = [str(each["admin_url"]) for each in cluster.ready["brokers"]]

    async def loaded(self) -> list[int]:
        """Return how many topics each broker has in memory; 0 for one that is down."""
        found: list[int] = []
        for url in self._brokers:
            try:
                found.append(await loaded_topics(self._network, url))
            except BrokerError:
                found.append(0)
        return found

    async def note(
        self, name: str, count: int, took_s: float, each_ms: Sequence[float] = ()
    ) -> None:
        running = {part: pid for part, pid in (await pids(self.cluster)).items() if pid}
        sizes = {part: resident_bytes(pid) / MB for part, pid in running.items()}
        brokers = tuple(size for part, size in sizes.items() if part.startswith("broker"))
        zookeeper = sum(size for part, size in sizes.items() if part.startswith("zookeeper"))
        used = {part: processor_ms(pid) for part, pid in running.items()}
        used["client"] = processor_ms(os.getpid())
        cpu_ms = Counter[str]()
        for part, ms in used.items():
            kind = part.partition("-")[0]
            if count:
                cpu_ms[kind] += (ms - self._used.get(part, 0.0)) / count  # type: ignore[assignment]
        loaded = sum(await self.loaded())
        load = os.getloadavg()[0]
        step = Step(name, count, took_s, loaded, brokers, zookeeper, load, each_ms, cpu_ms)
        self._used = {part: processor_ms(pid) for part, pid in running.items()}
        self._used["client"] = processor_ms(os.getpid())
        self.steps.append(step)
        self._show(step)

    async def play(self) -> None:
        everything = range(self.topics)
        await self.note("a cluster without topics", 0, 0.0)
        async with connect(self.cluster.service_url) as client:
            admin = admin_of(self.cluster)
            begin = time.monotonic()
            each = await for_each(
                everything, lambda number: self._create(admin, number), show="created"
            )
            await self.note("created by REST", self.topics, time.monotonic() - begin, each)
            await self._list(admin)
            begin = time.monotonic()
            each = await for_each(
                everything, lambda number: self._send_once(client, number), show="sent"
            )
            await self.note("one message to each", self.topics, time.monotonic() - begin, each)
            await self._wait_unloaded("unloaded, as nobody uses them")
            chosen = random.Random(1).sample(everything, min(_READS, self.topics))
            begin = time.monotonic()
            each = await for_each(chosen, lambda number: self._read(client, number))
            await self.note(
                "read, each loaded for that", len(chosen), time.monotonic() - begin, each
            )
        await self._take_over()

    async def _create(self, admin: Admin, number: int) -> None:
        """Create a topic, also while its bundle moves to another broker."""
        while True:
            try:
                await admin.create_topic(name_of(number))
            except (AdminInDoubtError, AdminNotReadyError):
                await trio.sleep(_RETRY_S)
            except ConflictError:
                return  # by an earlier attempt
            else:
                return

    async def _list(self, admin: Admin) -> None:
        begin = time.monotonic()
        names = await admin.topics(_NAMESPACE)
        assert len(names) == self.topics, len(names)
        await self.note("listed at once", len(names), time.monotonic() - begin)
        begin, each_ms = time.monotonic(), list[float]()
        paged: list[str] = []
        while True:
            began = time.monotonic()
            found = await admin.topics(_NAMESPACE, after=paged[-1] if paged else "", limit=_PAGE)
            each_ms.append((time.monotonic() - began) * 1000)
            if not found:
                break
            paged += found
        assert paged == names
        await self.note(
            f"listed in pages of {_PAGE}", len(names), time.monotonic() - begin, each_ms
        )

    async def _send_once(self, client: Client, number: int) -> None:
        async with await client.create_producer(name_of(number)) as producer:
            await producer.send(b"%d" % number)

    async def _read(self, client: Client, number: int) -> None:
        async with await client.create_reader(name_of(number), start="earliest") as reader:
            message = await reader.receive()
            assert message.data == b"%d" % number, f"{name_of(number)} has lost its message"

    async def _wait_unloaded(self, name: str) -> None:
        begin, before = time.monotonic(), sum(await self.loaded())
        with trio.fail_after(_PATIENCE_S):
            while any(await self.loaded()):  # noqa: ASYNC110  other processes
                await trio.sleep(_LOOK_S)
        await self.note(name, before, time.monotonic() - begin)

    async def _take_over(self) -> None:
        """Kill a broker, and measure how long its topics take no messages."""
        held = range(min(self.held, self.topics))
        async with connect(self.cluster.service_url) as client:
            producers: dict[int, Producer] = {}

            async def hold(number: int) -> None:
                producers[number] = await client.create_producer(
                    name_of(number), send_timeout_s=None
                )

            begin = time.monotonic()
            each = await for_each(held, hold, show="loaded")
            await self.note(
                "loaded by producers that stay", len(held), time.monotonic() - begin, each
            )
            victim = await owner_of(self.cluster, name_of(0))
            begin = time.monotonic()
            await order(self.cluster, "kill", victim)

            async def send(number: int) -> None:
                await producers[number].send(b"again")

            each_ms: list[float] = []

            async def sent(number: int) -> None:
                await send(number)
                each_ms.append((time.monotonic() - begin) * 1000)

            async with trio.open_nursery() as nursery:
                for number in held:
                    nursery.start_soon(sent, number)
            await self.note(
                "taken over, all with a receipt", len(held), max(each_ms) / 1000, each_ms
            )
            for producer in producers.values():
                await producer.aclose()


def processor_ms(pid: int) -> float:
    """Return the milliseconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def loaded_topics(network: TcpNetwork, admin_url: str) -> int:
    """Return how many topics the broker has in memory, according to its metrics."""
    host, _, port = admin_url.removeprefix("http://").rpartition(":")
    answer = await http_request(network, host, int(port), "GET", "/metrics", None, timeout_s=60.0)
    return sum(int(count) for count in _LOADED.findall(answer.body.decode()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.scale")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--loaded", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=_IDLE_S, help="seconds until a topic unloads")
    parser.add_argument("--session", type=float, default=2.0, help="the brokers' session timeout")
    options = parser.parse_args()
    print_step: Callable[[Step], object] = lambda step: print(step, flush=True)  # noqa: E731
    settings = {"topic_idle_unload_s": options.idle, "session_timeout_s": options.session}
    sets = [f"--set=broker.{name}={value}" for name, value in settings.items()]
    with StandaloneProcess(brokers=2, options=sets) as cluster:
        run = Run(cluster, options.topics, options.loaded, print_step)
        trio.run(run.play)
    print(f"\n{len(run.steps)} steps:")
    for step in run.steps:
        print(step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
