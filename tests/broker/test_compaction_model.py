"""Compactions, crashes between any two of their steps, trims and readers, against a model.

The log and its ledgers are in memory, and everything else is the product.  A reader has to see the
last value of each key, in the order of the sends.
"""

import random
from collections.abc import Awaitable, Callable
from itertools import groupby

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.compaction.source import CompactedSource
from daybook.broker.compaction.topic_compaction import Compactions, TopicCompaction
from daybook.broker.limits import CompactionLimits
from daybook.managed_ledger.compacted import CURSOR, LEDGER
from daybook.managed_ledger.position import Position
from daybook.wire.batch import is_batch, iter_batch, parse_metadata, split_broker_metadata
from daybook.wire.logging import silent_log
from daybook.wire.topics import TopicName
from tests.broker.test_compaction import batch
from tests.harness.broker import payload_of
from tests.harness.clocks import VirtualClock
from tests.harness.fake_log import FakeLog, FakeLogs

NAME = TopicName.parse("persistent://public/default/t")
KEYS = ("a", "b", "c", "d", "e")
LEDGER_ENTRIES = 3
RUNS = 40
STEPS = 60
Told = tuple[Position, str, str]  # where a message is, its key, its value


class Crashed(Exception):  # noqa: N818
    """The owner of the topic dies here."""


class Reader:
    """A reader with `readCompacted`, which reads a few entries at a time."""

    def __init__(self, model: "Model", start: Position, *, whole: bool) -> None:
        cursor = model.log.new_volatile_cursor("r", model.log.previous_position(start))
        before = model.compaction.before_log(start)
        self.source = CompactedSource(model.log, cursor, model.compaction, before)
        self.at = self.source.read_start
        self.whole = whole  # from the first message on
        self.start = start
        self.seen: list[Told] = []
        self.overtaken = False  # trimming may have taken tombstones away
        self._through = self.source.through

    async def read(self, entries: int) -> int:
        found = await self.source.read(self.at, max_entries=entries, max_bytes=1 << 20)
        for entry in found:
            assert entry.position >= self.at
            self.seen += messages_of(entry.position, entry.data)
        if found:
            self.at = self.source.next_position(found[-1].position)
        self.overtaken |= self.source.through != self._through
        return len(found)


def messages_of(position: Position, data: memoryview) -> list[Told]:
    metadata, body = parse_metadata(split_broker_metadata(data)[2])
    if not is_batch(metadata):
        return [(position, metadata.partition_key, bytes(body).decode())]
    singles = iter_batch(bytes(body), metadata.num_messages_in_batch)
    return [(position, s.key or "", value.decode()) for s, value in singles if not s.compacted_out]


class Model:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.logs = FakeLogs(self.clock)
        self.logs.ledger_entries = LEDGER_ENTRIES
        self.logs.lose_unflushed = True
        self.logs.before = self._step
        limits = CompactionLimits(read_entries=2, read_bytes=64)
        self.shared = Compactions(limits, clock=self.clock, rng=self.rng, log=silent_log())
        self.sent: list[Told] = []
        self.readers: list[Reader] = []
        self.crash_in = -1  # so many steps from now the owner dies

    log: FakeLog
    compaction: TopicCompaction

    async def open(self) -> None:
        self.log = await self.logs.open(NAME, create=True)
        self.log.before_flush = self._step
        self.compaction = TopicCompaction(NAME, self.log, self.logs, self.shared, self._unused)
        self.readers = []

    @staticmethod
    def _unused(task: Callable[[], Awaitable[None]]) -> None:
        raise AssertionError("the model runs compactions itself")

    async def _step(self, operation: str) -> None:
        await trio.lowlevel.checkpoint()
        self.crash_in -= 1
        if not self.crash_in:
            raise Crashed(operation)
        if self.rng.random() < 0.2:
            await self.act_while_it_runs()

    # -- what happens

    async def send(self) -> None:
        rng, number = self.rng, len(self.sent)
        messages = [
            (rng.choice(KEYS), rng.choice(["", str(number + n), str(number + n)]))
            for n in range(rng.choice([1, 1, 2, 4]))
        ]
        single = len(messages) == 1 and rng.random() < 0.5
        key, value = messages[0]
        payload = (
            payload_of(number, value.encode(), partition_key=key)
            if single
            else batch(number, messages)
        )
        told: list[Position] = []

        def done(position: Position | None, error: Exception | None) -> None:
            assert position is not None, error
            told.append(position)

        self.log.append((payload,), len(messages), done)
        self.sent += [(told[0], key, value) for key, value in messages]

    async def compact(self) -> None:
        """Compact, or die in between; what another task does meanwhile happens in `_step`."""
        try:
            await self.compaction._compact()
        except Crashed:
            await self.open()
        self.check_ledgers()

    def check_ledgers(self) -> None:
        """The ledger that the cursor names is there, and complete."""
        cursor = self.log.cursors.get(CURSOR)
        if cursor is not None and LEDGER in cursor.properties:
            assert self.logs.compacted[cursor.properties[LEDGER]].closed

    def trim(self) -> None:
        """Delete ledgers that the durable cursor does not need."""
        cursor = self.log.cursors.get(CURSOR)
        if cursor is None:
            return
        held = min(cursor.stored[0], cursor.mark_delete)
        index = self.log._index(held) + 1
        self.log.trimmed = max(self.log.trimmed, index // LEDGER_ENTRIES * LEDGER_ENTRIES)

    async def act_while_it_runs(self) -> None:
        match self.rng.randrange(4):
            case 0:
                await self.send()
            case 1:
                self.trim()
            case 2:
                self.begin_reader()
            case _:
                await self.read()

    def begin_reader(self) -> None:
        if self.sent and self.rng.random() < 0.5:
            self.readers.append(Reader(self, self.rng.choice(self.sent)[0], whole=False))
        else:
            self.readers.append(Reader(self, Position(0, 0), whole=True))

    async def read(self) -> None:
        if self.readers:
            await self.rng.choice(self.readers).read(self.rng.randrange(1, 4))

    async def run(self) -> None:
        await self.open()
        for _ in range(STEPS):
            match self.rng.randrange(10):
                case 0 | 1 | 2:
                    await self.send()
                case 3 | 4:
                    self.crash_in = self.rng.choice([-1, -1, self.rng.randrange(1, 12)])
                    await self.compact()
                    self.crash_in = -1
                case 5:
                    self.trim()
                case 6 | 7:
                    self.begin_reader()
                case _:
                    await self.read()
        for reader in self.readers:
            while await reader.read(5):
                pass
            self.check(reader)

    # -- what a reader has seen

    def check(self, reader: Reader) -> None:
        entries = [position for position, _ in groupby(position for position, *_ in reader.seen)]
        assert entries == sorted(set(entries)), "no entry comes after a later one, or twice"
        table: dict[str, str] = {}
        for _, key, value in reader.seen:
            table[key] = value
        last: dict[str, Told] = {each[1]: each for each in self.sent}
        for key, (position, _, value) in last.items():
            if position >= reader.start and value:
                assert table.get(key) == value, (reader.start, position, reader.seen)
            elif position >= reader.start and not reader.overtaken:
                assert not table.get(key), "the reader must see the tombstone of what it has"


@pytest.mark.parametrize("seed", range(RUNS))
async def test_readers_see_the_last_value_of_each_key(autojump_clock: MockClock, seed: int) -> None:
    await Model(seed).run()
