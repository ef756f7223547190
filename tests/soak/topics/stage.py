"""The stage of a real run: the clock of this machine, a history in a file, counts of events."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

import trio

from tests.history.events import Error, Ok, Position, Read, ReadEnd, Send, Stamped, Unknown
from tests.history.recorder import Sink
from tests.simulation.workloads.stage import Stage


class Tally:
    """Passes a history on, counts its events, and lets a caller wait for receipts."""

    def __init__(self, sink: Sink) -> None:
        self.counts: Counter[str] = Counter()
        self._sink = sink
        self._waiting: dict[tuple[str, int], int] = {}  # the times of sends without an outcome
        self._began_ns: dict[str, int] = {}  # by topic: the time of the latest send with a receipt
        self._receipt = trio.Event()
        self.contents: dict[str, int] = {}  # by topic: a checksum of its last complete read
        self._contents: dict[str, int] = {}  # by reader: a checksum so far

    def put(self, stamped: Stamped) -> None:
        self._sink.put(stamped)
        event = stamped.event
        self.counts[type(event).__name__] += 1
        match event:
            case Send(_, producer, seq):
                self._waiting[producer, seq] = stamped.at_ns
            case Ok(topic, producer, seq):
                began_ns = self._waiting.pop((producer, seq))
                self._began_ns[topic] = max(began_ns, self._began_ns.get(topic, 0))
                self._receipt.set()
                self._receipt = trio.Event()
            case Error(producer, seq) | Unknown(producer, seq):
                del self._waiting[producer, seq]
            case Read(_, reader, position, _, digest):
                self._contents[reader] = add_content(
                    self._contents.get(reader, 0), position, digest
                )
            case ReadEnd(topic, reader):
                self.contents[topic] = self._contents.pop(reader, 0)
            case _:
                pass

    async def wait_receipt(self, topic: str, since_ns: int) -> None:
        """Wait until a message that was sent after `since_ns` has its receipt.

        `topic` is a topic without partitions, or a partition.
        """
        while self._began_ns.get(topic, 0) <= since_ns:
            await self._receipt.wait()


def add_content(before: int, position: Position, digest: str) -> int:
    """Return a checksum of the messages of a topic, given that of the earlier ones."""
    return crc32(f"{position} {digest}".encode(), before)


@dataclass(slots=True)
class RealStage(Stage):
    tally: Tally = field(kw_only=True)
    history_ns: Callable[[], int] = field(kw_only=True)  # the clock of the history

    @property
    def sink(self) -> Tally:
        return self.tally

    def now_ns(self) -> int:
        return self.history_ns()

    def now_ms(self, host: str) -> int:
        return time.time_ns() // 1_000_000
