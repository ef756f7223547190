"""How fast the storage of a bookie takes entries and gives them back.

    python -m bench.storage [--directory D] [--seconds 2] [--sizes 1024,65536] [--windows 64,1024]

One process, one log, a sync before every acknowledgement, a closed loop: `window` entries are in
flight all the time.  Reading is one entry after the other, what was just written.  JSON at the end.
"""

import argparse
import functools
import json
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import trio

from daybook.bookie.storage.disk import FileDisk
from daybook.bookie.storage.index import open_rocks_index
from daybook.bookie.storage.status import StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.wire.clock import SystemClock

KEY = bytes(20)
_IDS = struct.Struct(">qqqq")


class Load:
    """Keeps so many entries in flight, and times every tenth."""

    def __init__(self, store: LedgerStore, size: int, window: int, seconds: float) -> None:
        self._store = store
        self._entry = memoryview(_IDS.pack(1, 0, -1, 0) + bytes(size - _IDS.size))
        self._window = window
        self._until = time.perf_counter() + seconds
        self._in_flight = 0
        self.sent = 0
        self.latencies: list[float] = []
        self.done = trio.Event()

    @contextmanager
    def answering(self) -> Generator[None]:
        yield
        self.fill()

    def fill(self) -> None:
        now = time.perf_counter()
        while self._in_flight < self._window and now < self._until:
            entry_id = self.sent
            answer = functools.partial(self._answered, now if entry_id % 10 == 0 else 0.0)
            self._store.add(1, entry_id, KEY, self._entry, recovery=False, done=answer)
            self.sent += 1
            self._in_flight += 1
        if now >= self._until and not self._in_flight:
            self.done.set()

    def _answered(self, sent_at: float, status: StoreStatus) -> None:
        assert status is StoreStatus.OK, status
        self._in_flight -= 1
        if sent_at:
            self.latencies.append(time.perf_counter() - sent_at)


async def measure(directory: str, size: int, window: int, seconds: float) -> dict[str, float]:
    async with open_store(
        disk=FileDisk(), directories=[directory], index=open_rocks_index, clock=SystemClock()
    ) as store:
        load = Load(store, size, window, seconds)
        store.answer_within(load.answering)
        started, cpu = time.perf_counter(), time.process_time()
        load.fill()
        await load.done.wait()
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
        load.latencies.sort()
        read_started = time.perf_counter()
        reads = min(load.sent, 20_000)
        for entry_id in range(reads):
            await store.read(1, entry_id)
        read_took = time.perf_counter() - read_started
        return {
            "size": size,
            "window": window,
            "entries_s": load.sent / took,
            "mb_s": load.sent * size / took / 1e6,
            "cpu_us": cpu / load.sent * 1e6,
            "per_commit": load.sent / store.statistics().commits,
            "p50_ms": statistics.median(load.latencies) * 1e3,
            "p99_ms": load.latencies[int(len(load.latencies) * 0.99)] * 1e3,
            "read_entries_s": reads / read_took,
            "read_mb_s": reads * size / read_took / 1e6,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", default=None, help="where to put the temporary data")
    parser.add_argument("--seconds", type=float, default=2.0, help="the time for each case")
    parser.add_argument(
        "--sizes", default="1024,16384,65536,131072", help="sizes of entries, in bytes"
    )
    parser.add_argument("--windows", default="1,64,1024", help="numbers of entries in flight")
    arguments = parser.parse_args()
    results: list[dict[str, float]] = []
    for size in map(int, arguments.sizes.split(",")):
        for window in map(int, arguments.windows.split(",")):
            if size * window > 64 << 20:
                continue
            directory = tempfile.mkdtemp(dir=arguments.directory)
            try:
                result = trio.run(measure, directory, size, window, arguments.seconds)
            finally:
                shutil.rmtree(Path(directory))
            results.append(result)
            print("  ".join(f"{name} {value:,.6g}" for name, value in result.items()))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
