"""One bookie by itself: pipelined adds over loopback, each acknowledged after its sync.

    python -m bench.bookie [--seconds S] [--sizes 1024,65536] [--connections N] [--directory D]

The bookie is a process of its own, on the metadata store in memory (no ZooKeeper) and real files in
a temporary directory below D; this process is the writer.  Printed for each size: entries and
megabytes a second, processor time of the bookie for each entry, entries for each sync, and how long
the slowest hundredth waited.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

import trio

from daybook.bookie.server.config import BookieConfig
from daybook.bookie.server.host import RunningBookie, run_bookie
from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.wire.arena import ArenaPool
from daybook.wire.clock import SystemClock
from daybook.wire.connection import FrameConnection
from daybook.wire.digest import Digester, master_key
from daybook.wire.entry import encode_header
from daybook.wire.logging import log_to_stderr
from daybook.wire.messages.bookie import (
    FRAME_BYTES_MAX,
    Status,
    decode_add_answers,
    encode_add_header,
)
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.tcp import TcpNetwork

WINDOW_BYTES = 8 << 20
WINDOW_ENTRIES = 4000
WARM_UP_S = 1.0
_KEY = master_key(b"")


class Writer:
    """Keeps a window of adds to one ledger under way."""

    def __init__(self, connection: FrameConnection, ledger_id: int, size: int) -> None:
        self.acknowledged = 0
        self.waits_s: list[float] = []
        self.measuring = False
        self._connection = connection
        self._ledger_id = ledger_id
        self._payload = random.Random(1).randbytes(size)
        self._digester = Digester()
        self._window = max(1, min(WINDOW_ENTRIES, WINDOW_BYTES // size))
        self._next = 0
        self._sent_at: deque[float] = deque()

    async def run(self) -> None:
        self._fill(self._window)
        while frames := await self._connection.receive():
            runs, rest = decode_add_answers(frames)
            assert not rest
            count = 0
            for run in runs:
                assert run.status == Status.OK, run
                count += run.last - run.first + 1
            now = trio.current_time()
            if self.measuring:
                self.acknowledged += count
                self.waits_s.append(now - self._sent_at[0])
            for _ in range(count):
                self._sent_at.popleft()
            self._fill(count)

    def _fill(self, count: int) -> None:
        now, payload, ledger_id = trio.current_time(), self._payload, self._ledger_id
        size = len(payload)
        buffers: list[bytes] = []
        for entry_id in range(self._next, self._next + count):
            header = encode_header(
                ledger_id, entry_id, entry_id - 1, size * (entry_id + 1), self._digester, [payload]
            )
            buffers += [encode_add_header(_KEY, len(header) + size) + header, payload]
        self._next += count
        self._sent_at.extend([now] * count)
        self._connection.send(buffers)


async def measure(
    port: int, pid: int, size: int, connections: int, seconds: float, first_ledger: int
) -> dict[str, float]:
    """Add entries of `size` bytes for so many seconds, after a warm-up."""
    async with trio.open_nursery() as nursery:
        flusher, arenas = Flusher(), ArenaPool()
        nursery.start_soon(flusher.run)
        writers: list[Writer] = []
        for number in range(connections):
            stream = await TcpNetwork().connect("127.0.0.1", port)
            connection = FrameConnection(
                stream, arenas=arenas, flusher=flusher, frame_bytes_max=FRAME_BYTES_MAX
            )
            writers.append(Writer(connection, first_ledger + number, size))
            nursery.start_soon(writers[-1].run)
        await trio.sleep(WARM_UP_S)
        for writer in writers:
            writer.measuring = True
        started, cpu = trio.current_time(), cpu_seconds(pid)
        await trio.sleep(seconds)
        took, cpu = trio.current_time() - started, cpu_seconds(pid) - cpu
        nursery.cancel_scope.cancel()
    count = sum(writer.acknowledged for writer in writers)
    waits = sorted(wait for writer in writers for wait in writer.waits_s)
    return {
        "entry_bytes": size,
        "entries_per_s": count / took,
        "mb_per_s": count * size / took / 1e6,
        "bookie_us_per_entry": cpu / max(count, 1) * 1e6,
        "p50_ms": waits[len(waits) // 2] * 1000,
        "p99_ms": waits[len(waits) * 99 // 100] * 1000,
    }


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, all of its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def serve(directory: str) -> None:
    """Run the bookie process: print the port, and serve until the end of standard input."""
    clock = SystemClock()
    async with trio.open_nursery() as nursery:

        async def bookie(*, task_status: trio.TaskStatus[RunningBookie]) -> None:
            await run_bookie(
                BookieConfig(directories=(directory,), port=0),
                network=TcpNetwork(),
                metadata=MemoryStore(clock).session("bookie"),
                disk=FileDisk(),
                index=open_rocks_index,
                clock=clock,
                rng=random.Random(),
                log=log_to_stderr(),
                task_status=task_status,
            )

        running: RunningBookie = await nursery.start(bookie)
        print(running.port, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        print(json.dumps({"commits": running.store.statistics().commits}), flush=True)
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="the time for each size")
    parser.add_argument("--sizes", default="1024,65536", help="sizes of entries, in bytes")
    parser.add_argument("--connections", type=int, default=1, help="the number of connections")
    parser.add_argument("--directory", default=None, help="where to put the temporary data")
    parser.add_argument("--serve", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        trio.run(serve, arguments.serve)
        return
    for number, size in enumerate(map(int, arguments.sizes.split(","))):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            command = [sys.executable, "-m", "bench.bookie", "--serve", f"{directory}/bookie"]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child:
                assert child.stdout is not None
                assert child.stdin is not None
                port = int(child.stdout.readline())
                figures = trio.run(
                    measure,
                    port,
                    child.pid,
                    size,
                    arguments.connections,
                    arguments.seconds,
                    1000 * (number + 1),
                )
                child.stdin.close()
                child.wait()
        print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
