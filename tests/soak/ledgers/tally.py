"""The counts of events in the files of the clients, which grow meanwhile."""

from collections import Counter
from pathlib import Path

import msgspec
import trio

_READ_BYTES_MAX = 4 << 20
_LOOK_S = 0.5


class _Line(msgspec.Struct):
    """The part of a line that the tally needs; the judge reads all of it."""

    at_ns: int
    by: str
    kind: str
    ledger: int = -1
    entry: int = -1
    how: str = ""
    reason: str = ""
    digests: tuple[str, ...] = ()


class Tally:
    """Counts the lines of all clients; `watch` looks for new ones again and again."""

    def __init__(self, directory: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._read: dict[Path, int] = {}  # bytes that were read, by file
        self._confirmed: dict[int, int] = {}  # the last confirmed entry, by ledger
        self._since_ns = 0
        self._first: dict[int, int] = {}  # the first entry sent since `_since_ns`, by ledger
        self._alive: dict[str, None] = {}  # processes with a confirmed entry sent since then
        self._changed = trio.Event()

    async def watch(self) -> None:
        """Look for new lines until cancelled."""
        while True:
            self.look()
            await trio.sleep(_LOOK_S)

    def look(self) -> None:
        """Count all new lines that are complete."""
        for path in sorted(self._directory.glob("*-*.jsonl")):  # without the soak's own file
            while self._look_at(path):
                pass
        self._changed.set()
        self._changed = trio.Event()

    def _look_at(self, path: Path) -> bool:
        begin = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(begin)
            read = file.read(_READ_BYTES_MAX)
        whole = read.rfind(b"\n") + 1
        self._read[path] = begin + whole
        for line in read[:whole].splitlines():
            self._take(msgspec.json.decode(line, type=_Line))
        return len(read) == _READ_BYTES_MAX

    def _take(self, line: _Line) -> None:
        self.counts[line.kind] += 1
        match line.kind:
            case "append" if line.at_ns > self._since_ns:
                self._first.setdefault(line.ledger, line.entry)
            case "confirmed":
                before = self._confirmed.get(line.ledger, -1)
                self.counts["entries confirmed"] += max(0, line.entry - before)
                self._confirmed[line.ledger] = max(before, line.entry)
                if line.entry >= self._first.get(line.ledger, line.entry + 1):
                    self._alive[process_of(line.by)] = None
            case "entries":
                self.counts["entries read"] += len(line.digests)
            case "ledger_end":
                self.counts[f"ends by {line.how}"] += 1
            case "writer_stopped":
                self.counts[f"writers stopped: {line.reason}"] += 1
            case _:
                pass

    async def wait_confirmed(self, processes: list[str], since_ns: int) -> None:
        """Wait until each process has sent an entry after `since_ns` that was confirmed."""
        self._since_ns = since_ns
        self._first.clear()
        self._alive.clear()
        while not all(each in self._alive for each in processes):
            await self._changed.wait()

    def missing(self, processes: list[str]) -> list[str]:
        return [each for each in processes if each not in self._alive]


def process_of(name: str) -> str:
    """Return writer-2 for writer-2.5, which is its fifth start."""
    return name.partition(".")[0]
