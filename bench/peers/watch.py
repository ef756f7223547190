"""The processor time and memory of processes, and their files in the page cache."""

import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.bookie import cpu_seconds
from bench.peers.sides import Load
from tests.interop.cluster import Cluster

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_QUIET_CORES = 0.1
_LOOK_S = 0.5
_PATIENCE_S = 20.0


@dataclass(slots=True)
class Cores:
    """The number of busy cores, by kind of process; `others` are not part of the measurement."""

    used_s: dict[str, float] = field(default_factory=dict[str, float])
    took_s: float = 0.0

    def __str__(self) -> str:
        shares = (f"{kind} {used / self.took_s:.2f}" for kind, used in self.used_s.items())
        return "cores: " + ", ".join(shares)

    def us_of_each(self, kind: str, count: int) -> float:
        """Return the processor time of one of `count` operations."""
        return self.used_s[kind] / count * 1e6


@contextmanager
def cores(load: Load) -> Generator[Cores]:
    """Measure a client, its bookies, and the rest of the machine, while the block runs."""
    found = Cores()
    pids = {"client": [load.pid], "bookies": _pids(load.cluster)}
    before, started = _used(pids), time.perf_counter()
    yield found
    found.took_s, after = time.perf_counter() - started, _used(pids)
    found.used_s = {kind: after[kind] - before[kind] for kind in after}


def _used(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the processor seconds so far; other virtual machines of the host used `stolen`."""
    used = {kind: sum(map(cpu_seconds, some)) for kind, some in pids.items()}
    ticks = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:]))
    user, nice, system, _, _, irq, softirq, stolen, *_ = (t / _TICKS_PER_S for t in ticks)
    used["others"] = user + nice + system + irq + softirq - sum(used.values())
    return {**used, "stolen": stolen}


def _pids(cluster: Cluster) -> list[int]:
    return [bookie.pid for bookie in cluster.bookies]


def settle(*clusters: Cluster) -> None:
    """Return when the bookies have done their postponed work, and it is on the disk."""
    pids = [pid for cluster in clusters for pid in _pids(cluster)]
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        before = sum(map(cpu_seconds, pids))
        time.sleep(_LOOK_S)
        used = (sum(map(cpu_seconds, pids)) - before) / _LOOK_S
        if used < _QUIET_CORES or time.monotonic() > deadline:
            break
    os.sync()


def forget(cluster: Cluster) -> None:
    """Drop the files of the bookies from the page cache, as far as they are on disk."""
    os.sync()
    for bookie in cluster.bookies:
        for path in bookie.directory.rglob("*"):
            if path.is_file():
                forget_file(path)


def forget_file(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def memory_mb(cluster: Cluster) -> float:
    """Return the resident memory of all bookies of the cluster."""
    total = 0
    for pid in _pids(cluster):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total / 1024
