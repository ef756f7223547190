"""Measures what security costs a broker: start, memory, processor time, rates and latencies.

    python -m bench.security_cost ROUNDS [PYTHON]

Brokers of three kinds run one after the other on the same bookies, in alternating rounds: `before`
is a broker of an earlier version, run by the interpreter PYTHON of its work tree; `off` is a broker
of this version whose settings ask nobody; `on` has TLS alone, tokens, rights and an audit log.
Each sends 100,000 messages of 1 KB in batches, reads them, and sends 1,000 messages one by one.
The processor time of the broker says more than its rates if other work runs on the machine.
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import trio
from rich.console import Console
from rich.table import Table

from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.tls import TlsOptions
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess
from tests.harness.certificates import Authority
from tests.harness.processes import ServerProcess

KINDS = ("before", "off", "on")
MESSAGES = 100_000
SINGLE = 1_000
SECRET = bytes(range(64))
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROWS = {
    "start, s": "{:.2f}",
    "start, broker's processor s": "{:.2f}",
    "memory at the start, MiB": "{:.1f}",
    "memory at the end, MiB": "{:.1f}",
    "produce, MB/s": "{:.1f}",
    "produce, broker's processor ms per 1,000 messages": "{:.2f}",
    "consume, MB/s": "{:.1f}",
    "consume, broker's processor ms per 1,000 messages": "{:.2f}",
    "one by one p50, ms": "{:.2f}",
    "one by one, broker's processor ms per message": "{:.3f}",
    "connect and first receipt, ms": "{:.1f}",
}


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


class Kinds:
    """Starts brokers of each kind on one cluster."""

    def __init__(self, directory: Path, zookeeper: str, before: str) -> None:
        self._directory = directory
        self._zookeeper = zookeeper
        self._before = before
        authority = Authority(directory)
        issued = authority.issue("broker")
        self._trusted = authority.trusted
        key, own = directory / "secret.key", directory / "broker.token"
        key.write_bytes(SECRET)
        own.write_text(token("broker"))
        self._secure: Mapping[str, Any] = {
            "port": -1,
            "http_port": -1,
            "tls_port": 0,
            "https_port": 0,
            "tls_certificate": issued.certificate,
            "tls_key": issued.key,
            "tls_trusted": authority.trusted,
            "require_tls": "true",
            "authentication": '["token"]',
            "token_secret_key": key,
            "authorization": "true",
            "super_users": '["broker"]',
            "broker_token_file": own,
            "audit_file": directory / "audit.log",
        }

    def start(self, kind: str) -> tuple[ServerProcess, float]:
        """Return a broker that has started, and the seconds that this took."""
        settings = dict(self._secure) if kind == "on" else {}
        executable, own = sys.executable, Path.cwd()
        began = time.monotonic()
        if kind == "before":
            sys.executable = self._before
            os.chdir(Path(self._before).parents[2])
        try:
            broker = ServerProcess.broker(
                self._directory / f"{kind}.log", zookeeper=self._zookeeper, **settings
            )
        finally:
            sys.executable = executable
            os.chdir(own)
        broker.read_ready()
        return broker, time.monotonic() - began

    def client(self, kind: str, broker: ServerProcess) -> Any:  # noqa: ANN401
        if kind == "on":
            url = f"pulsar+ssl://127.0.0.1:{broker.ready['tls_port']}"
            return connect(url, tls=TlsOptions(trusted=self._trusted), token=token("broker"))
        return connect(f"pulsar://127.0.0.1:{broker.ready['port']}")


def _processor_s(broker: ServerProcess) -> float:
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _memory_mib(broker: ServerProcess) -> float:
    lines = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


class _Spent:
    """Measures wall time and the broker's processor time of a block."""

    def __init__(self, broker: ServerProcess) -> None:
        self._broker = broker

    def __enter__(self) -> "_Spent":
        self._began, self._processor = time.monotonic(), _processor_s(self._broker)
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.monotonic() - self._began
        self.processor_s = _processor_s(self._broker) - self._processor


async def _measure(client: Client, broker: ServerProcess, topic: str) -> dict[str, float]:
    body = random.Random(1).randbytes(1024)
    async with await client.subscribe(topic, "s", initial_position="earliest"):
        pass
    with _Spent(broker) as produced:
        async with await client.create_producer(
            topic, batch_bytes_max=128 << 10, batch_messages_max=10_000
        ) as producer:
            for _ in range(MESSAGES):
                if not producer.has_room:
                    await producer.wait_room()
                producer.send_nowait(body)
            await producer.flush()
    with _Spent(broker) as consumed:
        async with await client.subscribe(topic, "s", receiver_queue_size=10_000) as consumer:
            left = MESSAGES
            while left > 0:
                batch = await consumer.receive_batch(10_000)
                consumer.ack_nowait(batch)
                left -= len(batch)
    took: list[float] = []
    with _Spent(broker) as single:
        async with await client.create_producer(topic, batch_delay_s=0.0) as producer:
            for _ in range(SINGLE):
                began = time.perf_counter()
                await producer.send(body)
                took.append((time.perf_counter() - began) * 1e3)
    megabytes = MESSAGES * 1024 / 1e6
    return {
        "produce, MB/s": megabytes / produced.wall_s,
        "produce, broker's processor ms per 1,000 messages": produced.processor_s / MESSAGES * 1e6,
        "consume, MB/s": megabytes / consumed.wall_s,
        "consume, broker's processor ms per 1,000 messages": consumed.processor_s / MESSAGES * 1e6,
        "one by one p50, ms": statistics.median(took),
        "one by one, broker's processor ms per message": single.processor_s / SINGLE * 1e3,
    }


async def _round(kinds: Kinds, kind: str, number: int) -> dict[str, float]:
    broker, start_s = await trio.to_thread.run_sync(kinds.start, kind)
    found = {
        "start, s": start_s,
        "start, broker's processor s": _processor_s(broker),
        "memory at the start, MiB": _memory_mib(broker),
    }
    try:
        topic = f"cost-{kind}-{number}"
        began = time.perf_counter()
        async with kinds.client(kind, broker) as client:
            async with await client.create_producer(f"{topic}-first") as producer:
                await producer.send(b"x")
            found["connect and first receipt, ms"] = (time.perf_counter() - began) * 1e3
            found |= await _measure(client, broker, topic)
        found["memory at the end, MiB"] = _memory_mib(broker)
    finally:
        broker.process.send_signal(signal.SIGTERM)
        await trio.to_thread.run_sync(broker.process.wait)
    return found


async def _rounds(kinds: Kinds, names: list[str], rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            result = await _round(kinds, name, number)
            if number:  # The first round warms up.
                found[name].append(result)
    table = Table("median of the rounds", *names, *(f"{name} / {names[0]}" for name in names[1:]))
    for row, form in _ROWS.items():
        medians = [statistics.median(each[row] for each in found[name]) for name in names]
        ratios = [
            statistics.median(
                one[row] / first[row] if first[row] else float("nan")
                for one, first in zip(found[name], found[names[0]], strict=True)
            )
            for name in names[1:]
        ]
        table.add_row(
            row, *(form.format(each) for each in medians), *(f"{each:.2f}" for each in ratios)
        )
    Console(width=140).print(table)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    before = str(Path(sys.argv[2]).absolute()) if len(sys.argv) > 2 else ""
    names = list(KINDS if before else KINDS[1:])
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        with StandaloneProcess(directory=directory / "data", options=ANY_PORTS) as cluster:
            for name in ("broker-1", "broker-2"):
                cluster.local("kill", name)
            trio.run(_rounds, Kinds(directory, cluster.zookeeper, before), names, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
