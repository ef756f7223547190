"""Measures `daybook pipeline archive`: its rate, the memory of its processes, and what limits it.

    python -m bench.archive --gigabytes 5

A topic of two partitions gets messages of 1,000 bytes, half of which zstd cannot compress.  Then
the command archives them with its usual options, on two cores.  Memory is the resident memory of
each kind of process at its peak.  In the end one process writes as many bytes as the archive has
and syncs them, which is the limit of the disk.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess

TOPIC = "bench-archive"
_PARTITIONS = 2
_VALUE_BYTES = 1000
_POLL_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Usage:
    """The peak memory of each kind of process of a command, and the processor that it used."""

    peak: dict[str, int] = field(default_factory=dict[str, int])  # bytes
    used: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    workers: int = 0

    def look(self, root: int) -> None:
        """Add what the processes below `root` have now."""
        now: dict[str, list[int]] = {}
        for pid in _tree(root):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            kind = _kind(pid == root, words)
            now.setdefault(kind, []).append(int(stat[21]) * _PAGE)
            self.used[kind, pid] = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
        for kind, sizes in now.items():
            self.peak[kind] = max(self.peak.get(kind, 0), max(sizes))
            if kind == "worker":
                self.workers = max(self.workers, len(sizes))

    def seconds(self, kind: str) -> float:
        return sum(used for (each, _), used in self.used.items() if each == kind)


def _kind(is_root: bool, words: list[bytes]) -> str:
    if is_root:
        return "command"
    return "JVM" if Path(os.fsdecode(words[0])).name == "java" else "worker"


def _tree(root: int) -> Iterator[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(path.name))
    left = [root]
    while left:
        pid = left.pop()
        yield pid
        left += parents.get(pid, [])


def fill(cluster: StandaloneProcess, total: int) -> float:
    """Send messages of about `total` bytes, and return how long it took."""
    chosen = random.Random(1)
    pool = chosen.randbytes(1 << 20)
    text = b'{"sensor": "kitchen", "degrees": 21.5, "humidity": 0.44}' * (_VALUE_BYTES // 100)
    half = _VALUE_BYTES // 2
    with blocking.connect_admin(cluster.admin_url) as admin:
        admin.create_topic(TOPIC, partitions=_PARTITIONS)
    began = time.perf_counter()
    with (
        blocking.connect(cluster.service_url) as client,
        client.create_producer(TOPIC) as producer,
    ):
        for number in range(total // _VALUE_BYTES):
            at = chosen.randrange(len(pool) - half)
            producer.send_nowait(pool[at : at + half] + text[:half], key=f"key-{number % 1000}")
        producer.flush()
    return time.perf_counter() - began


def archive(cluster: StandaloneProcess, directory: Path, options: list[str]) -> tuple[float, Usage]:
    """Run the command; return how long it took, with the start of Spark, and its usage."""
    command = [
        *(sys.executable, "-m", "daybook.clients.cli.main", "pipeline", "archive"),
        *(TOPIC, str(directory), "--service-url", cluster.service_url),
        *("--spark", f"spark.master=local[{_PARTITIONS}]", *options),
    ]
    usage = Usage()
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL) as running:
        while running.poll() is None:
            usage.look(running.pid)
            time.sleep(_POLL_S)
    if running.returncode:
        raise SystemExit(f"the command failed with {running.returncode}")
    return time.perf_counter() - began, usage


def disk_rate(directory: Path, total: int) -> float:
    """Write so many bytes into one file, sync them, and return the bytes per second."""
    block = random.Random(2).randbytes(4 << 20)
    path = directory / "disk"
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(max(1, total // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return total / took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("options", nargs="*", help="further options of `daybook pipeline archive`")
    asked = parser.parse_args()
    total = int(asked.gigabytes * 1e9)
    with tempfile.TemporaryDirectory() as work, StandaloneProcess() as cluster:
        print(f"filled with {total / 1e9:.1f} GB in {fill(cluster, total):.0f} s", flush=True)
        directory = Path(work) / "archive"
        took, usage = archive(cluster, directory, asked.options)
        size = sum(path.stat().st_size for path in directory.glob("day=*/*.parquet"))
        rate = total / took / 1e6
        print(f"archived in {took:.1f} s: {rate:.0f} MB/s of values, {size / 1e9:.2f} GB")
        for kind, peak in sorted(usage.peak.items()):
            used = usage.seconds(kind)
            print(f"{kind}: {peak / 1e6:.0f} MB at its peak, {used:.1f} s of processor")
        print(f"{usage.workers} workers at most; {os.getloadavg()[0]:.1f} processes wanted a core")
        print(f"the disk takes {disk_rate(Path(work), size) / 1e6:.0f} MB/s")


if __name__ == "__main__":
    main()
