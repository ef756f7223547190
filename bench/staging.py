"""Measures what staging through the HTTP port of a broker costs, in seconds of processor per GB.

    python -m bench.staging [ROUNDS [MEGABYTES [BODY_KIB ...]]]

A client stages random entries of 128 KiB on a standalone cluster of one broker and three bookies,
in bodies of each size in turn, and gives the attempt up.  The table has medians of the rounds.
"""

import os
import random
import statistics
import sys
import time
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from daybook.clients.python.sink_requests import Batch, SinkRequests
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.managed_ledger.sinks.staging import staged_entry
from daybook.wire.proto import pulsar_pb2 as pb

TOPIC = "persistent://public/default/bench-staging"
ENTRY_BYTES = 128 << 10
KINDS = ("client", "broker", "bookie")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _processor_s(cluster: StandaloneProcess) -> dict[str, float]:
    found = dict.fromkeys(KINDS, 0.0)
    pids = [("client", os.getpid())]
    pids += [(str(part["name"]).partition("-")[0], int(part["pid"])) for part in cluster.parts()]
    for kind, pid in pids:
        if kind in found:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[kind] += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


async def _stage(cluster: StandaloneProcess, total_bytes: int, body_bytes: int) -> None:
    data = random.Random(1).randbytes(ENTRY_BYTES)
    entries = [staged_entry(pb.MessageMetadata(), data)] * (body_bytes // ENTRY_BYTES)
    attempt = await SinkRequests(cluster.admin_url).begin("bench", Batch("q", 0, {TOPIC: 0}))
    try:
        for _ in range(total_bytes // body_bytes):
            await attempt.append(TOPIC, entries)
    finally:
        await attempt.give_up()


def _turn(cluster: StandaloneProcess, total_bytes: int, body_bytes: int) -> dict[str, float]:
    before, began = _processor_s(cluster), time.monotonic()
    trio.run(_stage, cluster, total_bytes, body_bytes)
    gigabytes = total_bytes / 1e9
    took = {"MB/s": total_bytes / 1e6 / (time.monotonic() - began)}
    after = _processor_s(cluster)
    return took | {kind: (after[kind] - before[kind]) / gigabytes for kind in KINDS}


def main(rounds: int, megabytes: int, body_kib: list[int]) -> None:
    found: dict[int, list[dict[str, float]]] = {size: [] for size in body_kib}
    with StandaloneProcess(brokers=1) as cluster:
        _turn(cluster, 20_000_000, 1 << 20)  # Everything is imported, and memory is mapped.
        for _ in range(rounds):
            for size, turns in found.items():
                turns.append(_turn(cluster, megabytes * 1_000_000, size << 10))
    table = Table("body, KiB", "MB/s", *(f"{kind}, s/GB" for kind in KINDS), title="staging")
    for size, turns in found.items():
        medians = [statistics.median(turn[key] for turn in turns) for key in ("MB/s", *KINDS)]
        table.add_row(str(size), *(f"{each:.2f}" for each in medians))
    Console().print(table)


if __name__ == "__main__":
    rounds, megabytes, *sizes = [*map(int, sys.argv[1:]), *(3, 500)[len(sys.argv) - 1 :]]
    main(rounds, megabytes, sizes or [1024, 2048, 4096])
