"""The physical limit of this machine for the flow of bytes that a broker causes.

    writing   producer -> relay -> three sinks, each writing a file, O_DIRECT and DSYNC per chunk
    reading   pread -> relay -> sink
    sync      one small write that is on the disk when it returns
    answers   sender -> three sinks, each writing 4 KB and answering; two answers count

Plain blocking sockets in one process per part, no frames, no checksums, no acknowledgements.  A
chunk is what a broker would store as one entry.
"""

import mmap
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

SINKS = 3
BLOCK = 4096
FILE_BYTES = 256 << 20


def writing_mb_s(chunk_bytes: int, total_bytes: int) -> float:
    """Return the MB/s that reach all three files when `total_bytes` are sent in chunks."""
    chunks = max(1, total_bytes // chunk_bytes)
    with tempfile.TemporaryDirectory(prefix="daybook-limit-", dir=data_dir()) as directory:
        sinks = [_listener() for _ in range(SINKS)]
        relay = _listener()
        for i in range(SINKS):
            _zeroed(Path(directory) / f"{i}")
        children = [
            _fork(partial(_write_file, s, Path(directory) / f"{i}", chunk_bytes))
            for i, s in enumerate(sinks)
        ]
        children.append(_fork(lambda: _relay(relay, [s.getsockname() for s in sinks], chunk_bytes)))
        started = time.perf_counter()
        with socket.create_connection(relay.getsockname()) as out:
            _tune(out)
            data = os.urandom(chunk_bytes)
            for _ in range(chunks):
                out.sendall(data)
            out.shutdown(socket.SHUT_WR)
            _join(children)
        elapsed = time.perf_counter() - started
    return chunks * chunk_bytes / elapsed / 1e6


def reading_mb_s(chunk_bytes: int, total_bytes: int, *, cold: bool = False) -> float:
    """Return the MB/s from a file through a relay into a sink that drops the data.

    The file is in the page cache unless `cold` is set.
    """
    chunks = max(1, total_bytes // chunk_bytes)
    with tempfile.NamedTemporaryFile(prefix="daybook-limit-", dir=data_dir()) as file:
        data = os.urandom(chunk_bytes)
        for _ in range(chunks):
            file.write(data)
        file.flush()
        if cold:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        sink, relay = _listener(), _listener()
        children = [
            _fork(lambda: _swallow(sink, chunk_bytes)),
            _fork(lambda: _relay(relay, [sink.getsockname()], chunk_bytes)),
        ]
        started = time.perf_counter()
        with socket.create_connection(relay.getsockname()) as out:
            _tune(out)
            for i in range(chunks):
                out.sendall(os.pread(file.fileno(), chunk_bytes, i * chunk_bytes))
            out.shutdown(socket.SHUT_WR)
            _join(children)
        elapsed = time.perf_counter() - started
    return chunks * chunk_bytes / elapsed / 1e6


def sync_ms(times: int = 500) -> float:
    """Return the median of the milliseconds until 4 KB are on the disk, one write a millisecond."""
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="daybook-limit-", dir=data_dir()) as directory:
        path = Path(directory) / "file"
        _zeroed(path)
        block = memoryview(mmap.mmap(-1, BLOCK))
        file = os.open(path, os.O_WRONLY | os.O_DIRECT)
        for i in range(times):
            started = time.perf_counter()
            os.pwritev(file, [block], i * BLOCK, os.RWF_DSYNC)
            took.append(time.perf_counter() - started)
            time.sleep(0.001)
        os.close(file)
    return sorted(took)[times // 2] * 1e3


def answered_ms(rate: int, seconds: float, size: int = 1024) -> tuple[float, float]:
    """Return the median and the 99th percentile until two of three sinks have an entry on disk.

    Each time counts from when the entry was due, at `rate` a second, as for other latencies.
    """
    with tempfile.TemporaryDirectory(prefix="daybook-limit-", dir=data_dir()) as directory:
        sinks = [_listener() for _ in range(SINKS)]
        count = int(rate * seconds)
        for i in range(SINKS):
            _zeroed(Path(directory) / f"{i}", (count + 1) * BLOCK)
        children = [
            _fork(partial(_write_file, s, Path(directory) / f"{i}", size, answering=True))
            for i, s in enumerate(sinks)
        ]
        outs = [socket.create_connection(sink.getsockname()) for sink in sinks]
        for out in outs:
            _tune(out)
        took = _send_paced(outs, rate, count, bytes(size))
        for each in (*outs, *sinks):
            each.close()
        _join(children)
    took.sort()
    return took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3


def _send_paced(outs: list[socket.socket], rate: int, count: int, data: bytes) -> list[float]:
    """Return the seconds from when each entry was due until its second answer."""
    answers = [0] * len(outs)
    took: list[float] = []
    sent = 0
    started = time.perf_counter()
    while len(took) < count:
        now = time.perf_counter()
        while sent < count and started + sent / rate <= now:
            for out in outs:
                out.sendall(data)
            sent += 1
        pause = max(0.0, started + sent / rate - time.perf_counter()) if sent < count else 1.0
        readable, _, _ = select.select(outs, [], [], pause)
        for i, out in enumerate(outs):
            if out in readable:
                answers[i] += len(out.recv(4096))
        now, done = time.perf_counter(), sorted(answers)[-2]
        took += [now - started - i / rate for i in range(len(took), done)]
    return took


def data_dir() -> str:
    """Return the directory of the measured files: on a disk, not on a file system in memory."""
    return os.environ.get("DAYBOOK_BENCH_DIR", os.getcwd())


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)
    return listener


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _join(children: list[int]) -> None:
    for pid in children:
        os.waitpid(pid, 0)


def _relay(listener: socket.socket, targets: list[tuple[str, int]], chunk_bytes: int) -> None:
    source, _ = listener.accept()
    outs = [socket.create_connection(target) for target in targets]
    for out in outs:
        _tune(out)
    buffer = memoryview(bytearray(max(chunk_bytes, 1 << 20)))
    while count := source.recv_into(buffer):
        for out in outs:
            out.sendall(buffer[:count])
    for out in outs:
        out.close()


def _swallow(listener: socket.socket, chunk_bytes: int) -> None:
    source, _ = listener.accept()
    buffer = memoryview(bytearray(max(chunk_bytes, 1 << 20)))
    while source.recv_into(buffer):
        pass


def _write_file(
    listener: socket.socket, path: Path, chunk_bytes: int, *, answering: bool = False
) -> None:
    source, _ = listener.accept()
    _tune(source)
    size = (chunk_bytes + BLOCK - 1) // BLOCK * BLOCK
    buffer = mmap.mmap(-1, size)
    view = memoryview(buffer)
    file = os.open(path, os.O_WRONLY | os.O_DIRECT)
    offset = 0
    while True:
        filled = 0
        while filled < chunk_bytes and (count := source.recv_into(view[filled:chunk_bytes])):
            filled += count
        if not filled:
            return
        os.pwritev(file, [view], offset, os.RWF_DSYNC)
        if answering:
            source.sendall(b".")
        offset = (offset + size) % (FILE_BYTES // size * size)


def _zeroed(path: Path, size: int = FILE_BYTES) -> None:
    """Create a file that has been written once, so that a sync changes no metadata."""
    with path.open("wb") as file:
        for _ in range(-(-size >> 20)):
            file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
