"""The processor time of both systems, by kind of process, and how long they waited for a core."""

import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from bench.spark.lines import Used

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Pids: TypeAlias = Callable[[], dict[str, list[int]]]


@contextmanager
def used(pids: Pids) -> Generator[Used]:
    """Measure while the block runs.  `pids` returns the processes by kind, as they are now."""
    found = Used()
    before, started = _Look(pids()), time.perf_counter()
    yield found
    found.took_s, after = time.perf_counter() - started, _Look(pids())
    for kind, used_s in after.by_kind.items():
        found.by_kind[kind] = used_s - before.by_kind.get(kind, 0.0)
    found.waited_s = sum(
        after.waited[thread] - before.waited.get(thread, 0.0) for thread in after.waited
    )
    ours = sum(found.by_kind.values())
    found.others_s = after.busy_s - before.busy_s - ours


class _Look:
    """The counters of the kernel at one time."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        self.by_kind = {kind: sum(map(_seconds, some)) for kind, some in pids.items()}
        self.waited = dict(
            pair for some in pids.values() for pid in some for pair in _waits_of(pid)
        )
        first = Path("/proc/stat").read_text().partition("\n")[0]
        user, nice, system, _, _, irq, softirq, *_ = map(int, first.split()[1:])
        self.busy_s = (user + nice + system + irq + softirq) / _TICKS_PER_S


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, and not itself."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and (fields := _stat(int(each.name))):
            children.setdefault(int(fields[1]), []).append(int(each.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of a process behind its name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _seconds(pid: int) -> float:
    """Return the processor time of a process and of those children that have ended."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _waits_of(pid: int) -> Iterable[tuple[tuple[int, int], float]]:
    """Yield the seconds for which each thread has waited for a core."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            _, waited_ns, _ = map(int, (thread / "schedstat").read_text().split())
        except OSError:
            continue
        yield (pid, int(thread.name)), waited_ns / 1e9
