"""Recorders write the history of a run into memory, or line by line into a file.

    recorder = Recorder("client-1", now_ns=time.monotonic_ns, sink=FileSink(path))
    recorder.note(Send(topic, "p1", 0, "p1/0"))

Recorders of one process share a sink.  Each process of a run writes a file of its own; they are
merged when they are read, so their clocks must be the same (on one host the monotonic clock is).
"""

from collections.abc import Callable
from heapq import merge
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.history.events import Event, Stamped, decode_lines, encode


class Sink(Protocol):
    def put(self, stamped: Stamped) -> None: ...


class Memory:
    """A sink that keeps the events in a list."""

    def __init__(self) -> None:
        self.events: list[Stamped] = []

    def put(self, stamped: Stamped) -> None:
        self.events.append(stamped)


class FileSink:
    """A file with one event per line.  It has each event, even if the process is then killed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def put(self, stamped: Stamped) -> None:
        self._file.write(encode(stamped) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class Recorder:
    """The events that one observer saw."""

    def __init__(self, by: str, *, now_ns: Callable[[], int], sink: Sink) -> None:
        self.by = by
        self.now_ns = now_ns
        self.sink = sink

    def note(self, event: Event) -> None:
        self.sink.put(Stamped(self.now_ns(), self.by, event))

    def named(self, by: str) -> "Recorder":
        """Return a recorder for another observer of the same run."""
        return Recorder(by, now_ns=self.now_ns, sink=self.sink)


def load(*paths: Path) -> list[Stamped]:
    """Return the events of all files, in the order of time.  Raise HistoryError.

    A last line that is cut off, because the process was killed while writing it, is left out.
    """
    return list(merge(*map(_load, paths), key=lambda stamped: stamped.at_ns))


def _load(path: Path) -> list[Stamped]:
    *lines, _cut = path.read_bytes().split(b"\n")
    return decode_lines(lines)
