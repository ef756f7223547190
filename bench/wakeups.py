"""Measures what a message that travels alone costs: processor time, system calls and latency.

    python -m bench.wakeups ROUNDS [PYTHON]

Each tree has a standalone cluster of its own, and a client that sends 1 KB at 200 and at 1,000 a
second, each message in an entry of its own.  `other` is another tree, run by its interpreter PYTHON
(`/somewhere/.venv/bin/python`).  The trees take turns, and the table has medians of the rounds.

Client, brokers and bookies run under SCHED_RR during a turn if the user may set that, so that other
work on the machine disturbs them less; their scheduling is restored after each turn.  System calls
are counted by `perf` in a part of each turn that is not timed, if `perf` is there and may count.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

from daybook.clients.python.connect import connect
from daybook.clients.python.producer import Producer
from daybook.clients.testing.standalone import StandaloneProcess

RATES = (200, 1000)
KINDS = ("client", "broker", "bookie")
WARM_UP_S = 2.0
MEASURE_S = 8.0
COUNT_S = 3.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REAL_TIME = os.sched_param(1)


# -- one tree, in a process of its own


def _pids(cluster: StandaloneProcess) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"client": [os.getpid()]}
    for part in cluster.parts():
        found.setdefault(str(part["name"]).partition("-")[0], []).append(int(part["pid"]))
    return {kind: found[kind] for kind in KINDS}


def _processor_s(pids: list[int]) -> float:
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _TICKS_PER_S


@contextmanager
def _real_time(pids: list[int]) -> Generator[bool]:
    """Run all threads of these processes under SCHED_RR; yield False if the user may not."""
    allowed = True
    try:
        _schedule(pids, os.SCHED_RR, _REAL_TIME)
    except PermissionError:
        allowed = False
    try:
        yield allowed
    finally:
        if allowed:
            _schedule(pids, os.SCHED_OTHER, os.sched_param(0))


def _schedule(pids: list[int], policy: int, param: os.sched_param) -> None:
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(task), policy, param)


async def _send(producer: Producer, rate: int, seconds: float, took: list[float]) -> None:
    """Send at `rate`; append the seconds from each call to its receipt."""
    data = random.Random(1).randbytes(1024)
    start = trio.current_time()
    for i in range(int(rate * seconds)):
        await trio.sleep_until(start + i / rate)
        sent = time.perf_counter()

        def note(_: object, failure: object, sent: float = sent) -> None:
            assert failure is None, failure
            took.append(time.perf_counter() - sent)

        producer.send_nowait(data, on_result=note)
    await producer.flush()


async def _turn(cluster: StandaloneProcess, producer: Producer, rate: int) -> dict[str, float]:
    pids = _pids(cluster)
    figures: dict[str, float] = {}
    with _real_time([pid for kind in pids.values() for pid in kind]):
        await _send(producer, rate, WARM_UP_S, [])
        before = {kind: _processor_s(pids[kind]) for kind in KINDS}
        took: list[float] = []
        await _send(producer, rate, MEASURE_S, took)
        for kind in KINDS:
            used = _processor_s(pids[kind]) - before[kind]
            figures[f"{kind}, us"] = used / len(took) * 1e6
        figures["all, us"] = sum(figures.values())
        took.sort()
        figures["p50, ms"] = took[len(took) // 2] * 1e3
        figures["p99, ms"] = took[len(took) * 99 // 100] * 1e3
        figures |= await _system_calls(producer, rate, pids)
    return figures


async def _system_calls(
    producer: Producer, rate: int, pids: dict[str, list[int]]
) -> dict[str, float]:
    """Return the system calls for each message, by kind of process; {} if nobody can count."""
    if shutil.which("perf") is None:
        return {}
    counting = {
        kind: subprocess.Popen(  # noqa: ASYNC220  nobody waits for it here
            [
                *("perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter"),
                *("-p", ",".join(map(str, pids[kind])), "--", "sleep", str(COUNT_S)),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in KINDS
    }
    await _send(producer, rate, COUNT_S + 0.5, [])  # until the counting has ended
    found: dict[str, float] = {}
    for kind, process in counting.items():
        count = process.communicate()[1].strip().rpartition("\n")[2].partition(",")[0]
        if count.isdigit():
            found[f"{kind}, calls"] = int(count) / (rate * COUNT_S)
    return found


async def _serve(cluster: StandaloneProcess) -> None:
    """Read a rate from each line of standard input, and write the figures of a turn."""
    async with (
        connect(cluster.service_url) as client,
        await client.create_producer("bench-wakeups", batch_delay_s=0.0) as producer,
    ):
        await producer.send(b"first")
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(await _turn(cluster, producer, int(line))), flush=True)


def _side() -> None:
    with StandaloneProcess(brokers=1) as cluster:
        trio.run(_serve, cluster)


# -- the trees in turn


@contextmanager
def _tree(python: str) -> Generator[subprocess.Popen[str]]:
    own = python == sys.executable
    process = subprocess.Popen(
        [python, "-P", __file__, "side"],
        cwd=Path.cwd() if own else Path(python).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", f"the cluster of {python} did not start"
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _ask(process: subprocess.Popen[str], rate: int) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    print(rate, file=process.stdin, flush=True)
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def main(rounds: int, other: str | None) -> None:
    pythons = {"this": sys.executable, **({"other": other} if other else {})}
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        trees = {name: stack.enter_context(_tree(python)) for name, python in pythons.items()}
        for number in range(rounds):
            for rate in RATES:
                for name in sorted(trees, reverse=bool(number % 2)):
                    found.setdefault((rate, name), []).append(_ask(trees[name], rate))
    for (rate, name), turns in found.items():
        print(f"\n{rate}/s, {name} tree, for each message: median (range) of {len(turns)} rounds")
        for figure in turns[0]:
            values = [turn[figure] for turn in turns if figure in turn]
            low, high = min(values), max(values)
            print(f"  {figure:15} {statistics.median(values):9.2f}  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    if sys.argv[1:] == ["side"]:
        _side()
    else:
        main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
