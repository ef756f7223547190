"""Reads the lines that a client's program prints."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.processes import PATIENCE_S, Process


def line_of(process: Process) -> str:
    """Return the next line of the program."""
    with _ends_when_silent(process):
        assert process.stdout is not None
        line = process.stdout.readline()
    assert line, "the program has ended, or it was silent for too long"
    return line.rstrip("\n")


def lines_of(process: Process, last: str = "done") -> list[str]:
    """Return what the program says before its line `last`."""
    found: list[str] = []
    while (line := line_of(process)) != last:
        found.append(line)
    return found


@contextmanager
def _ends_when_silent(process: Process) -> Iterator[None]:
    # A wait for the pipe itself would not see the lines that a read has fetched beside another one.
    silence = threading.Timer(PATIENCE_S, process.kill)
    silence.start()
    try:
        yield
    finally:
        silence.cancel()
