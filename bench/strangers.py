"""Measures what twenty clients notice while strangers flood a broker that asks who its clients are.

    python -m bench.strangers [ROUNDS] [SECONDS]

One broker has ports with and without TLS, demands tokens, and writes an audit log.  Twenty clients,
each with TLS and a token, send ten messages a second each, and one more client connects again and
again.  Rounds alternate: without strangers, with strangers at a decoy, and with strangers at the
broker.  The decoy is a process that only reads and closes, so its rounds show what the processor
time of the strangers alone costs the clients.  The strangers never prove who they are:

    silent      connect, and send nothing
    drip        send the frame of a CONNECT byte by byte
    hello       begin a TLS handshake, and fall silent
    head        send the head of an HTTP request byte by byte
    body        announce a body over HTTP, and send it byte by byte
    token       send a CONNECT with a wrong token
    garbage     send bytes that are no frame

They run in a process of their own with a lower priority, because in a network they would have a
machine of their own.  Printed are the latencies of sends and of whole new connections, the memory
of the broker, and how many strangers were cut and after how long.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jwt
import trio
from rich.console import Console
from rich.table import Table

from daybook.clients.python.connect import connect
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from daybook.wire.messages.registry import encode
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.certificates import Authority
from tests.harness.processes import ServerProcess

CLIENTS = 20
EACH_PER_S = 10
SECRET = bytes(range(64))
_NICE = 5
_READY = "ready"
_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
_HEAD = b"POST /admin/v2/clusters/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
# New connections a second, and the time between two bytes of one that drips.
_RATES = {
    "silent": 100.0,
    "drip": 50.0,
    "hello": 50.0,
    "head": 20.0,
    "body": 20.0,
    "token": 20.0,
    "garbage": 20.0,
}
_DRIP_S = 1.0
_DECOY_S = 10.0  # The decoy keeps a connection for so long, about as the broker does.
_ROUNDS = ("nobody", "decoy", "broker")  # at whom the strangers of a round are


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


# -- the strangers


class Strangers:
    """Attacks until its standard input ends; then prints what happened to the connections."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._opened: Counter[str] = Counter()
        self._cut: Counter[str] = Counter()
        self._longest: dict[str, float] = dict.fromkeys(_RATES, 0.0)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for kind in _RATES:
                nursery.start_soon(self._keep_coming, kind, nursery)
            print(_READY, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        told = {kind: [self._opened[kind], self._cut[kind], self._longest[kind]] for kind in _RATES}
        print(json.dumps(told))

    async def _keep_coming(self, kind: str, nursery: trio.Nursery) -> None:
        began, count = trio.current_time(), 0
        while True:
            nursery.start_soon(self._one, kind)
            count += 1
            await trio.sleep_until(began + count / _RATES[kind])

    async def _one(self, kind: str) -> None:
        port = {"hello": "tls", "head": "http", "body": "http"}.get(kind, "plain")
        with suppress(*_GONE):
            stream = await trio.open_tcp_stream("127.0.0.1", self._ports[port])
            self._opened[kind] += 1
            began = trio.current_time()
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._send, kind, stream)
                with suppress(*_GONE):
                    while await stream.receive_some(1 << 16):
                        pass
                self._cut[kind] += 1
                self._longest[kind] = max(self._longest[kind], trio.current_time() - began)
                nursery.cancel_scope.cancel()

    async def _send(self, kind: str, stream: trio.SocketStream) -> None:
        wrong = pb.CommandConnect(
            client_version="x",
            protocol_version=21,
            auth_method_name="token",
            auth_data=b"x" * 400,
        )
        with suppress(*_GONE):
            match kind:
                case "drip":
                    await _drip(stream, encode(wrong))
                case "hello":
                    await stream.send_all(_HELLO)
                case "head":
                    await _drip(stream, _HEAD + b"X: y\r\n" * 1000)
                case "body":
                    await stream.send_all(_HEAD + b"\r\n")
                    await _drip(stream, bytes(100_000))
                case "token":
                    await stream.send_all(encode(wrong))
                case "garbage":
                    body = random.randbytes(500)
                    await stream.send_all(struct.pack(">I", len(body)) + body)
                case _:
                    pass


async def _drip(stream: trio.SocketStream, data: bytes) -> None:
    for index in range(len(data)):
        await stream.send_all(data[index : index + 1])
        await trio.sleep(_DRIP_S)


async def _decoy() -> None:
    """Accept connections, read what comes, and close them; print the ports."""

    async def serve(stream: trio.SocketStream) -> None:
        with trio.move_on_after(_DECOY_S), suppress(*_GONE):
            async with stream:
                while await stream.receive_some(1 << 16):
                    pass

    async with trio.open_nursery() as nursery:
        ports: dict[str, int] = {}
        for name in ("plain", "tls", "http"):
            listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            ports[name] = listener.socket.getsockname()[1]
        print(json.dumps(ports), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


# -- the clients


class Clients:
    """Twenty clients that send at a steady rate, and one that connects anew each time."""

    def __init__(self, url: str, tls: TlsOptions) -> None:
        self.sends: list[float] = []
        self.connects: list[float] = []
        self.failures: Counter[str] = Counter()
        self._url = url
        self._tls = tls

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        ready = [trio.Event() for _ in range(CLIENTS)]
        async with trio.open_nursery() as nursery:
            for number, event in enumerate(ready):
                nursery.start_soon(self._send, number, event)
            for event in ready:
                await event.wait()
            nursery.start_soon(self._connect)
            task_status.started()

    async def _send(self, number: int, ready: trio.Event) -> None:
        body = random.Random(number).randbytes(200)
        async with (
            connect(self._url, tls=self._tls, token=token("client")) as client,
            await client.create_producer(f"strangers-{number}") as producer,
        ):
            await producer.send(body)
            ready.set()
            due = trio.current_time() + number / (CLIENTS * EACH_PER_S)
            while True:
                await trio.sleep_until(due)
                await _timed(partial_send(producer, body), self.sends)
                due = max(due + 1 / EACH_PER_S, trio.current_time() - 1.0)

    async def _connect(self) -> None:
        while True:
            try:
                await _timed(self._once, self.connects)
            except Exception as error:  # A client was kept out, for whatever reason.
                self.failures[f"{type(error).__name__}: {error}"[:200]] += 1
            await trio.sleep(0.2)

    async def _once(self) -> None:
        async with (
            connect(self._url, tls=self._tls, token=token("client")) as client,
            await client.create_producer("strangers-new") as producer,
        ):
            await producer.send(b"x")


def partial_send(producer: Any, body: bytes) -> Callable[[], Awaitable[object]]:  # noqa: ANN401
    return lambda: producer.send(body)


async def _timed(step: Callable[[], Awaitable[object]], into: list[float]) -> None:
    began = time.perf_counter()
    await step()
    into.append((time.perf_counter() - began) * 1e3)


# -- the rounds


async def measure(broker: ServerProcess, clients: Clients, rounds: int, seconds: float) -> None:
    ports = {
        "plain": broker.ready["port"],
        "tls": broker.ready["tls_port"],
        "http": broker.ready["http_port"],
    }
    sends: dict[str, list[list[float]]] = {kind: [] for kind in _ROUNDS}
    connects: dict[str, list[float]] = {kind: [] for kind in _ROUNDS}
    memory = dict.fromkeys(_ROUNDS, 0)
    processor = dict.fromkeys(_ROUNDS, 0.0)
    told: list[dict[str, list[float]]] = []
    decoy = _child("--decoy")
    assert decoy.stdout is not None
    targets = {"decoy": json.loads(decoy.stdout.readline()), "broker": ports}
    async with trio.open_nursery() as nursery:
        await nursery.start(clients.run)
        await trio.sleep(3.0)
        for kind in _ROUNDS * rounds:
            target = targets.get(kind)
            attack = None if target is None else await trio.to_thread.run_sync(_attack, target)
            await trio.sleep(1.0)
            clients.sends, clients.connects = [], []
            before = _processor_s(broker.process.pid)
            await trio.sleep(seconds)
            spent = _processor_s(broker.process.pid) - before
            processor[kind] += spent / (seconds * rounds)
            sends[kind].append(sorted(clients.sends))
            connects[kind] += clients.connects
            memory[kind] = max(memory[kind], _rss(broker.process.pid))
            if attack is not None:
                out, _ = await trio.to_thread.run_sync(attack.communicate)
                if kind == "broker":
                    told.append(json.loads(out))
            await trio.sleep(2.0)
        nursery.cancel_scope.cancel()
    decoy.communicate()
    _print(sends, connects, memory, processor, told, clients.failures)


def _attack(ports: Mapping[str, int]) -> "subprocess.Popen[str]":
    attack = _child("--attack", json.dumps(ports))
    assert attack.stdout is not None
    assert attack.stdout.readline().strip() == _READY
    return attack


def _child(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "bench.strangers", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.nice(_NICE),
    )


def _rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _at(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


def _print(
    sends: Mapping[str, list[list[float]]],
    connects: Mapping[str, list[float]],
    memory: Mapping[str, int],
    processor: Mapping[str, float],
    told: list[dict[str, list[float]]],
    failures: Mapping[str, int],
) -> None:
    console = Console(width=120)
    table = Table(
        "what",
        "nobody",
        "decoy",
        "broker",
        "broker / nobody, / decoy",
        title=f"{CLIENTS} clients, {CLIENTS * EACH_PER_S} messages a second",
    )
    together = {key: sorted(t for each in found for t in each) for key, found in sends.items()}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
        table.add_row(f"send {name}, ms", *_compared([_at(together[k], share) for k in _ROUNDS]))
    by_round = [[_at(each, 0.99) for each in sends[kind]] for kind in _ROUNDS]
    shown = [" ".join(f"{each:.1f}" for each in column) for column in by_round]
    medians = [
        f"{median(b / a for a, b in zip(column, by_round[2], strict=True)):.2f}"
        for column in by_round[:2]
    ]
    table.add_row("send p99 by round, ms", *shown, f"medians {', '.join(medians)}")
    new = {key: sorted(times) for key, times in connects.items()}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        what = f"new client's first receipt {name}, ms"
        table.add_row(what, *_compared([_at(new[kind], share) for kind in _ROUNDS]))
    shares = [f"{100 * processor[kind]:.0f} %" for kind in _ROUNDS]
    table.add_row("broker's use of one core", *shares, "")
    table.add_row("messages", *(f"{len(together[kind]):,}" for kind in _ROUNDS), "")
    table.add_row("memory of the broker, MiB", *(f"{memory[k] / 1024:.0f}" for k in memory), "")
    console.print(table)
    cut = Table("strangers", "opened", "cut while they stayed", "longest, s")
    for kind in _RATES:
        opened, ended = (int(sum(each[kind][index] for each in told)) for index in (0, 1))
        cut.add_row(kind, str(opened), str(ended), f"{max(each[kind][2] for each in told):.1f}")
    console.print(cut)
    console.print(f"clients that could not connect: {sum(failures.values())}")
    for why, count in failures.items():
        console.print(f"  {count}: {why}")


def _compared(found: list[float]) -> list[str]:
    nobody, decoy, broker = found
    return [*(f"{each:.2f}" for each in found), f"{broker / nobody:.2f}, {broker / decoy:.2f}"]


def main() -> int:
    if sys.argv[1:2] == ["--decoy"]:
        trio.run(_decoy)
        return 0
    if sys.argv[1:2] == ["--attack"]:
        trio.run(Strangers(json.loads(sys.argv[2])).run)
        return 0
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        authority = Authority(directory)
        issued = authority.issue("broker")
        key, own = directory / "secret.key", directory / "broker.token"
        key.write_bytes(SECRET)
        own.write_text(token("broker"))
        with StandaloneProcess(directory=directory / "data", options=ANY_PORTS) as cluster:
            for name in ("broker-1", "broker-2"):
                cluster.local("kill", name)
            broker = ServerProcess.broker(
                directory / "broker.log",
                zookeeper=cluster.zookeeper,
                port=0,
                http_port=0,
                tls_port=0,
                https_port=0,
                tls_certificate=issued.certificate,
                tls_key=issued.key,
                authentication='["token"]',
                token_secret_key=key,
                authorization="true",
                super_users='["client", "broker"]',
                broker_token_file=own,
                audit_file=directory / "audit.log",
                topic_idle_unload_s=100_000,
            )
            try:
                broker.read_ready()
                url = f"pulsar+ssl://127.0.0.1:{broker.ready['tls_port']}"
                clients = Clients(url, TlsOptions(trusted=authority.trusted))
                trio.run(measure, broker, clients, rounds, seconds)
                lines = (directory / "broker.log").read_text().splitlines()
                sizes = [each.stat().st_size for each in directory.glob("audit.log*")]
                print(f"the broker logged {len(lines)} lines;", f"audit log {sum(sizes):,} bytes")
            finally:
                broker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
