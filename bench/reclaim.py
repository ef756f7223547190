"""Syncs of a log beside the removal of a large file: `python -m bench.reclaim DIRECTORY`.

A bookie that deletes a segment of 512 MB, and its neighbours on the disk, go on with their logs.
The ways to remove a file take turns, and the longest syncs beside each are printed.  The last way
is that in steps while a reader has the file open for longer than the removal waits.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from daybook.bookie.storage.disk import FileDisk, PreallocatedFile

_FILE_BYTES = 512 << 20
_PIECE_BYTES = 8 << 20
_ROUNDS = 8
_SETTLE_S = 0.5
_LOOK_S = 0.05
_WRITE_BYTES = 4096


class _Syncs:
    """A thread that appends to a log, with a sync each time, and notes how long each took."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopping = False
        self.took_ms: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "_Syncs":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()
        self._path.unlink()

    def _run(self) -> None:
        log = PreallocatedFile(str(self._path))
        while not self._stopping:
            began_s = time.perf_counter()
            log.append([bytes(_WRITE_BYTES)])
            self.took_ms.append((time.perf_counter() - began_s) * 1e3)
            time.sleep(0.001)
        log.close()


def _write_segment(path: Path) -> None:
    piece = random.Random(1).randbytes(_PIECE_BYTES)
    file = PreallocatedFile(str(path))
    for _ in range(_FILE_BYTES // _PIECE_BYTES):
        file.append([piece])
    file.close()


async def _measure(directory: Path, remove: Callable[[str], Awaitable[None]]) -> str:
    path = directory / "segment"
    await trio.to_thread.run_sync(_write_segment, path)
    with _Syncs(directory / "log") as syncs:
        await trio.sleep(_SETTLE_S)
        first = len(syncs.took_ms)
        began_s = time.perf_counter()
        await remove(str(path))
        took_s = time.perf_counter() - began_s
        await trio.sleep(_SETTLE_S)
    beside = sorted(syncs.took_ms[first:])
    p99 = beside[len(beside) * 99 // 100]
    quiet = sorted(syncs.took_ms[:first])
    return (
        f"removed in {took_s:.2f} s; syncs beside it: p99 {p99:.1f}, max {beside[-1]:.1f} ms"
        f" (before it: max {quiet[-1]:.1f} ms)"
    )


async def _remove_under_reader(disk: FileDisk, path: str) -> None:
    """Remove a file that is being read, end the reading, and wait until the bytes are free."""
    reader = await disk.open_reader(path)
    await disk.remove_in_steps(path)
    reader.close()
    while _is_open(path):  # noqa: ASYNC110  nobody else waits for that
        await trio.sleep(_LOOK_S)


def _is_open(path: str) -> bool:
    """Return True while this process has the file open that had this path."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(descriptor).startswith(path):
                return True
    return False


async def main(directory: Path) -> None:
    disk = FileDisk()
    os.makedirs(directory, exist_ok=True)
    ways = (
        ("at once", disk.remove),
        ("in steps", disk.remove_in_steps),
        ("in steps, under a reader", partial(_remove_under_reader, disk)),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.run)
        for _ in range(_ROUNDS):
            for name, remove in ways:
                print(f"{name}: {await _measure(directory, remove)}", flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
