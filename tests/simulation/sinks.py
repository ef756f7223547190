"""Exactly-once batches under faults: drivers that die, come twice and repeat batches.

A run has four bookies, two brokers, a topic of two partitions, and one query with a number of
batches.  A *driver* stages each batch anew, commits it, waits until it is applied, and notes that
in the checkpoint; a driver that was killed is followed by another one, which begins behind the
checkpoint.  Sometimes the old one lives on.  The rows of an attempt name the driver that has staged
them, so the rows in the topic tell whose batch was committed.

    python -m tests.simulation.sinks 7        runs one seed and says what happens
    python -m tests.simulation.sinks 1 20     runs these seeds

The checks (X1 to X5):

- each batch is in the topic once, from one driver, whole, in the order of its tasks, and batches
  follow one another; the sequence ids have no gap
- a record keeps its manifest until the next batch, is not applied twice, and has no attempt that
  was abandoned
- a ledger that a committed batch names is deleted only when the batch is APPLIED
- any other staging ledger is deleted only while its attempt is abandoned in the record, or after
  its batch was APPLIED
- in the end nothing of the staging is left
"""

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import trio

from daybook.bookie.registry.paths import LedgerPaths
from daybook.broker.errors import BrokerError as AdminRefusal
from daybook.broker.sinks import topic_sinks
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError, ConflictError
from daybook.clients.python.sink_requests import Batch, NotAppliedError, Share, SinkRequests
from daybook.managed_ledger.protocol.sink import SinkRecord, SinkState, digest_of_shares
from daybook.managed_ledger.sinks.ledgers import sink_ledger_of
from daybook.managed_ledger.sinks.record import decode_record, record_path
from daybook.managed_ledger.sinks.staging import staged_entry
from daybook.wire.metadata.store import Record
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.simulation.cluster import Cluster, HostDiedError
from tests.simulation.metadata import Odds
from tests.simulation.scheduler import HOST, Scheduler, run
from tests.simulation.settings import Settings

TOPIC = "persistent://public/default/s"
PARTITIONS = 2
SINK = "sink"
QUERY = "query"
CHECKPOINT = "/checkpoint"
BATCHES = 8
FAULTS = 10
LIMIT_S = 3_000.0

Rows = list[tuple[int, str]]  # the index of a partition, and a text


@dataclass(frozen=True, slots=True)
class Result:
    batches: int
    drivers: int
    faults: list[str]
    replays: int
    virtual_s: float


@dataclass
class Audit:
    """The staging of drivers, and all changes of the sink's record and of staging ledgers."""

    problems: list[str] = field(default_factory=list[str])
    staged: dict[tuple[int, int], list[Rows]] = field(
        default_factory=dict[tuple[int, int], list[Rows]]
    )  # by batch and driver: the rows of each task
    attempts: dict[str, str] = field(default_factory=dict[str, str])  # by path of the ledger
    batch_of: dict[str, int] = field(default_factory=dict[str, int])  # by attempt
    named: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # by digest: attempts
    record: SinkRecord | None = None
    committed: list[int] = field(default_factory=list[int])
    applied: set[int] = field(default_factory=set[int])

    def note_attempt(self, ledger_id: int, attempt: str, batch_id: int) -> None:
        self.attempts[LedgerPaths().ledger(ledger_id)] = attempt
        self.batch_of[attempt] = batch_id

    def note_commit(self, batch_id: int, shares: list[Share | None]) -> None:
        names = ["" if share is None else share.attempt for share in shares]
        self.named[digest_of_shares(batch_id, names)] = set(names) - {""}

    def changed(self, _writer: str, path: str, stored: Record | None) -> None:
        if path == record_path(SINK) and stored is not None:
            self.record_changed(decode_record(stored.value, SINK))
        elif path in self.attempts and stored is None:
            self._ledger_deleted(self.attempts[path])

    def record_changed(self, record: SinkRecord) -> None:
        before, self.record = self.record, record
        if record.state is SinkState.BLOCKED:
            self.problems.append("the batch is blocked, and no topic was deleted or terminated")
        if before is not None and record.batch_id != before.batch_id:
            if before.unapplied:
                self.problems.append(f"{record.batch_id} is committed before {before.batch_id}")
            if record.batch_id <= before.batch_id:
                self.problems.append(f"{record.batch_id} follows {before.batch_id}")
            self.committed.append(record.batch_id)
            used = self._named(record) & before.abandoned
            if used:
                self.problems.append(f"X5: {record.batch_id} has the abandoned attempts {used}")
        elif before is not None and record.manifest != before.manifest:
            self.problems.append(f"X4: the batch {record.batch_id} has another manifest now")
        elif before is not None and record.unapplied and not before.unapplied:
            self.problems.append(f"X1: the batch {record.batch_id} is {record.state} again")
        if record.state is SinkState.APPLIED:
            self.applied.add(record.batch_id)

    def _ledger_deleted(self, attempt: str) -> None:
        record = self.record
        if record is None:
            self.problems.append(f"{attempt} was deleted and there is no record")
            return
        if record.unapplied and attempt in self._named(record):
            self.problems.append(f"X3: {attempt} was deleted, and its batch is {record.state}")
        abandoned = attempt in record.abandoned
        if not abandoned and self.batch_of[attempt] not in self.applied:
            self.problems.append(f"X5: {attempt} was deleted, and nobody has abandoned it")

    def _named(self, record: SinkRecord) -> set[str]:
        """Return the attempts that the record's manifest names."""
        manifest = record.manifest
        return set() if manifest is None else self.named.get(manifest.shares, set())

    def check_topic(self, found: dict[int, list[tuple[int, str]]]) -> None:
        """Check the entries of the sink in each partition: sequence ids and texts."""
        owners: dict[int, set[int]] = {}
        for entries in found.values():
            for _, text in entries:
                batch, driver, *_ = map(int, text.split("."))
                owners.setdefault(batch, set()).add(driver)
        for batch, drivers in owners.items():
            if len(drivers) > 1:
                self.problems.append(f"X1: the batch {batch} has rows of the drivers {drivers}")
        for index, entries in found.items():
            if [sequence for sequence, _ in entries] != list(range(len(entries))):
                self.problems.append(f"X1: the sequence ids of partition {index} are {entries}")
            wanted: list[str] = []
            for batch in sorted(owners):
                tasks = self.staged[batch, min(owners[batch])]
                wanted += [text for rows in tasks for at, text in rows if at == index]
            texts = [text for _, text in entries]
            if texts != wanted:
                self.problems.append(f"X2: partition {index} has {texts}, and not {wanted}")
        if sorted(owners) != list(range(BATCHES)):
            self.problems.append(f"X1: the batches {sorted(owners)} are in the topic")


class Story:
    def __init__(self, cluster: Cluster, rng: Random, say: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.rng = rng
        self.say = say
        self.audit = Audit()
        self.checkpoint = -1  # the last batch that a driver knows to be done
        self.drivers = 0
        self.replays = 0
        self.faults: list[str] = []
        self.calm = False  # No driver is killed any more.

    # -- drivers

    async def supervise(self) -> None:
        """Run drivers, one behind the other or two at a time, until all batches are done."""
        async with trio.open_nursery() as nursery:
            while self.checkpoint < BATCHES - 1:
                scope = trio.CancelScope()
                done = trio.Event()
                self.drivers += 1
                nursery.start_soon(self._live, self.drivers, scope, done)
                limit_s = LIMIT_S if self.calm else self.rng.uniform(0.3, 8.0)
                with trio.move_on_after(limit_s):
                    await done.wait()
                if not done.is_set() and self.rng.random() < 0.7:
                    self.say(f"driver {self.drivers} is killed")
                    scope.cancel()
            nursery.cancel_scope.cancel()

    async def _live(self, number: int, scope: trio.CancelScope, done: trio.Event) -> None:
        HOST.set(f"driver-{number}")
        requests = SinkRequests(
            "http://broker-1:8080,broker-2:8080",
            network=self.cluster.network.of(f"driver-{number}"),
            timeout_s=5.0,
        )
        with scope:
            try:
                await self._drive(number, requests)
            except BrokerError as error:
                self.say(f"driver {number} ends: {error}")
                await trio.sleep(0.2)
        done.set()

    async def _drive(self, number: int, requests: SinkRequests) -> None:
        while self.checkpoint < BATCHES - 1:
            batch_id = self.checkpoint + 1
            batch = Batch(QUERY, batch_id, {TOPIC: PARTITIONS})
            tasks = self._rows(batch_id, number)
            self.audit.staged[batch_id, number] = tasks
            await trio.sleep(self.rng.uniform(0.0, 3.0))
            shares = [await self._stage(requests, batch, rows) for rows in tasks]
            self.audit.note_commit(batch_id, shares)
            await self._commit(requests, batch, shares)
            with suppress(NotAppliedError):
                await requests.roll_forward(SINK, timeout_s=20.0)
                if batch_id > self.checkpoint:
                    self.say(f"driver {number} has done the batch {batch_id}")
                self.checkpoint = max(self.checkpoint, batch_id)

    def _rows(self, batch_id: int, driver: int) -> list[Rows]:
        """Return the rows of a batch by task: as many for each driver, in other tasks."""
        count, chance = 3 + 7 * (batch_id % 4), Random(f"{batch_id}/{driver}")
        tasks: list[Rows] = [[] for _ in range(3)]
        for number in range(count):
            rows = chance.choice(tasks)
            rows.append((number % PARTITIONS, f"{batch_id}.{driver}.{number}"))
        return tasks

    async def _stage(self, requests: SinkRequests, batch: Batch, rows: Rows) -> Share | None:
        if not rows:
            return None
        while True:
            attempt = await requests.begin(SINK, batch)
            self.audit.note_attempt(attempt.ledger_id, attempt.attempt, batch.batch_id)
            try:
                for index, text in rows:
                    if self.rng.random() < 0.01:
                        break  # The task dies, and its staging is litter.
                    await trio.sleep(self.rng.uniform(0.0, 0.05))
                    entry = staged_entry(pb.MessageMetadata(event_time=1), text.encode())
                    await attempt.append(f"{TOPIC}-partition-{index}", [entry])
                else:
                    return await attempt.close(rows=len(rows), hash_=len(rows))
            except BrokerError as error:
                self.say(f"a task begins again: {error}")
                await trio.sleep(0.1)

    async def _commit(
        self, requests: SinkRequests, batch: Batch, shares: list[Share | None]
    ) -> None:
        try:
            while True:
                done = await requests.commit(
                    SINK, batch, shares, checkpoint=CHECKPOINT, timeout_s=6.0
                )
                self.replays += done.outcome == "replay"
                if done.outcome != "wait":
                    return
                await requests.roll_forward(SINK, timeout_s=20.0)
        except BrokerError as error:
            # Spark aborts what it could not commit, also if the commit was carried out.
            with suppress(BrokerError):
                await requests.abort(SINK, batch, shares, checkpoint=CHECKPOINT, timeout_s=3.0)
            if not isinstance(error, ConflictError):
                raise
            self.say(f"refused: {error}")
            raise

    # -- faults

    async def disturb(self) -> None:
        acts: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("a broker is killed", self._kill_broker),
            ("a broker is killed soon after a commit", self._kill_after_commit),
            ("a bookie loses power", self._kill_bookie),
            ("the store loses answers", self._lose_answers),
            ("a broker is frozen", self._freeze_broker),
            ("a session expires", self._expire),
            ("the topic is unloaded", self._unload),
        ]
        for _ in range(FAULTS):
            await trio.sleep(self.rng.uniform(0.2, 3.0))
            name, act = self.rng.choice(acts)
            self.faults.append(name)
            self.say(name)
            await act()
        self.calm = True
        self.say("no more faults")

    def _broker(self) -> str:
        return self.rng.choice(["broker-1", "broker-2"])

    async def _kill_broker(self) -> None:
        name = self._broker()
        if name in self.cluster.lives:
            self.cluster.kill(name)
        await trio.sleep(self.rng.uniform(0.5, 4.0))
        await self.cluster.revive(name)

    async def _kill_after_commit(self) -> None:
        before = len(self.audit.committed)
        with trio.move_on_after(10.0):
            while len(self.audit.committed) == before:  # noqa: ASYNC110
                await trio.sleep(0.005)
        await trio.sleep(self.rng.uniform(0.0, 0.1))
        await self._kill_broker()

    async def _kill_bookie(self) -> None:
        name = f"bookie-{self.rng.randint(1, 4)}"
        self.cluster.kill(name, power=True)
        await trio.sleep(self.rng.uniform(0.5, 4.0))
        await self.cluster.revive(name)

    async def _lose_answers(self) -> None:
        self.cluster.metadata.odds = Odds(0.03, 0.05, 0.05, 0.3)
        await trio.sleep(self.rng.uniform(2.0, 8.0))
        self.cluster.metadata.odds = Odds()

    async def _freeze_broker(self) -> None:
        name = self._broker()
        if name in self.cluster.lives:
            life = self.cluster.freeze(name)
            await trio.sleep(self.rng.uniform(0.5, 6.0))
            self.cluster.thaw(life)

    async def _expire(self) -> None:
        await trio.lowlevel.checkpoint()
        name = self._broker()
        if name in self.cluster.lives:
            self.cluster.metadata.expire(name)

    async def _unload(self) -> None:
        name = self._broker()
        running = self.cluster.broker(name)
        if running is None:
            return
        topic = TopicName.parse(TOPIC)
        with suppress(AdminRefusal, HostDiedError), trio.move_on_after(5.0):
            await self.cluster.call(name, lambda: running.operations.unload_topic(topic))

    # -- other messages in the same topic

    async def produce(self) -> None:
        HOST.set("client")
        network, clock = self.cluster.network.of("client"), self.cluster.clock
        async with (
            connect(
                self.cluster.service_url,
                timeout_s=None,
                network=network,
                clock=clock,
                rng=Random(1),
            ) as client,
            await client.create_producer(TOPIC, send_timeout_s=None) as producer,
        ):
            while True:
                await producer.send(b"other")
                await trio.sleep(self.rng.uniform(0.01, 0.2))

    # -- the end

    async def read(self) -> dict[int, list[tuple[int, str]]]:
        """Return the entries of the sink by partition."""
        found: dict[int, list[tuple[int, str]]] = {}
        network, clock = self.cluster.network.of("reader"), self.cluster.clock
        async with connect(
            self.cluster.service_url, network=network, clock=clock, rng=Random(2)
        ) as client:
            for index in range(PARTITIONS):
                entries = found[index] = []
                async with await client.create_reader(
                    f"{TOPIC}-partition-{index}", start="earliest"
                ) as reader:
                    while await reader.has_message_available():
                        message = await reader.receive()
                        if message.producer_name.startswith("daybook.sink."):
                            text = (message.data or b"").decode()
                            entries.append((message.sequence_id, text))
        return found

    async def nothing_is_left(self) -> None:
        """Wait until no ledger of a sink is left."""
        running = self.cluster.broker("broker-1")
        assert running is not None
        client = running.sinks.sinks.ledgers.client

        async def left() -> list[int]:
            found: list[int] = []
            async for ledger_id in client.list_ledgers():
                stored = await client.stored_metadata(ledger_id)
                if sink_ledger_of(stored.metadata.custom) is not None:
                    found.append(ledger_id)
            return found

        while found := await self.cluster.call("broker-1", left):
            self.say(f"the ledgers {found} are left")
            await trio.sleep(5.0)


def run_sinks(seed: int, say: Callable[[str], None] | None = None) -> Result:
    """Run one seed.  Raise AssertionError if a promise was broken."""

    async def main(scheduler: Scheduler) -> Result:
        def tell(text: str) -> None:
            if say is not None:
                say(f"{trio.current_time():9.3f} s  {text}")

        def tell_line(line: str, host: str) -> None:
            tell(f"{host}: {line}")

        rng = Random(seed)
        async with trio.open_nursery() as nursery:
            settings = Settings(http=True, roll_entries=rng.choice([7, 40, 50_000]))
            log = None if say is None else tell_line
            cluster = Cluster(scheduler, seed, nursery, settings, log)
            for index in range(4):
                await cluster.start(f"bookie-{index + 1}")
            for index in range(2):
                await cluster.start(f"broker-{index + 1}")
            story = Story(cluster, rng, tell)
            cluster.metadata.tree.observer = story.audit.changed
            running = cluster.broker("broker-1")
            assert running is not None
            await running.operations.create_partitioned(TopicName.parse(TOPIC), PARTITIONS)
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as actors:
                    actors.start_soon(story.produce)
                    async with trio.open_nursery() as work:
                        work.start_soon(story.disturb)
                        work.start_soon(story.supervise)
                    actors.cancel_scope.cancel()
                story.audit.check_topic(await story.read())
                await story.nothing_is_left()
            problems = [*story.audit.problems, *cluster.deaths, *cluster.logs.errors]
            cluster.end()
            nursery.cancel_scope.cancel()
        assert problems == [], f"seed {seed}: {problems[:5]}"
        return Result(
            len(story.audit.committed),
            story.drivers,
            story.faults,
            story.replays,
            scheduler.clock.now,
        )

    before, topic_sinks.STORE_ENTRIES = topic_sinks.STORE_ENTRIES, 3
    try:
        return run(main, seed=seed)
    finally:
        topic_sinks.STORE_ENTRIES = before


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    for seed in range(first, last + 1):
        print(seed, run_sinks(seed, print if first == last else None), flush=True)


if __name__ == "__main__":
    main()
