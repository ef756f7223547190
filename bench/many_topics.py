"""Measures many topics: the first message to each, and the takeover when their broker is killed.

    python -m bench.many_topics [--topics 600] [--lost 0] [--at-once 256] [--real-time]
                                [--py-spy PATH --to DIRECTORY]

Two brokers and three bookies serve the topics.  A client opens a producer for each topic and sends
one message, `--at-once` topics at a time.  Then the broker of topic 0 is killed, and each producer
sends again.  Each broker has about a half of the topics.  With `--lost 8000` the broker that is
killed has 8,000 of them: the other one is down until they are there, and serves the rest in a
namespace of its own.

For each step the program prints the time, the topics a second, and for each topic that was loaded:
the milliseconds of processor by kind of process, the requests that ZooKeeper has received, and the
syncs of all bookies.  A request to ZooKeeper may carry several writes.

On a busy machine, processor and requests can be compared, and times only with `--real-time`: it
needs root, and lets all other programs wait while a step runs.  With `--py-spy`, a profile of each
broker is written for each step.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.http import http_request
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.wire import process
from daybook.wire.tcp import TcpNetwork
from tests.harness.standalone import admin_of, order, owner_of, pids, wait_running
from tests.real.scale import for_each, loaded_topics, processor_ms

_SPIES_START_S = 2.0
_SECOND = "broker-2"
_NAMESPACE, _OTHER = "public/default", "public/other"
_COMMITS = re.compile(r"^daybook_bookie_store_commits_total ([0-9.e+]+)", re.MULTILINE)
_RECEIVED = re.compile(r"^Received: (\d+)", re.MULTILINE)


def name_of(number: int, lost: int = 0) -> str:
    """Return the topic of a number; with `lost`, those from there on are in another namespace."""
    namespace = _OTHER if lost and number >= lost else _NAMESPACE
    return f"persistent://{namespace}/many-{number:06}"


class Measurement:
    """The figures of one cluster; `step` prints those of one step."""

    def __init__(self, cluster: StandaloneProcess, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._real_time: bool = options.real_time
        self._spy: str = options.spy
        self._to: Path = options.to
        self._network = TcpNetwork()
        self._ms: dict[str, float] = {}  # processor by part, as it was known last

    @asynccontextmanager
    async def step(self, name: str, loads: Callable[[], int]) -> AsyncGenerator[None]:
        """Measure a block.  `loads` returns at its end how many topics were loaded in it."""
        spies = await self._start_spies(name)
        before = await self._used()
        if self._real_time:
            await self._schedule(os.SCHED_RR, 1)
        began = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - began
            if self._real_time:
                await self._schedule(os.SCHED_OTHER, 0)
        after, count = await self._used(), loads()
        for spy in spies:
            spy.send_signal(signal.SIGINT)
            spy.wait()
        each = {what: (used - before.get(what, 0.0)) / count for what, used in after.items()}
        figures = ", ".join(f"{what} {figure:.2f}" for what, figure in sorted(each.items()))
        print(f"{name}: {count} in {took_s:.1f} s = {count / took_s:.0f}/s; each: {figures}")

    async def _schedule(self, policy: int, priority: int) -> None:
        for pid in [os.getpid(), *(await pids(self._cluster)).values()]:
            _schedule(pid, policy, priority)

    async def _used(self) -> dict[str, float]:
        """Return what the parts have used so far; a part that was killed keeps its last figure."""
        for part, pid in (await pids(self._cluster)).items():
            if pid:
                self._ms[part] = processor_ms(pid)
        used: dict[str, float] = {"client ms": processor_ms(os.getpid())}
        for part, milliseconds in self._ms.items():
            what = f"{part.partition('-')[0]} ms"
            used[what] = used.get(what, 0.0) + milliseconds
        used["ZooKeeper requests"] = _received(self._cluster.zookeeper)
        used["bookie syncs"] = await self._commits()
        return used

    async def _commits(self) -> float:
        total = 0.0
        for bookie in self._cluster.ready["bookies"]:
            host, _, port = str(bookie["http_url"]).removeprefix("http://").rpartition(":")
            got = await http_request(
                self._network, host, int(port), "GET", "/metrics", None, timeout_s=60.0
            )
            total += sum(map(float, _COMMITS.findall(got.body.decode())))
        return total

    async def _start_spies(self, name: str) -> list["subprocess.Popen[bytes]"]:
        if not self._spy:
            return []
        found: list[subprocess.Popen[bytes]] = []
        for part, pid in (await pids(self._cluster)).items():
            if pid and part.startswith(("broker", "bookie-1")):
                path = self._to / f"{name.replace(' ', '-')}-{part}.txt"
                options = ["--format", "raw", "--rate", "150", "--pid", str(pid), "-o", str(path)]
                found.append(_spy([self._spy, "record", "--gil", *options]))
        await trio.sleep(_SPIES_START_S)
        return found


def _spy(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=null, stderr=null)


def _schedule(pid: int, policy: int, priority: int) -> None:
    """Let the scheduler treat all threads of a process that way; 0: it is down."""
    for thread in Path(f"/proc/{pid}/task").glob("[0-9]*") if pid else ():
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def _received(zookeeper: str) -> float:
    """Return the number of requests that ZooKeeper has received."""
    host, _, port = zookeeper.partition("/")[0].rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"srvr")
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    found = _RECEIVED.search(answer.decode())
    assert found is not None, answer
    return float(found[1])


async def measure(cluster: StandaloneProcess, options: argparse.Namespace) -> None:
    topics: int = options.topics
    lost: int = options.lost
    numbers = range(topics)
    figures = Measurement(cluster, options)
    producers: dict[int, Producer] = {}
    # With so many producers the collector would stop the client for a second, again and again.
    process.settle()
    async with connect(cluster.service_url) as client:
        first = numbers[:lost] if lost else numbers
        opening = _opening(client, producers, lost)
        if lost:
            await order(cluster, "stop", _SECOND)
        async with figures.step("first message", lambda: len(first)):
            await for_each(first, opening, at_once=options.at_once)
        if lost:
            await order(cluster, "start", _SECOND)
            await wait_running(cluster)
            await admin_of(cluster).create_namespace(_OTHER)
            await for_each(numbers[lost:], opening, at_once=options.at_once)
        process.settle()
        urls = {str(b["name"]): str(b["admin_url"]) for b in cluster.ready["brokers"]}
        victim = await owner_of(cluster, name_of(0))
        lost = await loaded_topics(TcpNetwork(), urls[victim])
        each_ms: list[float] = []
        async with figures.step("takeover", lambda: lost):
            began = time.monotonic()
            await order(cluster, "kill", victim)

            async def send(number: int) -> None:
                await producers[number].send(b"again")
                each_ms.append((time.monotonic() - began) * 1000)

            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(send, number)
        each_ms = sorted(each_ms)[-lost:]  # The others have not lost their broker.
        shares = {share: each_ms[int(share / 10 * (lost - 1))] for share in range(11)}
        told = ", ".join(f"{share}0 % {ms / 1000:.1f}" for share, ms in shares.items())
        print(f"    seconds after which the topics of the killed broker had receipts: {told}")
        for producer in producers.values():
            await producer.aclose()


def _opening(
    client: Client, producers: dict[int, Producer], lost: int
) -> Callable[[int], Awaitable[None]]:
    async def open_one(number: int) -> None:
        producer = await client.create_producer(name_of(number, lost), send_timeout_s=None)
        producers[number] = producer
        await producer.send(b"first")

    return open_one


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.many_topics", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--topics", type=int, default=600, metavar="N", help="topics [600]")
    parser.add_argument(
        "--lost",
        type=int,
        default=0,
        metavar="N",
        help="topics of the broker that is killed [about a half of all]",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=256,
        dest="at_once",
        metavar="N",
        help="topics whose producers are opened at the same time [256]",
    )
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="let all other programs wait while a step runs, so that times count; needs root",
    )
    parser.add_argument(
        "--py-spy",
        default="",
        dest="spy",
        metavar="PATH",
        help="the program py-spy, to profile the brokers and one bookie in each step",
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=Path(),
        metavar="DIRECTORY",
        help="where the profiles of --py-spy go [the present directory]",
    )
    return parser


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    if options.lost > options.topics:
        parser.error("--lost must not be more than --topics")
    with StandaloneProcess(options=["--set=broker.session_timeout_s=2"]) as cluster:
        trio.run(measure, cluster, options)


if __name__ == "__main__":
    main()
