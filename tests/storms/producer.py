"""Storms over the producers of one topic, whose connections break and whose log is fenced.

A few clients send numbers.  After a loss a client reopens its producer and resends each message
without a receipt.  The log confirms in order, or is fenced, and then keeps any prefix of the
unconfirmed entries.  In half of the storms the topic is deduplicated; its snapshots may be old or
missing.  The rules are P of `safety` (without deduplication an entry is stored twice only if it was
sent twice, with it never), and A: one exclusive producer at a time.
"""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from daybook.broker.protocol.access import AccessMode
from daybook.broker.protocol.deduplication import DeduplicationState, EntryIds
from daybook.broker.topics.producer import Producer
from daybook.managed_ledger.position import Position
from daybook.wire.batch import parse_metadata
from tests.storms.chance import Chance
from tests.storms.network import Network
from tests.storms.producer_broker import Connection, Topic
from tests.storms.producer_client import Open, ProducerClient
from tests.storms.storm import OFTEN, SOME, Storm

BROKER, LOG, FIRST_CLIENT = 0, 1, 2
NAMES = ("p1", "p2", "p3")
_SHARED, _EXCLUSIVE = AccessMode.SHARED, AccessMode.EXCLUSIVE
_WAITS, _FENCES = AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING
MODES = (
    (_SHARED,),
    (_SHARED, _SHARED),
    (_SHARED, _SHARED),
    (_EXCLUSIVE, _EXCLUSIVE),
    (_FENCES, _FENCES),
    (_WAITS, _WAITS),
    (_SHARED, _FENCES),
    (_SHARED, _SHARED, _WAITS),
    (_EXCLUSIVE, _WAITS, _FENCES),
)
TURNS_AT_END = 60


@dataclass(slots=True)
class Entry:
    name: str
    sequence_id: int


class ProducerStorm(Storm):
    kind = "producer"
    steps_max = 250
    wanted: ClassVar[dict[str, float]] = {
        "sent again": 0.1,
        "twice in the log": 0.03,
        "topic let go": 0.1,
        "kept without a receipt": 0.02,
        "ignored": 0.02,
        "expelled": 0.005,
        "gives up an opening": 0.02,
        "waits to be exclusive": 0.02,
        "epoch not stored": 0.005,
        "old data": 0.01,
        "a repeat is not stored": 0.05,
        "waits for its earlier sends": 0.01,
        "snapshot": 0.1,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        super().__init__(chance, trace)
        self.network = Network(chance, FIRST_CLIENT + len(NAMES), fifo=True)
        self.now_s = 0.0
        self.entries: list[Entry] = []
        self.clients = [
            ProducerClient(self, NAMES[i], FIRST_CLIENT + i, mode)
            for i, mode in enumerate(chance.one_of(MODES))
        ]
        self._connections: list[Connection] = []
        self._epoch: int | None = None  # as stored
        self._admitted_epoch = -1  # the newest epoch of an exclusive producer
        self._topic: Topic | None = None
        self._pending: deque[tuple[Topic, Producer, Entry]] = deque()  # on the way to bookies
        self._keys = 0
        self._ledger_id = 1
        self._sends_max = chance.one_of((2, 4, 10))
        self._not_stored = chance.one_of((0.0, 0.0, 0.3))
        self.deduplicates = chance.one_of((False, True))
        self._snapshot: tuple[int, dict[str, int]] = (
            0,
            {},
        )  # the number of entries it contains, and the ids
        self.actor(self.network.deliver, (1.0,))
        self.actor(self._send, OFTEN)
        self.actor(self._connect, (0.1, 0.3))
        self.actor(self._confirm, (0.1, 0.5))
        self.actor(self._lose, SOME)
        self.actor(self._notice, (0.01, 0.1))
        self.actor(self._let_go, SOME)
        self.actor(self._start_over, SOME)
        self.actor(self._time, (0.0, 0.02))
        self.actor(self._store_snapshot, (0.0, 0.1))

    # -- the actors

    def _client(self) -> ProducerClient:
        return self.chance.one_of(self.clients)

    def _send(self) -> None:
        client = self._client()
        if client.sent < self._sends_max:
            client.send()

    def _connect(self) -> None:
        self._client().connect()

    def _lose(self) -> None:
        client = self._client()
        if client.connection is not None:
            lost = client.connection
            if self.chance.happens(0.5):  # The messages on it are lost; otherwise they arrive.
                self.network.disconnect(BROKER, client.host)
                lost.close()
            else:
                self.mark("old data")
            client.lose()

    def _notice(self) -> None:
        """Let the broker notice that a client is gone."""
        for connection in self._connections:
            if connection.client_gone and not connection.closed:
                connection.close()
                return

    def _let_go(self) -> None:
        """Unload the topic: its log is fenced, or another broker owns it."""
        if self._topic is not None:
            self.mark("topic let go")
            topic, self._topic = self._topic, None
            mine = [each for each in self._pending if each[0] is topic]
            self._pending = deque(each for each in self._pending if each[0] is not topic)
            kept = self.chance.below(len(mine) + 1)
            for _, _, entry in mine[:kept]:
                self.mark("kept without a receipt")
                self._keep(entry)
            self._ledger_id += 1
            for _, producer, _ in mine:
                topic.fenced(producer)
            topic.let_go()

    def _start_over(self) -> None:
        self._client().start_over()

    def _time(self) -> None:
        self.now_s += 3.0

    # -- deduplication

    def known(self) -> DeduplicationState | None:
        """Return what a broker that loads the topic knows: a snapshot, and the entries behind."""
        if not self.deduplicates:
            return None
        state = DeduplicationState(names_max=100, names_bytes_max=10_000, generated_s=1e9)
        count, snapshot = self._snapshot
        state.restore(snapshot, 0.0)
        for entry in self.entries[count:]:
            state.replay(EntryIds(entry.name, entry.sequence_id, entry.sequence_id), 0.0)
        return state

    def _store_snapshot(self) -> None:
        known = None if self._topic is None else self._topic.deduplication
        if known is not None:
            self.mark("snapshot")
            self._snapshot = known.count, known.state.snapshot()

    # -- the broker

    def new_connection(self, client: ProducerClient) -> Connection:
        connection = Connection(self, client)
        self._connections.append(connection)
        self.say(f"{client.name} connects")
        return connection

    def next_key(self) -> int:
        self._keys += 1
        return self._keys

    def withdraw(self, connection: Connection, attempt: int) -> None:
        if self._topic is not None:
            self._topic.withdraw(connection, attempt)

    def load(self, connection: Connection, attempt: int, opening: Open) -> None:
        if not connection.opens(attempt):
            return
        if self._topic is None:
            self.say("the topic is loaded")
            known = -1 if self._epoch is None else self._epoch
            self.rule("A2", known >= self._admitted_epoch, f"{self._admitted_epoch} is forgotten")
            self._topic = Topic(self, self._epoch, self.known(), len(self.entries))
        self._topic.add(connection, attempt, opening)

    def store_epoch(self, topic: Topic, key: int, epoch: int) -> None:
        def arrive() -> None:
            ok = topic is self._topic and not self.chance.happens(self._not_stored)
            if ok:
                self.say(f"the epoch of the topic is {epoch}")
                self._epoch = epoch
            else:
                self.mark("epoch not stored")
            self.network.send(LOG, BROKER, lambda: topic.epoch_stored(key, ok=ok))

        self.network.send(BROKER, LOG, arrive)

    # -- the log

    def append(self, topic: Topic, producer: Producer, payload: memoryview) -> None:
        metadata, _ = parse_metadata(payload)
        entry = Entry(metadata.producer_name, metadata.sequence_id)
        if topic is self._topic:
            self._pending.append((topic, producer, entry))

    def _confirm(self) -> None:
        """Confirm the oldest pending entry: the bookies have stored it."""
        if self._pending:
            topic, producer, entry = self._pending.popleft()
            position = self._keep(entry)
            self.network.send(LOG, BROKER, topic.confirmed, producer, position)

    def _keep(self, entry: Entry) -> Position:
        position = Position(self._ledger_id, len(self.entries))
        self.say(f"the log has {entry.name} {entry.sequence_id} at {position}")
        if entry in self.entries:
            self.mark("twice in the log")
        self.entries.append(entry)
        client = next(each for each in self.clients if each.name == entry.name)
        same = [e for e in self.entries if e.name == entry.name]
        count = same.count(entry)
        often = client.times.get(entry.sequence_id, 0)
        self.rule("P4", count <= often, f"{entry} is there {count} times, sent {often} times")
        once = count == 1 or not self.deduplicates
        self.rule("P3", once, f"{entry} is there {count} times, with deduplication")
        first = [e.sequence_id for i, e in enumerate(same) if e not in same[:i]]
        self.rule("P1", first == sorted(first), f"the log has {first} of {entry.name}")
        return position

    # -- rules

    def check_receipt(
        self, client: ProducerClient, sequence_id: int, position: tuple[int, int]
    ) -> None:
        if client.times[sequence_id] > 1:
            self.mark("sent again")
        if position[1] < 0:
            self.mark("a repeat is not stored")
            stored = Entry(client.name, sequence_id) in self.entries
            self.rule("P3", stored, f"{client.name} {sequence_id} is told to be stored")
            return
        stored = position[1] < len(self.entries)
        right = stored and self.entries[position[1]] == Entry(client.name, sequence_id)
        self.rule("P2", right, f"{client.name} {sequence_id} is not at {position}")
        placed = [receipt for receipt in client.receipts if receipt[1][1] >= 0]
        if placed:
            before, where = placed[-1]
            self.rule("P1", before < sequence_id, f"{sequence_id} has its receipt after {before}")
            self.rule("P1", where < position, f"{position} comes after {where}")

    def check_admitted(self, topic: Topic, producer: Producer, asked: int | None) -> None:
        self.say(f"{producer.name} is admitted, epoch {producer.epoch}")
        if topic.access.is_exclusive:
            assert producer.epoch is not None
            least = self._admitted_epoch + (asked is None)
            self.rule("A2", producer.epoch >= least, f"epoch {producer.epoch}, not {least}")
            self._admitted_epoch = producer.epoch
            others = [name for name in topic.by_name if name != producer.name]
            self.rule("A1", not others, f"{producer.name} is exclusive, beside {others}")

    def check_append(self, topic: Topic, producer: Producer) -> None:
        mine = topic.by_name.get(producer.name) is producer
        self.rule("A1", mine, f"{producer.name} sends without being a producer of the topic")
        if topic.access.is_exclusive:
            self.rule("A1", len(topic.by_name) == 1, f"one of {list(topic.by_name)} is exclusive")

    def finish(self) -> None:
        """Check, after all faults, that each send gets a receipt unless its producer is fenced."""
        self._not_stored = 0.0
        for _ in range(TURNS_AT_END):
            waiting = [c for c in self.clients if c.waiting and not c.ended]
            if not waiting:
                break
            self.now_s += 10.0
            for client in waiting:
                client.connect()
            self.network.deliver_all(200)
            for connection in list(self._connections):
                if connection.client_gone:
                    connection.close()
            while self._pending:
                self._confirm()
            self.network.deliver_all(200)
            for client in self.clients:  # A client that is done may hold the topic exclusively.
                if not client.waiting:
                    client.lose()
        left = [f"{c.name}: {c.waiting}" for c in self.clients if c.waiting and not c.ended]
        self.rule("L4", not left, f"sends without a receipt: {', '.join(left)}")
